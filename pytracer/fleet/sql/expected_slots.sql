-- In which slots is a file of every rank expected?
--
-- In those in which at least half of the ranks have a file, readable or not. The ranks are those
-- from 0 to the highest one, or as many as the variable `ranks`. Files of out-of-memory errors and
-- files on demand are never expected.
--
-- role            the role; empty for none
-- slot, step      the slot, and its step; null: none
-- ranks           the number of ranks with a file
-- of_ranks        the number of ranks
CREATE OR REPLACE TABLE expected_slots AS
WITH known AS (
    SELECT role, greatest(max(rank) + 1, coalesce(getvariable('ranks'), 0)) AS of_ranks
    FROM processes
    WHERE rank IS NOT NULL
    GROUP BY role
)
SELECT
    role, slot,
    any_value(if(kind = 'step', step, NULL)) AS step,
    count(DISTINCT rank) AS ranks,
    any_value(of_ranks) AS of_ranks
FROM processes
JOIN known USING (role)
WHERE rank IS NOT NULL AND kind NOT IN ('oom', 'demand')
GROUP BY role, slot
HAVING 2 * count(DISTINCT rank) >= any_value(of_ranks);
