"""Reading a segment from its beginning to see how much of it is true, and all that is to be known of it, in one pass.

A batch is true whose form and CRC are right, whose offsets go on behind those of the batch before, and whose leader
epoch does not fall; at the first that is not, the segment ends. No CRC covers the base offset: behind a gap, as
compaction leaves them, it is believed where the batch ends before the next one begins (`verifying`). On the way come
the index entries, the leader epochs, and what the segment does to the state of producers: the headers that make a
difference, not those of every batch.

It touches one file and nothing else, so segments may be scanned side by side, in threads. Large batches cost reading
and a checksum, both without the interpreter's lock; small ones cost the interpreter, so the loop over them is written
out, and the header is unpacked by a format that has only what is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from kraftpy.log.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kraftpy.ports import File
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC

MAX_OFFSET: Final = (1 << 63) - 1
_READ_BYTES: Final = 1 << 20
_TELL_BYTES: Final = 1 << 24
_PREFIX_BYTES: Final = 12
_CRC_START: Final = 21
_KEPT_OF_A_RUN: Final = 5  # what a producer's window holds (`producers.WINDOW_BATCHES`)
_TRANSACTIONAL_OR_CONTROL: Final = 0x30
_CONTROL: Final = 0x20
# base offset, length, leader epoch, magic, crc, attributes, last offset delta, max timestamp, producer id and epoch
_HEADER: Final = struct.Struct(">qiibIhi8xqqh")
_OFFSET: Final = struct.Struct(">q")


class Scanned(NamedTuple):
    """What a segment was found to be."""

    size: int
    """Of the batches that are true."""
    end_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    max_timestamp: int
    offset_of_max_timestamp: int
    epochs: list[tuple[int, int]]
    """Each leader epoch, and the first offset written in it here."""
    producers: list[tuple[int, bytes]]
    """Position and header of each batch that the state of producers depends on, in order. Of a run of batches of one
    producer and epoch, undisturbed by markers, these are the first and the last five."""
    failure: tuple[int, str] | None
    """Where the file stopped being true, and how; None where all of it is."""


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
    """Read a segment's first `size` bytes; the next one begins at offset `limit`. Blocks, perhaps long.

    `progress` is told now and then of so many more bytes. Raises OSError as the disk does; what is wrong with the bytes
    is in the answer.
    """
    unpack, read = _HEADER.unpack_from, file.read
    offset_index, time_index = OffsetIndex(), TimeIndex()
    add_offset, add_time = offset_index.append, time_index.append
    epochs: list[tuple[int, int]] = []
    runs = _Runs()
    note_producer = runs.note
    end_offset, failure = base_offset, None
    max_timestamp, offset_of_max = -1, base_offset
    last_indexed = told = position = at = 0
    window = memoryview(b"")
    held = 0  # bytes in the window
    while position < size:
        if at + HEADER_BYTES > held:
            window, at = memoryview(read(position, min(_READ_BYTES, size - position))), 0
            held = len(window)
            if held < HEADER_BYTES:
                failure = f"{held} bytes are no batch"
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
            failure = "no batch header"
            break
        if position + batch_bytes > size:
            failure = f"a batch of {batch_bytes} bytes, {size - position} are there"
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
        if batch_offset > end_offset:
            last_offset, next_position = batch_offset + delta, position + batch_bytes
            goes_on_at = _offset_at(file, window, following, next_position) if next_position < size else None
            is_beyond = last_offset >= limit or last_offset - base_offset > MAX_RELATIVE_OFFSET
            if is_beyond or (goes_on_at is not None and end_offset <= goes_on_at <= last_offset):
                failure = f"offset {batch_offset} where {end_offset} should be"
                break
        if epoch != previous_epoch:
            if 0 <= epoch < previous_epoch:
                failure = f"leader epoch {epoch} after {previous_epoch}"
                break
            if epoch > previous_epoch:
                previous_epoch = epoch
                epochs.append((epoch, batch_offset))
        last_offset = batch_offset + delta
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
    """The base offset of the batch at `position`, which is `at` in the window; None where the file ends before."""
    head = window[at : at + _OFFSET.size]
    if len(head) < _OFFSET.size:
        head = memoryview(file.read(position, _OFFSET.size))
    return int(_OFFSET.unpack(head)[0]) if len(head) == _OFFSET.size else None


def _crc_beyond(file: File, window: memoryview, position: int, batch_bytes: int) -> int:
    """The CRC of a batch that begins with the window and is larger."""
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
    """The headers of producers' batches, of which those in the middle of a run are left out."""

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
