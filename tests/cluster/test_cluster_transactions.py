"""Read, transform, write, in transactions on three nodes, while nodes and applications die: each input comes out once.

The application is librdkafka's, in a process of its own (`transforming_app`); the checker counts every value in
the output that committed readers see. A round of it: inputs are written, something is killed while they are worked on,
and the work continues without it; then it comes back.

`make test` runs a round of each fault; `make test-long` runs 200 of them in a random order, or as many as
KRAFTPY_ROUNDS says; KRAFTPY_SEED repeats an order.

Each test has its own cluster, because nodes of it die.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from transforming_app import GROUP, TRANSACTIONAL_ID

from kraftpy.client import BlockingAdmin
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "transaction.state.log.num.partitions": "6",
    "offsets.topic.num.partitions": "6",
}
PARTITIONS = 3
INPUTS_A_ROUND = 90
BOUND_SECONDS = 120.0
APPLICATION = Path(__file__).parent / "transforming_app.py"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SETTINGS, keep_on_failure=True, start_timeout=90.0) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in ("in", "out")]
        for created in admin.create_topics(topics).values():
            created.result(30)
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


class Application:
    """One process of the application, and what it says."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        command = [sys.executable, str(APPLICATION), bootstrap, str(seed)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.commits = 0
        self.errors: Counter[str] = Counter()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "commit":
                self.commits += 1
            else:
                self.errors[rest] += 1

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reading.join(BOUND_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Transforming:
    """The cluster, the application, and the expected output."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.inputs = 0
        self.ended: Counter[str] = Counter()
        self.earlier_commits = 0
        self.writer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        )
        self.application = self._start()

    def _start(self) -> Application:
        return Application(self.cluster.bootstrap_servers, self.chance.randrange(1 << 30))

    def close(self) -> None:
        self.application.kill()

    @property
    def commits(self) -> int:
        return self.earlier_commits + self.application.commits

    def replace_application(self) -> Application:
        """Another one; the former is still there."""
        former, self.application = self.application, self._start()
        self._forget(former)
        return former

    def _forget(self, former: Application) -> None:
        self.earlier_commits += former.commits
        self.ended.update(former.errors)

    def one_round(self, fault: Callable[[Transforming], None]) -> None:
        for number in range(self.inputs, self.inputs + INPUTS_A_ROUND):
            self.writer.produce("in", b"%d" % number, partition=number % PARTITIONS)
        assert self.writer.flush(BOUND_SECONDS) == 0, self.told()
        self.inputs += INPUTS_A_ROUND
        self.wait_for_commits(self.chance.randrange(1, 4))
        time.sleep(self.chance.random() * 0.3)  # anywhere in a transaction
        fault(self)

    def wait_for_commits(self, more: int) -> None:
        """Wait until `more` further transactions are committed, or all the input has come out."""
        enough, deadline = self.commits + more, time.monotonic() + BOUND_SECONDS
        look_at = time.monotonic() + 5
        while self.commits < enough:
            assert time.monotonic() < deadline, self.told()
            if self.application.process.poll() is not None:  # fenced by one that is gone by now, or it was stuck
                former = self.replace_application()
                former.kill()
            if time.monotonic() > look_at:
                if sum(self.output().values()) >= self.inputs:
                    return
                look_at = time.monotonic() + 5
            time.sleep(0.05)

    def finish(self) -> Counter[bytes]:
        """All that comes out, once as much has come out as went in."""
        deadline = time.monotonic() + BOUND_SECONDS
        while sum((values := self.output()).values()) < self.inputs:
            assert time.monotonic() < deadline, f"{sum(values.values())} of {self.inputs}: {self.told()}"
            self.wait_for_commits(1)
        self.application.kill()
        return self.output()

    def told(self) -> str:
        """Describe the state, for the message when something takes too long."""
        logs = "\n".join(self.cluster.logs(node)[-3000:] for node in self.cluster.nodes)
        return f"{self.commits} commits, {self.ended + self.application.errors}: {logs}"

    def output(self) -> Counter[bytes]:
        """Every value that committed readers see now, to the end of each partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "group.id": f"checker-{time.time_ns()}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition("out", partition, 0) for partition in range(PARTITIONS)])
        values: Counter[bytes] = Counter()
        ended: set[int] = set()
        deadline = time.monotonic() + BOUND_SECONDS
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, f"{sum(values.values())} values, the ends of {ended}: {self.told()}"
            for message in consumer.consume(500, 1.0):
                if (error := message.error()) is None:
                    values[message.value() or b""] += 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return values

    def kill_node(self, node: int) -> None:
        """Kill a node, check that the work continues, and bring it back in sync."""
        self.cluster.kill(node)
        self.wait_for_commits(1)
        self.cluster.start(node)
        self.cluster.wait_in_sync(BOUND_SECONDS)

    def coordinator(self) -> int:
        """The node that coordinates the application's transactions."""
        with BlockingAdmin(bootstrap_servers=self.cluster.bootstrap_servers) as admin:
            (found,) = admin.describe_transactions([TRANSACTIONAL_ID])
        return found.coordinator_id

    def group_coordinator(self) -> int:
        """The node that has the offsets of its group."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})
        return int(admin.describe_consumer_groups([GROUP])[GROUP].result(30).coordinator.id)


# --- the faults -------------------------------------------------------------------------------------------------------


def the_application_is_killed(world: Transforming) -> None:
    world.application.kill()
    world.replace_application()
    world.wait_for_commits(1)


def a_zombie_comes_back(world: Transforming) -> None:
    """The application was stopped, not dead: another has its place when it resumes."""
    world.application.process.send_signal(signal.SIGSTOP)
    zombie = world.replace_application()
    try:
        world.wait_for_commits(2)
    finally:
        zombie.process.send_signal(signal.SIGCONT)
    world.wait_for_commits(1)
    zombie.kill()


def a_broker_is_killed(world: Transforming) -> None:
    world.kill_node(world.chance.choice(world.cluster.nodes))


def the_coordinator_is_killed(world: Transforming) -> None:
    world.kill_node(world.coordinator())


def the_coordinator_of_the_group_is_killed(world: Transforming) -> None:
    world.kill_node(world.group_coordinator())


def application_and_coordinator_are_killed(world: Transforming) -> None:
    """Only the next coordinator can end the open transaction."""
    node = world.coordinator()
    world.application.kill()
    world.cluster.kill(node)
    world.replace_application()
    world.wait_for_commits(1)
    world.cluster.start(node)
    world.cluster.wait_in_sync(BOUND_SECONDS)


FAULTS = (
    the_application_is_killed,
    a_zombie_comes_back,
    a_broker_is_killed,
    the_coordinator_is_killed,
    the_coordinator_of_the_group_is_killed,
    application_and_coordinator_are_killed,
)


def run(cluster: Cluster, faults: list[Callable[[Transforming], None]], seed: int) -> None:
    """A round for each fault; then each input is in the output, once."""
    world = Transforming(cluster, seed)
    try:
        for number, fault in enumerate(faults, 1):
            world.one_round(fault)
            if number % 20 == 0:
                print(f"round {number}: {fault.__name__}, {world.commits} commits", flush=True)
        values = world.finish()
    finally:
        world.close()
    expected = Counter(b"%d" % number for number in range(world.inputs))
    missing, twice = expected - values, values - expected
    assert (missing, twice) == (Counter(), Counter()), f"seed {seed}: {world.ended}"


@pytest.mark.timeout(600)
def test_each_input_is_once_in_the_output_whoever_dies(cluster: Cluster) -> None:
    run(cluster, [the_application_is_killed, a_zombie_comes_back, the_coordinator_is_killed], seed=1)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_each_input_is_once_in_the_output_after_many_rounds(cluster: Cluster) -> None:
    rounds = int(os.environ.get("KRAFTPY_ROUNDS", "200"))
    seed = int(os.environ.get("KRAFTPY_SEED", str(time.time_ns() % 1_000_000)))
    print(f"KRAFTPY_SEED={seed}", flush=True)
    chance = random.Random(seed)
    run(cluster, [chance.choice(FAULTS) for _ in range(rounds)], seed)
