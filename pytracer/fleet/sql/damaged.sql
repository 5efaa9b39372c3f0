-- Which files could not be read?
--
-- The columns are the attributes of [`DamagedFile`](json.md#damagedfile).
CREATE OR REPLACE TABLE damaged AS
SELECT source, if(rank IS NULL, NULL, process) AS process, rank, step, error
FROM processes
WHERE error IS NOT NULL
ORDER BY step NULLS LAST, rank NULLS LAST, source;
