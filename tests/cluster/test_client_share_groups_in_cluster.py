"""Our share consumers while each node dies: every record is accepted, and no client spins meanwhile.

Each test has its own cluster, because nodes of it die.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from kraftpy.client import Admin, NewTopic, Producer, ResourceType, ShareConsumer
from kraftpy.client.share import fetcher as fetching
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
}
PARTITIONS = 3
BOUND_SECONDS = 200.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as made:
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node), made.logs(node)


class Workers:
    """Two members of one group; each value they were handed is counted."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.seen: Counter[bytes] = Counter()

    async def work(self) -> None:
        options = {"bootstrap_servers": self.bootstrap, "max_poll_records": 20, "reconnect_backoff_max_ms": 200}
        async with ShareConsumer("jobs", group_id="workers", **options) as consumer:
            async for record in consumer:
                self.seen[record.value or b""] += 1

    async def have(self, values: range) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            while not all(self.seen[b"%d" % n] for n in values):  # noqa: ASYNC110 - others work meanwhile
                await asyncio.sleep(0.05)


async def test_every_record_is_handed_out_whichever_node_dies(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = cluster.bootstrap_servers
    asked = 0
    ask = fetching.ShareFetcher._ask

    def counted(self: fetching.ShareFetcher, *args: object, **options: object) -> None:
        nonlocal asked
        asked += 1
        ask(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching.ShareFetcher, "_ask", counted)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        config = {"min.insync.replicas": "2"}
        await admin.create_topics(
            [NewTopic(name="jobs", num_partitions=PARTITIONS, replication_factor=3, config=config)]
        )
        await admin.alter_configs({(ResourceType.GROUP, "workers"): {"share.auto.offset.reset": "earliest"}})
    workers = Workers(bootstrap)
    running = [asyncio.create_task(workers.work()) for _ in range(2)]
    started = asyncio.get_running_loop().time()
    try:
        async with Producer(bootstrap_servers=bootstrap) as producer:
            sent = 0

            async def send(count: int) -> None:
                nonlocal sent
                for n in range(sent, sent + count):
                    await producer.send("jobs", b"%d" % n, partition=n % PARTITIONS)
                await producer.flush()
                sent += count

            await send(60)
            await workers.have(range(60))
            for node in cluster.nodes:
                await asyncio.to_thread(cluster.kill, node)
                await send(60)
                await workers.have(range(sent))
                await asyncio.to_thread(cluster.start, node)
                await asyncio.to_thread(cluster.wait_in_sync)
            await send(60)
            await workers.have(range(sent))
        seconds = asyncio.get_running_loop().time() - started
    finally:
        for task in running:
            task.cancel()
        failures = [each for each in await asyncio.gather(*running, return_exceptions=True) if each is not None]
    assert all(isinstance(each, asyncio.CancelledError) for each in failures), failures
    assert set(workers.seen) == {b"%d" % n for n in range(sent)}
    # Three brokers, two members, long polls of half a second, a request or two for each record, back-offs of 0.1 s.
    assert asked < 2 * sent + 3 * 2 * 12 * seconds, f"{asked} requests in {seconds:.0f} s"
