"""Scans a segment from its beginning in one pass: verifies its batches and collects everything derived from them.

A batch is valid if its form and CRC are right, its offsets continue after those of the previous batch, and its leader
epoch does not fall; the segment ends at the first one that is not valid. No CRC covers the base offset: after a gap,
such as compaction leaves, it is trusted if the batch ends before the next one begins (`verifying`). The scan also
collects the index entries, the leader epochs, and the batch headers that affect the state of producers, which are not
those of every batch.

It touches one file and nothing else, so segments may be scanned in parallel, in threads. Large batches cost reading and
a checksum, both without the interpreter's lock; small ones cost interpreter time, so their loop is written out, and the
header format unpacks only the fields needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from kraftpy.log.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kraftpy.ports import File
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC

MAX_OFFSET: Final = (1 << 63) - 1
_READ_BYTES: Final = 1 << 20
_TELL_BYTES: Final = 1 << 24
_PREFIX_BYTES: Final = 12
_CRC_START: Final = 21
_KEPT_OF_A_RUN: Final = 5  # as many as a producer's window holds (`producers.WINDOW_BATCHES`)
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_CONTROL: Final = 0x20
# base offset, length, leader epoch, magic, crc, attributes, last offset delta, max timestamp, producer id and epoch
_HEADER: Final = struct.Struct(">qiibIhi8xqqh")
_OFFSET: Final = struct.Struct(">q")


class Scanned(NamedTuple):
    """The result of scanning a segment."""

    size: int
    """The bytes of its valid batches."""
    end_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    max_timestamp: int
    offset_of_max_timestamp: int
    epochs: list[tuple[int, int]]
    """Each leader epoch, and the first offset written in it here."""
    producers: list[tuple[int, bytes]]
    """Position and header of each batch that the state of producers depends on, in order. In a run of batches of one
    producer and epoch, uninterrupted by markers, these are the first and the last five."""
    failure: tuple[int, str] | None
    """The position of the first invalid batch, and the reason; None if the whole file is valid."""


def scan(
    file: File,
    size: int,
    base_offset: int,
    interval_bytes: int,
    previous_epoch: int = -1,
    *,
    limit: int = MAX_OFFSET,
    progress: Callable[[int], None] | None = None,
) -> Scanned:
    """Scan a segment's first `size` bytes; the next segment begins at offset `limit`. Blocks, perhaps for long.

    `progress` is called now and then with the number of bytes since its last call. Raises OSError if the disk fails;
    invalid data is reported in the result.
    """
    unpack, read = _HEADER.unpack_from, file.read
    offset_index, time_index = OffsetIndex(), TimeIndex()
    add_offset, add_time = offset_index.append, time_index.append
    epochs: list[tuple[int, int]] = []
    runs = _Runs()
    note_producer = runs.note
    end_offset, failure = base_offset, None
    furthest = base_offset + MAX_RELATIVE_OFFSET
    max_timestamp, offset_of_max = -1, base_offset
    last_indexed = told = position = at = 0
    window = memoryview(b"")
    held = 0  # bytes in the window
    while position < size:
        if at + HEADER_BYTES > held:
            window, at = memoryview(read(position, min(_READ_BYTES, size - position))), 0
            held = len(window)
            if held < HEADER_BYTES:
                failure = f"{held} bytes are too few for a batch header"
                break
        (
            batch_offset,
            length,
            epoch,
            magic,
            crc,
            attributes,
            delta,
            timestamp,
            producer_id,
            producer_epoch,
        ) = unpack(window, at)
        batch_bytes = length + _PREFIX_BYTES
        if magic != MAGIC or batch_bytes < HEADER_BYTES or delta < 0:
            failure = "not a batch header"
            break
        if position + batch_bytes > size:
            failure = f"a batch of {batch_bytes} bytes, but only {size - position} are left"
            break
        following = at + batch_bytes
        if following > held and at:
            window, at = memoryview(read(position, min(_READ_BYTES, size - position))), 0
            held, following = len(window), batch_bytes
        if progress is not None and position - told >= _TELL_BYTES:
            progress(position - told)
            told = position
        if following <= held:
            is_whole = crc32c(window[at + _CRC_START : following]) == crc
        else:
            is_whole = _crc_beyond(file, window, position, batch_bytes) == crc
        if not is_whole:
            failure = "the CRC does not match"
            break
        if batch_offset < end_offset:
            failure = f"offset {batch_offset} after {end_offset - 1}"
            break
        last_offset = batch_offset + delta
        if last_offset > furthest:
            failure = f"offset {last_offset} in a segment from {base_offset}"
            break
        if batch_offset > end_offset:
            next_position = position + batch_bytes
            goes_on_at = _offset_at(file, window, following, next_position) if next_position < size else None
            if last_offset >= limit or (goes_on_at is not None and end_offset <= goes_on_at <= last_offset):
                failure = f"offset {batch_offset} instead of {end_offset}"
                break
        if epoch != previous_epoch:
            if 0 <= epoch < previous_epoch:
                failure = f"leader epoch {epoch} after {previous_epoch}"
                break
            if epoch > previous_epoch:
                previous_epoch = epoch
                epochs.append((epoch, batch_offset))
        end_offset = last_offset + 1
        if timestamp > max_timestamp:
            max_timestamp, offset_of_max = timestamp, last_offset
        if position - last_indexed > interval_bytes:
            last_indexed = position
            add_offset(last_offset - base_offset, position)
            add_time(max_timestamp, offset_of_max - base_offset)
        if producer_id >= 0:
            kind = attributes & _TRANSACTIONAL_OR_CONTROL
            note_producer(producer_id, (producer_epoch, kind), position, bytes(window[at : at + HEADER_BYTES]))
        position += batch_bytes
        at = following
    if progress is not None:
        progress(size - told)
    return Scanned(
        position,
        end_offset,
        offset_index,
        time_index,
        max_timestamp,
        offset_of_max,
        epochs,
        runs.kept(),
        None if failure is None else (position, failure),
    )


def _offset_at(file: File, window: memoryview, at: int, position: int) -> int | None:
    """Return the base offset of the batch at `position` (`at` in the window); None if the file ends before it."""
    head = window[at : at + _OFFSET.size]
    if len(head) < _OFFSET.size:
        head = memoryview(file.read(position, _OFFSET.size))
    return int(_OFFSET.unpack(head)[0]) if len(head) == _OFFSET.size else None


def _crc_beyond(file: File, window: memoryview, position: int, batch_bytes: int) -> int:
    """Return the CRC of a batch that begins with the window and extends beyond it."""
    crc = crc32c(window[_CRC_START:])
    done, end = position + len(window), position + batch_bytes
    while done < end:
        part = file.read(done, min(_READ_BYTES, end - done))
        if not part:
            return -1  # the file became shorter
        crc = crc32c(part, crc)
        done += len(part)
    return int(crc)


class _Runs:
    """The headers of producers' batches, without those in the middle of a run."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[tuple[int, int], list[tuple[int, bytes]]]] = {}
        self._closed: list[list[tuple[int, bytes]]] = []

    def note(self, producer_id: int, kind: tuple[int, int], position: int, header: bytes) -> None:
        run = self._open.get(producer_id)
        if run is None or run[0] != kind or kind[1] & _CONTROL:
            if run is not None:
                self._closed.append(run[1])
            self._open[producer_id] = (kind, [(position, header)])
            return
        headers = run[1]
        headers.append((position, header))
        if len(headers) > 4 * _KEPT_OF_A_RUN:
            del headers[1:-_KEPT_OF_A_RUN]

    def kept(self) -> list[tuple[int, bytes]]:
        found = [header for headers in self._closed for header in headers]
        for _, headers in self._open.values():
            found += headers
        found.sort()
        return found
