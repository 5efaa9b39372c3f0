-- On how many ranks could growth have been seen?
--
-- evidence        `trace`: in the trace of one file; `files`: in the files of at least four steps
-- of_ranks        the number of ranks
CREATE OR REPLACE TABLE growth_observed AS
SELECT 'trace' AS evidence, count(DISTINCT process) AS of_ranks
FROM growth_traces
WHERE leak_verdict IN ('leak', 'none')
UNION ALL
SELECT 'files', count(*)
FROM (
    SELECT process
    FROM processes
    WHERE error IS NULL AND step IS NOT NULL AND kind IN ('step', 'demand') AND file_phase = ''
    GROUP BY process
    HAVING count(DISTINCT step) >= 4
);
