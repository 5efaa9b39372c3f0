-- Which rank had the highest peak anywhere, and in which step?
--
-- process, rank, slot, source, device_name     where the peak was
-- peak_bytes, reserved_bytes     the peaks of allocated and of reserved memory in this file
-- total_bytes     the device's memory; null: unknown
CREATE OR REPLACE TABLE worst AS
SELECT
    r.process, r.rank, r.slot, r.source, r.device_name, r.peak_bytes, r.reserved_bytes, p.total_bytes
FROM rank_peaks AS r
JOIN peaks AS p USING (source, device_name)
ORDER BY r.is_cpu, r.peak_bytes DESC, r.rank, r.slot
LIMIT 1;
