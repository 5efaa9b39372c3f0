-- Which ranks use more or less memory than the others?
--
-- A rank that is an outlier in less than half of its slots is left out if a tenth of the ranks or
-- more are such: then the amounts vary from step to step, as with batches of different lengths.
--
-- If no slot has enough ranks for that, a rank is named that differs from the median of the others
-- by more than a tenth of it, and by more than four times the range of the others.
--
-- process, rank   the rank
-- slots           the number of slots in which it is an outlier
-- of_slots        the number of slots that it has, and in which outliers can be named
-- slot, source    the slot in which it differs most, and its file there
-- peak_bytes      its peak there
-- median_bytes    the median of its group; of less than eight ranks: of the others
-- delta_bytes     the difference
-- reference, reference_process    the file there of the rank that is nearest to the median
CREATE OR REPLACE TABLE outliers AS
WITH few AS (
    SELECT
        r.slot, 1 AS group_number, r.process,
        any_value(r.rank) AS rank,
        any_value(r.source) AS source,
        any_value(r.peak_bytes) AS peak_bytes,
        any_value(r.is_certain) AS is_certain,
        median(others.peak_bytes) AS median_bytes,
        greatest(
            0.1 * median(others.peak_bytes),
            4 * (max(others.peak_bytes) - min(others.peak_bytes)),
            1048576
        ) AS threshold_bytes
    FROM rank_peaks AS r
    JOIN rank_peaks AS others ON others.slot = r.slot AND others.process <> r.process
    WHERE NOT EXISTS (FROM spread WHERE verdict <> 'few')
    GROUP BY r.slot, r.process
    HAVING count(*) >= 2
), usable AS (
    SELECT slot, group_number, process, rank, source, peak_bytes, median_bytes, is_outlier
    FROM peak_groups
    WHERE group_ranks >= 8 AND slot IN (
        SELECT slot FROM spread WHERE verdict IN ('outliers', 'none')
    )
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (is_certain, threshold_bytes),
        abs(peak_bytes - median_bytes) > threshold_bytes
        AND (is_certain OR peak_bytes > median_bytes) AS is_outlier
    FROM few
), middle AS (
    SELECT
        slot, group_number,
        arg_min(source, (abs(peak_bytes - median_bytes), rank, process)) AS reference,
        arg_min(process, (abs(peak_bytes - median_bytes), rank, process)) AS reference_process
    FROM usable
    GROUP BY slot, group_number
), by_process AS (
    SELECT
        process, any_value(rank) AS rank,
        count(*) FILTER (is_outlier) AS slots,
        count(*) AS of_slots,
        arg_max(
            {
                slot: slot, group_number: group_number, source: source, peak_bytes: peak_bytes,
                median_bytes: median_bytes::BIGINT
            },
            (abs(peak_bytes - median_bytes), slot)
        ) FILTER (is_outlier) AS worst
    FROM usable
    GROUP BY process
)
SELECT
    process, rank, slots, of_slots, worst.slot AS slot, worst.source AS source,
    worst.peak_bytes AS peak_bytes, worst.median_bytes AS median_bytes,
    worst.peak_bytes - worst.median_bytes AS delta_bytes,
    reference, reference_process
FROM by_process
JOIN middle ON middle.slot = worst.slot AND middle.group_number = worst.group_number
WHERE 2 * slots >= of_slots
    OR (
        slots > 0 AND (
            SELECT count(*) FILTER (slots > 0 AND 2 * slots < of_slots)
                <= greatest(2, 0.1 * count(*))
            FROM by_process
        )
    )
ORDER BY abs(worst.peak_bytes - worst.median_bytes) DESC, rank, process;
