-- How did the peaks change against the baseline?
--
-- The tables of the baseline are in the schema `baseline`.
--
-- slot            a slot that both runs have
-- ranks, baseline_ranks     the number of ranks
-- median_bytes, baseline_median_bytes     the median of the peaks
-- most_bytes, baseline_most_bytes     the highest peak
-- delta_bytes     the change of the median
-- threshold_bytes     what the median must change by to count: what makes a rank an outlier in
--                 either run, at least 2 % and 1 MiB
CREATE OR REPLACE TABLE compare_peaks AS
WITH usual AS (
    SELECT slot, max(threshold_bytes) AS threshold_bytes
    FROM (FROM peak_groups UNION ALL BY NAME FROM baseline.peak_groups)
    GROUP BY slot
)
SELECT
    slot,
    n.ranks, b.ranks AS baseline_ranks,
    n.median_bytes, b.median_bytes AS baseline_median_bytes,
    n.most_bytes, b.most_bytes AS baseline_most_bytes,
    n.median_bytes - b.median_bytes AS delta_bytes,
    threshold_bytes::BIGINT AS threshold_bytes
FROM spread AS n
JOIN baseline.spread AS b USING (slot)
JOIN usual USING (slot)
ORDER BY n.step NULLS LAST, slot;
