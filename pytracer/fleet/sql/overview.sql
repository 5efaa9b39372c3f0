-- What was collected?
--
-- files           the number of files
-- processes       the number of processes with a file that was read
-- first_step, last_step     the first and the last step that a file has; null without steps
-- last_us         when the last file was written; null: unknown
-- uncertain       the number of files in which the highest peak may be missing
-- traced_ranks, stepped_ranks     the number of ranks on which growth could have been seen: in the trace of
--                 one file, and in the files of at least four steps
CREATE OR REPLACE TABLE overview AS
SELECT
    count(*) AS files,
    count(DISTINCT process) FILTER (error IS NULL) AS processes,
    min(first_step) AS first_step,
    max(last_step) AS last_step,
    max(written_ns) // 1000 AS last_us,
    (SELECT count(DISTINCT source) FROM devices WHERE is_peak_certain IS FALSE) AS uncertain,
    (
        SELECT count(DISTINCT process) FROM growth_traces WHERE leak_verdict IN ('leak', 'none')
    ) AS traced_ranks,
    (
        SELECT count(*) FROM (
            SELECT process FROM processes
            WHERE error IS NULL AND kind IN ('step', 'demand') AND file_phase = ''
            GROUP BY process HAVING count(DISTINCT step) >= 4
        )
    ) AS stepped_ranks
FROM processes;
