-- At which call sites does memory grow at the ends of the steps, from file to file?
--
-- For processes with a file of at least four steps, whose memory of a call site at the ends of these
-- files never falls, grows in most of them, and follows a line.
--
-- process, rank   the process
-- site            the call site
-- files           the number of steps with a file
-- growths         how often the memory grew from one file to the next
-- first_step, last_step     the first and the last step with a file
-- bytes_per_step  the median growth per step (Theil-Sen)
-- begin_bytes, end_bytes    the memory of the call site in the first and in the last of these files
-- first_source, source      the first and the last of these files
-- is_certain      whether such a growth is improbable by chance, with as many call sites whose
--                 memory changes
CREATE OR REPLACE TABLE growth_in_files AS
WITH newest AS (  -- of several files of a step, the last one
    SELECT
        r.process, r.step, any_value(r.rank) AS rank, max(r.peak_bytes) AS peak_bytes,
        arg_max(r.source, p.written_ns) AS source, arg_max(r.device_name, p.written_ns) AS device_name
    FROM rank_peaks AS r
    JOIN processes AS p USING (source)
    WHERE r.step IS NOT NULL AND p.file_phase = ''
    GROUP BY r.process, r.step
), numbered AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY process) AS files,
        row_number() OVER (PARTITION BY process ORDER BY step) AS place
    FROM newest
), sizes AS (
    SELECT process, place, name AS site, size_bytes
    FROM held
    JOIN numbered USING (source, device_name)
    WHERE moment = 'end' AND "by" = 'line' AND name IS NOT NULL AND files >= 4
), points AS (  -- memory without a row counts as none
    SELECT
        n.*, site, coalesce(size_bytes, 0) AS size_bytes,
        coalesce(size_bytes, 0) - lag(coalesce(size_bytes, 0)) OVER (
            PARTITION BY process, site ORDER BY place
        ) AS more
    FROM (SELECT DISTINCT process, site FROM sizes)
    JOIN numbered AS n USING (process)
    LEFT JOIN sizes USING (process, place, site)
), rising AS (
    SELECT
        process, site,
        any_value(rank) AS rank,
        any_value(files) AS files,
        count(*) FILTER (more > 0) AS growths,
        min(step) AS first_step, max(step) AS last_step,
        arg_min(size_bytes, place) AS begin_bytes, arg_max(size_bytes, place) AS end_bytes,
        arg_min(source, place) AS first_source, arg_max(source, place) AS source
    FROM points
    GROUP BY process, site
    HAVING min(more) >= 0 AND growths >= greatest(3, 0.6 * (any_value(files) - 1))
        AND end_bytes - begin_bytes > 0.001 * max(peak_bytes)
), slopes AS (
    SELECT process, site, median((b.size_bytes - a.size_bytes) / (b.step - a.step)) AS bytes_per_step
    FROM points AS a
    JOIN points AS b USING (process, site)
    JOIN rising USING (process, site)
    WHERE a.place < b.place
    GROUP BY process, site
), fitted AS (
    SELECT
        process, site, bytes_per_step,
        max(size_bytes - bytes_per_step * step) - min(size_bytes - bytes_per_step * step) AS deviation
    FROM points
    JOIN slopes USING (process, site)
    GROUP BY process, site, bytes_per_step
), tests AS (
    SELECT count(*) AS count
    FROM (FROM sizes SELECT 1 GROUP BY process, site HAVING min(size_bytes) < max(size_bytes))
)
SELECT
    rising.*, bytes_per_step,
    (SELECT count FROM tests) * 0.05 / factorial(least(files, 20)::INTEGER) < 0.01 AS is_certain
FROM rising
JOIN fitted USING (process, site)
WHERE deviation <= 1.5 * bytes_per_step * (last_step - first_step) / (files - 1)
ORDER BY process, site;
