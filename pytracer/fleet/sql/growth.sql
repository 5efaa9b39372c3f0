-- At which call sites does memory grow from step to step, and on which ranks?
--
-- A growth in the trace of one file is what `pytracer show --leaks` found there; a growth in several files
-- is from `growth_in_files`. A call site that has both is listed with its traces only.
--
-- site            the call site; null: unknown
-- evidence        `trace`: `pytracer show --leaks` found it in single files; `files`: it is seen
--                 when the ends of files are compared
-- verdict         `leak`: `pytracer show --leaks` is certain; `grows`: it grew from file to file,
--                 for ever or not; `unknown`: it may be chance
-- extent          `all`: at least nine of ten of the ranks that were observed; else `some`
-- ranks, of_ranks     the number of ranks on which it grows, and that were observed
-- bytes_per_step  the median of the growth over these ranks
-- unit            what `bytes_per_step` is per: `step`, `second` or `slice`
-- held_bytes      the most memory of the call site at the end of a file
-- first_step      the first step with a growth; null: unknown
-- processes       these ranks, the fastest first, at most 20
-- faster          of many ranks, those on which it grows much faster, at most 20
-- first_source    with `files`: the first file of the rank on which it grows fastest
-- source          the last file of this rank
CREATE OR REPLACE TABLE growth AS
WITH traced AS (  -- of several traces with a leak of a call site, the last one
    SELECT l.*, t.process
    FROM leaks AS l
    JOIN growth_traces AS t USING (source, device)
    WHERE l.verdict = 'leak'
    QUALIFY rank() OVER (
        PARTITION BY t.process, t.device_name, l.site ORDER BY t.written_ns DESC, source
    ) = 1
), found AS (
    SELECT
        site, 'trace' AS evidence, process, any_value(rank) AS rank, 'leak' AS verdict,
        sum(bytes_per_step) AS bytes_per_step, any_value(unit) AS unit,
        sum(held_bytes)::BIGINT AS held_bytes, min(first_step) AS first_step,
        NULL AS first_source, any_value(source) AS source
    FROM traced
    GROUP BY site, process
    UNION ALL
    SELECT
        site, 'files', process, rank, if(is_certain, 'leak', 'unknown'), bytes_per_step, 'step',
        end_bytes, first_step, first_source, source
    FROM growth_in_files
), compared AS (
    SELECT
        *,
        median(bytes_per_step) OVER of_site AS usual,
        mad(bytes_per_step) OVER of_site AS mad_per_step,
        count(*) OVER of_site AS ranks
    FROM found
    WINDOW of_site AS (PARTITION BY site, evidence)
), by_site AS (
    SELECT
        site, evidence,
        any_value(if(evidence = 'trace', traced_ranks, stepped_ranks)) AS of_ranks,
        any_value(ranks) AS ranks,
        bool_or(verdict = 'leak') AS is_certain,
        any_value(usual) AS bytes_per_step, any_value(unit) AS unit,
        max(held_bytes) AS held_bytes, min(first_step) AS first_step,
        list(process ORDER BY bytes_per_step DESC, rank, process)[:20] AS processes,
        list(process ORDER BY bytes_per_step DESC, rank, process) FILTER (
            ranks >= 8 AND bytes_per_step - usual > greatest(9 * mad_per_step, 0.5 * usual)
        )[:20] AS faster,
        arg_max(first_source, bytes_per_step) AS first_source,
        arg_max(source, bytes_per_step) AS source
    FROM compared CROSS JOIN (SELECT traced_ranks, stepped_ranks FROM overview)
    GROUP BY site, evidence
)
SELECT
    site, evidence,
    CASE
        WHEN NOT is_certain AND ranks < greatest(8, 0.9 * of_ranks) THEN 'unknown'
        WHEN evidence = 'files' THEN 'grows'
        ELSE 'leak'
    END AS verdict,
    if(ranks > 1 AND ranks >= 0.9 * of_ranks, 'all', 'some') AS extent,
    ranks, of_ranks, bytes_per_step, unit, held_bytes, first_step, processes,
    coalesce(faster, []) AS faster,
    first_source, source
FROM by_site AS s
WHERE evidence = 'trace' OR NOT EXISTS (
    FROM by_site AS t WHERE t.evidence = 'trace' AND t.site IS NOT DISTINCT FROM s.site
)
ORDER BY verdict = 'unknown', extent, held_bytes DESC, site;
