"""A client of Spark Connect: batches, a stream and what `watch` tells of it, all logged in by SASL_SSL.

    python connect_job.py REMOTE OPTIONS SOURCE TARGET CHECKPOINT ROWS

OPTIONS is a file with the source's and the sink's options, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from kraftpy.spark import register, watch


def main(remote: str, options_file: str, source: str, target: str, checkpoint: str, rows: str) -> None:
    options = json.loads(Path(options_file).read_text())
    spark = register(SparkSession.builder.remote(remote).getOrCreate())
    numbers = list(range(int(rows)))

    def values(topic: str) -> list[int]:
        read = (
            spark.read.format("kraftpy").options(**options, subscribe=topic).option("isolation.level", "read_committed")
        )
        return sorted(int(row.value) for row in read.load().selectExpr("cast(value as string) as value").collect())

    written = spark.range(len(numbers)).selectExpr("cast(id as string) as value")
    written.write.format("kraftpy").options(**options, topic=source).mode("append").save()
    assert values(source) == numbers
    print(f"wrote and read {len(numbers)} rows", flush=True)

    watched = watch(spark)
    reader = spark.readStream.format("kraftpy").options(**options, subscribe=source, startingOffsets="earliest")
    stream = reader.option("maxOffsetsPerTrigger", len(numbers) // 3).load().select("key", "value")
    writer = stream.writeStream.format("kraftpy").options(**options, topic=target, delivery="exactly_once")
    query = writer.queryName("moved").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert values(target) == numbers
    deadline = time.monotonic() + 60
    while sum(batch.rows or 0 for batch in watched.batches("moved")) < len(numbers) and time.monotonic() < deadline:
        time.sleep(0.2)
    told = [(batch.number, batch.rows, batch.lag) for batch in watched.batches("moved")]
    print(f"moved them exactly once: {told}", flush=True)
    assert sum(rows or 0 for _, rows, _ in told) == len(numbers)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
