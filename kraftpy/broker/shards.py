"""State machines that live in the partitions of an internal topic: the loop around them.

A shard is one partition, led here, and the machine it keeps. It comes with the leadership and goes with it (who waits
is told to look elsewhere). It is loaded by replaying the partition up to the log's end at its election, and not used
until that is done and all of it is committed: what it says must not be undone by the next election. One whose partition
cannot be read goes on waiting, and the log says why.

An append is reported when it is committed (acks=all), and durable as far as the topic asks for it: `flush.messages`
and `kraftpy.flush.before.ack` hold here too. What did not commit in time is reported as failed, though it may be in the
log; the shard is then loaded anew. Why a partition cannot be written is logged when it begins, when it becomes another
reason and when it is over, however many appends fail of it.

What a machine is asked, and what its effects are, is its owner's: a subclass says it in the abstract methods here.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kraftpy.broker.containment import Complaints, Tasks
from kraftpy.broker.metadata import MetadataLog
from kraftpy.broker.replica import Replica
from kraftpy.broker.replicas import Replicas
from kraftpy.log.partition_log import Origin
from kraftpy.metadata.records import PartitionChanged, PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Buffer, Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.record_batch import BatchHeader, split_batches
from kraftpy.types import Millis, Offset

logger = logging.getLogger(__name__)

_LOAD_BYTES = 1 << 20
_LOOK_AGAIN_S = 60.0
_LONGEST_NAME = 300

Reported = Callable[[ErrorCode], Any]
"""From how an append went to the event that tells the machine; None where it need not know."""


class Machine(Protocol):
    """What a shard needs of its machine."""

    def loaded(self, now: Millis, timestamp: Millis) -> Sequence[Any]:
        """All of the partition has been replayed."""

    def unload(self) -> Sequence[Any]:
        """The partition is another broker's now."""

    def step(self, event: Any, now: Millis, timestamp: Millis) -> Sequence[Any]:
        """What follows from an event."""

    def next_deadline(self) -> Millis | None:
        """When a tick is due."""


M = TypeVar("M", bound=Machine)


class _Pending(NamedTuple):
    """An append that is not committed yet."""

    end_offset: int
    reported: Reported
    deadline: float


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


class Shards(ABC, Generic[M]):
    """The machines of those partitions of a topic that this broker leads."""

    topic: str
    """The internal topic."""
    commit_timeout_ms: int
    """How long an append may take to commit."""

    def __init__(self, clock: Clock, tasks: Tasks, metadata: MetadataLog, replicas: Replicas) -> None:
        self._clock = clock
        self._tasks = tasks
        self._metadata = metadata
        self._replicas = replicas
        self._shards: dict[int, Shard[M]] = {}
        self._hindrances: dict[int, str] = {}
        """Why partitions that are led here cannot be written, as far as that is known and was logged."""
        self._is_stopped = False
        self.complaints = Complaints()
        """Where refusals are told; the broker puts its own in."""

    # --- what the machines are ---------------------------------------------------------------

    @abstractmethod
    def _make(self, replica: Replica) -> M:
        """A new machine."""

    @abstractmethod
    def _tick(self) -> Any:
        """The event that says that time has passed."""

    @abstractmethod
    def _replay_batch(self, machine: M, header: BatchHeader, batch: Buffer) -> Iterable[ProtocolError]:
        """What a batch of the partition says becomes so; what of it cannot be understood."""

    @abstractmethod
    def _carry_out(self, shard: Shard[M], effect: Any) -> Sequence[Any]:
        """Do what the machine says; the effects of what follows at once."""

    def _refused(self, what: str) -> None:
        """There is no room for something that a client wants kept: one line of it a minute."""
        printable = what[:_LONGEST_NAME].encode("unicode_escape").decode()  # names are the client's
        self.complaints.write(logger, logging.WARNING, f"{self.topic} full", "", "there is no room for %s", printable)

    # --- coming and going --------------------------------------------------------------------

    def reconcile(self) -> None:
        """Have a shard for each partition that is led here, and no other."""
        topic = self._metadata.image.topic(self.topic)
        count = 0 if topic is None else len(topic.partitions)
        for partition in sorted({*range(count), *self._shards}):
            self.follow_leadership(partition)

    def apply(self, records: Sequence[Record]) -> None:
        """Metadata has changed: leaderships come and go."""
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
        """Let go of everything, for good; who waits is told to look elsewhere."""
        self._is_stopped = True
        for partition in list(self._shards):
            self._unload(partition)

    def follow_leadership(self, partition: int) -> None:
        """Have a shard for a partition exactly while this broker leads it."""
        if self._is_stopped:
            return
        try:
            replica = self._replicas.leader(self.topic, partition)
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:  # what is wrong with it was logged where that was found
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
        self._run(shard, shard.machine.unload())
        for pending in shard.pending:
            pending.reported(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if shard.timer is not None:
            shard.timer.cancel()

    async def _load(self, shard: Shard[M]) -> None:
        replica = shard.replica
        end_offset = replica.log_end_offset
        try:
            await self._replay(shard, end_offset)
        except (KafkaError, ProtocolError) as error:
            logger.critical("%s cannot be read, what it keeps waits: %s", replica.topic_partition, error)
            return
        outcome = ErrorCode.REQUEST_TIMED_OUT
        while outcome == ErrorCode.REQUEST_TIMED_OUT:
            deadline = asyncio.get_running_loop().time() + _LOOK_AGAIN_S
            outcome = await replica.committed(end_offset, shard.leadership, deadline)
        if outcome != ErrorCode.NOT_LEADER_OR_FOLLOWER and self._is_current(shard):
            self._loaded(shard)

    def _is_current(self, shard: Shard[M]) -> bool:
        return self._shards.get(shard.replica.topic_partition.partition) is shard

    async def _replay(self, shard: Shard[M], end_offset: int) -> None:
        replica = shard.replica
        offset = Offset(replica.log.log_start_offset)
        while offset < end_offset:
            records = replica.read_to_end(offset, _LOAD_BYTES, min_one_batch=True)
            if not records:  # compaction left nothing behind it
                return
            for header, batch in split_batches(records):
                for error in self._replay_batch(shard.machine, header, batch):
                    logger.error("%s: passed over: %s", replica.topic_partition, error)
                offset = Offset(header.next_offset)
            await asyncio.sleep(0)  # let clients be served between two pieces

    def _loaded(self, shard: Shard[M]) -> None:
        self._run(shard, shard.machine.loaded(self._monotonic(), self._clock.now()))

    # --- the loop around the machine ---------------------------------------------------------

    def _monotonic(self) -> Millis:
        return self._clock.monotonic_ms()

    def _step(self, shard: Shard[M], event: Any) -> None:
        self._run(shard, self._stepped(shard, event))

    def _stepped(self, shard: Shard[M], event: Any) -> Sequence[Any]:
        return shard.machine.step(event, self._monotonic(), self._clock.now())

    def _run(self, shard: Shard[M], effects: Sequence[Any]) -> None:
        remaining = deque(effects)
        while remaining:
            remaining.extend(self._carry_out(shard, remaining.popleft()))
        self._set_timer(shard)

    def _append(self, shard: Shard[M], batch: bytes, reported: Reported) -> ErrorCode | None:
        """Append a batch; None where how it went is `reported` later, once it is committed and synced."""
        replica = shard.replica
        try:
            if replica.leadership != shard.leadership:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership was lost meanwhile")
            replica.check_in_sync()
            appended = replica.append(batch, Origin.COORDINATOR, self._clock.now())
        except KafkaError as error:
            self._is_hindered(replica, str(error))
            return error.code
        end_offset = appended.last_offset + 1
        if not appended.flush_due and not shard.pending and replica.high_watermark >= end_offset:
            self._is_written(replica)
            return ErrorCode.NONE
        deadline = asyncio.get_running_loop().time() + self.commit_timeout_ms / 1000
        shard.pending.append(_Pending(end_offset, reported, deadline))
        if shard.committing is None:
            name = f"commit {replica.topic_partition}"
            shard.committing = self._tasks.create_task(self._commit(shard), name=name)
        return None

    async def _commit(self, shard: Shard[M]) -> None:
        """Report what was appended, in order, as it is committed."""
        replica = shard.replica
        outcome = ErrorCode.NONE
        while shard.pending and self._is_current(shard):
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
                self._is_written(replica)
            else:
                self._is_hindered(replica, f"not committed: {outcome.name}")
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

    def _is_hindered(self, replica: Replica, reason: str) -> None:
        partition = replica.topic_partition.partition
        if self._hindrances.get(partition) != reason:
            self._hindrances[partition] = reason
            logger.warning("%s: %s", replica.topic_partition, reason)

    def _is_written(self, replica: Replica) -> None:
        if self._hindrances and self._hindrances.pop(replica.topic_partition.partition, None) is not None:
            logger.warning("%s: is written again", replica.topic_partition)

    def _set_timer(self, shard: Shard[M]) -> None:
        """Have a tick when the next deadline comes. A timer that is early stays: every heartbeat moves deadlines back,
        and a tick too many does nothing."""
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
