"""One partition being read: its positions, and the records fetched but not yet handed out. No I/O, no clock.

Three offsets, `done <= position <= fetch_offset`: `position` is the next to hand out, `done` the one up to which the
application has finished (it has since come back for more), `fetch_offset` the next to ask the broker for. Batches are
kept as received and decoded when the application gets to them; a large batch is decoded in parts.

Markers, aborted batches and the offsets that compaction left without a record belong to the record before them: once
that is handed out, the position moves past all of them that have been fetched. So an application that reads to the end
and commits has committed the end, and does not wait for records that do not exist.

Invariants: records are handed out in offset order, each once between two seeks; `done` never passes what was handed out
before the latest request for more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from kraftpy.client.model import ConsumerRecord, TimestampType
from kraftpy.client.visibility import Visibility
from kraftpy.ports import Buffer
from kraftpy.protocol.record_batch import BatchHeader, CorruptBatch, Record, check_crc, iter_records, split_batches
from kraftpy.types import TopicPartition

_DECODED_AT_ONCE: Final = 16_384
_HEADERS_AT_ONCE: Final = 65_536
"""A batch is decoded in pieces of this many records, or this many headers; a single record may exceed that."""


class _Fetched(NamedTuple):
    """A batch; `batch` is None if it holds nothing for the application."""

    header: BatchHeader
    batch: memoryview | None


class Tally:
    """How many records were decoded for the application."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 0


class PartitionReader:
    """The state of one assigned partition."""

    __slots__ = (
        "_decoding",
        "_ended",
        "_fetched",
        "_tally",
        "buffered_bytes",
        "checked_epoch",
        "decoded",
        "done",
        "fetch_offset",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "name",
        "paused",
        "position",
        "reset_to",
        "retry_at_ms",
        "seeks",
        "sought_epoch",
    )

    def __init__(self, name: TopicPartition, tally: Tally | None = None) -> None:
        self.name = name
        self._tally = tally or Tally()
        self.position: int | None = None  # None: to be looked up
        self.done: int | None = None
        self.fetch_offset = -1
        self.leader_epoch = -1  # of the batch that `position` is in, or just after
        self.checked_epoch = -1  # the leader epoch under which `position` is known to exist
        self.reset_to: int | None = None  # an OffsetSpec or time to look up; None: the group's committed offset
        self.sought_epoch = -1  # the position's leader epoch while metadata have not reached it yet; else -1
        self.paused = False
        self.seeks = 0  # counts seeks: an answer to a question asked before the last one is dropped
        self.retry_at_ms = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.decoded: deque[ConsumerRecord] = deque()
        self.buffered_bytes = 0
        self._fetched: deque[_Fetched] = deque()
        self._decoding: Iterator[Record] | None = None  # the rest of the first of them
        self._ended: BatchHeader | None = None  # of the batch whose last records are in `decoded`

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Continue at `offset`, dropping what was fetched."""
        self._drop()
        self.position = self.done = self.fetch_offset = offset
        self.leader_epoch = self.sought_epoch = leader_epoch
        self.reset_to = None

    def lose_position(self, reset_to: int | None) -> None:
        """Look the position up again: by `OffsetSpec` or time, or as the committed offset (None)."""
        self._drop()
        self.position = self.done = None
        self.sought_epoch = -1
        self.reset_to = reset_to

    def _drop(self) -> None:
        self.seeks += 1
        self.retry_at_ms = 0.0
        self.decoded.clear()
        self._fetched.clear()
        self._decoding = self._ended = None
        self.buffered_bytes = 0

    def refetch(self) -> None:
        """Drop what was fetched but not handed out, and fetch it again."""
        position = self.position
        if position is not None:
            self._drop()
            self.fetch_offset = position

    @property
    def lag(self) -> int | None:
        """The number of records from the position to the visible end, as of the last fetch; None before the first."""
        end = self.last_stable_offset if self.last_stable_offset >= 0 else self.high_watermark
        return None if self.position is None or end < 0 else max(end - self.position, 0)

    @property
    def lead(self) -> int | None:
        """The number of records from the log's start to the position, as of the last fetch; None before the first."""
        start = self.log_start_offset
        return None if self.position is None or start < 0 else max(self.position - start, 0)

    # --- filling and emptying -------------------------------------------------------------------------------------

    def received(self, records: Buffer, aborted: Iterable[tuple[int, int]] | None) -> None:
        """Take in a fetch answer's batches. Raises `CorruptBatch`."""
        visibility = None if aborted is None else Visibility(aborted)
        for header, batch in split_batches(records, allow_partial=True):
            if header.next_offset <= self.fetch_offset:
                continue
            shown = not header.is_control if visibility is None else visibility.shows(header, batch)
            self._fetched.append(_Fetched(header, batch if shown else None))
            self.buffered_bytes += len(batch)
            self.fetch_offset = header.next_offset

    def decode_next(self, *, check_crcs: bool) -> bool:
        """Try to have something in `decoded`. Raises `CorruptBatch`; the position then stays where it was."""
        while not self.decoded and self._fetched:
            header, batch = self._fetched[0]
            if batch is not None:
                try:
                    if self._decoding is None:
                        if check_crcs and not check_crc(batch):
                            raise CorruptBatch("the CRC is wrong")
                        self._decoding = iter_records(batch, header)
                    if self._decode(header, self._decoding):
                        continue
                except CorruptBatch as error:
                    self._decoding = None
                    text = f"{self.name}: the batch at offset {header.base_offset} cannot be read: {error.message}"
                    raise CorruptBatch(text, error.code) from error
            self._fetched.popleft()
            self._decoding = None
            self.buffered_bytes -= header.size_bytes
            if self.decoded:
                self._ended = header
            else:  # no more records in it for the application
                if self.done == self.position:
                    self.done = header.next_offset
                self._pass(header)
        return bool(self.decoded)

    def _pass(self, header: BatchHeader) -> None:
        self.position, self.leader_epoch = header.next_offset, header.partition_leader_epoch

    def _decode(self, header: BatchHeader, left: Iterator[Record]) -> bool:
        """Decode some of the remaining records of a batch. Returns whether more may remain."""
        topic, partition = self.name
        kind, epoch = TimestampType(int(header.timestamp_type)), header.partition_leader_epoch
        new, record_type, position = tuple.__new__, ConsumerRecord, self.position or 0
        records: list[ConsumerRecord] = []
        append, headers = records.append, 0
        for record in islice(left, _DECODED_AT_ONCE):
            append(new(record_type, (topic, partition, *record, kind, epoch)))
            if record[4]:
                headers += len(record[4])
                if headers >= _HEADERS_AT_ONCE:
                    break
        is_rest = headers >= _HEADERS_AT_ONCE or len(records) == _DECODED_AT_ONCE
        if records and records[0].offset < position:
            records = [record for record in records if record.offset >= position]
        self._tally.records += len(records)
        self.decoded.extend(records)
        return is_rest

    def hand_out(self, limit: int) -> list[ConsumerRecord]:
        """Hand out up to `limit` decoded records, in order."""
        decoded = self.decoded
        if len(decoded) <= limit:
            records = list(decoded)
            decoded.clear()
        else:
            records = [decoded.popleft() for _ in range(limit)]
        if records:
            last = records[-1]
            self.position, self.leader_epoch = last.offset + 1, last.leader_epoch
            if not decoded:
                self._pass_what_is_no_record()
        return records

    def _pass_what_is_no_record(self) -> None:
        """Move the position past markers, aborted batches and gaps that follow the last record handed out."""
        if self._ended is not None:
            self._pass(self._ended)
            self._ended = None
        while self._fetched and self._fetched[0].batch is None and self._decoding is None:
            header, _ = self._fetched.popleft()
            self.buffered_bytes -= header.size_bytes
            self._pass(header)
