"""Read, transform, write, in transactions on three nodes, while nodes and applications die: each input comes out once.

The application is librdkafka's, the checker is the count of every value in the output that committed readers see.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.testing import Cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.timeout(900),
]

SESSION_SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
PARTITIONS = 3
INPUTS = 900
BOUND_SECONDS = 240.0
GROUP, TRANSACTIONAL_ID = "transformers", "transformer"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SESSION_SETTINGS, keep_on_failure=True) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in ("in", "out")]
        for created in admin.create_topics(topics).values():
            created.result(30)
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


class Application:
    """Reads ten, writes ten, commits both together; begins anew as a new instance after any error, and at random."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.random = random.Random(seed)
        self.is_over = threading.Event()
        self.commits = 0
        self.instances = 0
        self.errors: Counter[str] = Counter()
        self.thread = threading.Thread(target=self.run, name="application")

    def run(self) -> None:
        while not self.is_over.is_set():
            self.instances += 1
            try:
                self.one_life()
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1

    def one_life(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": TRANSACTIONAL_ID,
                "transaction.timeout.ms": 20000,
                "log_level": 0,
            }
        )
        producer.init_transactions(10)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe(["in"])
            while not self.is_over.is_set():
                taken = [each for each in consumer.consume(10, 0.2) if each.error() is None]
                if not taken:
                    continue
                producer.begin_transaction()
                for message in taken:
                    producer.produce("out", message.value(), partition=message.partition())
                producer.send_offsets_to_transaction(
                    [TopicPartition(each.topic(), each.partition(), each.offset() + 1) for each in last_of(taken)],
                    consumer.consumer_group_metadata(),
                    10,
                )
                if self.random.random() < 0.1:
                    return  # it is killed: its transaction stays open until the next instance fences it
                if self.random.random() < 0.1:
                    producer.abort_transaction(10)
                    return
                producer.commit_transaction(10)
                self.commits += 1
        finally:
            consumer.close()
            producer.purge()


def last_of(taken: list[confluent_kafka.Message]) -> list[confluent_kafka.Message]:
    return list({each.partition(): each for each in taken}.values())


def told(cluster: Cluster) -> str:
    """What the nodes said last."""
    return "\n".join(cluster.logs(node)[-4000:] for node in cluster.nodes)


def read_out(cluster: Cluster) -> Counter[bytes]:
    """Every value that committed readers see now, to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
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
        assert time.monotonic() < deadline, f"{sum(values.values())} values, the ends of {ended}: {told(cluster)}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            values[message.value() or b""] += 1
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return values


def test_each_input_is_once_in_the_output_whoever_dies(cluster: Cluster) -> None:
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for number in range(INPUTS):
        plain.produce("in", b"%d" % number, partition=number % PARTITIONS)
    assert plain.flush(30) == 0
    application = Application(cluster.bootstrap_servers, seed=1)
    application.thread.start()
    deadline = time.monotonic() + 2 * BOUND_SECONDS

    def wait_for_commits(more: int) -> None:
        enough = application.commits + more
        while application.commits < enough and sum(read_out(cluster).values()) < INPUTS:
            assert time.monotonic() < deadline, (application.commits, application.errors)
            time.sleep(0.1)

    try:
        for node in cluster.nodes:  # each has some of the coordinators, and of the leaders
            wait_for_commits(5)
            cluster.kill(node)
            wait_for_commits(3)
            cluster.start(node)
            with contextlib.suppress(TimeoutError):
                cluster.wait_in_sync()
        while sum((values := read_out(cluster)).values()) < INPUTS:
            assert time.monotonic() < deadline, (sum(values.values()), application.commits, application.errors)
    finally:
        application.is_over.set()
        application.thread.join(60)
    values = read_out(cluster)
    assert values == Counter(b"%d" % number for number in range(INPUTS)), "each input once"
    assert application.instances > 1
