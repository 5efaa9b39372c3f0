-- Which ranks have no file, and in which steps?
--
-- A file is expected of all ranks in each slot of `expected_slots`.
--
-- rank, role      the rank; the role is empty if it has none
-- slots           the slots without a file of the rank
-- of_slots        the number of slots in which a file is expected
-- has_none        whether the rank has no file at all
-- reason          `out of memory`: the rank ran out of memory before; null: unknown
CREATE OR REPLACE TABLE missing AS
WITH expected_ranks AS (
    SELECT role, unnest(range(any_value(of_ranks))) AS rank FROM expected_slots GROUP BY role
), ended AS (
    SELECT p.role, o.rank, coalesce(min(o.step), 0) AS step
    FROM oom_order AS o
    JOIN processes AS p USING (source)
    GROUP BY p.role, o.rank
)
SELECT
    e.rank,
    e.role,
    list(s.slot ORDER BY s.step, s.slot) AS slots,
    (SELECT count(*) FROM expected_slots AS every WHERE every.role = e.role) AS of_slots,
    NOT EXISTS (FROM processes AS p WHERE p.role = e.role AND p.rank = e.rank) AS has_none,
    if(bool_and(coalesce(s.step, ended.step) >= ended.step), 'out of memory', NULL) AS reason
FROM expected_ranks AS e
JOIN expected_slots AS s USING (role)
LEFT JOIN ended ON ended.role = e.role AND ended.rank = e.rank
WHERE NOT EXISTS (
    FROM processes AS w WHERE w.role = e.role AND w.rank = e.rank AND w.slot = s.slot
)
GROUP BY e.rank, e.role
ORDER BY e.role, e.rank;
