-- Which trace of each process tells whether its memory leaks?
--
-- As `pytracer leaks` does, a trace with a leak, and of these the one in which the most steps were
-- observed.
--
-- process, rank   the process
-- source, device  the file, and the device in it
-- leak_verdict    `leak`, `none` or `unknown`
CREATE OR REPLACE TABLE growth_traces AS
WITH ordered AS (
    SELECT
        p.process, p.rank, p.source, k.device, k.leak_verdict,
        row_number() OVER (
            PARTITION BY p.process, k.device_name
            ORDER BY
                k.leak_verdict <> 'leak', k.leak_unit IS DISTINCT FROM 'step',
                k.leak_observed DESC, p.written_ns DESC
        ) AS place
    FROM peaks AS k
    JOIN processes AS p USING (source)
    WHERE k.leak_verdict IS NOT NULL
)
SELECT * EXCLUDE (place) FROM ordered WHERE place = 1;
