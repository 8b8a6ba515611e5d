"""Our producer and consumer read, transform and write in transactions, while each node dies: each input comes out once.

The checker is the count of every value in the output that committed readers see.

Each test has its own cluster, because nodes of it die.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from kraftpy.client import (
    Admin,
    ApplicationRecoverable,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    TopicPartition,
    TransactionFatal,
)
from kraftpy.client.producer import transaction_manager as transactional
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    # A member that dies with its coordinator cannot leave: the next instance waits for its session to be over.
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
CLASSIC = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
PARTITIONS = 3
INPUTS = 1_200
BOUND_SECONDS = 240.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as made:
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


class Application:
    """Reads some, writes as many, commits both together; a new instance after what only that helps, and at random."""

    def __init__(self, bootstrap: str, protocol: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        self.random = random.Random(seed)
        self.commits = 0
        self.instances = 0
        self.errors: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            self.instances += 1
            try:
                await self.one_life()
            except ApplicationRecoverable as error:
                self.errors[error.code.name] += 1

    async def one_life(self) -> None:
        producer = Producer(
            bootstrap_servers=self.bootstrap, transactional_id="transformer", transaction_timeout_ms=20_000
        )
        consumer = Consumer(
            "in",
            bootstrap_servers=self.bootstrap,
            group_id="transformers",
            group_protocol=self.protocol,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
            **(CLASSIC if self.protocol == "classic" else {}),
        )
        async with producer, consumer:
            await producer.init_transactions()
            while True:
                try:
                    taken = await consumer.getmany(timeout_ms=200, max_records=10)
                    if not taken:
                        continue
                    async with producer.transaction():
                        for name, records in taken.items():
                            for record in records:
                                await producer.send("out", record.value, partition=name.partition)
                        places = {name: records[-1].offset + 1 for name, records in taken.items()}
                        await producer.send_offsets_to_transaction(places, consumer.group_metadata())
                        if self.random.random() < 0.1:
                            raise InterruptedError
                    self.commits += 1
                except InterruptedError:
                    if self.random.random() < 0.5:
                        return
                    consumer.seek_to_committed()
                except (ApplicationRecoverable, TransactionFatal):
                    raise
                except KafkaError as error:
                    self.errors[error.code.name] += 1
                    consumer.seek_to_committed()


async def read_out(bootstrap: str) -> Counter[bytes]:
    """Every value that committed readers see now, to the end of each partition."""
    partitions = [TopicPartition("out", n) for n in range(PARTITIONS)]
    values: Counter[bytes] = Counter()
    options = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with Consumer(bootstrap_servers=bootstrap, **options) as consumer, asyncio.timeout(BOUND_SECONDS):
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any([await consumer.position(name) < ends[name] for name in partitions]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values.update(record.value or b"" for record in records)
    return values


@pytest.mark.parametrize(("version", "protocol"), [(1, "classic"), (2, "consumer")])
async def test_each_input_is_once_in_the_output_whichever_node_dies(
    cluster: Cluster, version: int, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == 1:
        monkeypatch.setattr(transactional, "FEATURE", "transaction.version.not.looked.at")
    bootstrap = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=bootstrap) as admin:
        config = {"min.insync.replicas": "2"}
        await admin.create_topics(
            [
                NewTopic(name=name, num_partitions=PARTITIONS, replication_factor=3, config=config)
                for name in ("in", "out")
            ]
        )
    async with Producer(bootstrap_servers=bootstrap) as plain:
        for number in range(INPUTS):
            await plain.send("in", b"%d" % number, partition=number % PARTITIONS)
    application = Application(bootstrap, protocol, seed=1)
    running = asyncio.create_task(application.run())

    async def commits(more: int) -> None:
        enough = application.commits + more
        while application.commits < enough and sum((await read_out(bootstrap)).values()) < INPUTS:
            assert not running.done(), running.exception()
            await asyncio.sleep(0.1)

    try:
        async with asyncio.timeout(2 * BOUND_SECONDS):
            for node in cluster.nodes:  # each has some of the coordinators, and of the leaders
                await commits(5)
                await asyncio.to_thread(cluster.kill, node)
                await commits(3)
                await asyncio.to_thread(cluster.start, node)
                with contextlib.suppress(TimeoutError):
                    await asyncio.to_thread(cluster.wait_in_sync)
            while sum((values := await read_out(bootstrap)).values()) < INPUTS:
                assert not running.done(), running.exception()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert await read_out(bootstrap) == Counter(b"%d" % number for number in range(INPUTS)), "each input once"
    assert values
    assert application.instances > 1
