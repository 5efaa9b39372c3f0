-- Which rank had the highest peak anywhere, and in which step?
--
-- The columns are the attributes of [`Worst`](json.md#worst).
CREATE OR REPLACE TABLE worst AS
SELECT
    r.process, r.rank, r.slot, r.source, r.device_name, r.peak_bytes, r.reserved_bytes, p.total_bytes
FROM rank_peaks AS r
JOIN peaks AS p USING (source, device_name)
ORDER BY r.is_cpu, r.peak_bytes DESC, r.rank, r.slot
LIMIT 1;
