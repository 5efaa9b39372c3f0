-- Which traces of each process tell whether its memory leaks?
--
-- As `pytracer show --leaks` does: all traces with a leak, or else the trace in which the most steps were
-- observed.
--
-- process, rank   the process
-- source, device  the file, and the device in it
-- device_name     the name of the device
-- written_ns      when the file was written
-- leak_verdict    `leak`, `none` or `unknown`
CREATE OR REPLACE TABLE growth_traces AS
WITH ordered AS (
    SELECT
        p.process, p.rank, p.source, k.device, k.device_name, p.written_ns, k.leak_verdict,
        row_number() OVER (
            PARTITION BY p.process, k.device_name
            ORDER BY
                k.leak_verdict <> 'leak', k.leak_unit IS DISTINCT FROM 'step',
                k.leak_observed DESC, p.written_ns DESC
        ) AS place
    FROM devices AS k
    JOIN processes AS p USING (source)
    WHERE k.leak_verdict IS NOT NULL
)
SELECT * EXCLUDE (place) FROM ordered WHERE place = 1 OR leak_verdict = 'leak';
