"""Reading a segment's `.log` file from the disk, batch by batch, without a broker and without trust.

Every batch's length, magic and CRC is checked before a record of it is shown; verifying also decodes the records and
checks that offsets only rise. Nothing larger than one batch is held in memory.

Left out: repairing a file. The broker does that when it opens a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, BatchHeader, check_crc, iter_records, read_header

MAGIC = 2
CODEC_MASK = 7


class Corruption(Exception):
    """The file is damaged from `position` on. The message is one line with file, position and offsets."""

    def __init__(self, path: Path, position: int, next_offset: int | None, reason: str) -> None:
        around = "the first batch" if next_offset is None else f"after offset {next_offset - 1}"
        super().__init__(f"{path}: corrupt at position {position}, {around}: {reason}")
        self.path = path
        self.position = position
        self.next_offset = next_offset
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """A whole batch, its CRC checked, and where in the file it starts."""

    position: int
    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a sound file holds. `first_offset` and `last_offset` are None where it is empty."""

    batches: int
    records: int
    size_bytes: int
    first_offset: int | None
    last_offset: int | None


def read_batches(path: Path) -> Iterator[FileBatch]:
    """The batches of a segment file in order. Raises Corruption at the first that cannot be trusted, and OSError."""
    size = path.stat().st_size
    position = 0
    next_offset: int | None = None
    with path.open("rb") as file:
        while position < size:
            batch = _read_batch(path, file, position, size, next_offset)
            yield batch
            position += batch.header.size_bytes
            next_offset = batch.header.next_offset


def verify(path: Path) -> Summary:
    """Read every batch and every record. Raises Corruption, and OSError."""
    batches = records = position = 0
    first_offset: int | None = None
    last_offset: int | None = None
    for batch in read_batches(path):
        next_offset = None if last_offset is None else last_offset + 1
        try:
            offsets = [record.offset for record in iter_records(batch.data)]
        except KafkaError as error:
            raise Corruption(path, batch.position, next_offset, error.message) from None
        if offsets and not batch.header.base_offset <= offsets[0] <= offsets[-1] <= batch.header.last_offset:
            reason = f"records {offsets[0]} to {offsets[-1]} in a batch of {_span(batch.header)}"
            raise Corruption(path, batch.position, next_offset, reason)
        batches += 1
        records += len(offsets)
        if first_offset is None:
            first_offset = batch.header.base_offset
        last_offset = batch.header.last_offset
        position = batch.position + batch.header.size_bytes
    return Summary(
        batches=batches, records=records, size_bytes=position, first_offset=first_offset, last_offset=last_offset
    )


def _read_batch(path: Path, file: BinaryIO, position: int, size: int, next_offset: int | None) -> FileBatch:
    def corrupt(reason: str) -> Corruption:
        return Corruption(path, position, next_offset, reason)

    left = size - position
    file.seek(position)
    head = file.read(HEADER_BYTES)
    if not any(head) and _only_zeros(file):
        raise corrupt(f"the last {left} bytes are zeros")
    if len(head) < HEADER_BYTES:
        raise corrupt(f"{left} bytes are too few for a batch: a torn write?")
    header = read_header(head)
    if header.magic != MAGIC:
        raise corrupt(f"magic {header.magic} where {MAGIC} should be")
    if header.size_bytes < HEADER_BYTES:
        raise corrupt(f"batch length {header.batch_length} is too small")
    if header.size_bytes > left:
        raise corrupt(f"{_span(header)} need {header.size_bytes} bytes, {left} are left: a torn write?")
    data = head + file.read(header.size_bytes - HEADER_BYTES)
    if not check_crc(data):
        raise corrupt(f"the CRC of {_span(header)} does not match")
    if header.attributes & CODEC_MASK not in list(Compression):
        raise corrupt(f"{_span(header)} are compressed with a codec that nobody knows")
    if header.last_offset_delta < 0 or header.base_offset < (next_offset or 0):
        raise corrupt(f"{_span(header)} are out of order")
    return FileBatch(position=position, header=header, data=memoryview(data))


def _only_zeros(file: BinaryIO) -> bool:
    while piece := file.read(1 << 20):
        if piece.count(0) != len(piece):
            return False
    return True


def _span(header: BatchHeader) -> str:
    return f"offsets {header.base_offset}-{header.last_offset}"
