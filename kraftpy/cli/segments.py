"""Reads a segment's `.log` file from disk, batch by batch, without a broker and without trusting it.

Every batch's length, magic and CRC is checked before any of its records is shown; verifying also decodes the records
and checks that offsets only rise and leader epochs never fall. After damage, reading continues at the next whole batch:
at the end that the damaged one claims, or else the next one found byte by byte. Nothing larger than one batch is held
in memory.

Left out: repairing a file (`cli/log_repair.py`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, BatchHeader, check_crc, iter_records, read_header

MAGIC = 2
CODEC_MASK = 7
_SEARCH_BYTES: Final = 1 << 22
_MAX_GAP: Final = 2**31  # offsets in a segment are relative to its first, in 32 bits
_A_HEADER: Final = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)  # an offset below 2**48, and the magic


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Damage to a file: one line with the file, and position and offsets if they are known.

    `next_offset` is the first offset affected; `resumes_at` is position and base offset of the next whole batch.
    """

    path: Path
    reason: str
    position: int | None = None
    next_offset: int | None = None
    resumes_at: tuple[int, int] | None = None
    around: str = ""

    def __str__(self) -> str:
        at = "" if self.position is None else f" at position {self.position}"
        around = f", {self.around}" if self.around else ""
        on = (
            "" if self.resumes_at is None else "; readable again at position {} from offset {}".format(*self.resumes_at)
        )
        return f"{self.path}: corrupt{at}{around}: {self.reason}{on}"

    def row(self) -> dict[str, Any]:
        """Return the JSON row."""
        row = {"file": str(self.path), "ok": False, "position": self.position, "next_offset": self.next_offset}
        if self.resumes_at is not None:
            row |= {"resumes_at_position": self.resumes_at[0], "resumes_at_offset": self.resumes_at[1]}
        return row | {"reason": self.reason}


class Corruption(Exception):
    """A batch that cannot be trusted. The message describes the damage in one line."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """A whole batch whose CRC was checked, and where in the file it starts."""

    position: int
    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """Neighbouring batches of one leader epoch: the last offsets of the first and the last of them."""

    leader_epoch: int
    first_offset: int
    last_offset: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A range of offsets, from `next_offset` up to `base_offset`, that no batch holds."""

    position: int
    next_offset: int
    base_offset: int


@dataclass(slots=True, kw_only=True)
class Summary:
    """A summary of a file. `first_offset` and `last_offset` are None if it has no whole batch."""

    path: Path
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    damage: list[Damage] = field(default_factory=list)
    epochs: list[EpochRun] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    has_holes: bool = False
    """Some batch has fewer records than offsets: the log was compacted."""


def read_batches(path: Path) -> Iterator[FileBatch]:
    """Yield the batches of a segment file in order. Raises OSError, and Corruption at the first untrustworthy one."""
    for found in survey(path):
        if isinstance(found, Damage):
            raise Corruption(found)
        yield found


def survey(path: Path) -> Iterator[FileBatch | Damage]:
    """Yield the whole batches of a segment file in order, and the damage between them. Raises OSError."""
    size = path.stat().st_size
    position = 0
    next_offset: int | None = None
    with path.open("rb", buffering=0) as file:
        while position < size:
            try:
                batch = _read_batch(path, file, position, size, next_offset)
            except Corruption as corruption:
                resumed = _resume(path, file, position, size, next_offset)
                yield replace(corruption.damage, resumes_at=resumed)
                if resumed is None:
                    return
                position = resumed[0]
                continue
            end = position + batch.header.size_bytes
            astray = _misplaced(path, file, batch.header, end, size, next_offset)
            if astray is not None:
                yield astray
            else:
                yield batch
                next_offset = batch.header.next_offset
            position = end


def summarise(
    path: Path, seen: Callable[[FileBatch], None] | None = None, progress: Callable[[int], None] | None = None
) -> Summary:
    """Read every batch and every record, and summarize the file with all its damage. Raises OSError.

    `seen` is called with each whole batch, `progress` with the bytes read since it was last called.
    """
    found = Summary(path=path, size_bytes=path.stat().st_size)
    told = 0
    for batch in survey(path):
        if isinstance(batch, Damage):
            found.damage.append(batch)
            continue
        _add(found, batch)
        if seen is not None:
            seen(batch)
        if progress is not None:
            end = batch.position + batch.header.size_bytes
            progress(end - told)
            told = end
    if progress is not None:
        progress(found.size_bytes - told)
    return found


def _add(found: Summary, batch: FileBatch) -> None:
    """Add a batch to the summary, with any contradiction to its records or neighbours."""
    header = batch.header
    next_offset = None if found.last_offset is None else found.last_offset + 1
    reason, records = _check_records(batch)
    epoch = header.partition_leader_epoch
    if epoch < -1:
        reason = reason or f"{_span(header)} have leader epoch {epoch}"
    if epoch >= 0:
        last = found.epochs[-1] if found.epochs else None
        if last is not None and last.leader_epoch == epoch:
            found.epochs[-1] = EpochRun(
                leader_epoch=epoch,
                first_offset=last.first_offset,
                last_offset=header.last_offset,
                position=last.position,
            )
        else:
            if last is not None and epoch < last.leader_epoch:
                reason = reason or f"{_span(header)} have leader epoch {epoch}, after {last.leader_epoch}"
            run = EpochRun(
                leader_epoch=epoch,
                first_offset=header.last_offset,
                last_offset=header.last_offset,
                position=batch.position,
            )
            found.epochs.append(run)
    is_behind_damage = bool(found.damage) and found.damage[-1].resumes_at == (batch.position, header.base_offset)
    if next_offset is not None and header.base_offset > next_offset and not is_behind_damage:
        found.gaps.append(Gap(position=batch.position, next_offset=next_offset, base_offset=header.base_offset))
    if reason is not None:
        found.damage.append(_damage(found.path, batch.position, next_offset, reason))
    found.has_holes = found.has_holes or header.records_count <= header.last_offset_delta
    found.batches += 1
    found.records += records
    if found.first_offset is None:
        found.first_offset = header.base_offset
    found.last_offset = header.last_offset


def _check_records(batch: FileBatch) -> tuple[str | None, int]:
    """Return the first problem of a batch whose CRC is right, if any, and its number of records."""
    header = batch.header
    try:
        offsets = [record.offset for record in iter_records(batch.data)]
    except KafkaError as error:
        return error.message, 0
    if offsets and not header.base_offset <= offsets[0] <= offsets[-1] <= header.last_offset:
        return f"records {offsets[0]} to {offsets[-1]} in a batch of {_span(header)}", len(offsets)
    return None, len(offsets)


def _read_batch(path: Path, file: BinaryIO, position: int, size: int, next_offset: int | None) -> FileBatch:
    def corrupt(reason: str) -> Corruption:
        return Corruption(_damage(path, position, next_offset, reason))

    left = size - position
    file.seek(position)
    head = _read(file, HEADER_BYTES)
    if not any(head) and _only_zeros(file):
        raise corrupt(f"the last {left} bytes are zeros")
    if len(head) < HEADER_BYTES:
        raise corrupt(f"{left} bytes are too few for a batch: a torn write?")
    header = read_header(head)
    if header.magic != MAGIC:
        raise corrupt(f"magic {header.magic} instead of {MAGIC}")
    if header.size_bytes < HEADER_BYTES:
        raise corrupt(f"batch length {header.batch_length} is too small")
    if header.size_bytes > left:
        raise corrupt(f"{_span(header)} need {header.size_bytes} bytes, but only {left} are left: a torn write?")
    data = head + _read(file, header.size_bytes - HEADER_BYTES)
    if not check_crc(data):
        raise corrupt(f"the CRC of {_span(header)} does not match")
    if header.attributes & CODEC_MASK not in list(Compression):
        raise corrupt(f"{_span(header)} are compressed with an unknown codec")
    if header.last_offset_delta < 0 or header.base_offset < (next_offset or 0):
        raise corrupt(f"{_span(header)} are out of order")
    return FileBatch(position=position, header=header, data=memoryview(data))


def _damage(path: Path, position: int, next_offset: int | None, reason: str) -> Damage:
    around = "the first batch" if next_offset is None else f"after offset {next_offset - 1}"
    return Damage(path=path, position=position, next_offset=next_offset, reason=reason, around=around)


def _resume(path: Path, file: BinaryIO, position: int, size: int, next_offset: int | None) -> tuple[int, int] | None:
    """Return position and base offset of the first whole batch after a damaged one."""
    file.seek(position)
    head = _read(file, 12)
    if len(head) == 12:
        end = position + 12 + struct.unpack_from(">i", head, 8)[0]
        if end >= position + HEADER_BYTES and (found := _whole_at(path, file, end, size, next_offset)) is not None:
            return found
    start = position + 1
    while start < size:
        file.seek(start)
        window = _read(file, min(_SEARCH_BYTES, size - start))
        for match in _A_HEADER.finditer(window):
            if (found := _whole_at(path, file, start + match.start(), size, next_offset)) is not None:
                return found
        if len(window) < _SEARCH_BYTES:
            return None
        start += len(window) - 16
    return None


def _misplaced(
    path: Path, file: BinaryIO, header: BatchHeader, end: int, size: int, next_offset: int | None
) -> Damage | None:
    """Return the damage of a batch that skips offsets which the next one has: no CRC covers its base offset."""
    expected = first_offset(path) if next_offset is None else next_offset
    if expected is None or header.base_offset <= expected:
        return None
    following = _whole_at(path, file, end, size, expected)
    if following is not None and following[1] >= header.next_offset:
        return None
    if following is None and header.base_offset - expected < _MAX_GAP:
        return None
    reason = f"{_span(header)} are out of order"
    return replace(_damage(path, end - header.size_bytes, next_offset, reason), resumes_at=following)


def _whole_at(path: Path, file: BinaryIO, position: int, size: int, next_offset: int | None) -> tuple[int, int] | None:
    if position + HEADER_BYTES > size:
        return None
    try:
        header = _read_batch(path, file, position, size, next_offset).header
    except Corruption:
        return None
    floor = first_offset(path) if next_offset is None else next_offset
    return (position, header.base_offset) if floor is None or header.base_offset - floor < _MAX_GAP else None


def first_offset(path: Path) -> int | None:
    """Return the offset that a segment's file is named for."""
    return int(path.stem) if path.stem.isascii() and path.stem.isdecimal() else None


def _read(file: BinaryIO, length: int) -> bytes:
    """Read `length` bytes, or fewer at the end of the file."""
    data = file.read(length)
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data


def _only_zeros(file: BinaryIO) -> bool:
    while piece := file.read(1 << 20):
        if piece.count(0) != len(piece):
            return False
    return True


def _span(header: BatchHeader) -> str:
    return f"offsets {header.base_offset}-{header.last_offset}"
