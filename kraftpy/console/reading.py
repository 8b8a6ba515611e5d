"""Reads records for a page: from some place on, filtered, and bounded in number, bytes and time.

    found = await Reader(options, asyncio.Semaphore(MOST_READS)).read(wanted)

Bounds of one read: `Wanted.most` records found, `MOST_SCANNED` records and `MOST_BYTES` looked at, `MOST_SECONDS`. A
read that reaches one of them says so, and where it can be continued. As many reads run at a time as the semaphore lets;
others wait. Records of aborted transactions are found only if `Wanted.is_uncommitted` asks for them. Filters run in a
thread.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from kraftpy.client.consumer.consumer import Consumer
from kraftpy.client.model import ConsumerRecord
from kraftpy.console.decoding import Decoded, Decoder
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

MOST_RECORDS: Final = 500
MOST_SCANNED: Final = 200_000
MOST_BYTES: Final = 64 << 20
MOST_SECONDS: Final = 8.0
MOST_READS: Final = 4
MOST_DOWNLOADS: Final = 4
_POLL_MS: Final = 250
POLL_RECORDS: Final = 500
"""Records that are looked at between two looks at the bounds."""
_FETCH_BYTES: Final = 4 << 20
_PARTITION_BYTES: Final = 512 << 10
_RECORD_OVERHEAD: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The records to read. `begin` and `end` are offsets by partition; a partition without a begin is not read."""

    begin: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    """Reading stops before these, or at the ends of the logs as they are when it begins."""
    most: int = 50
    newest: bool = False
    """Keep the newest matching records rather than stop at the first ones."""
    text: str = ""
    """Records that contain this in key, value or a header, in any case of letters."""
    key: str | None = None
    """Records whose key is this text."""
    matches: Callable[[Any], bool] | None = None
    """A JSONPath filter on the value."""
    keys: Decoder = field(default_factory=Decoder)
    values: Decoder = field(default_factory=Decoder)
    is_uncommitted: bool = False
    is_whole: bool = False
    """Keep all of a decoded value rather than what a list shows of it."""
    most_scanned: int = MOST_SCANNED
    most_bytes: int = MOST_BYTES
    most_seconds: float = MOST_SECONDS

    @property
    def has_filter(self) -> bool:
        """True if not every record is wanted."""
        return bool(self.text) or self.key is not None or self.matches is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A record with its key and value decoded."""

    record: ConsumerRecord
    key: Decoded
    value: Decoded

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers, their values as text or, if they are not UTF-8, as hex."""
        return [(name, header_text(value)) for name, value in self.record.headers]


@dataclass(slots=True, kw_only=True)
class Found:
    """The records that a read found, and how far it got."""

    records: list[Shown] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    stopped_by: str = ""
    """The bound that ended it; "" if everything was read."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Where to continue, by partition."""


def header_text(value: bytes | None) -> str:
    """Return a header's value as text; bytes that are not UTF-8 as hex."""
    if value is None:
        return "null"
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def size_of(record: ConsumerRecord) -> int:
    """Return about how many bytes a record takes."""
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


class Filter:
    """Tells which records are wanted, and decodes those."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._needle = wanted.text.lower().encode()
        self._text = wanted.text.lower()
        self._key = None if wanted.key is None else wanted.key.encode()

    def shown(self, records: Iterable[ConsumerRecord]) -> list[Shown]:
        """Return the wanted ones of some records, decoded."""
        wanted = self._wanted
        found = []
        for record in records:
            if self._key is not None and record.key != self._key:
                continue
            if self._needle and not self._contains(record):
                continue
            value = wanted.values.decode(record.value)
            if wanted.matches is not None and not (value.has_document and wanted.matches(value.document)):
                continue
            key = wanted.keys.decode(record.key)
            found.append(Shown(record=record, key=key, value=value) if wanted.is_whole else _cut(record, key, value))
        return found

    def _contains(self, record: ConsumerRecord) -> bool:
        parts = [record.key, record.value, *(value for _, value in record.headers)]
        if any(part is not None and self._needle in part.lower() for part in parts):
            return True
        if any(self._text in name.lower() for name, _ in record.headers):
            return True
        if self._text.isascii() and self._wanted.values.form not in ("avro", "msgpack"):
            return False
        # Other cases of letters than ASCII's, and what only decoding makes text.
        return any(
            self._text in decoder.decode(part).text.lower()
            for decoder, part in ((self._wanted.keys, record.key), (self._wanted.values, record.value))
        )


def _cut(record: ConsumerRecord, key: Decoded, value: Decoded) -> Shown:
    """Return a record without what no list shows: documents take many times the memory of their bytes."""
    return Shown(record=record, key=key.cut(), value=value.cut())


class Reader:
    """Reads from one cluster. `options` are those of a client; readers that share `reads` share the bound on reads."""

    def __init__(self, options: Mapping[str, Any], reads: asyncio.Semaphore | None = None) -> None:
        self._reads = asyncio.Semaphore(MOST_READS) if reads is None else reads
        self._options = {
            **options,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_max_bytes": _FETCH_BYTES,
            "max_partition_fetch_bytes": _PARTITION_BYTES,
            "fetch_max_wait_ms": _POLL_MS,
        }

    async def read(self, wanted: Wanted) -> Found:
        """Return the wanted records: the newest first if the newest are wanted, else in the order of their time."""
        found = Found()
        async with aclosing(self.chunks(wanted, found)) as chunks:
            async for chunk in chunks:
                found.records += chunk
                if wanted.newest:
                    found.records = heapq.nlargest(wanted.most, found.records, key=_time_of)
                elif len(found.records) >= wanted.most:
                    self._cut(found, wanted)
                    break
        found.records.sort(key=_time_of, reverse=wanted.newest)
        return found

    @staticmethod
    def _cut(found: Found, wanted: Wanted) -> None:
        """Leave out what is too much, and continue with it."""
        for each in reversed(found.records[wanted.most :]):
            found.positions[TopicPartition(each.record.topic, each.record.partition)] = each.record.offset
        del found.records[wanted.most :]
        found.stopped_by = found.stopped_by or f"{wanted.most:,} records were found"

    async def chunks(self, wanted: Wanted, found: Found) -> AsyncGenerator[list[Shown], None]:
        """Yield wanted records as they are read; `found` has how far it got. Raises KafkaError."""
        found.positions.update(wanted.begin)
        open_parts = {name for name, at in wanted.begin.items() if at < wanted.end.get(name, 0)}
        if not open_parts:
            return
        keep = Filter(wanted)
        deadline = asyncio.get_running_loop().time() + wanted.most_seconds
        level = "read_uncommitted" if wanted.is_uncommitted else "read_committed"
        async with self._reads, Consumer(**self._options, isolation_level=level) as consumer:
            for topic in {name.topic for name in open_parts}:
                await consumer.partitions_for(topic)  # without metadata, it would wait for a moment before it fetches
            consumer.assign(open_parts)
            for name in open_parts:
                consumer.seek(name, wanted.begin[name])
            while open_parts and not found.stopped_by:
                most = min(POLL_RECORDS, wanted.most_scanned - found.scanned)
                polled = await consumer.getmany(timeout_ms=_POLL_MS, max_records=most)
                records: list[ConsumerRecord] = []
                for name, part in polled.items():
                    records += [each for each in part if each.offset < wanted.end[name]]
                found.scanned += len(records)
                found.scanned_bytes += sum(map(size_of, records))
                for name in list(open_parts):
                    place = await _position(consumer, name)
                    if place is None:
                        continue
                    found.positions[name] = min(place, wanted.end[name])
                    # At the last stable offset nothing follows that readers of committed records may see.
                    if place >= wanted.end[name] or (name not in polled and consumer.lag(name) == 0):
                        open_parts.discard(name)
                        consumer.pause([name])
                found.stopped_by = _reached(wanted, found, deadline) if open_parts else ""
                if records:
                    yield await asyncio.to_thread(keep.shown, records)


async def _position(consumer: Consumer, name: TopicPartition) -> int | None:
    """Return where a partition is read next; None while that is being looked up."""
    try:
        return await consumer.position(name, timeout_ms=_POLL_MS)
    except KafkaError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        return None


def _time_of(each: Shown) -> tuple[int, int, int]:
    return each.record.timestamp_ms, each.record.partition, each.record.offset


def _reached(wanted: Wanted, found: Found, deadline: float) -> str:
    """Return the bound that a read has reached, in words; "" if none."""
    if found.scanned >= wanted.most_scanned:
        return f"{found.scanned:,} records were looked at"
    if found.scanned_bytes >= wanted.most_bytes:
        return f"{found.scanned_bytes >> 20:,} MiB were looked at"
    if asyncio.get_running_loop().time() >= deadline:
        return f"{wanted.most_seconds:g} s have passed"
    return ""
