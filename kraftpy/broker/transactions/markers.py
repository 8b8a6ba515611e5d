"""Write the markers that end a transaction to every partition it wrote to.

`MarkerWriter` appends markers to partitions that this broker leads. `MarkerSender` has the leaders of all partitions
of a transaction do that, on this broker or others, and retries until each partition has its marker or is gone. There
is one request per broker at a time: while it is in flight, markers for that broker queue up, and the next request
carries up to `_MOST_SENT` of them, of any transactions. The leaders of a transaction's partitions are
looked up in slices.

A marker of transactions v2 that is already in the log is recognized by its epoch and not written again (KIP-1228).
An older marker may be written twice; the second one changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from kraftpy.broker.containment import Incidents, Tasks
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.peers import Peers
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import PIECE, Slices
from kraftpy.log.results import Origin
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kraftpy.protocol.record_batch import ControlType, encode_control_batch
from kraftpy.transactions.records import by_topic
from kraftpy.transactions.transaction import EPOCH_BUMPS
from kraftpy.types import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

_COMMIT_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0
_MARKER_UNITS = 10
_MOST_UNDER_WAY = 1_000
"""How many markers of one request may be appended but not committed yet."""
_MOST_SENT = 2_000
"""How many markers one request has at most."""
_LOOKED_UP_UNITS = 1
_MARKER = "marker of a transaction"
_GIVEN_UP = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GroupMarkers(Protocol):
    """The group coordinators, which write markers to partitions of `__consumer_offsets`."""

    async def write_marker(
        self, partition: int, marker: bytes, producer_id: int, *, is_commit: bool, raised_epoch: int | None
    ) -> ErrorCode:
        """Append a transaction's marker, and apply it to the groups once it is committed."""


class MarkerWriter:
    """Appends markers to partitions that this broker leads."""

    def __init__(
        self, replicas: Replicas, coordinators: GroupMarkers, clock: Clock, incidents: Incidents, slices: Slices
    ) -> None:
        self._incidents = incidents
        self._slices = slices
        self._replicas = replicas
        self._coordinators = coordinators
        self._clock = clock

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write each marker to each of its partitions once, and wait until they are committed.

        Markers are appended in request order; up to `_MOST_UNDER_WAY` at a time wait to be committed.
        """
        codes: list[dict[TopicPartition, ErrorCode]] = []
        for marker in request.markers:
            places = ((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
            codes.append({TopicPartition(*place): ErrorCode.UNKNOWN_SERVER_ERROR for place in places})
        is_long = sum(map(len, codes)) > PIECE // _MARKER_UNITS
        deadline = asyncio.get_running_loop().time() + _COMMIT_TIMEOUT_S
        room = asyncio.Semaphore(_MOST_UNDER_WAY)

        async def write(marker: WritableTxnMarker, partition: TopicPartition, outcomes: dict[Any, ErrorCode]) -> None:
            try:
                outcomes[partition] = await self._write_one(marker, partition, deadline)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            for marker, outcomes in zip(request.markers, codes, strict=True):
                for partition in list(outcomes):
                    if is_long:
                        await self._slices.breathe(_MARKER_UNITS)
                    await room.acquire()
                    group.create_task(write(marker, partition, outcomes))
        by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for marker, outcomes in zip(request.markers, codes, strict=True):
            if outcomes:
                by_producer.setdefault(marker.producer_id, {}).update(outcomes)
        return WriteTxnMarkersResponse(markers=list(map(_result, by_producer, by_producer.values())))

    async def _write_one(self, marker: WritableTxnMarker, partition: TopicPartition, deadline: float) -> ErrorCode:
        try:
            replica = self._replicas.leader(*partition)
            has_raised, producer = (
                marker.transaction_version >= EPOCH_BUMPS,
                (marker.producer_id, marker.producer_epoch),
            )
            if has_raised and replica.log.producers.check_raised_epoch(*producer):
                end_offset = replica.log_end_offset  # followers may not have it yet
                return await replica.committed(end_offset, replica.leadership, deadline)
            batch = encode_control_batch(
                ControlType.COMMIT if marker.transaction_result else ControlType.ABORT,
                timestamp=self._clock.now(),
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
            )
            if partition.topic == CONSUMER_OFFSETS:
                return await self._coordinators.write_marker(
                    partition.partition,
                    batch,
                    marker.producer_id,
                    is_commit=marker.transaction_result,
                    raised_epoch=marker.producer_epoch if has_raised else None,
                )
            replica.check_in_sync()
            with replica.log.producers.raising_epoch(*producer) if has_raised else nullcontext():
                appended = replica.append(batch, Origin.COORDINATOR, self._clock.now())
            end_offset, leadership = appended.last_offset + 1, replica.leadership
            if appended.flush_due:
                await replica.flush(end_offset)
            return await replica.committed(end_offset, leadership, deadline)
        except KafkaError as error:
            return error.code
        except Exception as error:
            self._incidents.note(f"{partition}: {_MARKER}", error, kind=_MARKER)
            return ErrorCode.UNKNOWN_SERVER_ERROR


def _result(producer_id: int, codes: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    """Build the result of one producer's markers, naming each partition once."""
    topics = {
        topic: WritableTxnMarkerTopicResult(
            name=topic,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[TopicPartition(topic, index)])
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(set(codes)).items()
    }
    return WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))


class Marking:
    """The markers of one transaction that are not written yet."""

    def __init__(
        self,
        marker: WritableTxnMarker,
        partitions: frozenset[TopicPartition],
        is_wanted: Callable[[], bool],
        written: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        """`marker` has no topics. `is_wanted` says if its coordinator still leads; `written` reports partitions."""
        self.marker = marker
        self.left = partitions
        self.under_way: frozenset[TopicPartition] = frozenset()
        self.is_wanted = is_wanted
        self.written = written
        self.pause_s = _PAUSE_S
        self.is_being_sent = False
        """The leaders of its partitions are being looked up."""

    def is_unsent(self, partition: TopicPartition) -> bool:
        """Return True if the partition needs its marker, and no request with it is in flight."""
        return partition in self.left and partition not in self.under_way

    def done(self, partitions: frozenset[TopicPartition]) -> None:
        """Take these partitions off the list: each has its marker, or is gone."""
        partitions &= self.left
        if partitions:
            self.left -= partitions
            self.written(partitions)


class MarkerSender:
    """Sends markers to the leaders of their partitions, and retries."""

    def __init__(
        self,
        node_id: BrokerId,
        image: Callable[[], Image],
        writer: MarkerWriter,
        peers: Peers,
        tasks: Tasks,
        slices: Slices,
    ) -> None:
        self._slices = slices
        self._node_id = node_id
        self._image = image
        self._writer = writer
        self._peers = peers
        self._tasks = tasks
        self._waiting: dict[BrokerId, deque[tuple[Marking, frozenset[TopicPartition]]]] = {}
        self._looking_up: set[asyncio.Task[None]] = set()
        self._sending: dict[BrokerId, asyncio.Task[None]] = {}
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """Stop sending. The next coordinator of each transaction finishes the job."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        for task in (*self._sending.values(), *self._looking_up):
            task.cancel()

    def send(self, marking: Marking) -> None:
        """Send all markers of `marking` that are neither written nor in flight."""
        if self._is_stopped or not marking.left or not marking.is_wanted():
            return
        unsent = marking.left - marking.under_way
        if len(unsent) <= PIECE:
            self._send_piece(marking, sorted(unsent))
        elif not marking.is_being_sent:
            marking.is_being_sent = True
            task = self._tasks.create_task(self._send_pieces(marking, unsent), name="markers of a large transaction")
            self._looking_up.add(task)
            task.add_done_callback(self._looking_up.discard)
        else:
            self._retry_later(marking)

    async def _send_pieces(self, marking: Marking, partitions: frozenset[TopicPartition]) -> None:
        try:
            in_order = await self._slices.apart(sorted, partitions)
            for start in range(0, len(in_order), _MOST_SENT):
                await self._slices.breathe(_LOOKED_UP_UNITS * _MOST_SENT)
                if not marking.is_wanted():
                    return
                piece = in_order[start : start + _MOST_SENT]
                self._send_piece(marking, [each for each in piece if marking.is_unsent(each)])
        finally:
            marking.is_being_sent = False

    def _send_piece(self, marking: Marking, partitions: Sequence[TopicPartition]) -> None:
        gone: set[TopicPartition] = set()
        by_leader: dict[BrokerId, set[TopicPartition]] = {}
        is_later = False
        for partition in partitions:
            topic = self._image().topic(partition.topic)
            if topic is None or partition.partition >= len(topic.partitions):
                gone.add(partition)
                continue
            leader = topic.partitions[partition.partition].leader
            if leader < 0:
                is_later = True
            else:
                by_leader.setdefault(BrokerId(leader), set()).add(partition)
        if is_later:
            self._retry_later(marking)
        for leader, led in by_leader.items():
            marking.under_way |= led  # sent twice, a late marker could end the next transaction
            self._waiting.setdefault(leader, deque()).append((marking, frozenset(led)))
            if leader not in self._sending:
                name = f"markers for broker {leader}"
                self._sending[leader] = self._tasks.create_task(self._send_to(leader), name=name)
        marking.done(frozenset(gone))

    def _retry_later(self, marking: Marking) -> None:
        pause_s, marking.pause_s = marking.pause_s, min(marking.pause_s * 2, _MAX_PAUSE_S)

        def retry() -> None:
            del self._timers[timer]
            self.send(marking)

        timer = asyncio.get_running_loop().call_later(pause_s, retry)
        self._timers[timer] = None

    async def _send_to(self, leader: BrokerId) -> None:
        try:
            while waiting := self._next(leader):
                wanted = [(marking, partitions) for marking, partitions in waiting if marking.is_wanted()]
                if not wanted:
                    continue
                results = await self._results(leader, wanted)
                for number, (marking, partitions) in enumerate(wanted):
                    marking.under_way -= partitions
                    done: frozenset[TopicPartition] = frozenset()
                    try:
                        if number < len(results):
                            done = _written(results[number])
                            marking.done(done & partitions)
                    except Exception as error:
                        self._tasks.survive(f"handling marker results from broker {leader}", error)
                    if partitions - done:
                        self._retry_later(marking)
        finally:
            del self._sending[leader]

    def _next(self, leader: BrokerId) -> list[tuple[Marking, frozenset[TopicPartition]]]:
        """Take the markers of the next request to a broker."""
        waiting = self._waiting.get(leader, deque())
        taken: list[tuple[Marking, frozenset[TopicPartition]]] = []
        count = 0
        while waiting and (not taken or count + len(waiting[0][1]) <= _MOST_SENT):
            taken.append(waiting.popleft())
            count += len(taken[-1][1])
        if not waiting:
            self._waiting.pop(leader, None)
        return taken

    async def _results(
        self, leader: BrokerId, wanted: list[tuple[Marking, frozenset[TopicPartition]]]
    ) -> list[WritableTxnMarkerResult]:
        """Ask the leader to write the markers; return its results, or none if it cannot be asked."""
        request = WriteTxnMarkersRequest(markers=[_message(*each) for each in wanted])
        try:
            if leader == self._node_id:
                return (await self._writer.write(request)).markers
            response: WriteTxnMarkersResponse = await self._peers.ask(leader, ApiKey.WRITE_TXN_MARKERS, request)
            return response.markers
        except KafkaError as error:
            logger.debug("cannot write transaction markers on broker %d: %s", leader, error)
        except Exception as error:
            self._tasks.survive(f"writing transaction markers on broker {leader}", error)
        return []


def _written(result: WritableTxnMarkerResult) -> frozenset[TopicPartition]:
    """Return the partitions that have the marker, or no longer need it."""
    done: set[TopicPartition] = set()
    for topic in result.topics:
        for each in topic.partitions:
            code = ErrorCode.of(each.error_code)
            partition = TopicPartition(topic.name, each.partition_index)
            if code == ErrorCode.NONE:
                done.add(partition)
            elif code in _GIVEN_UP:
                # A later coordinator or a later epoch has already ended this transaction.
                logger.warning("%s: late marker of producer %d ignored: %s", partition, result.producer_id, code.name)
                done.add(partition)
    return frozenset(done)


def _message(marking: Marking, partitions: frozenset[TopicPartition]) -> WritableTxnMarker:
    marker = marking.marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.transaction_result,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(partitions).items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
