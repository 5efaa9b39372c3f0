-- How far are the peaks of the ranks apart, and can outliers be named?
--
-- slot            the slot
-- step            its step; null: none
-- ranks           the number of ranks
-- least_bytes     the lowest peak
-- median_bytes    the median
-- most_bytes      the highest peak
-- reserved_median_bytes, reserved_most_bytes      the same for reserved memory
-- groups          the number of groups, see `peak_groups`
-- outliers        the number of ranks that differ from their group by more than the threshold
-- verdict         `outliers`, `none`, `few` (less than eight ranks in each group: outliers cannot
--                 be told) or `scattered` (more than a tenth of the ranks differ)
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
