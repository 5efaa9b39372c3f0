-- How far are the peaks of the ranks apart, and can outliers be named?
--
-- The columns are the attributes of [`Spread`](json.md#spread).
CREATE OR REPLACE TABLE spread AS
WITH judged AS (
    SELECT
        *,
        (peak_bytes - median_bytes > threshold_bytes OR median_bytes - most_bytes > threshold_bytes)
        AND group_ranks >= 8 AS is_outlier
    FROM peak_groups
)
SELECT
    j.slot,
    any_value(r.step) AS step,
    count(*) AS ranks,
    min(j.peak_bytes) AS least_bytes,
    median(j.peak_bytes)::BIGINT AS median_bytes,
    max(j.peak_bytes) AS most_bytes,
    median(r.reserved_bytes)::BIGINT AS reserved_median_bytes,
    max(r.reserved_bytes) AS reserved_most_bytes,
    any_value(slot_groups) AS groups,
    count(*) FILTER (is_outlier) AS outliers,
    CASE
        WHEN max(group_ranks) < 8 THEN 'few'
        WHEN count(*) FILTER (is_outlier) > greatest(2, 0.1 * count(*)) THEN 'scattered'
        WHEN count(*) FILTER (is_outlier) > 0 THEN 'outliers'
        ELSE 'none'
    END AS verdict
FROM judged AS j
JOIN rank_peaks AS r ON r.slot = j.slot AND r.process = j.process
GROUP BY j.slot
ORDER BY step NULLS LAST, j.slot;
