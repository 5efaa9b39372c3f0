-- Which process wrote each file, and which files can be compared with each other?
--
-- source          the file
-- rank            the rank; null: unknown
-- process         the process as text: its role, if it has one, with its rank, or host and process id,
--                 or host and file
-- role, host, pid, kind, written_ns, error     as in the table `files`
-- file_phase      the phase of a file with the events of one phase; empty for others
-- step            the step of the file
-- first_step, last_step     the steps of the file's window, or its step
-- slot            the files of a slot can be compared: those of one role, kind, step and phase
CREATE OR REPLACE TABLE processes AS
WITH known AS (  -- the name of a damaged file has no role
    SELECT * REPLACE (
        CASE
            WHEN role IS NOT NULL OR error IS NULL OR rank IS NULL THEN role
            ELSE (SELECT if(count(DISTINCT role) = 1, any_value(role), NULL) FROM files)
        END AS role
    )
    FROM files
)
SELECT
    source, rank,
    concat_ws(
        ' ',
        nullif(role, ''),
        CASE
            WHEN rank IS NOT NULL THEN 'rank ' || rank
            ELSE concat_ws(', ', coalesce(host, 'unknown host'), coalesce('pid ' || pid, source))
        END
    ) AS process,
    coalesce(role, '') AS role, host, pid, kind, coalesce(window_phase, '') AS file_phase,
    file_step AS step, coalesce(first_step, file_step) AS first_step,
    coalesce(last_step, file_step) AS last_step,
    written_ns, error,
    concat_ws(
        ' ',
        nullif(role, ''),
        CASE
            WHEN kind IN ('step', 'demand') THEN concat_ws(' ', nullif(kind, 'step'), 'step ' || file_step)
            WHEN kind = 'oom' THEN 'out of memory'
            ELSE 'end'
        END,
        nullif(window_phase, '')
    ) AS slot
FROM known;
