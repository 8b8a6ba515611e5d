"""The driver's part of `bench.spark_cluster`: read, stream and plan on a standalone cluster, and print the figures.

    spark-submit spark_cluster_job.py WORK.JSON

It runs with the bare Python of the driver's machine, so it imports nothing of this directory. Processor time is that of
control groups, which count processes that have ended, too; their files are seen through the root directory of the
bench's process, because a machine of its own has another /sys.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kraftpy.spark import session

Figures = dict[str, Any]
QUERIES = 3
"""How often one run makes each measurement; its figures are the medians."""


class Job:
    """A session, and what the bench said of its work, in `Cluster._work`."""

    def __init__(self, spark: SparkSession, work: dict[str, Any]) -> None:
        """Measure in this session."""
        self.spark, self.work = spark, work

    def figures(self) -> Figures:
        """Do what this run is for."""
        self.warm()
        if self.work["kind"] == "costs":
            return {"planning": self.planning(), "tasks": self.tasks()}
        found = {"read": self.reading(), "stream": self.streaming()}
        with self.held():
            return {**found, "held": self.reading()}

    def warm(self) -> None:
        """Wait for all executors and their Pythons, and for the compilers of their JVMs; this does not count."""
        for _ in range(2):
            _noop(self.source("rows").load())
        rows = self.source("rows").load().count()
        assert rows == self.work["topics"]["rows"], f"{rows} rows"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold each worker to a part of a core."""
        try:
            for file, held, _ in self.work["bounds"]:
                Path(file).write_text(held)
            yield
        finally:
            for file, _, free in self.work["bounds"]:
                Path(file).write_text(free)

    def reading(self) -> Figures:
        """Read the whole topic. Each query has a frame of its own, because Spark plans a frame's source once."""
        reader = self.source("rows")
        return self.median(lambda: _noop(reader.load()), self.work["topics"]["rows"])

    def streaming(self) -> Figures:
        """Move a topic into another one, exactly once, in tasks of the executors."""
        servers = {"kafka.bootstrap.servers": self.work["bootstrap"]}

        def move() -> None:
            reader = self.spark.readStream.format("kraftpy").options(**servers, subscribe="some", prefetchRecords=0)
            rows = reader.option("startingOffsets", "earliest").load().select("key", "value")
            progress = str(Path(self.work["directory"], uuid.uuid4().hex))
            writer = rows.writeStream.format("kraftpy").options(**servers, topic="target", delivery="exactly_once")
            query = writer.option("checkpointLocation", progress).trigger(availableNow=True).start()
            query.awaitTermination()
            moved = sum(int(each["numInputRows"]) for each in query.recentProgress)
            assert moved == self.work["topics"]["some"], f"{moved} rows"

        move()
        return self.median(move, self.work["topics"]["some"])

    def planning(self) -> list[tuple[int, Figures]]:
        """Plan topics of so many partitions without rows, so that there is one task for all of them."""
        found = []
        for partitions in self.work["planned"]:
            reader = self.source(f"empty-{partitions}")
            assert reader.load().rdd.getNumPartitions() == 1
            _noop(reader.load())
            found.append((partitions, self.median(lambda reader=reader: _noop(reader.load()), 1)))
        return found

    def tasks(self) -> list[tuple[int, Figures]]:
        """Read few rows in so many tasks."""
        found = []
        for tasks in self.work["tasks"]:
            reader = self.source("few").option("minPartitions", tasks)
            assert reader.load().rdd.getNumPartitions() == tasks
            _noop(reader.load())
            found.append((tasks, self.median(lambda reader=reader: _noop(reader.load()), 1)))
        return found

    def source(self, topic: str) -> Any:
        """Return the reader of a topic."""
        reader = self.spark.read.format("kraftpy").option("subscribe", topic)
        return reader.option("kafka.bootstrap.servers", self.work["bootstrap"])

    def median(self, work: Callable[[], None], rows: int) -> Figures:
        """Return the medians of seconds, of processor time by place, and of bytes that the brokers sent."""
        runs = [self.measured(work, rows) for _ in range(QUERIES)]
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

    def measured(self, work: Callable[[], None], rows: int) -> Figures:
        """Return the figures of one query."""
        before, began = self.counts(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        used = {name: count - before[name] for name, count in self.counts().items()}
        return {"seconds": seconds, "per_s": rows / seconds, **used}

    def counts(self) -> Figures:
        """Return the processor seconds of each place and of the whole machine, and the bytes that brokers have sent."""
        found: Figures = {}
        for place, directories in self.work["groups"].items():
            found[place] = sum(map(_used_s, directories))
        found["machine"] = _machine_s()
        found["sent"] = sum(map(_sent, self.work["broker_pids"]))
        return found


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _used_s(directory: str) -> float:
    """Return the seconds of processor time of a control group."""
    lines = Path(directory, "cpu.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6


def _machine_s() -> float:
    """Return the seconds of processor time of the whole machine, whatever used it."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def _sent(pid: int) -> int:
    """Return the bytes that have left the machine of a process by its cable."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines if line.split(":")[0].strip() != "lo")


def main(work: str) -> None:
    """Measure, and print one line."""
    spark = session(SparkSession.builder.appName("bench"))
    spark.sparkContext.setLogLevel("WARN")
    print("FIGURES " + json.dumps(Job(spark, json.loads(Path(work).read_text())).figures()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
