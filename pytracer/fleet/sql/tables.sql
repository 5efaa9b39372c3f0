-- The tables that `pytracer fleet collect` wrote, of one run.
--
-- Reads the variables `dataset`, the folder, and `run`, the name of the run. The following files
-- make their tables from these.
CREATE OR REPLACE MACRO collected(name) AS TABLE
FROM read_parquet(
    concat(getvariable('dataset'), '/', name, '/*.parquet'), hive_partitioning = false
)
WHERE run IS NOT DISTINCT FROM getvariable('run');
CREATE OR REPLACE TABLE files AS FROM collected('files');
CREATE OR REPLACE TABLE devices AS FROM collected('devices');
CREATE OR REPLACE TABLE held AS FROM collected('held');
CREATE OR REPLACE TABLE ooms AS FROM collected('ooms');
CREATE OR REPLACE TABLE leaks AS FROM collected('leaks');
CREATE OR REPLACE TABLE settings AS FROM collected('settings');

-- What a rank must differ by from a median to be an outlier: six standard deviations, estimated
-- from the median of the absolute differences, more in small groups and with many places, so that
-- chance names nobody, and at least `floor_bytes`.
CREATE OR REPLACE MACRO outlier_threshold(mad_bytes, ranks, places, floor_bytes) AS greatest(
    6 * (1 + 8 / ranks) * (1 + log10(places) / 4) * 1.4826 * mad_bytes, floor_bytes
);
