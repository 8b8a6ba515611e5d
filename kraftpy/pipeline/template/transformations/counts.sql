-- Events of each ten minutes and place. A window is counted once no event of it can come any more: the watermark.
CREATE STREAMING TABLE counts AS
SELECT window.start AS start, window.end AS end, place, count(*) AS n, sum(amount) AS amount
FROM STREAM silver WATERMARK at DELAY OF INTERVAL 10 MINUTES
GROUP BY window(at, '10 minutes'), place;
