-- By which call sites does an outlier differ from the median rank?
--
-- Both are compared at their own peaks, in the slot in which the outlier differs most.
--
-- process         the outlier
-- site            the call site; null: blocks without a stack, and call sites without a row
-- callers, phase, category     those of the largest part of this memory; null: unknown
-- size_bytes, reference_bytes     the bytes of the outlier and of the median rank
-- delta_bytes     the difference, in the direction in which the outlier differs
-- share           the difference as a share of the outlier's whole difference
CREATE OR REPLACE TABLE outlier_sites AS
WITH chosen AS (
    SELECT source, any_value(device_name) AS device_name FROM rank_peaks GROUP BY source
), held AS (
    SELECT
        source, if(is_others, NULL, site) AS site,
        sum(size_bytes)::BIGINT AS size_bytes,
        arg_max(callers, size_bytes) AS callers,
        arg_max(phase, size_bytes) AS phase,
        arg_max(category, size_bytes) AS category
    FROM sites
    JOIN chosen USING (source, device_name)
    WHERE moment = 'peak' AND source IN (
        SELECT source FROM outliers UNION SELECT reference FROM outliers
    )
    GROUP BY ALL
), pairs AS (
    SELECT o.process, o.delta_bytes AS whole, h.*, h.size_bytes AS bytes, 0 AS other_bytes
    FROM outliers AS o JOIN held AS h ON h.source = o.source
    UNION ALL
    SELECT o.process, o.delta_bytes, h.*, 0, h.size_bytes
    FROM outliers AS o JOIN held AS h ON h.source = o.reference
)
SELECT
    process, site,
    arg_max(callers, size_bytes) AS callers,
    arg_max(phase, size_bytes) AS phase,
    arg_max(category, size_bytes) AS category,
    sum(bytes)::BIGINT AS size_bytes,
    sum(other_bytes)::BIGINT AS reference_bytes,
    (sum(bytes) - sum(other_bytes))::BIGINT AS delta_bytes,
    round((sum(bytes) - sum(other_bytes)) / any_value(whole), 3) AS share
FROM pairs
GROUP BY process, site
HAVING sum(bytes) <> sum(other_bytes) AND sign(sum(bytes) - sum(other_bytes)) = sign(any_value(whole))
ORDER BY process, abs(sum(bytes) - sum(other_bytes)) DESC, site;
