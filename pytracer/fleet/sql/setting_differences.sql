-- Which settings differ between ranks?
--
-- The option `metadata`, which may differ on purpose, is left out.
--
-- scope, key      the setting, as in the table `settings`
-- value           the value; null: not set
-- ranks, of_ranks     the number of ranks with this value, and with known settings
-- is_usual        whether this is the value of more than half of the ranks
-- processes       the ranks with the value, at most 20; none for the usual value
-- source          a file with the value
CREATE OR REPLACE TABLE setting_differences AS
WITH latest AS (
    SELECT
        process, any_value(rank) AS rank,
        arg_max(source, (coalesce(written_ns, 0), source)) AS source
    FROM processes
    WHERE source IN (SELECT source FROM settings)
    GROUP BY process
), keys AS (
    SELECT scope, key
    FROM settings JOIN latest USING (source)
    WHERE scope <> 'metadata'
    GROUP BY scope, key
    HAVING count(DISTINCT value) > 1 OR count(DISTINCT source) < (SELECT count(*) FROM latest)
), given AS (
    SELECT k.scope, k.key, l.process, l.rank, l.source, s.value
    FROM keys AS k
    CROSS JOIN latest AS l
    LEFT JOIN settings AS s ON s.source = l.source AND s.scope = k.scope AND s.key = k.key
), counted AS (
    SELECT
        scope, key, value,
        count(*) AS ranks,
        list(process ORDER BY rank, process)[:20] AS processes,
        arg_min(source, (rank, process)) AS source
    FROM given
    GROUP BY scope, key, value
)
SELECT
    scope, key, value, ranks, of_ranks,
    2 * ranks > of_ranks AS is_usual,
    if(2 * ranks > of_ranks, [], processes) AS processes,
    source
FROM counted CROSS JOIN (SELECT count(*) AS of_ranks FROM latest)
ORDER BY scope, key, ranks DESC, value;
