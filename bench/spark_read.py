"""The speed at which Spark reads a topic through `format("kraftpy")`: rows and megabytes of values per second.

Records of 100 random bytes without keys, in four partitions, are read by `local[2]` into Spark's `noop` sink: all seven
columns, and the value alone (`.schema("value binary")`). The first read of each does not count, because it starts the
Python workers. One MB is 10^6 bytes of values.

    python -m bench.spark_read [--bootstrap HOST:PORT] [--records N] [--runs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import uuid
from typing import Any

PARTITIONS = 4
VALUE_BYTES = 100
COLUMNS = {"all seven columns": None, "value only": "value binary"}


def load(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    size: int = VALUE_BYTES,
    partitions: int = PARTITIONS,
    replicas: int = 1,
) -> None:
    """Create the topic and fill it with records of `size` bytes. Raises RuntimeError if one is not delivered."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=replicas)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": 1_000_000,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
        }
    )
    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    random = os.urandom(size * 10_000)
    for index in range(records):
        start = index % 10_000 * size
        value = random[start : start + size]
        while True:
            try:
                producer.produce(topic, value, partition=index % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if index % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)
    if failed:
        raise RuntimeError(f"{len(failed)} records were not delivered: {failed[0]}")


def read_once(spark: Any, bootstrap: str, topic: str, schema: str | None) -> float:
    """Return the seconds of one read of the whole topic."""
    reader = spark.read.format("kraftpy").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    if schema is not None:
        reader = reader.schema(schema)
    started = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def run(bootstrap: str, *, records: int = 5_000_000, runs: int = 5) -> list[dict[str, Any]]:
    """Fill a new topic and read it; return one row of figures for each set of columns."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    topic = f"bench-spark-{uuid.uuid4().hex[:8]}"
    load(bootstrap, topic, records)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        rows = []
        for name, schema in COLUMNS.items():
            query = spark.read.format("kraftpy").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
            found = query.schema("offset bigint").load().count()
            if found != records:
                raise RuntimeError(f"{found} rows were read of {records} records")
            read_once(spark, bootstrap, topic, schema)
            seconds = [read_once(spark, bootstrap, topic, schema) for _ in range(runs)]
            rows.append(_figures(name, records, seconds))
        return rows
    finally:
        spark.stop()


def _figures(name: str, records: int, seconds: list[float]) -> dict[str, Any]:
    best, median = min(seconds), statistics.median(seconds)
    return {
        "name": f"Spark read, {name}",
        "records": records,
        "value_bytes": VALUE_BYTES,
        "runs": len(seconds),
        "best_s": best,
        "median_s": median,
        "best_rows_per_s": records / best,
        "median_rows_per_s": records / median,
        "best_mb_per_s": records * VALUE_BYTES / best / 1e6,
        "median_mb_per_s": records * VALUE_BYTES / median / 1e6,
    }


def main() -> int:
    """Run against a broker, or against an embedded one, and print the figures."""
    parser = argparse.ArgumentParser(description="rows/s and MB/s of reading a topic from Spark")
    parser.add_argument("--bootstrap", help="host:port of a broker; an embedded one where left out")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.bootstrap:
        rows = run(arguments.bootstrap, records=arguments.records, runs=arguments.runs)
    else:
        from kraftpy.testing.cluster import EmbeddedBroker

        with EmbeddedBroker() as broker:
            rows = run(broker.bootstrap, records=arguments.records, runs=arguments.runs)
    for row in rows:
        print(
            f"{row['name']:32} {row['records']:>10,} x {row['value_bytes']} B   "
            f"best {row['best_rows_per_s'] / 1e6:5.2f} M rows/s {row['best_mb_per_s']:6.0f} MB/s   "
            f"median {row['median_rows_per_s'] / 1e6:5.2f} M rows/s {row['median_mb_per_s']:6.0f} MB/s"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
