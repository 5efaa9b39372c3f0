-- Which ranks ran out of memory, in which order, and why?
--
-- The same error can be in several files of a process, and is listed once.
--
-- number          1 is the first
-- process, rank, host     the process; null: unknown
-- device_name     the device
-- time_us         the time, by the clock of the host; null: unknown
-- after_s         the seconds after the first error; null: unknown
-- step, phase, site     those of the allocation that failed; null: unknown
-- requested_bytes     the size of the allocation
-- device_free_bytes, allocated_bytes, reserved_bytes     the memory at that moment
-- verdict, explanation     the first verdict of `pytracer show`, and its figures; null if a later
--                 error in the file hides it
-- source          the file
CREATE OR REPLACE TABLE oom_order AS
WITH once AS (
    SELECT
        p.process, o.device_name, o.time_us,
        any_value(p.rank) AS rank,
        any_value(p.host) AS host,
        arg_min(o, (o.verdict IS NULL, p.kind IS DISTINCT FROM 'oom', p.written_ns)) AS oom
    FROM ooms AS o
    JOIN processes AS p USING (source)
    GROUP BY p.process, p.host, p.pid, o.device_name, o.time_us,
        if(o.time_us IS NULL, o.source || o.event, '')
)
SELECT
    row_number() OVER (ORDER BY time_us NULLS LAST, rank, process) AS number,
    process, rank, host, device_name, time_us,
    (time_us - min(time_us) OVER ()) / 1e6 AS after_s,
    coalesce(oom.step, oom.file_step) AS step,
    oom.phase AS phase, oom.call_site AS site,
    oom.requested_bytes AS requested_bytes, oom.device_free_bytes AS device_free_bytes,
    oom.sample_allocated_bytes AS allocated_bytes, oom.sample_reserved_bytes AS reserved_bytes,
    oom.verdict AS verdict, oom.explanation AS explanation, oom.source AS source
FROM once
ORDER BY number;
