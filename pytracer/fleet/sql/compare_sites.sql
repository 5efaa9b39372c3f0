-- Which call sites hold more or less memory than in the baseline?
--
-- Compares the medians over the ranks at their peaks, in the slot in which the median peak changed
-- most. Call sites are matched by file and function, because line numbers change.
--
-- The columns are the attributes of [`FleetSiteChange`](json.md#fleetsitechange).
CREATE OR REPLACE TABLE compare_sites AS
WITH chosen AS (
    SELECT arg_max(slot, (abs(delta_bytes), median_bytes, slot)) AS slot FROM compare_peaks
), held AS (
    SELECT 'new' AS run, r.process, s.filename, s.function, s.site, sum(s.size_bytes) AS size_bytes
    FROM rank_peaks AS r JOIN chosen USING (slot) JOIN sites AS s USING (source, device_name)
    WHERE s.moment = 'peak' AND s.site IS NOT NULL
    GROUP BY ALL
    UNION ALL
    SELECT 'baseline', r.process, s.filename, s.function, s.site, sum(s.size_bytes)
    FROM baseline.rank_peaks AS r JOIN chosen USING (slot)
    JOIN baseline.sites AS s USING (source, device_name)
    WHERE s.moment = 'peak' AND s.site IS NOT NULL
    GROUP BY ALL
), ranks AS (
    SELECT 'new' AS run, count(*) AS ranks FROM rank_peaks JOIN chosen USING (slot)
    UNION ALL
    SELECT 'baseline', count(*) FROM baseline.rank_peaks JOIN chosen USING (slot)
), by_process AS (
    SELECT
        run, process, filename, function,
        arg_max(site, size_bytes) AS site,
        sum(size_bytes)::BIGINT AS size_bytes
    FROM held
    GROUP BY run, process, filename, function
), medians AS (
    SELECT
        run, filename, function,
        arg_max(site, size_bytes) AS site,
        list_aggregate(
            list_concat(
                list(size_bytes),
                list_transform(range(any_value(ranks) - count(*)), lambda number: 0::BIGINT)
            ),
            'median'
        )::BIGINT AS size_bytes
    FROM by_process JOIN ranks USING (run)
    GROUP BY run, filename, function
)
SELECT
    (SELECT slot FROM chosen) AS slot,
    coalesce(n.site, b.site) AS site,
    coalesce(n.size_bytes, 0) AS size_bytes,
    coalesce(b.size_bytes, 0) AS baseline_bytes,
    coalesce(n.size_bytes, 0) - coalesce(b.size_bytes, 0) AS delta_bytes
FROM (FROM medians WHERE run = 'new') AS n
FULL JOIN (FROM medians WHERE run = 'baseline') AS b
    ON n.filename IS NOT DISTINCT FROM b.filename AND n.function IS NOT DISTINCT FROM b.function
WHERE coalesce(n.size_bytes, 0) <> coalesce(b.size_bytes, 0)
ORDER BY abs(delta_bytes) DESC, site;
