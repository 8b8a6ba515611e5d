"""Verifies batches as they are read: every byte must be what was appended.

The CRC of a batch covers everything after it. The fields before it are verified by other means: the length and the
magic byte through the range that the CRC then covers, the CRC by itself, the leader epoch against the epoch cache, and
the base offset against its neighbours: a batch begins where the previous one ended. Compaction leaves gaps; after a gap
a base offset is trusted if the batch ends before the next one begins.

The page cache may be dropped, and the next read from disk may bring different bytes. A CRC is therefore computed again
unless this process has written or checked these very bytes and has read nothing from a disk since (`known_bytes`). All
else is verified on every read. Verifying costs about a tenth of a millisecond per megabyte, and a microsecond per
batch.

Every read goes through `check`. Once something is wrong, `batches_from` is the slow way: it finds the intact batches
around the damage by searching for the next place from which intact batches lead to one that an index entry vouches for.

Left out: a base offset that changed within a gap left by compaction, with no index entry for its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from kraftpy.log.files import LazyFile
from kraftpy.ports import Buffer, File
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC

_HEAD: Final = Struct(">qiibIhi")
"""base offset, length, leader epoch, magic, CRC, attributes, last offset delta"""
_COUNT: Final = Struct(">i")
_COUNT_AT: Final = 57
_BASE: Final = Struct(">q")
_PREFIX_BYTES: Final = 12
_COVERED_FROM: Final = 21
_MAGIC_AT: Final = 16
_SMALLEST_LENGTH: Final = HEADER_BYTES - _PREFIX_BYTES
_PIECE_BYTES: Final = 120 << 10  # the C library takes this much from its heap, whose pages are there already
_SCAN_BYTES: Final = 1 << 20


class CorruptSegment(KafkaError):
    """The bytes at `position` are not the batch that belongs there. A reader gets CORRUPT_MESSAGE.

    If known, `first_offset` is the first offset that cannot be read, and `end_offset` the next one that can.
    """

    def __init__(
        self, name: str, position: int, reason: str, *, first_offset: int | None = None, end_offset: int | None = None
    ) -> None:
        offsets = "" if first_offset is None else f"; offsets from {first_offset} on are lost"
        if first_offset is not None and end_offset is not None:
            offsets = f"; offsets {first_offset} to {end_offset - 1} are lost"
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{name} at byte {position}: {reason}{offsets}")
        self.name = name
        self.position = position
        self.reason = reason
        self.first_offset = first_offset
        self.end_offset = end_offset


class Epochs(Protocol):
    """Looks up the leader epochs of a log."""

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return the epoch in which a record was written (-1 if unknown), and the end offset of that epoch."""
        ...


class Checked:
    """The extent of the intact data at the beginning of a read."""

    __slots__ = ("has_records", "is_whole", "next_offset", "size")

    def __init__(self, size: int, next_offset: int, has_records: bool, is_whole: bool) -> None:
        self.size = size
        self.next_offset = next_offset
        """One past the last intact offset; the expected offset if nothing is intact."""
        self.has_records = has_records
        self.is_whole = is_whole


def check(data: Buffer, expected: int, end_offset: int, epochs: Epochs, *, are_known_bytes: bool = False) -> Checked:
    """Check whole batches, the first of which begins at offset `expected` or, after a gap, later.

    None of them may reach `end_offset`, at which the next batch or the unreadable part of the log begins. Without
    their CRCs if they are known to be the bytes of this file as they were written.
    """
    view = memoryview(data)
    unpack, end = _HEAD.unpack_from, len(view)
    position, has_records, epoch, epoch_end = 0, False, -1, -1
    while position < end:
        if end - position < HEADER_BYTES:
            break
        base_offset, length, batch_epoch, magic, crc, _, delta = unpack(view, position)
        stop = position + _PREFIX_BYTES + length
        last_offset = base_offset + delta
        if magic != MAGIC or length < _SMALLEST_LENGTH or stop > end or delta < 0 or last_offset >= end_offset:
            break
        if not are_known_bytes and crc32c(view[position + _COVERED_FROM : stop]) != crc:
            break
        if base_offset != expected and (
            base_offset < expected or (stop < end and not _is_before(view, stop, last_offset))
        ):
            break
        if last_offset >= epoch_end:
            epoch, epoch_end = epochs.range_of(last_offset)
        if batch_epoch != epoch and epoch >= 0 and batch_epoch != -1:
            break
        has_records = has_records or _COUNT.unpack_from(view, position + _COUNT_AT)[0] > 0
        expected, position = last_offset + 1, stop
    return Checked(position, expected, has_records, position == end)


def check_file(file: File, position: int, length: int, expected: int, end_offset: int, epochs: Epochs) -> Checked:
    """Check a range of a file as `check` does, reading it in pieces."""
    done, has_records = 0, False
    piece_bytes = _PIECE_BYTES
    while done < length:
        data = file.read(position + done, min(piece_bytes, length - done))
        checked = check(data, expected, end_offset, epochs)
        done, expected, has_records = done + checked.size, checked.next_offset, has_records or checked.has_records
        if not checked.size:
            if len(data) < HEADER_BYTES or piece_bytes >= length:
                return Checked(done, expected, has_records, False)
            piece_bytes = max(2 * piece_bytes, _HEAD.unpack_from(data)[1] + _PREFIX_BYTES)
    return Checked(done, expected, has_records, True)


def _is_before(view: Buffer, position: int, last_offset: int) -> bool:
    return len(view) - position < _BASE.size or last_offset < int(_BASE.unpack_from(view, position)[0])


# --- around damage ----------------------------------------------------------------------------------------------------


class IntactBatch(NamedTuple):
    """A batch that was verified to be as it was appended."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes


class Anchor(NamedTuple):
    """The claim of an index entry: a batch with this last offset begins at this position."""

    position: int
    last_offset: int


class SegmentFile(NamedTuple):
    """A segment's file and the facts needed to verify its contents.

    The file is taken from `log` for each read: another read in between (of an index) may have had it closed.
    """

    log: LazyFile
    name: str
    size: int
    base_offset: int
    end_offset: int
    """The offset at which the next segment begins, or the log ends."""
    epochs: Epochs


def batches_from(
    segment: SegmentFile, anchors: Iterable[Anchor], offset: int
) -> Iterator[IntactBatch | CorruptSegment]:
    """Yield the intact batches of a segment, and the damage between them.

    Starts before `offset` if one of the index entries in `anchors` helps (they may be in any order, and any of them may
    be wrong), else at the segment's beginning.
    """
    trusted = sorted(anchor for anchor in anchors if 0 < anchor.position < segment.size)
    position, expected = 0, segment.base_offset
    for anchor in reversed(trusted):
        if anchor.last_offset <= offset and (found := _anchored(segment, anchor)) is not None:
            position, expected = found.position, found.base_offset
            break
    while position < segment.size:
        batch, reason = _batch_at(segment, position, expected)
        if batch is not None:
            yield batch
            position, expected = batch.position + batch.size, batch.last_offset + 1
            continue
        following = _next_intact(segment, position, expected, trusted)
        end_offset = segment.end_offset if following is None else following.base_offset
        yield CorruptSegment(segment.name, position, reason, first_offset=expected, end_offset=end_offset)
        if following is None:
            return
        position, expected = following.position, following.base_offset


def _batch_at(segment: SegmentFile, position: int, expected: int) -> tuple[IntactBatch | None, str]:
    """Return the batch at `position`; or None and the reason, in words, why there is no intact one."""
    head = segment.log.get().read(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None, f"{len(head)} bytes are too few for a batch header"
    base_offset, length, leader_epoch, magic, crc, _, delta = _HEAD.unpack_from(head)
    size, last_offset = length + _PREFIX_BYTES, base_offset + delta
    if not any(head):
        return None, "zeros instead of a batch"
    if magic != MAGIC:
        return None, f"magic {magic} is unknown"
    if length < _SMALLEST_LENGTH or position + size > segment.size:
        return None, f"a batch of {size} bytes, but only {segment.size - position} are left"
    data = segment.log.get().read(position, size)
    if crc32c(memoryview(data)[_COVERED_FROM:]) != crc:
        return None, f"the CRC of {size} bytes does not match"
    if base_offset < expected:
        return None, f"base offset {base_offset} instead of {expected}"
    if delta < 0 or last_offset >= segment.end_offset:
        return None, f"offsets {base_offset} to {last_offset} in a segment that ends at {segment.end_offset}"
    if base_offset > expected:
        following = segment.log.get().read(position + size, _BASE.size)
        if position + size < segment.size and not _is_before(following, 0, last_offset):
            return None, f"base offset {base_offset} instead of {expected}"
    epoch = segment.epochs.range_of(last_offset)[0]
    if leader_epoch != epoch and epoch >= 0 and leader_epoch != -1:
        return None, f"leader epoch {leader_epoch} instead of {epoch}"
    max_timestamp = int.from_bytes(head[35:43], "big", signed=True)
    return IntactBatch(position, size, base_offset, last_offset, max_timestamp, data), ""


def _anchored(segment: SegmentFile, anchor: Anchor) -> IntactBatch | None:
    """Return the batch that an index entry names, if it is there and intact."""
    batch, _ = _batch_at(segment, anchor.position, segment.base_offset)
    return batch if batch is not None and batch.last_offset == anchor.last_offset else None


def _next_intact(segment: SegmentFile, damaged: int, expected: int, anchors: list[Anchor]) -> IntactBatch | None:
    """Return the first intact batch after the damage from which intact batches lead to a known boundary.

    Such a boundary is given by an index entry or the segment's end. Returns None if there is no such batch.
    """
    goal, known = segment.size, None
    for anchor in anchors:
        if anchor.position > damaged and (known := _anchored(segment, anchor)) is not None:
            goal = anchor.position
            break
    start, chunk = damaged + 1, b""
    while start + HEADER_BYTES <= goal:
        chunk = segment.log.get().read(start, min(_SCAN_BYTES + HEADER_BYTES, goal - start))
        at = chunk.find(MAGIC, _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT + HEADER_BYTES <= len(chunk):
            base_offset, length, _, _, _, _, delta = _HEAD.unpack_from(chunk, at - _MAGIC_AT)
            position = start + at - _MAGIC_AT
            if (
                expected <= base_offset <= base_offset + delta < segment.end_offset
                and _SMALLEST_LENGTH <= length <= goal - position - _PREFIX_BYTES
                and _leads_to(segment, position, expected, goal)
            ):
                return _batch_at(segment, position, expected)[0]
            at = chunk.find(MAGIC, at + 1)
        start += max(1, len(chunk) - HEADER_BYTES + 1)
    return known


def _leads_to(segment: SegmentFile, position: int, expected: int, goal: int) -> bool:
    while position < goal:
        batch, _ = _batch_at(segment, position, expected)
        if batch is None:
            return False
        position, expected = position + batch.size, batch.last_offset + 1
    return position == goal
