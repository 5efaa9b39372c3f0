-- Which files could not be read?
--
-- source          the file
-- process, rank, step     from its name; null: unknown
-- error           why it could not be read
CREATE OR REPLACE TABLE damaged AS
SELECT source, if(rank IS NULL, NULL, process) AS process, rank, step, error
FROM processes
WHERE error IS NOT NULL
ORDER BY step NULLS LAST, rank NULLS LAST, source;
