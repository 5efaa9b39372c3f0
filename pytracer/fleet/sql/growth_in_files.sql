-- At which call sites does memory grow at the ends of the steps, from file to file?
--
-- For processes with a file of at least four steps, whose memory of a call site at the ends of these
-- files never falls, grows in most of them, and follows a line.
--
-- process, rank   the process
-- site            the call site
-- files           the number of steps with a file
-- growths         how often the memory grew from one file to the next
-- first_step, last_step     the first and the last of these steps
-- bytes_per_step  the median growth per step (Theil-Sen)
-- begin_bytes, end_bytes    the memory of the call site in the first and in the last of these files
-- first_source, source      the first and the last of these files
-- is_certain      whether such a growth is improbable by chance, with as many call sites whose
--                 memory changes
CREATE OR REPLACE TABLE growth_in_files AS
WITH files_of_steps AS (
    SELECT process, step, any_value(rank) AS rank, arg_max(source, written_ns) AS source
    FROM processes
    WHERE error IS NULL AND step IS NOT NULL AND kind IN ('step', 'demand') AND file_phase = ''
    GROUP BY process, step
), numbered AS (
    SELECT
        f.*, r.device_name, r.peak_bytes,
        count(*) OVER (PARTITION BY process) AS files,
        row_number() OVER (PARTITION BY process ORDER BY step) AS place
    FROM files_of_steps AS f
    JOIN (SELECT process, source, device_name, peak_bytes FROM rank_peaks) AS r
        USING (process, source)
), held AS (
    SELECT process, place, site, sum(size_bytes)::BIGINT AS size_bytes
    FROM sites
    JOIN numbered USING (source, device_name)
    WHERE moment = 'end' AND site IS NOT NULL AND files >= 4
    GROUP BY process, place, site
), growing AS (  -- those that hold more at the last file; memory without a row counts as none
    SELECT process, site
    FROM held JOIN numbered USING (process, place)
    GROUP BY process, site
    HAVING coalesce(max(size_bytes) FILTER (place = files), 0)
        - coalesce(max(size_bytes) FILTER (place = 1), 0) > 0.001 * max(peak_bytes)
), points AS (
    SELECT n.process, g.site, n.place, n.step, coalesce(h.size_bytes, 0) AS size_bytes
    FROM growing AS g
    JOIN numbered AS n USING (process)
    LEFT JOIN held AS h ON h.process = n.process AND h.place = n.place AND h.site = g.site
), changes AS (
    SELECT *, size_bytes - lag(size_bytes) OVER (PARTITION BY process, site ORDER BY place) AS more
    FROM points
), rising AS (
    SELECT process, site, count(*) FILTER (more > 0) AS growths
    FROM changes
    GROUP BY process, site
    HAVING min(more) >= 0 AND count(*) FILTER (more > 0) >= greatest(3, 0.6 * (count(*) - 1))
), slopes AS (
    SELECT process, site, median((b.size_bytes - a.size_bytes) / (b.step - a.step)) AS slope
    FROM rising
    JOIN points AS a USING (process, site)
    JOIN points AS b USING (process, site)
    WHERE a.place < b.place
    GROUP BY process, site
), fitted AS (
    SELECT
        process, site, any_value(slope) AS slope,
        max(size_bytes - slope * step) - min(size_bytes - slope * step) AS deviation
    FROM points JOIN slopes USING (process, site)
    GROUP BY process, site
), tests AS (
    SELECT count(*) AS count FROM (
        SELECT process, site FROM held
        GROUP BY process, site
        HAVING min(size_bytes) < max(size_bytes)
    )
)
SELECT
    f.process, any_value(n.rank) AS rank, f.site,
    any_value(n.files) AS files, any_value(r.growths) AS growths,
    min(n.step) AS first_step, max(n.step) AS last_step,
    any_value(f.slope) AS bytes_per_step,
    arg_min(p.size_bytes, p.place) AS begin_bytes,
    arg_max(p.size_bytes, p.place) AS end_bytes,
    arg_min(n.source, n.place) AS first_source,
    arg_max(n.source, n.place) AS source,
    (SELECT count FROM tests) * 0.05 / factorial(least(any_value(n.files), 20)::INTEGER) < 0.01
    AS is_certain
FROM fitted AS f
JOIN rising AS r USING (process, site)
JOIN points AS p USING (process, site)
JOIN numbered AS n ON n.process = f.process AND n.place = p.place
WHERE f.slope > 0 AND f.deviation <= 1.5 * f.slope * (
    SELECT max(step) - min(step) FROM numbered AS other WHERE other.process = f.process
) / (n.files - 1)
GROUP BY f.process, f.site
ORDER BY f.process, f.site;
