-- By which call sites does an outlier differ from the median rank?
--
-- Both are compared at their own peaks, in the slot in which the outlier differs most.
--
-- process         the outlier
-- site            the call site; null: blocks without a stack, and call sites without a row
-- size_bytes, reference_bytes     the bytes of the outlier and of the median rank
-- delta_bytes     the difference, in the direction in which the outlier differs
-- share           the difference as a share of the outlier's whole difference
CREATE OR REPLACE TABLE outlier_sites AS
WITH chosen AS (
    SELECT source, any_value(device_name) AS device_name FROM rank_peaks GROUP BY source
), at_peak AS (
    SELECT source, name AS site, size_bytes
    FROM held
    JOIN chosen USING (source, device_name)
    WHERE moment = 'peak' AND "by" = 'line'
), pairs AS (
    SELECT o.process, o.delta_bytes AS whole, site, size_bytes AS bytes, 0 AS other_bytes
    FROM outliers AS o JOIN at_peak AS h ON h.source = o.source
    UNION ALL
    SELECT o.process, o.delta_bytes, site, 0, size_bytes
    FROM outliers AS o JOIN at_peak AS h ON h.source = o.reference
)
SELECT
    process, site,
    sum(bytes)::BIGINT AS size_bytes,
    sum(other_bytes)::BIGINT AS reference_bytes,
    (sum(bytes) - sum(other_bytes))::BIGINT AS delta_bytes,
    round((sum(bytes) - sum(other_bytes)) / any_value(whole), 3) AS share
FROM pairs
GROUP BY process, site
HAVING sum(bytes) <> sum(other_bytes) AND sign(sum(bytes) - sum(other_bytes)) = sign(any_value(whole))
ORDER BY process, abs(sum(bytes) - sum(other_bytes)) DESC, site;
