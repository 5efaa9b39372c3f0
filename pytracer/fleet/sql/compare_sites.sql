-- Which call sites hold more or less memory than in the baseline?
--
-- Compares the medians over the ranks at their peaks, in the slot in which the median peak changed
-- most. Call sites are matched by file and function, because line numbers change.
--
-- slot            the slot that is compared
-- site            the call site with the most memory in its file and function, of the new run if it
--                 is there
-- size_bytes, baseline_bytes     the medians over the ranks at their peaks; 0: on less than half of
--                 the ranks
-- delta_bytes     the difference
CREATE OR REPLACE TABLE compare_sites AS
WITH ranks AS (
    SELECT run_of, slot, process, source, device_name, count(*) OVER (PARTITION BY run_of) AS ranks
    FROM (
        SELECT 'new' AS run_of, * FROM rank_peaks
        UNION ALL SELECT 'baseline', * FROM baseline.rank_peaks
    )
    WHERE slot = (SELECT arg_max(slot, (abs(delta_bytes), median_bytes, slot)) FROM compare_peaks)
), held AS (
    SELECT run_of, ranks, process, filename, function, site, sum(size_bytes) AS size_bytes
    FROM ranks
    JOIN (
        SELECT 'new' AS run_of, * FROM sites UNION ALL SELECT 'baseline', * FROM baseline.sites
    ) USING (run_of, source, device_name)
    WHERE moment = 'peak' AND site IS NOT NULL
    GROUP BY ALL
), by_process AS (
    SELECT
        run_of, ranks, filename, function, arg_max(site, size_bytes) AS site,
        sum(size_bytes)::BIGINT AS size_bytes
    FROM held
    GROUP BY run_of, ranks, process, filename, function
), medians AS (
    SELECT
        run_of, filename, function, arg_max(site, size_bytes) AS site,
        list_aggregate(
            list_resize(list(size_bytes), any_value(ranks), 0::BIGINT), 'median'
        )::BIGINT AS size_bytes
    FROM by_process
    GROUP BY run_of, filename, function
)
SELECT
    (SELECT any_value(slot) FROM ranks) AS slot,
    coalesce(n.site, b.site) AS site,
    coalesce(n.size_bytes, 0) AS size_bytes,
    coalesce(b.size_bytes, 0) AS baseline_bytes,
    coalesce(n.size_bytes, 0) - coalesce(b.size_bytes, 0) AS delta_bytes
FROM (FROM medians WHERE run_of = 'new') AS n
FULL JOIN (FROM medians WHERE run_of = 'baseline') AS b
    ON n.filename IS NOT DISTINCT FROM b.filename AND n.function IS NOT DISTINCT FROM b.function
WHERE coalesce(n.size_bytes, 0) <> coalesce(b.size_bytes, 0)
ORDER BY abs(delta_bytes) DESC, site;
