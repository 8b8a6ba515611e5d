"""Aborted transactions on disk: `.txnindex` and `.snapshot` files in Kafka's layout, and a log that still knows every
aborted transaction after restarts and crashes (rules 24 and 32: a reader learns of each one in its range).
"""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c
from log_model import NOW, check_invariants, compact, config, open_log

from kraftpy.log import layout
from kraftpy.log.deletion import remove_before_log_start
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import (
    ControlRecord,
    ControlType,
    decode_control_record,
    encode_batch,
    encode_control_batch,
    iter_records,
    read_header,
)
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk
from kraftpy.types import Millis

SEGMENT_BYTES = 700
Told = list[tuple[int, int, int]]


class Topic:
    """A log whose producers have transactions, and what is aborted in it, counted as plainly as can be."""

    def __init__(self, **settings: object) -> None:
        self.disk = MemoryDisk()
        self.directory: MemoryDirectory = self.disk.root.child("t-0")
        self.disk.root.sync()
        self.config = config(**{"segment_bytes": SEGMENT_BYTES, **settings})
        self.log = open_log(self.directory, topic=self.config)
        self.recovery_point = 0

    def put(self, producer_id: int, key: bytes = b"k") -> None:
        known = {each.producer_id: each.last_sequence for each in self.log.producers.describe()}
        sequence = known.get(producer_id, -1) + 1
        data = encode_batch(
            [(NOW, key, b"%d" % sequence, ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.log.append(data, leader_epoch=0, now=NOW)

    def end(self, producer_id: int, kind: ControlType = ControlType.ABORT) -> None:
        marker = encode_control_batch(
            kind, timestamp=NOW, producer_id=producer_id, producer_epoch=0, coordinator_epoch=3
        )
        self.log.append(marker, leader_epoch=0, now=NOW, origin=Origin.COORDINATOR)

    def transactions(self, count: int) -> None:
        """Write this many transactions of two producers that alternate and overlap; every third is committed."""
        for number in range(count):
            self.put(number % 2)
            if number:
                self.end((number - 1) % 2, ControlType.COMMIT if number % 3 == 0 else ControlType.ABORT)

    def flush(self) -> None:
        self.log.flush()
        self.recovery_point = self.log.recovery_point

    def close_and_open(self) -> None:
        self.log.close()
        self.recovery_point = self.log.recovery_point
        self._open(clean=True)

    def crash_and_open(self, loss: Loss = Loss.EVERYTHING) -> None:
        self.disk.crash(random.Random(0), loss)
        self._open(clean=False)

    def _open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.disk.root.child("t-0"), topic=self.config, clean=clean, recovery_point=self.recovery_point
        )
        check_invariants(self.log)

    def told(self) -> Told:
        return [(each.producer_id, each.first_offset, each.last_offset) for each in self.log.producers.aborted]

    def counted(self) -> Told:
        """Return what a walk through all the records finds."""
        since: dict[int, int] = {}
        found: Told = []
        for segment in self.log.segments:
            data = segment.log.get().read(0, segment.size)
            position = 0
            while position < len(data):
                header = read_header(data, position)
                batch = data[position : position + header.size_bytes]
                position += header.size_bytes
                if header.is_control:
                    marker: ControlRecord = decode_control_record(next(iter_records(batch)))
                    first = since.pop(header.producer_id, None)
                    if first is not None and marker.type is ControlType.ABORT:
                        found.append((header.producer_id, first, header.base_offset))
                else:
                    since.setdefault(header.producer_id, header.base_offset)
        return found

    def files(self, suffix: str) -> list[str]:
        return [name for name in self.disk.root.child("t-0").names() if name.endswith(suffix)]

    def stored(self) -> Told:
        """Return the files' contents, parsed independently by Kafka's layout."""
        found: Told = []
        for name in self.files(".txnindex"):
            data = self.disk.root.child("t-0").read(name)
            assert len(data) % 34 == 0
            for at in range(0, len(data), 34):
                version, producer_id, first, last, stable = struct.unpack_from(">hqqqq", data, at)
                assert version == 0
                assert first < stable <= last + 1 or stable <= first
                found.append((producer_id, first, last))
        return found


@pytest.fixture
def topic() -> Topic:
    made = Topic()
    made.transactions(40)
    assert len(made.log.segments) > 4
    assert made.told() == made.counted()
    assert len(made.told()) > 20
    return made


def test_a_closed_log_has_them_in_kafkas_files(topic: Topic) -> None:
    told = topic.told()
    topic.log.close()
    assert topic.stored() == told
    for segment, following in zip(topic.log.segments, topic.log.segments[1:], strict=False):
        of_segment = [each for each in told if segment.base_offset <= each[2] < following.base_offset]
        assert (layout.file_name(segment.base_offset, ".txnindex") in topic.files(".txnindex")) == bool(of_segment)


def test_a_snapshot_begins_as_kafka_reads_it(topic: Topic) -> None:
    topic.put(7)
    end_offset = topic.log.log_end_offset
    topic.log.close()
    data = topic.disk.root.child("t-0").read(layout.file_name(end_offset, ".snapshot"))
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc) == (1, crc32c(data[6:]))
    entries = [struct.unpack_from(">qhiqiqiq", data, 10 + number * 46) for number in range(count)]
    described = {each.producer_id: each for each in topic.log.producers.describe()}
    assert {entry[0] for entry in entries} == described.keys() == {0, 1, 7}
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, open_since in entries:
        known = described[producer_id]
        assert (epoch, sequence, timestamp) == (known.producer_epoch, known.last_sequence, known.last_timestamp)
        assert (delta, coordinator_epoch, open_since) == (0, known.coordinator_epoch, known.current_txn_start_offset)
        assert topic.log.producers.last_sequences()[producer_id] == (epoch, offset)


def test_a_snapshot_of_kafkas_is_believed(topic: Topic) -> None:
    """It ends behind the producers; the `.txnindex` files are taken at their word."""
    told, end_offset = topic.told(), topic.log.log_end_offset
    topic.close_and_open()
    topic.log.close()
    directory = topic.disk.root.child("t-0")
    name = layout.file_name(end_offset, ".snapshot")
    data = directory.read(name)
    (count,) = struct.unpack_from(">i", data, 6)
    body = data[6 : 10 + count * 46]
    directory.replace(name, struct.pack(">hI", 1, crc32c(body)) + body)
    topic.close_and_open()
    assert topic.log.report.replayed_batches == 0
    assert topic.told() == told
    assert [each.last_sequence for each in topic.log.producers.describe()] == [19, 19]


def test_a_clean_start_reads_no_batch_for_them(topic: Topic) -> None:
    told = topic.told()
    for _ in range(3):
        topic.close_and_open()
        assert topic.log.report.replayed_batches == 0
        assert topic.told() == told == topic.stored()


@pytest.mark.parametrize("loss", Loss)
def test_a_log_knows_the_same_after_a_crash(topic: Topic, loss: Loss) -> None:
    topic.flush()
    topic.transactions(9)
    for _ in range(3):
        topic.crash_and_open(loss)
        assert topic.told() == topic.counted()
        topic.transactions(5)
        assert topic.told() == topic.counted()
    topic.close_and_open()
    assert topic.told() == topic.counted() == topic.stored()


def test_it_knows_the_same_after_a_crash_behind_a_clean_stop(topic: Topic) -> None:
    """The last segment was written to before the stop and after it."""
    topic.close_and_open()
    topic.transactions(4)
    topic.crash_and_open(Loss.NOTHING)
    assert topic.told() == topic.counted()
    topic.close_and_open()
    assert topic.told() == topic.counted() == topic.stored()


@pytest.mark.parametrize("offset", [1, 17, 40, 60])
def test_a_truncation_takes_back_what_it_cuts(topic: Topic, offset: int) -> None:
    topic.flush()
    topic.log.truncate_to(offset)
    assert topic.told() == topic.counted()
    topic.recovery_point = topic.log.recovery_point
    topic.transactions(12)
    assert topic.told() == topic.counted()
    topic.crash_and_open(Loss.NOTHING)
    assert topic.told() == topic.counted()
    topic.close_and_open()
    assert topic.told() == topic.counted() == topic.stored()


def test_a_truncation_of_everything_leaves_none(topic: Topic) -> None:
    topic.flush()
    topic.log.truncate_fully_and_start_at(500)
    assert topic.told() == []
    topic.log.close()
    assert topic.files(".txnindex") == []


def test_they_go_with_their_segments(topic: Topic) -> None:
    start = topic.log.segments[3].base_offset
    topic.flush()
    topic.log.advance_log_start(start)
    topic.log.written_log_start = start
    for name in remove_before_log_start(topic.log, Millis(NOW)):
        topic.directory.delete(name)
    assert all(last >= start for _, _, last in topic.told())
    assert len(topic.told()) > 5
    told = topic.told()
    topic.close_and_open()
    assert topic.told() == told == topic.stored()


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "an entry more"])
def test_a_damaged_file_is_not_believed(topic: Topic, damage: str) -> None:
    told = topic.told()
    topic.log.close()
    topic.recovery_point = topic.log.recovery_point
    directory = topic.disk.root.child("t-0")
    name = topic.files(".txnindex")[2]
    data = directory.read(name)
    changed = {"a bit": data[:9] + bytes([data[9] ^ 1]) + data[10:], "cut": data[:-34], "an entry more": data + data}
    if damage == "gone":
        directory.delete(name)
    else:
        directory.replace(name, changed[damage])
    topic._open(clean=True)
    assert topic.told() == told
    assert topic.log.report.replayed_batches > 0
    topic.close_and_open()
    assert topic.told() == told == topic.stored()


def test_after_a_compaction_readers_are_told_of_what_is_left() -> None:
    topic = Topic(
        cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, delete_retention_ms=10, segment_bytes=700
    )
    topic.transactions(40)
    topic.log.roll(Millis(NOW))
    topic.put(9, b"the last")
    clean_until = 0
    for now in (NOW, NOW + 100, NOW + 200, NOW + 300):
        result = compact(topic.log, clean_until, now=now)
        if result is not None:
            clean_until = result.end_offset
        known = topic.told()
        assert set(topic.counted()) <= set(known), "aborted records that nobody would be told of"
        topic.flush()
        topic.crash_and_open()
        assert set(topic.counted()) <= set(topic.told())
        topic.put(9, b"%d" % now)
        topic.log.roll(Millis(now))
    topic.close_and_open()
    markers = {
        header.last_offset
        for segment in topic.log.segments
        for placed in segment.walk()
        if (header := read_header(segment.log.get().read(placed.position, placed.size))).is_control
    }
    assert all(last in markers for _, _, last in topic.told()), "a reader would wait for a marker that is gone"


def test_a_read_is_told_of_what_overlaps_it(topic: Topic) -> None:
    told = topic.told()
    for start in range(0, topic.log.log_end_offset, 5):
        for end in range(start + 1, topic.log.log_end_offset + 1, 7):
            found = topic.log.producers.aborted.between(start, end)
            assert [(each.producer_id, each.first_offset, each.last_offset) for each in found] == [
                each for each in told if each[2] >= start and each[1] < end
            ]


def test_a_copy_of_a_log_has_them_too(topic: Topic) -> None:
    """As a move to another log directory makes it: other segments, and what the first one knows."""
    directory = topic.disk.root.child("copy-0")
    copy: PartitionLog = open_log(directory, topic=config(segment_bytes=300))
    for segment in topic.log.segments:
        data = segment.log.get().read(0, segment.size)
        copy.append(data[: len(data)], leader_epoch=-1, now=Millis(NOW), origin=Origin.REPLICA)
    copy.take_over(topic.log)
    copy.close()
    again = open_log(directory, topic=config(segment_bytes=300), clean=True, recovery_point=copy.recovery_point)
    assert again.report.replayed_batches == 0
    assert list(again.producers.aborted) == list(topic.log.producers.aborted)
