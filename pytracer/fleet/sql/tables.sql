-- The tables that `pytracer fleet collect` wrote, of one run.
--
-- Reads the variables `dataset`, the folder, and `run`, the name of the run. The following files
-- make their tables from these.
CREATE OR REPLACE TABLE files AS
FROM read_parquet(getvariable('dataset') || '/files/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE peaks AS
FROM read_parquet(getvariable('dataset') || '/peaks/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE sites AS
FROM read_parquet(getvariable('dataset') || '/sites/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE phases AS
FROM read_parquet(getvariable('dataset') || '/phases/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE ooms AS
FROM read_parquet(getvariable('dataset') || '/ooms/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE leaks AS
FROM read_parquet(getvariable('dataset') || '/leaks/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE settings AS
FROM read_parquet(getvariable('dataset') || '/settings/*/*/*.parquet', hive_partitioning = false)
WHERE run IS NOT DISTINCT FROM getvariable('run');
