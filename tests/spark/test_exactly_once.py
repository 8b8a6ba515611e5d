"""Each row once, whatever dies: the driver of a streaming query, its workers, the brokers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sink_rows_of_tests import records_in

from kraftpy.client import BlockingAdmin, NewTopic, OffsetSpec
from kraftpy.spark.java import find_java
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition

pytestmark = [pytest.mark.spark]

TOPIC = "rows"
PARTITIONS = 2
ROWS_PER_FILE = 300
PATIENCE = 240.0
DRIVER = Path(__file__).with_name("exactly_once_driver.py")


class Query:
    """A streaming query in a process of its own, its input, and what it has done."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.rows_given = 0
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._files = 0
        (directory / "in").mkdir(parents=True)
        java = find_java(os.environ, directory)
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java.home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def give(self) -> None:
        """One more file of numbers, which appears whole."""
        lines = [json.dumps({"n": n}) for n in range(self.rows_given, self.rows_given + ROWS_PER_FILE)]
        new = self._directory / "new.json"
        new.write_text("\n".join(lines))
        new.rename(self._directory / "in" / f"{self._files:05}.json")
        self._files += 1
        self.rows_given += ROWS_PER_FILE

    def start(self, how_long: str = "endless") -> None:
        with (self._directory / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, DRIVER, self.cluster.bootstrap_servers, TOPIC, self._directory, how_long],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the JVM and the workers too are killed by the group
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to driver, JVM and workers at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def finish(self) -> None:
        """Have all input processed."""
        self.start("to-the-end")
        assert self._process is not None
        assert self._process.wait(PATIENCE) == 0, self.log()

    def log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")[-20000:]

    def records_written(self) -> int:
        """The topic's offsets, whether committed, aborted or neither."""
        with BlockingAdmin(bootstrap_servers=self.cluster.bootstrap_servers) as admin:
            wanted = {TopicPartition(TOPIC, n): OffsetSpec.LATEST for n in range(PARTITIONS)}
            return sum(found.offset for found in admin.list_offsets(wanted).values() if found is not None)

    def wait_for_records(self, more: int) -> None:
        """Until `more` records have been written than now; the input sees to it that there are."""
        goal = self.records_written() + more
        deadline = time.monotonic() + PATIENCE
        while self.records_written() < goal:
            assert self.is_running, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with Cluster(brokers=3) as cluster:
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            settings = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS, config=settings)])
        query = Query(cluster, tmp_path / "query")
        try:
            yield query
        finally:
            query.kill()


def kill_and_finish(query: Query, victims: list[str], chance: random.Random) -> None:
    """Kill one after the other, each while a batch is being written; then look at what is there."""
    for victim in victims:
        query.give()
        query.give()
        if not query.is_running:
            query.start()
        query.wait_for_records(chance.randrange(20, ROWS_PER_FILE))
        if victim == "driver":
            query.kill()
        else:
            broker = chance.choice([1, 2, 3])
            query.cluster.kill(broker)
            query.wait_for_records(chance.randrange(20, ROWS_PER_FILE // 2))
            query.cluster.start(broker)
            query.cluster.wait_in_sync()
    query.kill()
    query.finish()
    found = records_in(query.cluster.bootstrap_servers, TOPIC, isolation_level="read_committed")
    values = sorted(int(value or b"") for _, _, value, _ in found)
    twice = sorted(n for n, following in itertools.pairwise(values) if n == following)
    missing = sorted(set(range(query.rows_given)) - set(values))
    assert (twice, missing, len(values)) == ([], [], query.rows_given)
    everything = records_in(query.cluster.bootstrap_servers, TOPIC)
    assert len(everything) > len(values), "nothing was killed while it wrote"


@pytest.mark.timeout(600)
def test_the_driver_its_workers_and_a_broker_are_killed(query: Query, kraftpy_seed: int) -> None:
    kill_and_finish(query, ["broker", "driver"], random.Random(kraftpy_seed))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills(query: Query, kraftpy_seed: int, record_property: Callable[[str, object], None]) -> None:
    chance = random.Random(kraftpy_seed)
    kill_and_finish(query, [chance.choice(["driver", "driver", "broker"]) for _ in range(50)], chance)
    record_property("rows", query.rows_given)
