-- The delays of each hour and airport, in minutes. An hour is counted once no event of it can come any more.
-- Cancelled flights have no delay: `departed` are those that have one. Late is 15 minutes or more.
CREATE STREAMING TABLE counts AS
SELECT
  window.start AS start,
  window.end AS end,
  origin,
  count(*) AS flights,
  count(dep_delay) AS departed,
  count_if(dep_delay >= 15) AS late,
  coalesce(sum(dep_delay), 0) AS delay
FROM STREAM silver WATERMARK `timestamp` DELAY OF INTERVAL 1 HOUR
GROUP BY window(`timestamp`, '1 hour'), origin;
