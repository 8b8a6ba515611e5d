"""The producer state of a partition: the idempotence window, open transactions, aborted ranges.

The last five batches of each producer id are kept. If a batch is one of them, it is a duplicate, and the answer has
the offsets that it got the first time. Otherwise its epoch may not be older, a new epoch begins at sequence 0, and
within an epoch sequence numbers follow each other, with 0 after 2^31 - 1 (KIP-98). An unknown producer (expired, or its
records deleted) may continue with any sequence (KIP-360). Followers apply the batches that their leader accepted
without these checks; otherwise a failover would lose the state.

A batch older than the window gets DUPLICATE_SEQUENCE_NUMBER if the sequence numbers prove that it was written: those up
to the last one that are known to be in the log without a gap are counted. Clients treat that as success without an
offset. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER instead, as this does for everything that is not proven.

The state survives a restart in `<offset>.snapshot` files, one per segment and one of a clean stop. Each covers all
batches before its offset; the batches after the newest one are replayed. The file has Kafka's format (version 1,
CRC-32C over the rest): for each producer what Kafka remembers, which is one batch. After that, where Kafka does not
look, come the other batches, the aborted transactions of the segment that the snapshot lies in, and checksums of the
`.txnindex` files of the segments before it. Snapshots that Kafka wrote are read too.

Invariants: open transactions are in the order of their first offsets; `last_stable_offset` does not fall unless the
high watermark does.

A write that opens a transaction is verified with its coordinator first (KIP-890). A `Verification` held here shows the
broker whether a marker of the same transaction was written while it waited for the coordinator's answer. A marker of
transactions v2 carries the epoch that the producer continues with, so it ends none that is verified in that epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

import xxhash

from kraftpy.log.aborted_transactions import AbortedTransactions, EndedTransaction
from kraftpy.log.layout import CorruptFile
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import BatchHeader, ControlRecord, ControlType
from kraftpy.types import Millis

WINDOW_BATCHES: Final = 5
EXPIRATION_MS: Final = 86_400_000
_SEQUENCES: Final = 2**31
_NO_OFFSET: Final = -1
_NEVER: Final = 1 << 62

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")  # version, CRC-32C of the rest
_COUNT: Final = struct.Struct(">i")
# Id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, start of the open transaction.
_PRODUCER: Final = struct.Struct(">qhiqiqiq")

_OURS: Final = b"kraftpy1"
_MORE: Final = struct.Struct(">q?B")  # each producer: last write ms, known from 0 on, number of batches before the last
_BATCH: Final = struct.Struct(">iiqiq")  # base sequence, last sequence, last offset, offset delta, timestamp
_COUNTS: Final = struct.Struct(">III")  # transactions ended above the high watermark, aborted ones, indexes
_TRANSACTION: Final = struct.Struct(">qqqq")  # producer id, first offset, last offset, last stable offset
_INDEX: Final = struct.Struct(">q8s")  # for a segment with aborted transactions: base offset, xxh64 of its `.txnindex`


class WrittenBatch(NamedTuple):
    """The facts about a producer's batch that the answer to a duplicate of it needs."""

    base_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta


class ProducerDescription(NamedTuple):
    """One producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Verification:
    """A pending question to the coordinator about a write that will open a transaction here (KIP-890).

    Once the transaction's marker is written, the question is outdated: the coordinator's answer is about a transaction
    that has ended.
    """

    __slots__ = ("is_confirmed", "producer_epoch", "waiting")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.is_confirmed = False
        """The coordinator has agreed; for writes of a group coordinator, which happen later (`check_confirmed`)."""
        self.waiting = 0
        """The number of requests that wait for the coordinator's answer; after the last of them it is forgotten."""


def _not_ongoing(producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has no ongoing transaction that was verified here"
    )


class _Producer:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_open_offset",
        "last_timestamp",
        "proven_count",
        "written_at",
    )

    def __init__(self, epoch: int, written_at: int) -> None:
        self.epoch = epoch
        self.batches: list[WrittenBatch] = []  # in this epoch, oldest first, at most five
        self.coordinator_epoch = -1
        self.first_open_offset = _NO_OFFSET
        self.proven_count = 0  # how many sequence numbers up to the last one are known to be in the log, without a gap
        self.last_timestamp = -1  # that of the last batch or marker
        self.written_at = written_at

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_ended", "_open", "_producers", "_verifications", "aborted")

    def __init__(self) -> None:
        self.aborted = AbortedTransactions()
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # first offset -> producer id, in offset order
        self._ended: list[EndedTransaction] = []  # those whose marker may still be above the high watermark
        self._verifications: dict[int, dict[int, Verification]] = {}
        """By producer and epoch, so that a late request of an older epoch, or a false newer one, replaces no other."""

    def __len__(self) -> int:
        return len(self._producers)

    def __bool__(self) -> bool:
        return len(self) > 0

    # --- batches ---

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the batch that this one duplicates, or None if it may be appended. Changes nothing.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER,
        INVALID_TXN_STATE.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # unknown producer: any sequence is accepted
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
                f"Epoch of producer {header.producer_id} is {epoch}, which is smaller than the last seen epoch "
                f"{producer.epoch}",
            )
        elif sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {header.producer_id}: {epoch} (request epoch), "
                f"{sequence} (seq. number), {producer.epoch} (current producer epoch)",
            )
        if producer.first_open_offset >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id}",
            )
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Check that the producer of a coordinator's batch is not fenced. Raises INVALID_PRODUCER_EPOCH."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} is {header.producer_epoch}, which is smaller than the last "
                f"seen epoch {producer.epoch}",
            )

    @staticmethod
    def _check_sequence(producer: _Producer, header: BatchHeader) -> None:
        sequence = header.base_sequence
        expected = (producer.last_sequence + 1) % _SEQUENCES
        if sequence == expected:
            return
        if producer.batches:
            # The count of numbers from this batch's first up to the one before the window's first.
            up_to_window = (producer.batches[0].base_sequence - sequence) % _SEQUENCES
            in_window = (producer.last_sequence - producer.batches[0].base_sequence) % _SEQUENCES + 1
            if header.records_count <= up_to_window <= producer.proven_count - in_window:
                raise KafkaError(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    f"Duplicate sequence number for producer {header.producer_id}: {sequence} was written long ago",
                )
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {header.producer_id}: {sequence} (incoming seq. number), "
            f"{producer.last_sequence} (current end sequence number)",
        )

    def appended(self, header: BatchHeader, now: Millis) -> None:
        """Apply a data batch with a producer id that is now in the log, at the offsets in its header."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, now)
        elif header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        continues = producer.batches and header.base_sequence == (producer.last_sequence + 1) % _SEQUENCES
        written = header.last_offset_delta + 1
        producer.proven_count = min(producer.proven_count + written, _SEQUENCES) if continues else written
        producer.written_at = now
        producer.last_timestamp = header.max_timestamp
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
            self._forget(header.producer_id, [header.producer_epoch])

    # --- transactions ---

    def verification(self, producer_id: int, producer_epoch: int) -> Verification | None:
        """Return the verification needed before this producer may write in a transaction; None if it has one open."""
        if self._has_open(producer_id, producer_epoch):
            return None
        by_epoch = self._verifications.setdefault(producer_id, {})
        if producer_epoch not in by_epoch:
            by_epoch[producer_epoch] = Verification(producer_epoch)
        return by_epoch[producer_epoch]

    def answered(self, producer_id: int, verification: Verification) -> None:
        """Count one request that waited for it as over, successful or not; forget it if no other one waits."""
        verification.waiting -= 1
        if verification.waiting <= 0 and self._current(producer_id, verification.producer_epoch) is verification:
            self._forget(producer_id, [verification.producer_epoch])

    def check_verified(self, producer_id: int, producer_epoch: int, verification: Verification | None) -> None:
        """Check that this producer may write in a transaction now. Raises KafkaError (INVALID_TXN_STATE)."""
        if not self._has_open(producer_id, producer_epoch):
            current = self._current(producer_id, producer_epoch)
            if current is None or current is not verification:
                raise _not_ongoing(producer_id)

    def check_confirmed(self, producer_id: int, producer_epoch: int) -> None:
        """Check that the coordinator has agreed to this producer's write, and that the transaction has not ended since.

        Raises KafkaError (INVALID_TXN_STATE).
        """
        if not self._has_open(producer_id, producer_epoch):
            current = self._current(producer_id, producer_epoch)
            if current is None or not current.is_confirmed:
                raise _not_ongoing(producer_id)

    def _has_open(self, producer_id: int, producer_epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.first_open_offset >= 0 and producer.epoch == producer_epoch

    def _current(self, producer_id: int, producer_epoch: int) -> Verification | None:
        by_epoch = self._verifications.get(producer_id)
        return None if by_epoch is None else by_epoch.get(producer_epoch)

    def _forget(self, producer_id: int, epochs: Iterable[int]) -> None:
        by_epoch = self._verifications.get(producer_id, {})
        for epoch in epochs:
            by_epoch.pop(epoch, None)
        if not by_epoch:
            self._verifications.pop(producer_id, None)

    @contextmanager
    def raising_epoch(self, producer_id: int, producer_epoch: int) -> Iterator[None]:
        """Append the marker of a transaction whose end has raised the producer to this epoch (transactions v2).

        The verification of this epoch is kept: it is about the next transaction. A marker of transactions v1 carries
        the epoch of the transaction that it ends, so it is not appended in here.
        """
        kept = self._current(producer_id, producer_epoch)
        yield
        if kept is not None:
            self._verifications.setdefault(producer_id, {}).setdefault(producer_epoch, kept)

    def check_raised_epoch(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the marker of a transaction whose end raised the epoch is in the log already (KIP-1228).

        Raises KafkaError (INVALID_PRODUCER_EPOCH) for a late marker: the producer has written again since.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer_epoch > producer.epoch:
            return False
        if producer_epoch == producer.epoch and producer.first_open_offset < 0:
            return True
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {producer_id} is {producer_epoch}, which is smaller than the last seen epoch "
            f"{producer.epoch}",
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
                f"Epoch of producer {header.producer_id} is {header.producer_epoch}, which is smaller than the last "
                f"seen epoch {producer.epoch}",
            )
        if 0 <= marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {header.producer_id}: {marker.coordinator_epoch} (zombie), "
                f"{producer.coordinator_epoch} (current)",
            )

    def ended(self, header: BatchHeader, marker: ControlRecord, now: Millis) -> None:
        """Apply a marker that is now in the log. Other control records change nothing."""
        if marker.type not in (ControlType.ABORT, ControlType.COMMIT):
            return
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, now)
        elif header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
            producer.proven_count = 0
        producer.written_at = now
        producer.last_timestamp = header.max_timestamp
        if header.producer_id in self._verifications:
            verified = self._verifications[header.producer_id]
            self._forget(header.producer_id, [epoch for epoch in verified if epoch <= header.producer_epoch])
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        first_offset = producer.first_open_offset
        if first_offset < 0:
            return  # the transaction wrote nothing to this partition
        producer.first_open_offset = _NO_OFFSET
        del self._open[first_offset]
        stable = next(iter(self._open), header.last_offset + 1)
        ended = EndedTransaction(header.producer_id, first_offset, header.last_offset, stable)
        self._ended.append(ended)
        if marker.type == ControlType.ABORT:
            self.aborted.add(ended)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset at which readers of committed records stop.

        It is the first offset of the first transaction that is open, or whose marker is above the high watermark.
        """
        if not self._open and not self._ended:
            return high_watermark
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.last_offset >= high_watermark]
        stable = next(iter(self._open), high_watermark)
        for ended in self._ended:
            stable = min(stable, ended.first_offset)
        return min(stable, high_watermark)

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self._open), None)

    # --- keeping ---

    def expire(self, now: Millis, expiration_ms: int) -> list[int]:
        """Forget producers that have not written for `expiration_ms` and have no open transaction; return their ids."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.first_open_offset < 0 and now - producer.written_at >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return gone

    def written_at(self) -> list[int]:
        """Return the time (ms) of the last write of each producer without an open transaction, in no order."""
        return [each.written_at for each in self._producers.values() if each.first_open_offset < 0]

    def forget_open(self) -> None:
        """Forget the open transactions, because the log after this snapshot is missing.

        It cannot be known whether they have ended since. A producer that continues to write opens its transaction
        again.
        """
        for producer in self._producers.values():
            producer.first_open_offset = _NO_OFFSET
        self._open.clear()

    def describe(self) -> Iterator[ProducerDescription]:
        """Yield the producers in the order of their ids; a caller that pauses misses those forgotten meanwhile."""
        for producer_id in sorted(self._producers):
            producer = self._producers.get(producer_id)
            if producer is None:
                continue
            yield ProducerDescription(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.first_open_offset,
            )

    def last_sequences(self) -> dict[int, tuple[int, int]]:
        """Return producer id -> (epoch, last offset) of the batch that proves the producer's last sequence number.

        The offset is -1 if the producer has written no batch in that epoch: then only a marker proves the epoch.
        Compaction keeps these batches and markers.
        """
        return {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
            for producer_id, producer in self._producers.items()
        }

    # --- snapshots ---

    def encode(self, bases: Sequence[int] = (0,)) -> bytes:
        """Return a snapshot of the state. `bases` are the segments' base offsets up to the one that it lies in."""
        entries = [_COUNT.pack(len(self._producers))]
        more = [_OURS]
        for producer_id, producer in self._producers.items():
            _, sequence, offset, delta, timestamp = (
                producer.batches[-1] if producer.batches else (-1, -1, _NO_OFFSET, 0, producer.written_at)
            )
            state = (producer.coordinator_epoch, producer.first_open_offset)
            entries.append(_PRODUCER.pack(producer_id, producer.epoch, sequence, offset, delta, timestamp, *state))
            older = producer.batches[:-1]
            begins_at_0 = bool(producer.batches) and producer.proven_count > producer.last_sequence
            more.append(_MORE.pack(producer.written_at, begins_at_0, len(older)))
            more += [_BATCH.pack(*batch) for batch in older]
        aborted = [ended for ended in self.aborted.between(bases[-1], _NEVER) if ended.last_offset >= bases[-1]]
        indexes = [(base, self.aborted.encode(base, following)) for base, following in pairwise(bases)]
        proofs = [_INDEX.pack(base, xxhash.xxh64_digest(data)) for base, data in indexes if data]
        more.append(_COUNTS.pack(len(self._ended), len(aborted), len(proofs)))
        more += [_TRANSACTION.pack(*ended) for ended in (*self._ended, *aborted)]
        body = b"".join((*entries, *more, *proofs))
        return _HEAD.pack(_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> tuple[ProducerStates, dict[int, bytes] | None]:
        """Decode a snapshot; also return base offset -> xxh64 of each `.txnindex` that belongs to it.

        The caller adds the transactions in those files before the snapshot's own. The checksums are None if Kafka wrote
        the snapshot. Raises CorruptFile if it is damaged or has another format.
        """
        body = data[_HEAD.size :]
        if len(data) < _HEAD.size + _COUNT.size or _HEAD.unpack_from(data) != (_VERSION, crc32c(body)):
            raise CorruptFile("an incomplete producer snapshot, or a CRC that does not match")
        states = cls()
        try:
            position = states._decode_producers(body)
            if position == len(body):
                return states, None
            if body[position : position + len(_OURS)] != _OURS:
                raise CorruptFile("a producer snapshot with unknown data after its producers")
            return states, states._decode_more(body, position + len(_OURS))
        except struct.error as error:
            raise CorruptFile(f"a producer snapshot that ends too early: {error}") from error

    def _decode_producers(self, body: bytes) -> int:
        (count,) = _COUNT.unpack_from(body)
        position = _COUNT.size
        for _ in range(count):
            fields = _PRODUCER.unpack_from(body, position)
            position += _PRODUCER.size
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_open_offset = fields
            producer = self._producers[producer_id] = _Producer(epoch, timestamp)
            producer.coordinator_epoch = coordinator_epoch
            producer.first_open_offset = first_open_offset
            producer.last_timestamp = timestamp
            if offset >= 0:
                base_sequence = (sequence - delta) % _SEQUENCES if sequence >= 0 else sequence
                producer.batches.append(WrittenBatch(base_sequence, sequence, offset, delta, timestamp))
        still_open = ((p.first_open_offset, key) for key, p in self._producers.items() if p.first_open_offset >= 0)
        self._open = dict(sorted(still_open))
        return position

    def _decode_more(self, body: bytes, position: int) -> dict[int, bytes]:
        for producer in self._producers.values():
            producer.written_at, begins_at_0, count = _MORE.unpack_from(body, position)
            position += _MORE.size
            older = [WrittenBatch._make(_BATCH.unpack_from(body, position + n * _BATCH.size)) for n in range(count)]
            producer.batches[:0] = older
            position += count * _BATCH.size
            if begins_at_0:  # earlier numbers, before a wrap, are not proven any more
                producer.proven_count = producer.last_sequence + 1
        ended, aborted, proofs = _COUNTS.unpack_from(body, position)
        position += _COUNTS.size
        for number in range(ended + aborted):
            each = EndedTransaction._make(_TRANSACTION.unpack_from(body, position))
            position += _TRANSACTION.size
            if number < ended:
                self._ended.append(each)
            else:
                self.aborted.add(each)
        return dict(_INDEX.unpack_from(body, position + number * _INDEX.size) for number in range(proofs))
