"""A Spark driver to be killed: files of numbers through a streaming query into a topic, exactly once.

    python exactly_once_driver.py BOOTSTRAP TOPIC DIRECTORY endless|to-the-end

Rows come slowly and are written as they come, so that whatever is killed is killed within a transaction. The first
attempt of a task also kills its own worker process now and then.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType
from session_of_tests import SHORT_LIVED

SECONDS_PER_ROW = 0.004
ROWS_PER_DEATH = 151
VALUE_CHARACTERS = 8_000  # so that the buffers between the workers do not hold a whole batch


@udf(StringType(), useArrow=False)
def slowly(n: int) -> str:
    time.sleep(SECONDS_PER_ROW)
    task = TaskContext.get()
    if n % ROWS_PER_DEATH == ROWS_PER_DEATH - 1 and task is not None and not task.attemptNumber():
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{n:<{VALUE_CHARACTERS}}"


def main(bootstrap: str, topic: str, directory: Path, how_long: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.local.dir", str(directory / "blocks"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .config("spark.sql.execution.python.udf.maxRecordsPerBatch", "10")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(directory / "in"))
    writer = rows.repartition(2, "n").select(slowly("n").alias("value")).writeStream.format("kraftpy")
    for name, value in {
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "delivery": "exactly_once",
        "kafka.linger.ms": "0",
        "checkpointLocation": str(directory / "checkpoint"),
    }.items():
        writer = writer.option(name, value)
    writer = (
        writer.trigger(availableNow=True) if how_long == "to-the-end" else writer.trigger(processingTime="0 seconds")
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
