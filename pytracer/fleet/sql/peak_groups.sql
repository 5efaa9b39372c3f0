-- To which ranks is each rank compared?
--
-- Ranks of one slot can have several usual peaks, as the stages of a pipeline have. A group is the
-- ranks between two gaps of more than 2 % of the median, if these are at least four and a tenth of
-- all. Each rank belongs to the group with the nearest peak.
--
-- slot, step, process, rank, source, device_name, is_cpu, peak_bytes, is_certain, reserved_bytes  as in
--                 `rank_peaks`
-- slot_ranks      the number of ranks in the slot
-- slot_groups     the number of groups in the slot
-- group_number    the group, from 1, the lowest peaks first
-- group_ranks     the number of ranks in the group
-- median_bytes    the median of the group's peaks
-- mad_bytes       the median of the absolute differences to it
-- threshold_bytes  what a rank must differ by to be an outlier: six standard deviations, estimated
--                 from `mad_bytes`, and more in small groups and with many slots, so that chance
--                 names nobody; at least 2 % and 1 MiB
-- is_outlier      whether the rank differs by more, and the group has at least eight ranks
CREATE OR REPLACE TABLE peak_groups AS
WITH gaps AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY slot) AS slot_ranks,
        greatest(0.02 * median(peak_bytes) OVER (PARTITION BY slot), 1048576) AS floor_bytes,
        peak_bytes - lag(peak_bytes) OVER (PARTITION BY slot ORDER BY peak_bytes, process) AS gap
    FROM rank_peaks
), clusters AS (
    SELECT
        *,
        count(*) FILTER (gap > floor_bytes) OVER (
            PARTITION BY slot ORDER BY peak_bytes, process
        ) AS cluster
    FROM gaps
), large AS (
    SELECT slot, cluster, median(peak_bytes) AS center
    FROM clusters
    GROUP BY slot, cluster
    HAVING count(*) >= greatest(4, 0.1 * any_value(slot_ranks))
), centers AS (
    FROM large
    UNION ALL
    SELECT slot, 0, median(peak_bytes) FROM rank_peaks
    WHERE slot NOT IN (SELECT slot FROM large)
    GROUP BY slot
), numbered AS (
    SELECT
        slot, center,
        row_number() OVER (PARTITION BY slot ORDER BY center) AS group_number,
        count(*) OVER (PARTITION BY slot) AS slot_groups
    FROM centers
), assigned AS (
    SELECT gaps.* EXCLUDE (gap), slot_groups, group_number
    FROM gaps
    JOIN numbered USING (slot)
    QUALIFY row_number() OVER (
        PARTITION BY slot, process ORDER BY abs(peak_bytes - center), group_number DESC
    ) = 1
), measured AS (
    SELECT
        *,
        count(*) OVER grouped AS group_ranks,
        median(peak_bytes) OVER grouped AS median_bytes,
        mad(peak_bytes::DOUBLE) OVER grouped AS mad_bytes
    FROM assigned
    WINDOW grouped AS (PARTITION BY slot, group_number)
)
SELECT
    * EXCLUDE (floor_bytes, slots),
    outlier_threshold(mad_bytes, group_ranks, slots, floor_bytes) AS threshold_bytes,
    group_ranks >= 8 AND abs(peak_bytes - median_bytes) > threshold_bytes
    AND (is_certain OR peak_bytes > median_bytes) AS is_outlier
FROM measured
CROSS JOIN (SELECT count(DISTINCT slot) AS slots FROM rank_peaks);
