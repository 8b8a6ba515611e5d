-- Events per ten minutes and place. The watermark decides when a window can get no more events; then it is counted, once.
CREATE STREAMING TABLE counts AS
SELECT window.start AS start, window.end AS end, place, count(*) AS n, sum(amount) AS amount
FROM STREAM silver WATERMARK at DELAY OF INTERVAL 10 MINUTES
GROUP BY window(at, '10 minutes'), place;
