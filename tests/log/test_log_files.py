"""Open files, names and checkpoints, and the disk the other tests believe in."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.log import layout
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import TopicId, TopicPartition

# --- open files -------------------------------------------------------------------------------------------------------


def opened(handles: list[LazyFile]) -> list[str]:
    return [handle.name for handle in handles if handle._file is not None]


def test_no_more_files_are_open_than_allowed_and_those_in_use_stay() -> None:
    directory = MemoryDisk().root
    cache = FileCache(3)
    handles = [LazyFile(directory, f"f{number}", cache) for number in range(10)]
    for number, handle in enumerate(handles):
        handle.get().write(0, b"%d" % number)
        handles[0].get()
        assert len(opened(handles)) == min(3, number + 1) == len(cache)
        assert handles[0]._file is not None
    assert [handle.get().read(0, 1) for handle in handles] == [b"%d" % number for number in range(10)]


def test_a_pinned_file_is_neither_evicted_nor_closed() -> None:
    directory = MemoryDisk().root
    cache = FileCache(2)
    pinned, closed, *others = [LazyFile(directory, f"f{number}", cache) for number in range(6)]
    file = pinned.pin()
    for handle in others:
        handle.get()
    assert pinned._file is file
    also = closed.pin()
    closed.close()
    also.write(0, b"still there")
    again = closed.get()
    assert again is not also, "whoever had pinned it keeps what is no longer anybody else's"
    closed.unpin(also)
    assert again.size() == len(b"still there")
    with pytest.raises(OSError, match="Bad file"):
        also.size()
    file.write(0, b"x")
    pinned.unpin(file)
    pinned.close()
    assert pinned._file is None
    pinned.close()


def test_a_file_may_be_pinned_by_many_over_several_closings() -> None:
    handle = LazyFile(MemoryDisk().root, "f", FileCache(2))
    first = handle.pin()
    assert handle.pin() is first
    handle.close()
    second = handle.pin()
    handle.move_to(FileCache(1))
    handle.unpin(first)
    handle.unpin(second)
    with pytest.raises(OSError, match="Bad file"):
        second.size()
    assert first.size() == 0
    handle.unpin(first)
    with pytest.raises(OSError, match="Bad file"):
        first.size()


# --- names ------------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert layout.file_name(42, layout.LOG) == "00000000000000000042.log"
    assert layout.offset_of("00000000000000000042.log", layout.LOG) == 42
    for name in (
        "42.log",
        "0000000000000000004x.log",
        "00000000000000000042.index",
        "00000000000000000042.log.deleted",
        "0000000000000000004\u0662.log",
        "09223372036854775808.log",
    ):
        assert layout.offset_of(name, layout.LOG) is None
    assert layout.parse_partition("a-b-12") == TopicPartition("a-b", 12)
    for name in ("a", "-1", "a-", "a--1x", "a-01", "a-1.0123-delete", "a-٣"):
        assert layout.parse_partition(name) is None
    long = layout.deleted_partition_name(TopicPartition("t" * 249, 12), "f" * 32)
    assert len(long) == 255
    assert long.endswith("-delete")
    assert layout.parse_partition(long) is None


def test_partitions_of_a_log_directory() -> None:
    root = MemoryDisk().root
    for name in ("b-1", "a-0", "b-0", "x-0.00-delete"):
        root.child(name)
    root.open("meta.properties")
    assert layout.partitions(root) == [TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)]
    assert layout.deleted_partitions(root) == ["x-0.00-delete"]


# --- checkpoints ------------------------------------------------------------------------------------------------------

PARTITIONS = st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True), st.integers(0, 9999))


@given(offsets=st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1), max_size=20))
def test_checkpoints_hold_what_was_written(offsets: dict[TopicPartition, int]) -> None:
    root = MemoryDisk().root
    layout.write_offsets(root, layout.RECOVERY_POINTS, offsets)
    assert layout.read_offsets(root, layout.RECOVERY_POINTS) == offsets


def test_any_damage_to_a_checkpoint_is_seen() -> None:
    root = MemoryDisk().root
    assert layout.read_offsets(root, "none") == {}
    layout.write_offsets(root, "points", {TopicPartition("topic", 3): 17, TopicPartition("a", 0): 4})
    data = root.read("points")
    assert data.startswith(b"0\n2\na 0 4\ntopic 3 17\nxxh64 ")
    for position in range(len(data)):
        root.replace("points", data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(layout.CorruptFile):
            layout.read_offsets(root, "points")
        root.replace("points", data[:position])
        with pytest.raises(layout.CorruptFile):
            layout.read_offsets(root, "points")
    root.replace("points", layout.with_checksum("1\n0\n"))
    with pytest.raises(layout.CorruptFile, match="version 0"):
        layout.read_offsets(root, "points")
    root.replace("points", layout.with_checksum("0\n1\na b\n"))
    with pytest.raises(layout.CorruptFile, match="fields"):
        layout.read_offsets(root, "points")


def test_the_marker_of_a_clean_stop_is_gone_before_it_is_believed() -> None:
    disk = MemoryDisk()
    assert layout.take_clean_shutdown(disk.root) is None
    layout.mark_clean_shutdown(disk.root, 7)
    assert layout.take_clean_shutdown(disk.root) == 7
    disk.crash(random.Random(0), Loss.EVERYTHING)
    assert layout.take_clean_shutdown(disk.root) is None
    for text in (b"not json", b"", b"[]", b"{}", b'{"version": 0, "brokerEpoch": "7"}'):
        disk.root.replace(layout.CLEAN_SHUTDOWN, text)
        assert layout.take_clean_shutdown(disk.root) is None


def test_properties_and_topic_ids() -> None:
    root = MemoryDisk().root
    assert layout.read_meta_properties(root) is None
    layout.write_meta_properties(root, {"version": "1", "node.id": "3", "cluster.id": "a=b"})
    assert layout.read_meta_properties(root) == {"version": "1", "node.id": "3", "cluster.id": "a=b"}
    assert layout.read_topic_id(root) is None
    topic_id = TopicId(bytes(range(240, 256)))
    layout.write_partition_metadata(root, layout.PartitionMetadata(topic_id))
    assert root.read("partition.metadata").startswith(b"version: 0\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w\nxxh64 ")
    assert layout.read_topic_id(root) == topic_id
    promising = layout.PartitionMetadata(topic_id, synced_before_ack=True)
    layout.write_partition_metadata(root, promising)
    assert layout.read_partition_metadata(root) == promising
    assert layout.read_topic_id(root) == topic_id
    for text in (b"", b"version: 0\n", b"version: 0\ntopic_id: x\n", b"\xff"):
        root.replace(layout.PARTITION_METADATA, text)
        with pytest.raises(layout.CorruptFile):
            layout.read_topic_id(root)


# --- the disk in memory -----------------------------------------------------------------------------------------------


def test_what_was_not_synced_is_lost() -> None:
    disk = MemoryDisk()
    directory = disk.root.child("d")
    disk.root.sync()
    file = directory.open("f")
    file.write(0, b"synced")
    file.sync()
    directory.sync()
    file.write(3, b"lost")
    directory.open("new").write(0, b"x")
    directory.rename("f", "g")
    assert directory.read("g") == b"synlost"
    disk.crash(random.Random(0), Loss.EVERYTHING)
    with pytest.raises(OSError, match="crashed"):
        file.read(0, 1)
    assert disk.root.child("d").names() == ["f"]
    assert disk.root.child("d").read("f") == b"synced"


@pytest.mark.parametrize("loss", [Loss.PREFIX, Loss.SECTORS])
def test_a_crash_leaves_parts_of_what_was_not_synced(loss: Loss) -> None:
    seen = set()
    for seed in range(60):
        disk = MemoryDisk()
        file = disk.root.open("f")
        disk.root.sync()
        for number in range(3):
            file.write(number * 600, bytes([65 + number]) * 600)
        disk.crash(random.Random(seed), loss)
        seen.add(disk.root.read("f"))
    assert len(seen) > 5
    if loss is Loss.PREFIX:
        assert all((b"A" * 600 + b"B" * 600 + b"C" * 600).startswith(data) for data in seen)
    else:
        assert any(0 in data for data in seen)  # a hole


def test_faults() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    root = disk.root
    file = root.open("f.log")
    file.write(0, b"12345678")
    with pytest.raises(OSError, match="No space") as caught:
        file.write(8, b"abcd")
    assert caught.value.errno == errno.ENOSPC
    assert root.read("f.log") == b"12345678ab"
    root.delete("f.log")
    root.open("g.log").write(0, b"0123456789")
    disk.fail("sync", skip=1, name=".log")
    root.open("g.log").sync()
    with pytest.raises(OSError, match="Input/output"):
        root.open("g.log").sync()
    root.open("g.log").sync()
    disk.fail("write")
    with pytest.raises(OSError, match="Input/output"):
        root.open("g.log").write(0, b"abcd")
    assert root.read("g.log") == b"ab23456789"
    disk.fail("open", count=5)
    disk.heal()
    disk.damage("g.log", 0, 0xFF)
    assert root.open("g.log").read(0, 2) == bytes([ord("a") ^ 0xFF]) + b"b"


def test_a_failed_sync_loses_what_it_should_have_saved() -> None:
    disk = MemoryDisk()
    file = disk.root.open("f")
    disk.root.sync()
    file.write(0, b"gone")
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    disk.crash(random.Random(0), Loss.EVERYTHING)
    assert disk.root.read("f") == b""
