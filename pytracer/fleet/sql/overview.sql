-- What was collected?
--
-- The columns are the attributes of [`Overview`](json.md#overview).
CREATE OR REPLACE TABLE overview AS
SELECT
    count(*) AS files,
    count(error) AS damaged,
    count(DISTINCT process) FILTER (error IS NULL) AS processes,
    min(first_step) AS first_step,
    max(last_step) AS last_step,
    min(written_ns) // 1000 AS first_us,
    max(written_ns) // 1000 AS last_us,
    (SELECT count(DISTINCT source) FROM peaks WHERE is_peak_certain IS FALSE) AS uncertain
FROM processes;
