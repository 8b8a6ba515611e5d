-- Delays per hour and airport, in minutes. An hour is counted, once, when it can get no more events.
-- Cancelled flights have no delay: `departed` counts those that have one. Late means 15 minutes or more.
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
