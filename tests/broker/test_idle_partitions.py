"""Partitions that nobody uses cost the work of every second nothing, however many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import replicating
from one_broker import create, running

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import replica_fetch
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.storage.offline import Offline
from kraftpy.broker.upkeep.maintenance import Maintenance
from kraftpy.broker.upkeep.producer_limit import forget_producers_beyond
from kraftpy.log import layout
from kraftpy.log.results import Origin
from kraftpy.metadata.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigResourceType,
    DeleteTopics,
    SetConfigs,
    TopicReference,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import BrokerId

PARTITIONS = 300
FOLLOWED = 60
LIMIT = 40


@pytest.fixture(autouse=True)
def _no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the rounds to the test."""
    monkeypatch.setattr(Maintenance, "loops", lambda self: {})


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The partitions whose log was looked at; clear it to begin."""
    found: set[str] = set()

    def look(replica: Any) -> Any:
        found.add(str(replica.topic_partition))
        return replica.__dict__["log"]

    def put(replica: Any, log: Any) -> None:
        replica.__dict__["log"] = log

    monkeypatch.setattr(Replica, "log", property(look, put), raising=False)
    return found


async def a_round(broker: Broker, limit: int = 10 * LIMIT) -> None:
    """Do what a node does every second for its partitions."""
    await broker.maintenance.flush_due()
    await forget_producers_beyond(broker.replicas, limit)


def append(replica: Replica, producers: range = range(1), count: int = 1, size: int = 10) -> None:
    for producer_id in producers:
        for number in range(count):
            now = replica._host.now()
            records = [(now, b"k", b"v" * size, ())]
            batch = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=number)
            replica.append(batch, Origin.CLIENT, now)


async def test_only_a_partition_with_work_is_looked_at(tmp_path: Path, looked_at: set[str]) -> None:
    async with running(tmp_path, "log.segment.bytes=1048576") as broker:
        await create(broker, ["many"], PARTITIONS)
        await a_round(broker)
        looked_at.clear()
        await a_round(broker)
        assert looked_at == set(), "nothing has changed"
        used = broker.replicas.leader("many", 7)
        append(used, count=3, size=600_000)
        assert len(used.log.segments) > 1
        looked_at.clear()
        await a_round(broker)
        assert looked_at == {"many-7"}
        assert not used.syncs.has_unsynced_segments
        looked_at.clear()
        await a_round(broker)
        assert looked_at == set(), "records in the active segment wait for no one"


async def test_a_log_with_a_time_limit_is_looked_at_until_it_is_synced(tmp_path: Path, looked_at: set[str]) -> None:
    async with running(tmp_path, "log.flush.interval.ms=3000000") as broker:
        await create(broker, ["many"], PARTITIONS)
        await a_round(broker)
        used = broker.replicas.leader("many", 7)
        append(used)
        began = used.flushed_at_ms
        assert began > 0, "the time limit counts from the first record"
        for _ in range(2):
            looked_at.clear()
            await a_round(broker)
            assert looked_at == {"many-7"}
            assert used.log.recovery_point == 0
        used.flushed_at_ms = type(began)(began - 3_000_000)
        await a_round(broker)
        assert used.log.recovery_point == used.log_end_offset
        looked_at.clear()
        await a_round(broker)
        assert looked_at == set()


async def test_a_log_that_is_opened_unsynced_is_due(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["t"], 1)
        append(broker.replicas.leader("t", 0))
    (tmp_path / layout.CLEAN_SHUTDOWN).unlink()
    (tmp_path / layout.RECOVERY_POINTS).unlink()
    async with running(tmp_path, "log.flush.interval.ms=1") as broker:
        replica = broker.replicas.leader("t", 0)
        assert replica.log.recovery_point < replica.log_end_offset, "the test's own premise"
        await broker.maintenance.flush_due()
        assert replica.log.recovery_point == replica.log_end_offset


async def test_producers_are_counted_as_they_come_and_go(tmp_path: Path, looked_at: set[str]) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["many"], PARTITIONS)
        await a_round(broker)
        for number in range(5):
            append(broker.replicas.leader("many", number), range(LIMIT // 5))
        assert broker.replicas.due.producers == LIMIT
        looked_at.clear()
        await a_round(broker, LIMIT)
        assert looked_at == {f"many-{number}" for number in range(5)}, "they got producers"
        looked_at.clear()
        await a_round(broker, LIMIT)
        assert looked_at == set()
        append(broker.replicas.leader("many", 9))
        await a_round(broker, LIMIT)
        left = sum(len(replica.log.producers) for replica in broker.replicas)
        assert left <= LIMIT
        assert broker.replicas.due.producers == left
        await broker.replica_manager._close_and_delete([*broker.replicas])
        assert broker.replicas.due.producers == 0
        assert not broker.replicas.due.syncs


async def test_high_watermarks_of_zero_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        written: list[int] = []
        known = layout.write_offsets

        def write(directory: Any, name: str, offsets: Any) -> None:
            if name == layout.HIGH_WATERMARKS:
                written.append(len(offsets))
            known(directory, name, offsets)

        monkeypatch.setattr(layout, "write_offsets", write)
        checkpoints = broker.replica_manager.checkpoints
        await create(broker, ["many"], PARTITIONS)
        await checkpoints.write_high_watermarks()
        assert written == [], "partitions without records need none"
        append(broker.replicas.leader("many", 7))
        await checkpoints.write_high_watermarks()
        assert written == [1]


async def test_a_follower_that_has_everything_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetch, "_SWEEP_S", 0.0)
    async with replicating.running(tmp_path, 1, 2, replica_fetch_wait_max_ms="20") as cluster:
        await cluster.create("many", *[(1, 2)] * FOLLOWED)
        leader = cluster.nodes[1]
        replicas = [cluster.replica(1, "many", number) for number in range(FOLLOWED)]

        def is_settled() -> bool:
            return all(
                replica.leading is not None and replica.leading.progress()[0].log_end_offset == 0
                for replica in replicas
            )

        await replicating.until(is_settled)
        passed_on: list[str] = []
        requests = 0
        fetched, opened = Replica.fetched, leader.fetch_sessions.open

        def note(replica: Replica, *arguments: Any) -> None:
            passed_on.append(str(replica.topic_partition))
            fetched(replica, *arguments)

        def opening(*arguments: Any, **named: Any) -> Any:
            nonlocal requests
            found = opened(*arguments, **named)
            requests += found.incremental
            assert found.partitions == [], "nothing copies the session for each request"
            return found

        monkeypatch.setattr(Replica, "fetched", note)
        monkeypatch.setattr(leader.fetch_sessions, "open", opening)
        await replicating.until(lambda: requests >= 5)
        assert passed_on == []
        before = [replica.leading.progress()[0].last_fetch_at for replica in replicas if replica.leading]
        seen = requests
        await replicating.until(lambda: requests >= seen + 5)
        after = [replica.leading.progress()[0].last_fetch_at for replica in replicas if replica.leading]
        assert len(after) == FOLLOWED
        assert all(late > early for early, late in zip(before, after, strict=True)), "the leaders still know"


async def test_a_follower_that_was_taken_out_of_the_isr_joins_without_any_change(tmp_path: Path) -> None:
    async with replicating.running(tmp_path, 1, 2) as cluster:
        await cluster.create("t", (1, 2))
        await cluster.caught_up("t", 0)
        await cluster.change("t", new_epoch=False, isr=(BrokerId(1),))
        await replicating.until(lambda: cluster.isr("t") == (1, 2))


async def test_a_change_of_one_topic_concerns_its_partitions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["many"], PARTITIONS)
        rounds: list[object] = []
        everything = Replicas.__iter__

        def over_all(replicas: Replicas) -> Any:
            rounds.append(replicas)
            return everything(replicas)

        async def nothing() -> None:
            pass

        monkeypatch.setattr(Replicas, "__iter__", over_all)
        monkeypatch.setattr(broker.replica_manager.checkpoints, "write", nothing)  # one file has all partitions
        await create(broker, ["one"], 2)
        topic = broker.image.topic("one")
        assert topic is not None
        change = ConfigOperation(name="retention.ms", value="1234")
        resource = ConfigChange(resource_type=ConfigResourceType.TOPIC, resource_name="one", operations=(change,))
        await broker.metadata.submit(SetConfigs(changes=(resource,), time_ms=broker.clock.now()))
        assert [replica.log.config.retention_ms for replica in broker.replicas.of_topic(topic.topic_id)] == [1234] * 2
        reference = TopicReference(name="one")
        await broker.metadata.submit(DeleteTopics(topics=(reference,), time_ms=broker.clock.now()))
        assert broker.replicas.of_topic(topic.topic_id) == []
        assert rounds == []


async def test_time_passes_only_for_leaders_with_something_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicating.running(tmp_path, 1) as cluster:
        await cluster.create("alone", *[(1,)] * FOLLOWED)
        await cluster.create("followed", (1, 2))  # by a broker that never comes
        ticked: list[str] = []

        def tick(replica: Replica) -> None:
            ticked.append(str(replica.topic_partition))

        monkeypatch.setattr(Replica, "check_lagging_followers", tick)
        await cluster.nodes[1].replica_manager.check_lagging_followers()
        assert ticked == ["followed-0"]


async def test_offline_partitions_cost_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move to other brokers looks for its partition among the offline ones, and not at each of them."""
    async with replicating.running(tmp_path, 1) as cluster:
        await cluster.create("t", (1, 2))
        rounds: list[object] = []
        everything = Offline.__iter__

        def over_all(offline: Offline) -> Any:
            rounds.append(offline)
            return everything(offline)

        monkeypatch.setattr(Offline, "__iter__", over_all)
        await cluster.change("t", replicas=(BrokerId(2),), isr=(BrokerId(2),), leader=BrokerId(2))
        topic = cluster.image.topic("t")
        assert topic is not None
        assert cluster.nodes[1].replicas.held_by_id(topic.topic_id, 0) is None
        assert rounds == []
