-- What was collected?
--
-- files           the number of files
-- damaged         the number of files that could not be read
-- processes       the number of processes with a file that was read
-- first_step, last_step     the first and the last step that a file has; null without steps
-- first_us, last_us         when the first and the last file were written; null: unknown
-- uncertain       the number of files in which the highest peak may be missing
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
