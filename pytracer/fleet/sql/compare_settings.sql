-- Which settings changed against the baseline?
--
-- scope, key      the setting
-- value, baseline_value     the values of the most files; null: not set in most files
CREATE OR REPLACE TABLE compare_settings AS
WITH new AS (
    SELECT scope, key, mode(value ORDER BY value) AS value
    FROM settings
    GROUP BY scope, key
    HAVING 2 * count(*) > (SELECT count(DISTINCT source) FROM settings)
), old AS (
    SELECT scope, key, mode(value ORDER BY value) AS value
    FROM baseline.settings
    GROUP BY scope, key
    HAVING 2 * count(*) > (SELECT count(DISTINCT source) FROM baseline.settings)
)
SELECT
    coalesce(n.scope, o.scope) AS scope,
    coalesce(n.key, o.key) AS key,
    n.value AS value,
    o.value AS baseline_value
FROM new AS n
FULL JOIN old AS o ON n.scope = o.scope AND n.key = o.key
WHERE n.value IS DISTINCT FROM o.value AND coalesce(n.scope, o.scope) <> 'metadata'
ORDER BY scope, key;
