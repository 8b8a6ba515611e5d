"""Records waiting to be sent, batched by partition: the producer's state machine, without I/O and without a clock.

The hot path is `append`: a tuple onto a list. Records are encoded when their batch is drained, many at once.

A partition's batches leave in order. Batches that were sent and not yet answered are in `in_flight`, oldest first. A
failed one that may be tried again keeps its sequence number and goes back to the front of `waiting`; while such a batch
waits, only the oldest in flight may be sent, so that the broker never sees a gap it could not have caused itself.

A broker recognizes a batch only while it is among the last five of its producer: no more than five are sent from the
oldest unanswered one on, answered or not. If a broker knows nothing of a producer it accepts any batch as the first:
until it has accepted one, a partition has one batch in flight.

Sequences (KIP-98, KIP-360): assigned at the first drain, from 0 for each (producer id, epoch) of a partition. If the
oldest batch in flight is out of order, or one was given up and may or may not have been written (`unresolved`), the
partition moves to a new producer epoch as soon as nothing of it is on the wire, and waiting batches are numbered from 0
again. Other partitions follow when they have nothing in flight.

In transactions (`transaction_manager`) the epoch is the transaction's business: such a batch is given up, nothing more
of its partition is sent before `set_producer`, and `failures` reports the batches given up (`transaction_state` decides
what follows). `discard_unsent` drops what the broker cannot have seen.

Invariants: `free_bytes` is what the limit leaves; every batch is completed exactly once; sequence numbers of one
partition, epoch and producer id are consecutive in the order of appending.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, Headers, NewRecord, record_size_bound
from kraftpy.types import TopicPartition

MAX_BATCHES_IN_FLIGHT = 5
"""The number of a producer's batches that a broker remembers per partition."""
MAX_PRODUCER_EPOCH = 32_766
_SEQUENCE_MASK = 0x7FFFFFFF
_NUMBERS_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
_SPAN = 2**32  # a batch of up to 2^32 records can be halved down to single ones
SMALL_RECORD_BYTES = 8_000
SMALL_RECORD_OVERHEAD = 24
"""The most that a record without headers adds to its key and value, if those are below `SMALL_RECORD_BYTES`."""


class Batch:
    """Records of one partition that travel together, and their outcome."""

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "created_ms",
        "done",
        "encoded",
        "error",
        "halves",
        "log_append_time_ms",
        "number",
        "observed",
        "on_wire",
        "ordinal",
        "partition",
        "producer_epoch",
        "producer_id",
        "records",
        "renumbered",
        "retry_at_ms",
        "size_bytes",
        "span",
        "whole",
    )

    def __init__(self, partition: TopicPartition, created_ms: float, number: int, span: int) -> None:
        self.partition = partition
        self.created_ms = created_ms
        self.number = number  # position among the partition's batches
        self.span = span  # the numbers from here on that are its own, for the halves of a split
        self.records: list[NewRecord] = []
        self.size_bytes = HEADER_BYTES  # an upper bound, before compression
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.ordinal = 0  # the number of the partition's batches sent before this one
        self.renumbered = False
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.on_wire = False
        self.encoded: bytes | None = None  # kept for a retry; dropped when renumbered
        self.done = False
        self.error: KafkaError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.callbacks: list[Callable[[], None]] = []
        self.observed = False  # the application asked for the outcome
        self.halves: tuple[Batch, Batch] | None = None
        self.whole: Batch | None = None

    def outcome(self, index: int) -> tuple[int, int]:
        """Return offset and timestamp in ms of the record at `index`. Raises its `KafkaError`. Only when `done`."""
        if self.halves is not None:
            left, right = self.halves
            first = len(left.records)
            return left.outcome(index) if index < first else right.outcome(index - first)
        if self.error is not None:
            raise self.error
        timestamp = self.log_append_time_ms if self.log_append_time_ms >= 0 else self.records[index][0]
        return (self.base_offset + index if self.base_offset >= 0 else -1), timestamp

    def __lt__(self, other: Batch) -> bool:
        return self.number < other.number


class PartitionQueue:
    """The batches of one partition. `open` is still being filled and is younger than all in `waiting`."""

    __slots__ = (
        "batches_sent",
        "in_flight",
        "known_as",
        "next_number",
        "next_sequence",
        "on_wire",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "reset_wanted",
        "unresolved",
        "waiting",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.on_wire = 0
        self.batches_sent = 0
        self.next_number = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.known_as = -1  # the producer id of which the broker has accepted a batch
        self.reset_wanted = False  # number the batches in flight again, under a new epoch
        self.unresolved = False  # a batch was given up; its sequence may or may not have been used


class Failure(Enum):
    """The possible reactions to a refused batch."""

    RETRY = "retry"
    SPLIT = "split"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorOptions:
    """The producer's options that concern the accumulator."""

    batch_size: int
    linger_ms: float
    buffer_memory: int
    delivery_timeout_ms: float
    retries: int
    idempotent: bool
    max_in_flight: int
    transactional: bool = False


class Accumulator:
    """The queues of all partitions of one producer. Times are milliseconds of any clock that never goes back."""

    def __init__(self, options: AccumulatorOptions) -> None:
        self.options = options
        self.free_bytes = options.buffer_memory
        self.producer_id = -1
        self.producer_epoch = -1
        self.batches_filled = 0
        self.incomplete = 0
        self.starving = False  # a sender waits for memory: send everything there is
        self.unseen: list[Batch] = []  # given up before anyone asked for the outcome
        self.on_given_up: Callable[[Batch], None] = lambda batch: None
        self.failures: list[KafkaError] = []  # of a transaction's batches; the transaction fails with them
        self._active: dict[PartitionQueue, None] = {}  # with anything open or waiting, oldest first
        self._batch_size = options.batch_size
        self._queues: dict[TopicPartition, PartitionQueue] = {}

    # --- filling --------------------------------------------------------------------------------------------------

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """Return the queue of a partition, creating it on first use."""
        name = TopicPartition(topic, partition)
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = PartitionQueue(name)
        return found

    def append(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size_bytes: int,
        now_ms: Callable[[], float],
    ) -> Batch:
        """Add a record of at most `size_bytes`, last in the batch returned. The caller has checked `free_bytes`."""
        batch = queue.open
        if batch is None or batch.size_bytes + size_bytes > self._batch_size:
            batch = self._open(queue, now_ms())  # the time matters to a batch, not to a record
        batch.records.append((timestamp_ms, key, value, headers))
        batch.size_bytes += size_bytes
        self.free_bytes -= size_bytes
        return batch

    def _open(self, queue: PartitionQueue, now_ms: float) -> Batch:
        if queue.open is not None:
            self._close(queue)
            self.batches_filled += 1
        batch = queue.open = Batch(queue.partition, now_ms, queue.next_number, _SPAN)
        queue.next_number += _SPAN
        self._active[queue] = None
        self.incomplete += 1
        return batch

    def _close(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            queue.waiting.append(queue.open)
            queue.open = None

    def close_open_batches(self) -> None:
        """Make everything appended so far ready now, regardless of `linger_ms`: a flush."""
        for queue in self._active:
            self._close(queue)

    # --- sending --------------------------------------------------------------------------------------------------

    def ready(self, now_ms: float) -> tuple[list[PartitionQueue], float | None]:
        """Return the partitions with something to send now, and when to look again (None: only after another event)."""
        found: list[PartitionQueue] = []
        next_ms: float | None = None
        linger_ms = self.options.linger_ms
        for queue in self._active:
            if queue.waiting:
                at = queue.waiting[0].retry_at_ms
            elif queue.open is not None:
                at = queue.open.created_ms + linger_ms
                if queue.open.size_bytes >= self._batch_size or self.starving:
                    at = now_ms
            else:
                continue
            if at <= now_ms:
                found.append(queue)
            elif next_ms is None or at < next_ms:
                next_ms = at
        return found, next_ms

    def drain(self, queues: Iterable[PartitionQueue], max_bytes: int, now_ms: float) -> list[Batch]:
        """Take at most one batch per queue, about `max_bytes` in all (the first always fits), marked as on the wire."""
        batches: list[Batch] = []
        total = 0
        for queue in queues:
            batch = self._next(queue, now_ms)
            if batch is None:
                continue
            if batches and total + batch.size_bytes > max_bytes:
                continue
            total += batch.size_bytes
            self._take(queue, batch)
            batches.append(batch)
        return batches

    def _next(self, queue: PartitionQueue, now_ms: float) -> Batch | None:
        """Return the batch this partition may send now, or None."""
        if queue.reset_wanted or (queue.unresolved and not queue.in_flight):
            if queue.on_wire or self.options.transactional:
                return None
            self._start_new_epoch(queue)
        if self.options.idempotent and self.producer_id < 0:
            return None
        if not queue.waiting:
            opened = queue.open
            if opened is None:
                return None
            full = opened.size_bytes >= self._batch_size or self.starving
            if not full and opened.created_ms + self.options.linger_ms > now_ms:
                return None
            self._close(queue)
        head = queue.waiting[0]
        if head.retry_at_ms > now_ms:
            return None
        if head.base_sequence >= 0:
            return head if head is queue.in_flight[0] else None
        if len(queue.in_flight) >= min(MAX_BATCHES_IN_FLIGHT, self.options.max_in_flight):
            return None
        if self.options.idempotent and queue.in_flight:
            if queue.batches_sent - queue.in_flight[0].ordinal >= MAX_BATCHES_IN_FLIGHT:
                return None  # if the oldest was written and its answer lost, the broker would not recognize it
            current = (self.producer_id, self.producer_epoch)
            if queue.unresolved or (queue.producer_id, queue.producer_epoch) != current:
                return None
            if queue.known_as != self.producer_id:
                return None  # the broker accepts any batch of an unknown producer as its first
        return head

    def _take(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.waiting.popleft()
        del self._active[queue]
        if queue.waiting or queue.open is not None:
            self._active[queue] = None  # to the back: the others go first next time
        if batch.base_sequence < 0:
            if self.options.idempotent:
                if (queue.producer_id, queue.producer_epoch) != (self.producer_id, self.producer_epoch):
                    queue.producer_id, queue.producer_epoch = self.producer_id, self.producer_epoch
                    queue.next_sequence = 0
                self._number(queue, batch)
            batch.ordinal = queue.batches_sent
            queue.batches_sent += 1
            insort(queue.in_flight, batch)
        batch.on_wire = True
        batch.attempts += 1
        queue.on_wire += 1

    def _number(self, queue: PartitionQueue, batch: Batch) -> None:
        batch.producer_id, batch.producer_epoch = queue.producer_id, queue.producer_epoch
        batch.base_sequence = queue.next_sequence
        batch.encoded = None
        queue.next_sequence = (queue.next_sequence + len(batch.records)) & _SEQUENCE_MASK

    # --- the producer's identity ----------------------------------------------------------------------------------

    def set_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Adopt the identity that the broker assigned."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        if self.options.transactional:  # between transactions nothing is in flight, and numbers restart
            for queue in self._queues.values():
                queue.unresolved = False

    def _start_new_epoch(self, queue: PartitionQueue) -> None:
        """Number the batches in flight (none is on the wire) from 0 under the next epoch (KIP-360)."""
        if self.producer_epoch >= MAX_PRODUCER_EPOCH or self.producer_id < 0:
            self.producer_id = self.producer_epoch = -1  # used up: a new id has to be requested
            return
        if (queue.producer_id, queue.producer_epoch) == (self.producer_id, self.producer_epoch):
            self.producer_epoch += 1
        queue.producer_id, queue.producer_epoch = self.producer_id, self.producer_epoch
        queue.next_sequence = 0
        for batch in queue.in_flight:
            self._number(queue, batch)
            batch.renumbered = True
        queue.reset_wanted = queue.unresolved = False

    # --- answers --------------------------------------------------------------------------------------------------

    def succeeded(self, batch: Batch, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Complete a batch that the broker has (base offset -1: it did not report where)."""
        if batch.done:
            return
        queue = self._off_the_wire(batch)
        queue.in_flight.remove(batch)
        queue.known_as = batch.producer_id
        queue.unresolved = False  # the broker accepted this number, so it had all before it
        batch.base_offset, batch.log_append_time_ms = base_offset, log_append_time_ms
        self._complete(batch, None)

    def failed(self, batch: Batch, error: KafkaError, now_ms: float, backoff_ms: float) -> Failure:
        """Decide what to do with a batch that failed. If its fate is unknown, `error` is a retriable one."""
        if batch.done:
            return Failure.GIVE_UP
        queue = self._off_the_wire(batch)
        verdict = self._verdict(queue, batch, error, now_ms)
        match verdict:
            case Failure.RETRY:
                batch.retry_at_ms = now_ms + backoff_ms
                if not self.options.idempotent:
                    queue.in_flight.remove(batch)
                self._requeue(queue, batch)
            case Failure.SPLIT:
                self._split(queue, batch)
            case Failure.GIVE_UP:
                queue.in_flight.remove(batch)
                queue.unresolved = queue.unresolved or batch.base_sequence >= 0
                self._complete(batch, error)
        return verdict

    def _verdict(self, queue: PartitionQueue, batch: Batch, error: KafkaError, now_ms: float) -> Failure:
        code = error.code
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            return Failure.SPLIT
        if now_ms - batch.created_ms >= self.options.delivery_timeout_ms or batch.attempts > self.options.retries:
            return Failure.GIVE_UP
        if self.options.transactional:
            lost = code in _NUMBERS_LOST or self._queues[batch.partition].unresolved
            return Failure.RETRY if code.retriable and not lost else Failure.GIVE_UP
        if batch.base_sequence >= 0:
            if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
                if queue.in_flight[0] is batch:
                    queue.reset_wanted = True
                return Failure.RETRY
            if code is ErrorCode.INVALID_PRODUCER_EPOCH and not batch.renumbered:
                queue.reset_wanted = True
                return Failure.RETRY
        return Failure.RETRY if code.retriable else Failure.GIVE_UP

    def _off_the_wire(self, batch: Batch) -> PartitionQueue:
        queue = self._queues[batch.partition]
        batch.on_wire = False
        queue.on_wire -= 1
        return queue

    def _requeue(self, queue: PartitionQueue, batch: Batch) -> None:
        """Put the batch back among those waiting, in the order of creation."""
        place = 0
        while place < len(queue.waiting) and queue.waiting[place].number < batch.number:
            place += 1
        queue.waiting.insert(place, batch)
        self._active[queue] = None

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        """Replace a batch too large for the broker by two halves, numbered as their records were."""
        pivot = (len(batch.records) + 1) // 2
        position = queue.in_flight.index(batch)
        del queue.in_flight[position]
        half_span = batch.span // 2
        left = Batch(batch.partition, batch.created_ms, batch.number, half_span)
        right = Batch(batch.partition, batch.created_ms, batch.number + half_span, half_span)
        left.records, right.records = batch.records[:pivot], batch.records[pivot:]
        left.size_bytes = HEADER_BYTES + sum(record_size_bound(*record[1:]) for record in left.records)
        right.size_bytes = batch.size_bytes - left.size_bytes + HEADER_BYTES
        left.ordinal = right.ordinal = batch.ordinal
        batch.halves = left, right
        self.incomplete += 1
        sequence = batch.base_sequence
        for half in (left, right):
            half.whole = batch
            if sequence >= 0:
                half.producer_id, half.producer_epoch = batch.producer_id, batch.producer_epoch
                half.base_sequence = sequence
                sequence = (sequence + len(half.records)) & _SEQUENCE_MASK
                insort(queue.in_flight, half)
            self._requeue(queue, half)

    def expire(self, now_ms: float) -> list[Batch]:
        """Give up batches that have waited longer than `delivery_timeout_ms`, except those on the wire."""
        deadline = now_ms - self.options.delivery_timeout_ms
        expired: list[Batch] = []
        for queue in list(self._active):
            if queue.open is not None and queue.open.created_ms <= deadline:
                self._close(queue)
            late = [batch for batch in queue.waiting if batch.created_ms <= deadline]
            for batch in late:
                self._give_up(queue, batch, KafkaError(ErrorCode.REQUEST_TIMED_OUT, self._expiry_text(batch)))
            expired += late
        return expired

    def _expiry_text(self, batch: Batch) -> str:
        return (
            f"{len(batch.records)} record(s) for {batch.partition} were not delivered within "
            f"{self.options.delivery_timeout_ms:g} ms"
        )

    def discard_unsent(self, error: KafkaError) -> None:
        """Give up batches that no broker can have seen, or that wait behind a gap in their partition's sequence."""
        for queue in self._queues.values():
            self._close(queue)
            for batch in list(queue.waiting):
                if batch.base_sequence < 0 or queue.unresolved:
                    self._give_up(queue, batch, error)

    def fail_all(self, error: KafkaError) -> None:
        """Give up everything, including what is on the wire: its answers will find nothing to complete."""
        for queue in self._queues.values():
            self._close(queue)
            for batch in list(queue.waiting):
                self._give_up(queue, batch, error)
            for batch in list(queue.in_flight):
                queue.in_flight.remove(batch)
                self._complete(batch, error)
        self._active.clear()

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> None:
        queue.waiting.remove(batch)
        if not queue.waiting and queue.open is None:
            self._active.pop(queue, None)
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
            queue.unresolved = queue.unresolved or batch.base_sequence >= 0
        self._complete(batch, error)

    def _complete(self, batch: Batch, error: KafkaError | None) -> None:
        self.incomplete -= 1
        self.free_bytes += batch.size_bytes - HEADER_BYTES
        batch.error, batch.encoded = error, None
        if error is not None:
            self.on_given_up(batch)
        finished: Batch | None = batch
        observed = False
        while finished is not None and (finished.halves is None or all(half.done for half in finished.halves)):
            finished.done = True
            observed = observed or finished.observed
            callbacks, finished.callbacks = finished.callbacks, []
            for callback in callbacks:
                callback()
            finished = finished.whole
        while finished is not None:
            observed = observed or finished.observed
            finished = finished.whole
        if error is not None and self.options.transactional:
            self.failures.append(error)
        elif error is not None and not observed:
            self.unseen.append(batch)
