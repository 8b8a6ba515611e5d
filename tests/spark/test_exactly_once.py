"""Each row once, although processes die: the driver of a streaming query, its workers, the brokers of three nodes.

Each of them is killed in turn, in the middle of a batch; in the end librdkafka reads what is committed.

`make test` kills one of each; `make test-long` has 50 kills in a random order, or as many as KRAFTPY_ROUNDS says, and
tells of each; KRAFTPY_SEED repeats an order.

It has its own cluster, because brokers are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from kraftpy.client import BlockingAdmin, NewTopic, OffsetSpec
from kraftpy.spark.java import find_java
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition

pytestmark = [pytest.mark.spark]

TOPIC = "rows"
PARTITIONS = 2
ROWS_PER_FILE = 300
PATIENCE = 240.0
"""Seconds without a new record."""
VICTIMS = ("driver", "worker", "broker")
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
                start_new_session=True,  # the JVM too is killed by the group
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to driver and JVM at once. The workers are in a group of their own, and end a moment later."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def writing_workers(self) -> list[psutil.Process]:
        """The Python workers that are connected to a broker: those of the sink, while they write or commit."""
        assert self._process is not None
        ports = {int(server.rpartition(":")[2]) for server in self.cluster.bootstrap_servers.split(",")}
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    to = {connection.raddr.port for connection in process.net_connections() if connection.raddr}
                    if to & ports:
                        found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def kill_worker(self, chance: random.Random) -> None:
        """SIGKILL to one that writes."""
        deadline = time.monotonic() + PATIENCE
        while not (workers := self.writing_workers()):
            assert self.is_running, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(workers).kill()

    def finish(self) -> None:
        """Have all input processed."""
        self.start("to-the-end")
        assert self._process is not None
        written = -1
        while written < (written := self.records_written()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process.wait(PATIENCE) == 0, self.log()
                return
        raise AssertionError(f"nothing was written for {PATIENCE:g} s\n{self.log()}")

    def log(self) -> str:
        return self.whole_log()[-20000:]

    def whole_log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")

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


def values_in(cluster: Cluster, isolation_level: str) -> Counter[int]:
    """Count each value that librdkafka finds in the topic."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "nobody",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: Counter[int] = Counter()
    try:
        beginnings = [
            confluent_kafka.TopicPartition(TOPIC, n, confluent_kafka.OFFSET_BEGINNING) for n in range(PARTITIONS)
        ]
        consumer.assign(beginnings)
        unread = set(range(PARTITIONS))
        while unread:
            message = consumer.poll(PATIENCE)
            assert message is not None, f"nothing more of partitions {unread}"
            error = message.error()
            if error is None:
                found[int(message.value() or b"")] += 1
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                unread.discard(message.partition())
    finally:
        consumer.close()
    return found


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with Cluster(brokers=3, keep_on_failure=True, start_timeout=90.0) as cluster:
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            settings = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS, config=settings)])
        query = Query(cluster, tmp_path / "query")
        try:
            yield query
        finally:
            query.kill()
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node), cluster.logs(node)


def in_turn(kills: int, chance: random.Random) -> list[str]:
    """So many victims: each of them once, in an order of chance, and again."""
    return [victim for _ in range(-(-kills // len(VICTIMS))) for victim in chance.sample(VICTIMS, len(VICTIMS))][:kills]


def kill_and_finish(query: Query, victims: list[str], chance: random.Random, tell: Callable[[str], None]) -> None:
    """Kill one after the other, each while a batch is being written; then look at what is there."""
    begun = time.monotonic()
    for number, victim in enumerate(victims, 1):
        query.give()
        query.give()
        if not query.is_running:
            query.start()
        query.wait_for_records(chance.randrange(20, ROWS_PER_FILE))
        if victim == "driver":
            query.kill()
        elif victim == "worker":
            query.kill_worker(chance)
        else:
            broker = chance.choice([1, 2, 3])
            victim = f"broker {broker}"
            query.cluster.kill(broker)
            query.wait_for_records(chance.randrange(20, ROWS_PER_FILE // 2))
            query.cluster.start(broker)
            query.cluster.wait_in_sync()
        tell(f"kill {number}: {victim}, after {time.monotonic() - begun:.0f} s; {query.records_written()} offsets")
    query.kill()
    query.finish()
    values = values_in(query.cluster, "read_committed")
    wanted = Counter(range(query.rows_given))
    assert (wanted - values, values - wanted) == (Counter(), Counter()), "(missing, twice)"
    written = values_in(query.cluster, "read_uncommitted").total()
    assert written > query.rows_given, "nothing was killed while it wrote"
    lost = query.whole_log().count(" Lost task ")
    tell(
        f"{query.rows_given} rows, each once, of {written} written; {len(victims)} kills, {lost} tasks lost, "
        f"{time.monotonic() - begun:.0f} s"
    )


@pytest.mark.timeout(600)
def test_the_driver_its_workers_and_a_broker_are_killed(query: Query, kraftpy_seed: int) -> None:
    chance = random.Random(kraftpy_seed)
    kill_and_finish(query, in_turn(len(VICTIMS), chance), chance, print)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_each_row_is_there_once_after_fifty_kills(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    kills = int(os.environ.get("KRAFTPY_ROUNDS", "50"))
    seed = int(os.environ.get("KRAFTPY_SEED", str(time.time_ns() % 1_000_000)))
    chance = random.Random(seed)

    def tell(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    tell(f"\nKRAFTPY_SEED={seed}")
    kill_and_finish(query, in_turn(kills, chance), chance, tell)
