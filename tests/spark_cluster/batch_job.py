"""A driver's work of batches: read, load into files of a shared file system, tell which Pythons did it.

spark-submit batch_job.py BOOTSTRAP TOPIC SHARED ROWS
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kraftpy.spark import session
from kraftpy.spark.load import LoadOptions, SparkTasks, load
from kraftpy.spark.load_parquet import ParquetTable


def main(bootstrap: str, topic: str, shared: str, rows: str) -> None:
    spark = session(SparkSession.builder.appName("batches"))
    read = spark.read.format("kraftpy").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    found = [int(row.value) for row in read.load().selectExpr("cast(value as string) as value").collect()]
    assert sorted(found) == list(range(int(rows))), f"{len(found)} rows"
    print(f"read {len(found)} rows", flush=True)

    def where(_: int) -> str:
        import kraftpy

        return str(kraftpy.__file__)

    places = set(spark.sparkContext.parallelize(range(8), 8).map(where).collect())
    print(f"executors have {sorted(places)}", flush=True)
    assert all("/packages/" in each for each in places), places

    options = LoadOptions(bootstrap_servers=bootstrap, topics=(topic,))
    table = ParquetTable(Path(shared, "table"), "hourly")
    batches = load(options, table, run_tasks=SparkTasks(spark))
    print(f"loaded {sum(batch.rows for batch in batches)} rows", flush=True)
    assert load(options, table, run_tasks=SparkTasks(spark)) == []
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
