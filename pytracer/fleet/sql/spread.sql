-- How far are the peaks of the ranks apart, and can outliers be named?
--
-- slot, step      the slot: the files of one kind, step and phase; and its step; null: none
-- ranks           the number of ranks
-- least_bytes, median_bytes, most_bytes        the lowest peak, the median, and the highest peak
-- groups          the number of groups of ranks with usual peaks, such as the stages of a pipeline
-- outliers        the number of ranks that differ from their group
-- verdict         `outliers`; `none`; `few`: less than eight ranks can be compared; `scattered`:
--                 more than a tenth of the ranks differ
CREATE OR REPLACE TABLE spread AS
SELECT
    slot,
    any_value(step) AS step,
    count(*) AS ranks,
    min(peak_bytes) AS least_bytes,
    median(peak_bytes)::BIGINT AS median_bytes,
    max(peak_bytes) AS most_bytes,
    any_value(slot_groups) AS groups,
    count(*) FILTER (is_outlier) AS outliers,
    CASE
        WHEN max(group_ranks) < 8 THEN 'few'
        WHEN count(*) FILTER (is_outlier) > greatest(2, 0.1 * count(*)) THEN 'scattered'
        WHEN count(*) FILTER (is_outlier) > 0 THEN 'outliers'
        ELSE 'none'
    END AS verdict
FROM peak_groups
GROUP BY slot
ORDER BY step NULLS LAST, slot;
