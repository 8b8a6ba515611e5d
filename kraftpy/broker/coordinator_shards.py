"""Runs coordinator state machines, each of which lives in one partition of an internal topic.

A shard is one partition that this broker leads, and the machine kept in it. It is created when this broker gains the
leadership and dropped when it loses it; waiting clients then get an error that makes them look for the coordinator
elsewhere. A shard is loaded by replaying the partition up to the log's end at the election. It is not used until that
is done and all of it is committed: the next election must not undo what the machine answers. If its partition cannot be
read, a shard stays unloaded, and the log says why.

An append is reported once it is committed (acks=all), and as durable as the topic asks for: `flush.messages` and
`kraftpy.flush.before.ack` hold here too. An append that did not commit in time is reported as failed, though it may be
in the log; the shard is then reloaded. The reason why a partition cannot be written is logged when it begins, when it
changes and when it is over, however many appends fail for it.

Requests and effects belong to the machine's owner: a subclass defines them in the abstract methods here.

Machines contain unexpected errors if they know what these cost. Any other error makes the machine's state doubtful: all
waiting requests are answered, and only this shard is reloaded from its partition, first at once, then after pauses that
grow to a minute. A record that cannot be replayed is skipped. No request waits indefinitely: when a shard goes, its
unanswered clients get an error that makes them look for the coordinator again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import Slices
from kraftpy.log.results import Origin
from kraftpy.log.work import expanded
from kraftpy.metadata.records import PartitionChanged, PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Buffer, Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    iter_payload,
    split_batches,
)
from kraftpy.protocol.record_batch import Record as BatchRecord
from kraftpy.types import Millis, Offset

logger = logging.getLogger(__name__)

_LOAD_BYTES = 1 << 20
_REPLAYED_AT_ONCE = 1024
"""Records replayed without a pause."""
_LONG_BYTES = 1 << 15
"""Bytes of records' values replayed without a pause: some 10 ms. A single longer value is parsed in a thread."""
_BATCHES_AT_ONCE = 250
"""Batches replayed without a pause."""
_REPORTED_AT_ONCE = 20
"""Committed appends reported to a machine without a pause."""
_LOOK_AGAIN_S = 60.0
_SHOWN_CHARACTERS = 500
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
_CALM_S = 600.0
"""A shard whose last failure is longer ago than this is reloaded at once when it fails."""
_LONGEST_NAME = 300

Reported = Callable[[ErrorCode], Any]
"""Turns the outcome of an append into the event for the machine; None if the machine need not know."""


class Machine(Protocol):
    """The interface that a shard needs of its machine."""

    def loaded(self, now: Millis, timestamp: Millis) -> Sequence[Any]:
        """Handle the end of loading: the whole partition has been replayed."""

    def unload(self) -> Sequence[Any]:
        """Handle the loss of the partition to another broker."""

    def step(self, event: Any, now: Millis, timestamp: Millis) -> Sequence[Any]:
        """Handle an event; return its effects."""

    def next_deadline(self) -> Millis | None:
        """Return the time of the next tick, or None."""


M = TypeVar("M", bound=Machine)


class _Pending(NamedTuple):
    """An append that is not committed yet."""

    end_offset: int
    reported: Reported
    deadline: float


class _Failures(NamedTuple):
    """How often a shard's machine has failed recently."""

    times: int
    last_at: float


class Shard(Generic[M]):
    """One machine with its partition and its timer."""

    def __init__(self, replica: Replica, machine: M) -> None:
        self.replica = replica
        self.leadership = replica.leadership
        self.machine = machine
        self.pending: deque[_Pending] = deque()
        self.committing: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.tick_at = Millis(0)
        self.loading: asyncio.Task[None] | None = None
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        """Unanswered requests, by id. A result that is an ErrorCode means that the machine gave no answer."""
        self.is_loaded = False
        self.has_failed = False
        """The machine's state is doubtful: it gets no more events, and the shard is about to be reloaded."""


class Shards(ABC, Generic[M]):
    """The machines of all partitions of one internal topic that this broker leads."""

    topic: str
    """The internal topic's name."""
    commit_timeout_ms: int
    """How long an append may take to commit."""

    def __init__(self, clock: Clock, tasks: Tasks, metadata: MetadataLog, replicas: Replicas, slices: Slices) -> None:
        self._clock = clock
        self._tasks = tasks
        self._metadata = metadata
        self._replicas = replicas
        self._slices = slices
        self._shards: dict[int, Shard[M]] = {}
        self._hindrances: dict[int, str] = {}
        """Why partitions led here cannot be written, if that is known and was logged."""
        self._failures: dict[int, _Failures] = {}
        self._held_back: dict[int, asyncio.TimerHandle] = {}
        """Partitions whose shards failed repeatedly, until they are reloaded."""
        self._request_ids = itertools.count()
        self._is_stopped = False
        self._complaints = tasks.incidents.complaints

    # --- to be defined by subclasses ---------------------------------------------------------

    @abstractmethod
    def _make(self, replica: Replica) -> M:
        """Return a new machine."""

    @abstractmethod
    def _tick(self) -> Any:
        """Return the event that tells a machine that time has passed."""

    @abstractmethod
    def _parse(self, key: Buffer | None, value: Buffer | None) -> Any:
        """Parse the value of a record as the machine does. Called in a thread, for long values."""

    @abstractmethod
    def _replay_record(self, machine: M, header: BatchHeader, record: BatchRecord, parsed: Any) -> None:
        """Replay a record of a batch. `parsed` is its value, if it was parsed before."""

    def _replay_on(self, machine: M) -> bool:
        """Do a piece of what replayed records have left to do; return True if there is more."""
        return False

    def _restore_on(self, machine: M) -> bool:
        """Do a piece of the work before `loaded`; return True if there is more."""
        return False

    @abstractmethod
    def _carry_out(self, shard: Shard[M], effect: Any) -> Sequence[Any]:
        """Carry out an effect of the machine; return the effects that follow from it immediately."""

    def _refused(self, what: str) -> None:
        """Log that there is no room for something a client wants kept, at most once a minute."""
        printable = what[:_LONGEST_NAME].encode("unicode_escape").decode()  # names are the client's
        self._complaints.write(logger, logging.WARNING, f"{self.topic} full", "", "there is no room for %s", printable)

    # --- following the leadership ------------------------------------------------------------

    def reconcile(self) -> None:
        """Have a shard for each partition that is led here, and no other."""
        topic = self._metadata.image.topic(self.topic)
        count = 0 if topic is None else len(topic.partitions)
        for partition in sorted({*range(count), *self._shards}):
            self.follow_leadership(partition)

    def apply(self, records: Sequence[Record]) -> None:
        """Follow changes of leadership in new metadata records."""
        touched: dict[int, None] = {}
        for record in records:
            match record:
                case PartitionCreated(topic=topic) | PartitionChanged(topic=topic) if topic == self.topic:
                    touched[record.partition] = None
                case TopicDeleted(name=name) if name == self.topic:
                    touched.update(dict.fromkeys(self._shards))
                case _:
                    pass
        for partition in touched:
            self.follow_leadership(partition)

    def stop(self) -> None:
        """Unload every shard for good; the error makes waiting clients look for the coordinator elsewhere."""
        self._is_stopped = True
        for timer in self._held_back.values():
            timer.cancel()
        for partition in list(self._shards):
            self._unload(partition)

    def follow_leadership(self, partition: int) -> None:
        """Have a shard for a partition if and only if this broker leads it."""
        if self._is_stopped or partition in self._held_back:
            return
        try:
            replica = self._replicas.leader(self.topic, partition)
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:  # the problem was logged when it was found
                logger.info("%s-%d has no coordinator: %s", self.topic, partition, error)
            self._hindrances.pop(partition, None)
            self._unload(partition)
            return
        shard = self._shards.get(partition)
        if shard is not None and shard.replica is replica and shard.leadership == replica.leadership:
            return
        self._unload(partition)
        self._begin(partition, replica)

    def _begin(self, partition: int, replica: Replica) -> None:
        shard = self._shards[partition] = Shard(replica, self._make(replica))
        if replica.log.log_end_offset == replica.log.log_start_offset:
            self._loaded(shard)
        else:
            name = f"load {self.topic}-{partition}"
            shard.loading = self._tasks.create_task(self._load(shard), name=name)

    def _unload(self, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is None:
            return
        for task in (shard.loading, shard.committing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if shard.timer is not None:
            shard.timer.cancel()
        self._answer_all(shard)

    def _answer_all(self, shard: Shard[M]) -> None:
        """Answer all waiting clients with an error that makes them look elsewhere, even if the machine is in a broken
        state."""
        try:
            for effect in shard.machine.unload():
                self._carry_out(shard, effect)
        except Exception as error:
            self._tasks.survive(f"unloading {shard.replica.topic_partition}", error)
        for pending in shard.pending:
            pending.reported(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for answer in shard.waiting.values():
            if not answer.done():
                answer.set_result(ErrorCode.NOT_COORDINATOR)

    # --- unexpected errors -------------------------------------------------------------------

    def _fail(self, shard: Shard[M], doing: str, error: Exception) -> None:
        """Treat the machine's state as doubtful after an error. Raises the error if it ends the node."""
        self._tasks.survive(f"{doing} of {shard.replica.topic_partition}", error)
        if not shard.has_failed:
            shard.has_failed = True
            asyncio.get_running_loop().call_soon(self._load_again, shard)

    def _load_again(self, shard: Shard[M]) -> None:
        if not self._is_current(shard):
            return
        partition, now = shard.replica.topic_partition.partition, asyncio.get_running_loop().time()
        known = self._failures.get(partition)
        count = 0 if known is None or now - known.last_at > _CALM_S else known.times
        self._failures[partition] = _Failures(count + 1, now)
        pause_s = 0.0 if count == 0 else min(_FIRST_PAUSE_S * 2 ** min(count - 1, 10), _MAX_PAUSE_S)
        logger.warning("%s: reloading in %g s after an unexpected error", shard.replica.topic_partition, pause_s)
        self._unload(partition)
        self._held_back[partition] = asyncio.get_running_loop().call_later(pause_s, self._release, partition)

    def _release(self, partition: int) -> None:
        del self._held_back[partition]
        self.follow_leadership(partition)

    # --- loading -----------------------------------------------------------------------------

    async def _load(self, shard: Shard[M]) -> None:
        try:
            await self._load_all(shard)
        except (KafkaError, ProtocolError) as error:
            logger.critical(
                "cannot read %s; its coordinator stays unavailable: %s", shard.replica.topic_partition, error
            )
        except Exception as error:
            self._fail(shard, "loading", error)

    async def _load_all(self, shard: Shard[M]) -> None:
        """Replay the partition and wait until it is committed. Raises KafkaError, ProtocolError if it is unreadable."""
        replica = shard.replica
        end_offset = replica.log_end_offset
        await self._replay(shard, end_offset)
        outcome = ErrorCode.REQUEST_TIMED_OUT
        while outcome == ErrorCode.REQUEST_TIMED_OUT:
            deadline = asyncio.get_running_loop().time() + _LOOK_AGAIN_S
            outcome = await replica.committed(end_offset, shard.leadership, deadline)
        if outcome == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return
        while self._is_current(shard):
            if not self._restore_on(shard.machine):
                self._loaded(shard)
                return
            await asyncio.sleep(0)

    def _serving(self, partition: int) -> Shard[M] | None:
        """Return the shard of a partition, unless it is not here or about to be reloaded."""
        shard = self._shards.get(partition)
        return None if shard is None or shard.has_failed else shard

    def _is_current(self, shard: Shard[M]) -> bool:
        return self._shards.get(shard.replica.topic_partition.partition) is shard

    async def _replay(self, shard: Shard[M], end_offset: int) -> None:
        replica = shard.replica
        offset = Offset(replica.log.log_start_offset)
        passed_over = 0
        while offset < end_offset:
            records = replica.read_to_end(offset, _LOAD_BYTES, min_one_batch=True)
            if not records:  # compaction left nothing after this offset
                break
            for number, (header, batch) in enumerate(split_batches(records), 1):
                if number % _BATCHES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                async for error in self._replayed(shard.machine, header, batch):
                    if not passed_over:
                        text = "%s: skipped at offset %d: %s"
                        logger.error(text, replica.topic_partition, header.base_offset, _shown(error))
                    passed_over += 1
                offset = Offset(header.next_offset)
            await asyncio.sleep(0)  # let clients be served in between
        if passed_over > 1:
            logger.error("%s: %d records or batches were skipped", replica.topic_partition, passed_over)

    async def _replayed(self, machine: M, header: BatchHeader, batch: Buffer) -> AsyncIterator[Exception]:
        """Replay a batch, some records at a time; yield an error for each record, or the rest, that cannot be read."""
        try:
            payload = await self._replicas.decoding.carry_out(expanded(header, batch, MAX_DECOMPRESSED_BYTES))
            records = iter_payload(payload, header)
            for number, some in enumerate(_pieces(records)):
                if number:
                    await asyncio.sleep(0)
                for record in some:
                    try:
                        parsed = None
                        if len(record.value or b"") > _LONG_BYTES:
                            parsed = await self._slices.apart(self._parse, record.key, record.value)
                        self._replay_record(machine, header, record, parsed)
                    except Exception as error:  # the error concerns one record, which is skipped
                        yield error
                has_more = self._replay_on(machine)
                while has_more:
                    await asyncio.sleep(0)
                    has_more = self._replay_on(machine)
        except Exception as error:
            if self._tasks.is_fatal(error):
                raise
            yield error

    def _loaded(self, shard: Shard[M]) -> None:
        try:
            effects = shard.machine.loaded(self._monotonic(), self._clock.now())
            shard.is_loaded = True
        except Exception as error:
            self._fail(shard, "loading", error)
        else:
            self._run(shard, effects)

    # --- the loop around the machine ---------------------------------------------------------

    def _monotonic(self) -> Millis:
        return self._clock.monotonic_ms()

    def _step(self, shard: Shard[M], event: Any) -> None:
        self._run(shard, self._stepped(shard, event))

    def _stepped(self, shard: Shard[M], event: Any) -> Sequence[Any]:
        if shard.has_failed:
            return ()
        try:
            return shard.machine.step(event, self._monotonic(), self._clock.now())
        except Exception as error:
            self._fail(shard, f"{type(event).__name__} to the coordinator", error)
            return ()

    def _run(self, shard: Shard[M], effects: Sequence[Any]) -> None:
        remaining = deque(effects)
        while remaining and not shard.has_failed:
            effect = remaining.popleft()
            try:
                remaining.extend(self._carry_out(shard, effect))
            except Exception as error:
                self._fail(shard, f"{type(effect).__name__} for the coordinator", error)
        if not shard.has_failed:
            self._set_timer(shard)

    async def _asked(self, shard: Shard[M], request_id: int, event: Any) -> Any:
        """Send a request to the machine and return its answer, or an ErrorCode if it gives none."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        shard.waiting[request_id] = answer
        try:
            self._step(shard, event)
            if shard.has_failed and not answer.done():
                return ErrorCode.UNKNOWN_SERVER_ERROR
            return await answer
        finally:
            del shard.waiting[request_id]

    @staticmethod
    def _answer(shard: Shard[M], request_id: int, response: Any) -> None:
        answer = shard.waiting.get(request_id)  # None: the client has gone
        if answer is not None and not answer.done():
            answer.set_result(response)

    def _write(self, shard: Shard[M], encode: Callable[[], bytes], reported: Reported) -> Sequence[Any]:
        """Append what `encode` returns, or report its error; return the effects that follow at once."""
        try:
            batch = encode()
        except Exception as error:
            self._tasks.survive(f"encoding records for {shard.replica.topic_partition}", error)
            error_code: ErrorCode | None = ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            error_code = self._append(shard, batch, reported)
        return () if error_code is None else self._stepped(shard, reported(error_code))

    def _append(self, shard: Shard[M], batch: bytes, reported: Reported) -> ErrorCode | None:
        """Append a batch; return None if its outcome will be `reported` later, once it is committed and synced."""
        replica = shard.replica
        if shard.has_failed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            if replica.leadership != shard.leadership:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership was lost meanwhile")
            replica.check_in_sync()
            appended = replica.append(batch, Origin.COORDINATOR, self._clock.now())
        except KafkaError as error:
            self._on_write_failed(replica, str(error))
            return error.code
        except Exception as error:  # the batch may or may not be in the log
            self._fail(shard, "an append", error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        end_offset = appended.last_offset + 1
        if not appended.flush_due and not shard.pending and replica.high_watermark >= end_offset:
            self._on_written(replica)
            return ErrorCode.NONE
        deadline = asyncio.get_running_loop().time() + self.commit_timeout_ms / 1000
        shard.pending.append(_Pending(end_offset, reported, deadline))
        if shard.committing is None:
            name = f"commit {replica.topic_partition}"
            shard.committing = self._tasks.create_task(self._commit(shard), name=name)
        return None

    async def _commit(self, shard: Shard[M]) -> None:
        try:
            await self._commit_all(shard)
        except Exception as error:
            self._fail(shard, "a commit", error)

    async def _commit_all(self, shard: Shard[M]) -> None:
        """Report appends in order as they are committed."""
        replica = shard.replica
        outcome = ErrorCode.NONE
        for count in itertools.count(1):
            if count % _REPORTED_AT_ONCE == 0:  # for appends that were committed together
                await asyncio.sleep(0)
            if not shard.pending or not self._is_current(shard):
                break
            end_offset, reported, deadline = shard.pending[0]
            try:
                if replica.syncs.is_due(end_offset):
                    await replica.flush(shard.pending[-1].end_offset)
                outcome = await replica.committed(end_offset, shard.leadership, deadline)
            except KafkaError as error:
                outcome = error.code
            if not self._is_current(shard):
                return
            if outcome == ErrorCode.NONE:
                self._on_written(replica)
            else:
                self._on_write_failed(replica, f"not committed: {outcome.name}")
            shard.pending.popleft()
            event = reported(outcome)
            if event is not None:
                self._step(shard, event)
            if outcome not in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                break  # it may be in the log all the same
        shard.committing = None
        if outcome != ErrorCode.NONE and self._is_current(shard):
            partition = replica.topic_partition.partition
            self._unload(partition)
            self.follow_leadership(partition)

    def _on_write_failed(self, replica: Replica, reason: str) -> None:
        partition = replica.topic_partition.partition
        if self._hindrances.get(partition) != reason:
            self._hindrances[partition] = reason
            logger.warning("%s: %s", replica.topic_partition, reason)

    def _on_written(self, replica: Replica) -> None:
        if self._hindrances and self._hindrances.pop(replica.topic_partition.partition, None) is not None:
            logger.warning("%s: can be written again", replica.topic_partition)

    def _set_timer(self, shard: Shard[M]) -> None:
        """Schedule a tick for the next deadline.

        An earlier timer is kept: every heartbeat moves deadlines back, and an extra tick does nothing.
        """
        deadline = shard.machine.next_deadline()
        if deadline is None:
            return
        if shard.timer is not None:
            if shard.tick_at <= deadline:
                return
            shard.timer.cancel()
        shard.tick_at = deadline
        delay_ms = max(0, deadline - self._monotonic())
        shard.timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick_now, shard)

    def _tick_now(self, shard: Shard[M]) -> None:
        shard.timer = None
        self._step(shard, self._tick())


def machines_of(shards: Shards[M]) -> list[M]:
    """Return the machines that serve requests."""
    return [each.machine for each in shards._shards.values() if each.is_loaded and not each.has_failed]


def states_of(shards: Shards[Any]) -> dict[str, int]:
    """Return how many partitions led here are loading, active or failed, as Kafka's metrics count them."""
    led, held_back = shards._shards.values(), len(shards._held_back)
    failed = sum(each.has_failed for each in led) + held_back
    active = len(machines_of(shards))
    return {"loading": max(0, len(led) + held_back - failed - active), "active": active, "failed": failed}


def _pieces(records: Iterable[BatchRecord]) -> Iterator[list[BatchRecord]]:
    """Cut a batch into pieces that are replayed without a pause, by the number of records and their size."""
    piece: list[BatchRecord] = []
    size = 0
    for record in records:
        piece.append(record)
        size += len(record.value or b"")
        if len(piece) >= _REPLAYED_AT_ONCE or size > _LONG_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _shown(error: Exception) -> str:
    text = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
    return text[:_SHOWN_CHARACTERS]
