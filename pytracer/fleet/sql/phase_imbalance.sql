-- In which phases do the ranks differ?
--
-- For each phase, the slot in which its highest peak is furthest above the median.
--
-- phase           the phase; empty for no phase
-- slot            the slot
-- ranks           the number of ranks that were in the phase
-- median_bytes, most_bytes     the median of the ranks' peaks in the phase, and the highest
-- imbalance       `most_bytes` as a multiple of `median_bytes`
-- process, rank   the rank with the highest peak, if it is an outlier; else null: the ranks are too
--                 few, too many differ, or the difference is usual
CREATE OR REPLACE TABLE phase_imbalance AS
WITH ranks AS (
    SELECT r.slot, h.phase, r.process, r.rank, h.peak_bytes
    FROM rank_peaks AS r
    JOIN phases AS h USING (source, device_name)
    WHERE h.phase IS NOT NULL AND h.peak_bytes IS NOT NULL
), measured AS (
    SELECT
        *,
        median(peak_bytes) OVER grouped AS median_bytes,
        mad(peak_bytes::DOUBLE) OVER grouped AS mad_bytes,
        count(*) OVER grouped AS ranks
    FROM ranks
    WINDOW grouped AS (PARTITION BY slot, phase)
), judged AS (
    SELECT
        *,
        peak_bytes - median_bytes > outlier_threshold(
            mad_bytes, ranks, places, greatest(0.02 * median_bytes, 1048576)
        ) AS is_outlier
    FROM measured
    CROSS JOIN (SELECT count(DISTINCT (slot, phase)) AS places FROM ranks)
), slots AS (
    SELECT
        phase, slot,
        any_value(ranks) AS ranks,
        any_value(median_bytes)::BIGINT AS median_bytes,
        max(peak_bytes) AS most_bytes,
        any_value(ranks) >= 8
        AND count(*) FILTER (is_outlier) BETWEEN 1 AND greatest(2, 0.1 * any_value(ranks)) AS names,
        arg_max(process, peak_bytes) AS process,
        arg_max(rank, peak_bytes) AS rank
    FROM judged
    GROUP BY phase, slot
    HAVING count(*) > 1
), ordered AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY phase ORDER BY most_bytes - median_bytes DESC, slot) AS place
    FROM slots
)
SELECT
    phase, slot, ranks, median_bytes, most_bytes,
    round(most_bytes / median_bytes, 3) AS imbalance,
    if(names, process, NULL) AS process,
    if(names, rank, NULL) AS rank
FROM ordered
WHERE place = 1 AND median_bytes > 0
ORDER BY most_bytes - median_bytes DESC, phase;
