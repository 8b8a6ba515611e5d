"""What a partition knows of its producers: the idempotence window, open transactions, aborted ranges.

Per producer id the last five batches are kept. A batch that is one of them is a duplicate and is answered with the
offsets it got the first time. Otherwise its epoch may not be older, a new epoch begins at sequence 0, and within an
epoch sequence numbers follow each other, from 2^31 - 1 to 0 (KIP-98). A producer nobody remembers (expired, or its
records deleted) may go on at any sequence (KIP-360). Followers apply, without these checks, what their leader let in,
or a failover would forget it.

A batch older than the window gets DUPLICATE_SEQUENCE_NUMBER where the sequence numbers prove that it was written, which
clients take as success without an offset; Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER there.

The state outlives a restart in `<offset>.snapshot` files, one per segment and one of a clean stop, each covering all
before its offset; what the log holds behind the newest one is replayed. The snapshot's form is our own (Kafka's
remembers one batch per producer, this one all five), with a checksum. Aborted ranges are part of it, so there is no
`.txnindex`.

Invariants: open transactions are in the order of their first offsets; `last_stable_offset` never falls while the high
watermark does not.

A write that opens a transaction is verified with its coordinator first (KIP-890): the broker asks, and what is
remembered here meanwhile tells it whether a marker came in between.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import xxhash

from kraftpy.log.layout import CorruptFile
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import BatchHeader, ControlRecord, ControlType
from kraftpy.types import Millis

WINDOW_BATCHES: Final = 5
EXPIRATION_MS: Final = 86_400_000
_SEQUENCES: Final = 2**31
_NO_OFFSET: Final = -1

_MAGIC: Final = b"kpsnap1\n"
_COUNTS: Final = struct.Struct(">III")  # producers, transactions ended above the high watermark, aborted transactions
_PRODUCER: Final = struct.Struct(">qhiqq?B")  # id, epoch, coordinator epoch, last write ms, open since, proven, batches
_BATCH: Final = struct.Struct(">iiqiq")  # base sequence, last sequence, last offset, offset delta, timestamp
_TRANSACTION: Final = struct.Struct(">qqqq")  # producer id, first offset, last offset, last stable offset


class WrittenBatch(NamedTuple):
    """A batch a producer wrote, as far as a duplicate of it must be answered."""

    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's own offset."""
    last_stable_offset: int
    """The partition's when it ended: nothing before it can still be undecided."""


class ProducerDescription(NamedTuple):
    """One producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Verification:
    """A transactional write that is to open a transaction here, and whose coordinator is being asked (KIP-890).

    It is no longer current when a marker came meanwhile: the answer is of a transaction that is over.
    """

    __slots__ = ("producer_epoch",)

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "first_open_offset", "proven", "written_at")

    def __init__(self, epoch: int, written_at: int) -> None:
        self.epoch = epoch
        self.batches: list[WrittenBatch] = []  # of this epoch, oldest first, at most five
        self.coordinator_epoch = -1
        self.first_open_offset = _NO_OFFSET
        self.proven = False  # every sequence number of this epoch from 0 on is known to be in the log
        self.written_at = written_at

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_aborted", "_ended", "_open", "_producers", "_verifications")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # first offset -> producer id, in offset order
        self._ended: list[EndedTransaction] = []  # whose marker may still be above the high watermark
        self._aborted: list[EndedTransaction] = []  # by last offset
        self._verifications: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._producers)

    # --- batches ---

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """The batch this one is a duplicate of, or None where it may be appended. Changes nothing.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER,
        INVALID_TXN_STATE.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # nothing remembered: any sequence will do
        sequence, epoch = header.base_sequence, header.producer_epoch
        if epoch == producer.epoch:
            last_sequence = header.last_sequence
            for batch in producer.batches:
                if batch.base_sequence == sequence and batch.last_sequence == last_sequence:
                    return batch
            self._check_sequence(producer, header)
        elif epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch {epoch}",
            )
        elif sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins epoch {epoch} with sequence {sequence}",
            )
        if producer.first_open_offset >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open and writes outside it",
            )
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """That the producer of a coordinator's batch is not fenced. Raises KafkaError (INVALID_PRODUCER_EPOCH)."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch {header.producer_epoch}",
            )

    @staticmethod
    def _check_sequence(producer: _Producer, header: BatchHeader) -> None:
        sequence = header.base_sequence
        expected = (producer.last_sequence + 1) % _SEQUENCES
        if sequence == expected:
            return
        # How far behind the oldest batch of the window this one ends; less than half the numbers, or it is ahead.
        if producer.proven and producer.batches:
            behind = (producer.batches[0].base_sequence - 1 - header.last_sequence) % _SEQUENCES
            if behind < _SEQUENCES // 2:
                raise KafkaError(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} wrote sequence {sequence} long ago",
                )
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {sequence}, expected {expected}",
        )

    def appended(self, header: BatchHeader, now: Millis) -> None:
        """A data batch with a producer id is in the log, at the offsets in its header."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, now)
            producer.proven = header.base_sequence == 0
        elif header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
            producer.proven = header.base_sequence == 0
        elif not producer.batches:
            producer.proven = header.base_sequence == 0
        producer.written_at = now
        producer.batches.append(
            WrittenBatch(
                header.base_sequence,
                header.last_sequence,
                header.last_offset,
                header.last_offset_delta,
                header.max_timestamp,
            )
        )
        if len(producer.batches) > WINDOW_BATCHES:
            del producer.batches[0]
        if header.is_transactional and producer.first_open_offset < 0:
            producer.first_open_offset = header.base_offset
            self._open[header.base_offset] = header.producer_id
            self._verifications.pop(header.producer_id, None)

    # --- transactions ---

    def verification(self, producer_id: int, producer_epoch: int) -> Verification | None:
        """What has to be verified before this producer may write in a transaction; None where it has one open."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer.first_open_offset >= 0 and producer.epoch == producer_epoch:
            return None
        current = self._verifications.get(producer_id)
        if current is None or current.producer_epoch != producer_epoch:
            current = self._verifications[producer_id] = Verification(producer_epoch)
        return current

    def check_verified(self, producer_id: int, producer_epoch: int, verification: Verification | None) -> None:
        """That this producer may write in a transaction now. Raises KafkaError (INVALID_TXN_STATE)."""
        needed = self.verification(producer_id, producer_epoch)
        if needed is not None and needed is not verification:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has no transaction here that is known to go on"
            )

    def check_raised_epoch(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the marker of a transaction whose end raised the epoch is here already (KIP-1228).

        Raises KafkaError (INVALID_PRODUCER_EPOCH) for one that comes late: the producer has gone on since.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch > producer.epoch:
            return False
        if producer_epoch == producer.epoch and producer.first_open_offset < 0:
            return True
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {producer_id} has epoch {producer.epoch} by now, the marker {producer_epoch}",
        )

    def check_marker(self, header: BatchHeader, marker: ControlRecord) -> None:
        """Refuse a marker of a fenced producer or coordinator.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the marker {header.producer_epoch}",
            )
        if 0 <= marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch} after {producer.coordinator_epoch}",
            )

    def ended(self, header: BatchHeader, marker: ControlRecord, now: Millis) -> None:
        """A marker is in the log. Other control records change nothing here."""
        if marker.type not in (ControlType.ABORT, ControlType.COMMIT):
            return
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, now)
        elif header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
            producer.proven = False
        producer.written_at = now
        self._verifications.pop(header.producer_id, None)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        first_offset = producer.first_open_offset
        if first_offset < 0:
            return  # a marker without data touches nothing
        producer.first_open_offset = _NO_OFFSET
        del self._open[first_offset]
        stable = next(iter(self._open), header.last_offset + 1)
        ended = EndedTransaction(header.producer_id, first_offset, header.last_offset, stable)
        self._ended.append(ended)
        if marker.type == ControlType.ABORT:
            self._aborted.append(ended)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where readers of committed records stop: at the first transaction open, or ended above the watermark."""
        if not self._open and not self._ended:
            return high_watermark
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.last_offset >= high_watermark]
        stable = next(iter(self._open), high_watermark)
        for ended in self._ended:
            stable = min(stable, ended.first_offset)
        return min(stable, high_watermark)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of each aborted transaction with records in [start, end)."""
        return [
            (ended.producer_id, ended.first_offset)
            for ended in self._aborted
            if ended.last_offset >= start_offset and ended.first_offset < end_offset
        ]

    def aborted_ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Producer id -> (first offset, offset of the marker) of each aborted transaction."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for ended in self._aborted:
            ranges.setdefault(ended.producer_id, []).append((ended.first_offset, ended.last_offset))
        return ranges

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self._open), None)

    # --- keeping ---

    def expire(self, now: Millis, expiration_ms: int) -> list[int]:
        """Forget producers that have not written for that long and have no transaction open; their ids."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.first_open_offset < 0 and now - producer.written_at >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return gone

    def log_start_advanced(self, log_start_offset: int) -> None:
        """Records before an offset are gone: aborted ranges wholly among them matter no more."""
        if self._aborted:
            self._aborted = [ended for ended in self._aborted if ended.last_offset >= log_start_offset]

    def markers_removed(self, offsets: Collection[int]) -> None:
        """Compaction has removed markers, and before them all that their transactions wrote.

        Readers must not be told of such a transaction: they would wait for its marker, and take the producer's next
        one for aborted.
        """
        self._aborted = [ended for ended in self._aborted if ended.last_offset not in offsets]

    def forget_open(self) -> None:
        """The log behind this snapshot is missing: whether what was open then has ended since cannot be known.

        What goes on writing opens its transaction anew.
        """
        for producer in self._producers.values():
            producer.first_open_offset = _NO_OFFSET
        self._open.clear()

    def describe(self) -> Iterator[ProducerDescription]:
        """The producers by id."""
        for producer_id, producer in sorted(self._producers.items()):
            yield ProducerDescription(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.batches[-1].timestamp if producer.batches else -1,
                producer.coordinator_epoch,
                producer.first_open_offset,
            )

    def last_sequences(self) -> dict[int, tuple[int, int]]:
        """Producer id -> (epoch, last offset) of the batch that proves its last sequence number.

        Offset -1 where it has written no batch in that epoch: then only a marker proves the epoch. Compaction keeps
        those.
        """
        return {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
            for producer_id, producer in self._producers.items()
        }

    def encode(self) -> bytes:
        """A snapshot of everything here."""
        parts = [_MAGIC, _COUNTS.pack(len(self._producers), len(self._ended), len(self._aborted))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.coordinator_epoch,
                    producer.written_at,
                    producer.first_open_offset,
                    producer.proven,
                    len(producer.batches),
                )
            )
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        parts += [_TRANSACTION.pack(*ended) for ended in self._ended]
        parts += [_TRANSACTION.pack(*ended) for ended in self._aborted]
        body = b"".join(parts)
        return body + xxhash.xxh64_digest(body)

    @classmethod
    def decode(cls, data: bytes) -> ProducerStates:
        """From the bytes of a snapshot. CorruptFile where they are damaged."""
        body = data[:-8]
        if not body.startswith(_MAGIC) or xxhash.xxh64_digest(body) != data[-8:]:
            raise CorruptFile("not a whole producer snapshot")
        states = cls()
        producers, ended, aborted = _COUNTS.unpack_from(body, len(_MAGIC))
        position = len(_MAGIC) + _COUNTS.size
        for _ in range(producers):
            fields = _PRODUCER.unpack_from(body, position)
            position += _PRODUCER.size
            producer_id, epoch, coordinator_epoch, written_at, first_open_offset, proven, batches = fields
            producer = states._producers[producer_id] = _Producer(epoch, written_at)
            producer.coordinator_epoch = coordinator_epoch
            producer.first_open_offset = first_open_offset
            producer.proven = proven
            for _ in range(batches):
                producer.batches.append(WrittenBatch._make(_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        for count, into in ((ended, states._ended), (aborted, states._aborted)):
            for _ in range(count):
                into.append(EndedTransaction._make(_TRANSACTION.unpack_from(body, position)))
                position += _TRANSACTION.size
        still_open = ((p.first_open_offset, key) for key, p in states._producers.items() if p.first_open_offset >= 0)
        states._open = dict(sorted(still_open))
        return states
