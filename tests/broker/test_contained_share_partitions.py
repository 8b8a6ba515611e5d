"""Unexpected errors in a share partition, or on the way to its coordinator, or in markers: no caller waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.share import partitions as module
from kraftpy.broker.share.partitions import HeldPartition, SharePartitions
from kraftpy.broker.slicing import Slices
from kraftpy.broker.transactions.markers import MarkerSender, Marking
from kraftpy.config import BrokerConfig
from kraftpy.config.group import group_settings
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kraftpy.share.acknowledgements import Acknowledgement, AcknowledgeType
from kraftpy.share.effects import Stretch
from kraftpy.share.events import Result
from kraftpy.share.partition import SharePartition
from kraftpy.share.records import ShareKey
from kraftpy.types import BrokerId, TopicId, TopicPartition

BOUND_SECONDS = 30.0
KEY = ShareKey("g", TopicId(b"t" * 16), 0)


class States:
    """Share coordinators that fail on demand."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.reads = 0

    async def read(self, *_: object) -> Result:
        self.reads += 1
        return self._answer()

    async def write(self, *_: object) -> Result:
        return self._answer()

    def _answer(self) -> Result:
        if self.errors:
            raise self.errors.pop()
        return Result(state_epoch=1, start_offset=0)


class World:
    """Share partitions of one replica, with the tasks of a node."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.incidents = Incidents(Complaints())
        self.tasks = Tasks(group, self.incidents)
        self.states = States()
        replica = SimpleNamespace(
            topic_partition=TopicPartition("t", 0),
            leading=True,
            leadership=1,
            leader_epoch=1,
            log_start_offset=0,
            log_end_offset=10,
            high_watermark=10,
        )
        replicas: Any = SimpleNamespace(leader_by_id=lambda *_: replica)
        states: Any = self.states
        settings = group_settings({}, BrokerConfig())
        queues: Any = SimpleNamespace(has_queue=lambda _: False)
        self.partitions = SharePartitions(
            SystemClock(), self.tasks, replicas, states, queues, lambda _: settings, lambda _: True
        )

    async def loaded(self) -> HeldPartition:
        async with asyncio.timeout(BOUND_SECONDS):
            while not (held := self.partitions.get(KEY)).is_loaded:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        return held

    async def acknowledge(self) -> ErrorCode:
        """Acquire a record, accept it, and return the resulting error code."""
        held = await self.loaded()
        offset = held.machine.next_fetch_offset()
        assert offset is not None
        held.machine.acquire(
            "m",
            [Stretch(offset, offset)],
            fetch_offset=offset,
            max_records=1,
            batch_size=1,
            is_record_limit=False,
            now=SystemClock().monotonic_ms(),
        )
        said = [Acknowledgement(offset, offset, AcknowledgeType.ACCEPT)]
        async with asyncio.timeout(BOUND_SECONDS):
            return (await self.partitions.acknowledge(held, "m", said)).error_code


def failing_once(original: Callable[..., Any]) -> Callable[..., Any]:
    errors = [RuntimeError("nobody expects it")]

    def function(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if errors:
            raise errors.pop()
        return result

    return function


@pytest.mark.parametrize("name", ["acknowledge", "written", "_write_if_idle"])
async def test_an_error_in_a_share_partition_is_told_and_its_state_is_read_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group)
        assert await world.acknowledge() is ErrorCode.NONE
        monkeypatch.setattr(SharePartition, name, failing_once(getattr(SharePartition, name)))
        assert await world.acknowledge() is ErrorCode.UNKNOWN_SERVER_ERROR
        assert world.incidents.count == 1
        assert await world.acknowledge() is ErrorCode.NONE
        assert world.states.reads == 2
        world.partitions.stop()


async def test_a_write_that_fails_in_an_unexpected_way_is_told() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group)
        assert await world.acknowledge() is ErrorCode.NONE
        world.states.errors.append(RuntimeError("nobody expects it"))
        assert await world.acknowledge() is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await world.acknowledge() is ErrorCode.NONE
        assert world.incidents.count == 1
        world.partitions.stop()


async def test_a_share_partition_whose_loading_fails_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.01)
    async with asyncio.TaskGroup() as group:
        world = World(group)
        world.states.errors.append(RuntimeError("nobody expects it"))
        assert await world.acknowledge() is ErrorCode.NONE
        assert world.incidents.count == 1
        world.partitions.stop()


class Writer:
    """Writes each marker, after it has raised or returned the outcomes in `first`."""

    def __init__(self, first: list[Exception | list[WritableTxnMarkerResult]]) -> None:
        self.first = first

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if self.first:
            outcome = self.first.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return WriteTxnMarkersResponse(markers=outcome)
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


@pytest.mark.parametrize(
    "outcome",
    [
        RuntimeError("nobody expects it"),
        KafkaError(ErrorCode.REQUEST_TIMED_OUT),
        [],
        [WritableTxnMarkerResult(producer_id=1, topics=[])],
    ],
    ids=["an unexpected error", "an expected error", "an answer without results", "an answer without partitions"],
)
async def test_markers_are_asked_for_until_they_are_written(outcome: Any) -> None:
    partitions = frozenset(TopicPartition("t", number) for number in range(3))
    leaders = SimpleNamespace(partitions=[SimpleNamespace(leader=1)] * 3)
    image: Any = SimpleNamespace(topic=lambda _: leaders)
    async with asyncio.TaskGroup() as group:
        incidents = Incidents(Complaints())
        writer: Any = Writer([outcome])
        nobody: Any = None
        tasks = Tasks(group, incidents)
        sender = MarkerSender(BrokerId(1), lambda: image, writer, nobody, tasks, Slices())
        told: list[frozenset[TopicPartition]] = []
        done = asyncio.Event()

        def written(these: frozenset[TopicPartition]) -> None:
            told.append(these)
            done.set()

        marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, coordinator_epoch=1)
        sender.send(Marking(marker, partitions, lambda: True, written))
        async with asyncio.timeout(BOUND_SECONDS):
            await done.wait()
        assert told == [partitions]
        assert incidents.count == isinstance(outcome, RuntimeError)
        sender.stop()
