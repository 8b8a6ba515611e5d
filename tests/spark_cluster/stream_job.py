"""A driver to be killed: a stream from topic to topic, exactly once.

spark-submit stream_job.py BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import sys

from kraftpy.spark import observe, session, watch


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    spark = session()
    watch(
        spark, on_batch=lambda batch: print(f"batch {batch.number}: {batch.rows} rows, {batch.lag} behind", flush=True)
    )
    rows = (
        spark.readStream.format("kraftpy")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .option("prefetchRecords", 0)  # in tasks of the executors
        .option("minPartitions", 4)
        .load()
    )
    writer = observe(rows).select("key", "value").writeStream.format("kraftpy").queryName("moved")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": target,
        "delivery": "exactly_once",
        "checkpointLocation": checkpoint,
    }
    writer.options(**options).trigger(processingTime="500 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
