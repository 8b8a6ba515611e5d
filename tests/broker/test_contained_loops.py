"""An unexpected error in a loop of the node costs one partition, transaction or group its turn, and the others nothing.

Each test plants a mistake in the product (nothing a client sends is known to have this effect) and looks at the others.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker_wire import BOUND_SECONDS, StartBroker
from lone_replicas import lead, lone_replica

from kraftpy.broker import containment
from kraftpy.broker.broker import Broker
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata import change_publisher
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.replication.isr import IsrProposals
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.share import partitions as share_partitions
from kraftpy.broker.share.partitions import HeldPartition, SharePartitions
from kraftpy.broker.slicing import Slices
from kraftpy.broker.transactions.markers import MarkerSender, MarkerWriter, Marking
from kraftpy.config import load
from kraftpy.log import deletion
from kraftpy.log.partition_log import PartitionLog
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigResourceType, SetConfigs
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import Leader
from kraftpy.share.records import ShareKey
from kraftpy.types import BrokerId, Millis, TopicId, TopicPartition

CLOCK = SystemClock()


class Mistake(Exception):
    """An error that no code expects."""


@asynccontextmanager
async def running(directory: Path, *, clock: Clock = CLOCK, **settings: str) -> AsyncIterator[Broker]:
    """A node in this process, stopped cleanly afterwards."""
    overrides = [f"log.dirs={directory}", "listeners=PLAINTEXT://127.0.0.1:0"]
    overrides += [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    config = load("", {}, overrides).config
    async with asyncio.TaskGroup() as group:
        broker = Broker(config, clock, group)
        await broker.start()
        try:
            yield broker
        finally:
            assert await broker.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals this condition
            await asyncio.sleep(0.005)


async def create(broker: Broker, *names: str) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        assert await auto_create_topics(names, broker.metadata, broker.config, CLOCK) == {}


async def set_of_group(broker: Broker, name: str, value: str) -> None:
    operation = ConfigOperation(name=name, value=value)
    change = ConfigChange(resource_type=ConfigResourceType.GROUP, resource_name="g", operations=(operation,))
    async with asyncio.timeout(BOUND_SECONDS):
        await broker.metadata.submit(SetConfigs(changes=(change,), time_ms=CLOCK.now()))


# --- changes of the metadata -------------------------------------------------------------------------------------


async def test_a_partition_that_cannot_take_its_role_gets_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, is_broken = Replica.lead, True

    def lead_unless_bad(replica: Replica, *arguments: Any) -> None:
        if is_broken and replica.topic_partition.topic == "bad":
            raise Mistake
        lead(replica, *arguments)

    monkeypatch.setattr(Replica, "lead", lead_unless_bad)
    async with running(tmp_path) as broker:
        await create(broker, "bad", "good")
        assert broker.replicas.leader("good", 0).leading is not None
        with pytest.raises(KafkaError) as told:
            broker.replicas.leader("bad", 0)
        assert told.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: broker.incidents.count > 1)  # tried again
        assert "bad-0" in broker.incidents.last[0].what
        assert broker.health["is_healthy"] is False
        is_broken = False
        await until(lambda: broker.replicas._by_name["bad", 0].leading is not None)
        await create(broker, "another")
        assert broker.replicas.leader("another", 0)


async def test_a_log_that_cannot_be_opened_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        await create(broker, "bad", "good")
    entering, is_broken = OsDirectory.child, True

    def enter_unless_bad(directory: OsDirectory, name: str) -> OsDirectory:
        if is_broken and name == "bad-0":
            raise Mistake
        return entering(directory, name)

    monkeypatch.setattr(OsDirectory, "child", enter_unless_bad)
    async with running(tmp_path) as broker:
        assert broker.replicas.leader("good", 0)
        assert broker.incidents.count
        assert broker.health["offline_partition_count"] == 1
        assert "bad-0" in broker.health["offline_partitions"][0]
        is_broken = False
        await until(lambda: ("bad", 0) in broker.replicas._by_name)
        assert broker.health["offline_partition_count"] == 0


async def test_what_could_not_be_acted_on_is_acted_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands submitted meanwhile get an error; no caller waits forever, and the image keeps advancing."""
    monkeypatch.setattr(change_publisher, "_CATCH_UP_SECONDS", 0.01)
    async with running(tmp_path) as broker:
        broker.metadata._publisher._catch_up_seconds = 0.01
        act, is_broken = broker.metadata._publisher._changed, True
        told: list[object] = []

        async def act_unless_broken(records: Sequence[Any] | None) -> None:
            told.append(records)
            if is_broken:
                raise Mistake
            await act(records)

        broker.metadata._publisher._changed = act_unless_broken
        acted_before = broker.metadata.acted_index
        with pytest.raises(KafkaError) as refused:
            await broker.metadata.submit(
                SetConfigs(
                    changes=(
                        ConfigChange(
                            resource_type=ConfigResourceType.GROUP,
                            resource_name="g",
                            operations=(ConfigOperation(name="share.isolation.level", value="read_committed"),),
                        ),
                    ),
                    time_ms=CLOCK.now(),
                )
            )
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert broker.image.configs(ConfigResourceType.GROUP, "g"), "it is decided all the same"
        assert broker.metadata.acted_index == acted_before, "and nobody is told that it was acted on"
        await until(lambda: len(told) > 4)
        assert all(records is None for records in told[1:]), "the whole image, from then on"
        is_broken = False
        await until(lambda: broker.metadata.acted_index > acted_before)
        await set_of_group(broker, "share.isolation.level", "read_uncommitted")
        await create(broker, "t")
        assert broker.replicas.leader("t", 0)


# --- loops over partitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (deletion, "advance_log_start", "retention"),
        (deletion, "remove_before_log_start", "retention"),
        (PartitionLog, "expire_producers", "expiry of producers"),
    ],
)
async def test_maintenance_of_one_partition_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, what: str
) -> None:
    works = getattr(owner, name)
    looked_at: dict[str, int] = {}

    def work_unless_bad(log: PartitionLog, *arguments: Any) -> Any:
        name = Path(log.directory.path).name
        looked_at[name] = looked_at.get(name, 0) + 1
        if name == "a-0":
            raise Mistake
        return works(log, *arguments)

    monkeypatch.setattr(owner, name, work_unless_bad)
    often = {
        "log_retention_check_interval_ms": "1",
        "log_initial_task_delay_ms": "1",
        "producer_id_expiration_check_interval_ms": "1",
    }
    async with running(tmp_path, **often) as broker:
        await create(broker, "a", "b")
        await until(lambda: min(looked_at.get("a-0", 0), looked_at.get("b-0", 0)) > 2)
        assert broker.incidents.last[0].what == f"a-0: {what}"


async def test_a_failed_look_at_followers_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_broken = False

    def monotonic_ms() -> Millis:
        if is_broken:
            raise Mistake  # each look begins with one at the clock
        return CLOCK.monotonic_ms()

    clock = cast("Any", SimpleNamespace(now=CLOCK.now, monotonic_ms=monotonic_ms))
    async with running(tmp_path, clock=clock) as broker:
        await create(broker, "a", "b")
        monkeypatch.setattr(Leader, "is_settled", False)
        is_broken = True
        await broker.replica_manager.check_lagging_followers()
        is_broken = False
        assert [each.what for each in broker.incidents.last] == ["a-0: followers", "b-0: followers"]


# --- in-sync replicas, producer ids, markers ----------------------------------------------------------------------


async def test_leaders_are_answered_whatever_becomes_of_their_proposal() -> None:
    """A leader proposes once and waits: without an answer its ISR would stay as it is for good."""
    refused: list[str] = []

    class Led:
        def __init__(self, name: str) -> None:
            self.topic_partition, self.topic_id = TopicPartition(name, 0), TopicId(name.encode() * 16)
            self.leading = lead(lone_replica(name), 1).leading

        def proposal_agreed(self, leader: Leader, proposal: ProposeIsr) -> None:
            raise NotImplementedError

        def proposal_refused(self, leader: Leader, proposal: ProposeIsr, error: ErrorCode) -> None:
            refused.append(self.topic_partition.topic)
            if self.topic_partition.topic == "a":
                raise Mistake

    async def submit(command: object) -> None:
        raise Mistake

    incidents = Incidents(Complaints())
    log = cast(Any, SimpleNamespace(submit=submit))
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        proposals = IsrProposals(BrokerId(1), lambda: 1, log, CLOCK, Tasks(group, incidents))
        for name in ("a", "b", "c"):
            proposals.propose(Led(name), ProposeIsr(isr=(), leader_epoch=1, partition_epoch=1))
    assert refused == ["a", "b", "c"]
    assert incidents.count == 2


class Peer:
    """Another broker that writes markers, after answers of another kind."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def ask(self, leader: BrokerId, key: object, request: WriteTxnMarkersRequest) -> Any:
        self.asked += 1
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index, error_code=0)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


@pytest.mark.parametrize("answer", [Mistake(), WriteTxnMarkersResponse(markers=[]), SimpleNamespace(markers=None)])
async def test_markers_are_written_whatever_a_peer_answers_first(answer: Any) -> None:
    """Otherwise a transaction would stay open for good, and read_committed readers would be stuck there."""
    incidents = Incidents(Complaints())
    partition = TopicPartition("t", 0)
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=2)])
    image = cast(Any, SimpleNamespace(topic=lambda name: topic))
    peer, written = Peer(answer), asyncio.Event()
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        tasks = Tasks(group, incidents)
        peers, writer = cast(Any, peer), cast(MarkerWriter, None)
        sender = MarkerSender(BrokerId(1), lambda: image, writer, peers, tasks, Slices())
        marker = WritableTxnMarker(
            producer_id=1, producer_epoch=1, transaction_result=True, topics=[], coordinator_epoch=1
        )
        sender.send(Marking(marker, frozenset({partition}), lambda: True, lambda partitions: written.set()))
        await written.wait()
    assert peer.asked == 2


# --- share partitions ---------------------------------------------------------------------------------------------


async def test_a_share_partition_that_cannot_be_loaded_says_so_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_partitions, "_RETRY_PAUSE_S", 0.01)
    loads = 0

    async def load_unless_early(self: SharePartitions, held: HeldPartition) -> None:
        nonlocal loads
        loads += 1
        if loads < 3:
            raise Mistake
        held.is_loaded = True

    monkeypatch.setattr(SharePartitions, "_load_once", load_unless_early)
    async with running(tmp_path) as broker:
        await create(broker, "t")
        topic = broker.image.topic("t")
        assert topic is not None
        held = broker.share_partitions.get(ShareKey("g\nforged", topic.topic_id, 0))
        await until(lambda: held.error is not None)
        assert held.error is not None
        assert held.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
        await until(lambda: held.is_loaded)
        assert "\n" not in broker.incidents.last[0].what


async def test_who_waits_for_a_share_partition_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: object) -> None:
        raise Mistake

    async with running(tmp_path) as broker:
        await create(broker, "t")
        topic = broker.image.topic("t")
        assert topic is not None
        key = ShareKey("g", topic.topic_id, 0)
        held = broker.share_partitions.get(key)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        held.waiting[1] = answer
        monkeypatch.setattr(broker.share_states, "write", fail)
        await broker.share_partitions._write(held, cast(Any, None))
        assert (await answer).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert broker.share_partitions.get(key) is not held, "it is read again"


# --- the process --------------------------------------------------------------------------------------------------


def test_a_node_says_how_it_is_when_asked_by_a_signal(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker._running.send(signal.SIGUSR1)
    deadline = time.monotonic() + BOUND_SECONDS
    while '"node_id"' not in broker.log_text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    health = json.loads(next(line for line in broker.log_text.splitlines() if '"node_id"' in line))
    assert health["is_healthy"] is True
    assert health["incident_count"] == 0
    assert health["offline_partitions"] == []
    assert health["limits"]["configs_bytes"][0] >= 0
    assert broker.stop() == 0


async def test_loops_of_the_node_go_on_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop starts again, no matter which call in it has failed."""
    monkeypatch.setattr(containment, "_RESTART_SECONDS", 0.001)
    async with running(tmp_path, log_retention_check_interval_ms="1", log_initial_task_delay_ms="1") as broker:
        works, calls = broker.maintenance._retention.delete_old_segments, 0

        async def fail_at_first() -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise Mistake
            await works()

        monkeypatch.setattr(broker.maintenance._retention, "delete_old_segments", fail_at_first)
        await until(lambda: calls > 4)
        assert broker.incidents.count == 2
