"""A partition's directory and the small files of a log directory as a start finds them, each of them any bytes.

A log opens with any bytes in its segments, indexes, snapshots and checkpoints, and can be read and appended to; only
a damaged `partition.metadata` is refused (CorruptFile). The small files are read, or refused with CorruptFile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kraftpy.config.topic import TopicConfig
from kraftpy.log import layout
from kraftpy.log.layout import CorruptFile
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import encode_batch, split_batches
from kraftpy.testing.memory_files import MemoryDirectory, MemoryDisk
from kraftpy.types import Millis, TopicId

ALLOWED = (CorruptFile,)
MORE_BYTES = 4 << 20
_NOW = Millis(1_700_000_000_000)
_CONFIG = TopicConfig(internal_segment_bytes=600, segment_bytes=600, index_interval_bytes=100)
_TOPIC_ID = TopicId(b"0123456789abcdef")


def one(data: bytes) -> None:
    """Try one input. It chooses a file, the place and kind of its change, the bytes, and if the last stop was clean."""
    if len(data) < 4:
        return
    if data[0] & 0x80:
        _small_files(data)
        return
    directory = MemoryDisk().root
    names = sorted(_SOUND)
    for name, content in _SOUND.items():
        directory.replace(name, content)
    name = names[data[0] % len(names)]
    directory.replace(name, _changed(_SOUND[name], data))
    clean = bool(data[1] & 0x10)
    recovery_point = (0, 0, 5, 100, 2**40)[data[1] >> 5 & 3]
    log = PartitionLog.open(directory, _CONFIG, now=_NOW, clean=clean, recovery_point=recovery_point)
    try:
        offset, steps = log.log_start_offset, 0
        while offset < log.log_end_offset and steps < 100:
            with contextlib.suppress(KafkaError):
                read = log.read(offset, 1 << 16)
                for header, _ in split_batches(read.records, allow_partial=True):
                    offset = max(offset, header.next_offset)
            steps += 1
            offset += steps
        with contextlib.suppress(KafkaError):
            log.append(bytearray(encode_batch([(_NOW, b"k", b"v", ())])), leader_epoch=2**30, now=_NOW)
    finally:
        log.close()


def _changed(old: bytes, data: bytes) -> bytes:
    at = int.from_bytes(data[2:4], "big") % (len(old) + 1)
    more = data[4:]
    return (more, old[:at] + more, old[:at] + more + old[at:], old[:at] + more + old[at + len(more) :])[data[1] % 4]


def _small_files(data: bytes) -> None:
    directory = MemoryDisk().root
    for name in (layout.RECOVERY_POINTS, layout.META_PROPERTIES, layout.PARTITION_METADATA, layout.CLEAN_SHUTDOWN):
        directory.replace(name, data[2:] if data[1] & 1 else layout.with_checksum(data[2:].decode("utf-8", "replace")))
    for read in (
        lambda: layout.read_offsets(directory, layout.RECOVERY_POINTS),
        lambda: layout.read_meta_properties(directory),
        lambda: layout.read_partition_metadata(directory),
        lambda: layout.read_clean_shutdown(directory),
        lambda: layout.take_clean_shutdown(directory),
    ):
        with contextlib.suppress(CorruptFile):
            read()


def _files() -> dict[str, bytes]:
    """A log of several segments, with a producer, epochs and a snapshot."""
    directory = MemoryDisk().root
    log = PartitionLog.open(directory, _CONFIG, now=_NOW, topic_id=_TOPIC_ID)
    for number in range(12):
        batch = encode_batch(
            [(Millis(_NOW + number), b"k%d" % number, b"v" * 100, ())],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            is_transactional=number > 8,
        )
        log.append(bytearray(batch), leader_epoch=number // 4, now=_NOW)
    log.close()
    return _read(directory)


def _read(directory: MemoryDirectory) -> dict[str, bytes]:
    return {name: directory.read(name) for name in directory.names()}


def seeds() -> Iterator[tuple[str, bytes]]:
    """Each file emptied, cut and changed, for a clean start and an unclean one."""
    for number, name in enumerate(sorted(_SOUND)):
        half = (len(_SOUND[name]) // 2).to_bytes(2, "big")
        for clean in (0, 0x10, 0x50):
            yield f"{name}-empty-{clean}", bytes((number, clean, 0, 0))
            yield f"{name}-cut-{clean}", bytes((number, clean | 1)) + half
            yield f"{name}-changed-{clean}", bytes((number, clean | 3)) + half + b"\xff\xfe"
            yield f"{name}-more-{clean}", bytes((number, clean | 2)) + half + b"\0" * 40
    for number, text in enumerate(
        (b"0\n1\ntopic 0 5\n", b"0\n2\ntopic 0 5\n", b"version=1\ncluster.id=x\nnode.id=1\n", b"", b"version: 0\n")
    ):
        yield f"small-{number}", b"\x80\0" + text + b"    "
        yield f"small-unproved-{number}", b"\x80\1" + text + b"    "


_SOUND = _files()
