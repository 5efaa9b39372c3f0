-- How high is the peak of each rank in each slot?
--
-- slot            the slot, see `processes`; with `, CPU` for files that have only the CPU, if other
--                 files have an accelerator. Files of out-of-memory errors are left out
-- step            the step of the slot; null: none
-- process, rank, source     the process, and its file with the highest peak in the slot
-- device_name     of that file, the device with the highest peak; the CPU only if it has no other
-- is_cpu          whether that is the CPU
-- peak_bytes      the peak of allocated memory: at least this
-- is_certain      whether the peak is exactly this, or of a file of one phase
-- reserved_bytes  the peak of reserved memory
CREATE OR REPLACE TABLE rank_peaks AS
WITH ordered AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY source
            ORDER BY is_cpu IS TRUE, peak_allocated_bytes DESC, device
        ) AS place
    FROM devices
    WHERE peak_allocated_bytes IS NOT NULL
)
SELECT
    if(d.is_cpu IS TRUE AND (SELECT bool_or(NOT is_cpu) FROM ordered), p.slot || ', CPU', p.slot)
    AS slot,
    any_value(if(p.kind IN ('step', 'demand'), p.step, NULL)) AS step,
    p.process,
    any_value(p.rank) AS rank,
    arg_max(p.source, d.peak_allocated_bytes) AS source,
    arg_max(d.device_name, d.peak_allocated_bytes) AS device_name,
    d.is_cpu IS TRUE AS is_cpu,
    max(d.peak_allocated_bytes) AS peak_bytes,
    arg_max(d.is_peak_certain IS NOT FALSE OR d.only_phase IS NOT NULL, d.peak_allocated_bytes)
    AS is_certain,
    max(d.peak_reserved_bytes) AS reserved_bytes
FROM ordered AS d
JOIN processes AS p USING (source)
WHERE d.place = 1 AND p.kind IS DISTINCT FROM 'oom'
GROUP BY p.slot, p.process, d.is_cpu IS TRUE;
