"""The small files: after any bit flip, or cut off anywhere, one is read as it was written or not at all.

tests/broker/test_damaged_files.py tests what a broker does about a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import xxhash

from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.layout import CorruptFile
from kraftpy.log.producer_states import ProducerStates
from kraftpy.protocol.record_batch import encode_batch, read_header
from kraftpy.testing.memory_files import MemoryDirectory, MemoryDisk
from kraftpy.types import Millis, TopicId, TopicPartition

POINTS = {TopicPartition("topic", 3): 17, TopicPartition("a", 0): 4}
PROPERTIES = {"cluster.id": "4L6g3nShT-eMCtK--X86sw", "directory.id": "x", "node.id": "1", "version": "1"}
TOPIC_ID = TopicId(bytes(range(240, 256)))


def states() -> ProducerStates:
    made = ProducerStates()
    for sequence in range(3):
        data = encode_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=1, base_sequence=sequence)
        made.appended(read_header(data), Millis(5))
    return made


def snapshot(directory: MemoryDirectory) -> Any:
    read, indexes = ProducerStates.decode(directory.read("7.snapshot"))
    return list(read.describe()), list(read.aborted), indexes


class Small(NamedTuple):
    """A small file: how it is written and read, and what a reader makes of damage."""

    name: str
    write: Callable[[MemoryDirectory], None]
    read: Callable[[MemoryDirectory], Any]
    of_before: bytes | None = None
    """Other formats that are read as well: those of 0.1.0 and of Kafka."""
    damaged: Any = CorruptFile
    cut: Any = CorruptFile
    """Other values that a truncated file may be read as: less than it said, which is safe."""


SMALL = [
    *(
        Small(
            name,
            lambda directory, name=name: layout.write_offsets(directory, name, POINTS),  # type: ignore[misc]
            lambda directory, name=name: layout.read_offsets(directory, name),  # type: ignore[misc]
        )
        for name in (
            layout.RECOVERY_POINTS,
            layout.LOG_START_OFFSETS,
            layout.HIGH_WATERMARKS,
            layout.CLEANER_OFFSETS,
        )
    ),
    Small(
        layout.LEADER_EPOCHS,
        lambda directory: directory.replace(layout.LEADER_EPOCHS, LeaderEpochs([(0, 0), (3, 40)]).to_store(50)),
        lambda directory: LeaderEpochs.decode(directory.read(layout.LEADER_EPOCHS)).entries(),
    ),
    Small("7.snapshot", lambda directory: directory.replace("7.snapshot", states().encode()), snapshot),
    Small(
        layout.META_PROPERTIES,
        lambda directory: layout.write_meta_properties(directory, PROPERTIES),
        lambda directory: {
            key: value for key, value in (layout.read_meta_properties(directory) or {}).items() if key in PROPERTIES
        },
        b"#\n#Sun Nov 22 02:39:37 UTC 2026\ncluster.id=4L6g3nShT-eMCtK--X86sw\ndirectory.id=x\nnode.id=1\nversion=1\n",
    ),
    Small(
        layout.PARTITION_METADATA,
        lambda directory: layout.write_partition_metadata(directory, layout.PartitionMetadata(TOPIC_ID)),
        layout.read_partition_metadata,
        b"version: 0\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w",
    ),
    Small(
        layout.PARTITION_METADATA,
        lambda directory: layout.write_partition_metadata(directory, layout.PartitionMetadata(TOPIC_ID, True)),
        layout.read_partition_metadata,
        cut=layout.PartitionMetadata(TOPIC_ID),
    ),
    Small(
        layout.CLEAN_SHUTDOWN,
        lambda directory: layout.mark_clean_shutdown(directory, 12),
        layout.take_clean_shutdown,
        b'{"version":0,"brokerEpoch":12}',
        None,
    ),
]
by_name = pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)


def outcome(small: Small, directory: MemoryDirectory) -> Any:
    try:
        return small.read(directory)
    except CorruptFile:
        return CorruptFile


@by_name
def test_any_bit_that_flips_is_seen_or_makes_no_difference(small: Small) -> None:
    directory = MemoryDisk().root
    small.write(directory)
    data = directory.read(small.name)
    right = small.read(directory)
    seen = 0
    for position in range(len(data)):
        for bit in range(8):
            flipped = data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
            directory.replace(small.name, flipped)
            found = outcome(small, directory)
            assert found in (right, small.damaged), flipped
            seen += found == small.damaged
    assert seen >= 0.9 * 8 * len(data)


@by_name
def test_wherever_it_is_cut_it_is_seen_or_makes_no_difference(small: Small) -> None:
    directory = MemoryDisk().root
    small.write(directory)
    data = directory.read(small.name)
    right = small.read(directory)
    for size in range(len(data)):
        directory.replace(small.name, data[:size])
        found = outcome(small, directory)
        if small.name == layout.META_PROPERTIES and found != CorruptFile:
            # Without its last line nothing proves it: a node does not start with one that lacks what it must say.
            assert found == right or "xxh64" not in data[:size].decode()
        else:
            assert found in (right, small.damaged, small.cut), data[:size]


@pytest.mark.parametrize("small", [each for each in SMALL if each.of_before is not None], ids=lambda small: small.name)
def test_files_of_before_there_were_checksums_and_of_kafka_are_read(small: Small) -> None:
    directory = MemoryDisk().root
    small.write(directory)
    right = small.read(directory)
    assert small.of_before is not None
    directory.replace(small.name, small.of_before)
    assert small.read(directory) == right


@by_name
def test_it_is_replaced_as_a_whole_and_durably(small: Small) -> None:
    """A crash leaves the old or the new one: `Directory.replace` is all that writes it."""
    disk = MemoryDisk()
    operations: list[tuple[str, str]] = []
    disk.on_operation = lambda operation, path: operations.append((operation, path))
    small.write(disk.root)
    assert operations == [("replace", f"/{small.name}"), ("replaced", f"/{small.name}")]


@pytest.mark.parametrize(
    "number", ["x", "", "-1", "1.5", "\u0661", "9" * 20, str(1 << 63), "7" * 5_000, b"\xff".decode("latin-1")]
)
def test_a_checkpoint_that_is_whole_and_has_no_numbers_is_refused(number: str) -> None:
    """Its checksum is right, so another program wrote it."""
    directory = MemoryDisk().root
    for entry in ((number, "0"), ("0", number)):
        directory.replace(layout.RECOVERY_POINTS, layout.with_checksum(f"0\n1\nt {' '.join(entry)}\n"))
        with pytest.raises(layout.CorruptFile):
            layout.read_offsets(directory, layout.RECOVERY_POINTS)
        with pytest.raises(layout.CorruptFile):
            LeaderEpochs.decode(layout.with_checksum(f"0\n1\n{' '.join(entry)}\n"))
    with pytest.raises(layout.CorruptFile):
        LeaderEpochs.decode(layout.with_checksum(f"0\n{number}\n"))


def test_a_checkpoint_that_is_whole_and_no_text_is_refused() -> None:
    body = b"0\n1\nt\xff 0 0\n"
    with pytest.raises(layout.CorruptFile):
        layout.decode_entries(body + f"xxh64 {xxhash.xxh64_hexdigest(body)}\n".encode(), 3)
