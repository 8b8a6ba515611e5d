"""Transactions in a compacted log (rule 41): aborted records go at once, markers last, and readers learn of both."""

from __future__ import annotations

import random

from log_model import NOW, compact, config, open_log, read_batches

from kraftpy.log import compaction
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import ControlType, encode_batch, encode_control_batch, read_header
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis

HOUR = 3_600_000


class Topic:
    """A compacted log with producers that have transactions."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.root.child("t-0")
        self.disk.root.sync()
        self.config = config(
            cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, delete_retention_ms=HOUR
        )
        self.log = open_log(self.disk.root.child("t-0"), topic=self.config)
        self.clean_until = 0

    def reopen(self, *, clean: bool) -> None:
        recovery_point = self.log.recovery_point
        if clean:
            self.log.close()
        else:
            self.disk.crash(random.Random(0), Loss.EVERYTHING)
        self.log = open_log(self.disk.root.child("t-0"), topic=self.config, clean=clean, recovery_point=recovery_point)

    def put(self, key: str, value: str, *, producer_id: int = -1, sequence: int = -1, epoch: int = 0) -> int:
        data = encode_batch(
            [(NOW, key.encode(), value.encode(), ())],
            producer_id=producer_id,
            producer_epoch=epoch if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=producer_id >= 0,
        )
        return self.log.append(data, leader_epoch=0, now=NOW).base_offset

    def end(self, producer_id: int, kind: ControlType, *, epoch: int = 0) -> int:
        marker = encode_control_batch(
            kind, timestamp=NOW, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0
        )
        return self.log.append(marker, leader_epoch=0, now=NOW, origin=Origin.COORDINATOR).base_offset

    def clean(self, now: int = NOW) -> None:
        """Clean all there is; a new key makes sure that something is dirty."""
        self.put(f"filler {self.log.log_end_offset}", "x")
        self.log.roll(Millis(now))
        result = compact(self.log, self.clean_until, now=now)
        assert result is not None
        self.clean_until = result.end_offset

    def shape(self, end_offset: int) -> list[tuple[int, int, str]]:
        """(last offset, records, kind) of each batch before an offset."""
        headers = [read_header(data) for data in read_batches(self.log)]
        return [
            (header.last_offset, header.records_count, "marker" if header.is_control else "data")
            for header in headers
            if header.last_offset < end_offset
        ]


def aborted(log: PartitionLog) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in log.producers.aborted.between(0, log.log_end_offset)]


def test_an_abort_marker_goes_after_its_records_and_its_horizon() -> None:
    topic = Topic()
    topic.put("a", "aborted", producer_id=1, sequence=0)
    topic.end(1, ControlType.ABORT)
    topic.put("b", "committed", producer_id=1, sequence=1)
    topic.end(1, ControlType.COMMIT)
    topic.put("a", "2", producer_id=1, sequence=2)
    topic.put("b", "2", producer_id=1, sequence=3)
    topic.end(1, ControlType.COMMIT)
    topic.clean()
    assert topic.shape(7) == [(1, 1, "marker"), (3, 1, "marker"), (4, 1, "data"), (5, 1, "data"), (6, 1, "marker")]
    assert aborted(topic.log) == [(1, 0)]
    topic.clean()  # nothing of the first two is left: they are given a horizon
    horizons = [read_header(data).delete_horizon_ms for data in read_batches(topic.log)]
    assert horizons[:5] == [NOW + HOUR, NOW + HOUR, None, None, None]
    topic.clean(NOW + HOUR - 1)
    assert (1, 1, "marker") in topic.shape(7)
    topic.clean(NOW + HOUR)
    assert topic.shape(7) == [(4, 1, "data"), (5, 1, "data"), (6, 1, "marker")]
    assert aborted(topic.log) == [], "a reader would wait for that marker, and drop the transactions that follow"


def test_readers_are_not_told_of_a_marker_that_is_gone_after_a_restart_either() -> None:
    for restarts in ([True], [False], [False, True]):
        topic = Topic()
        topic.put("a", "aborted", producer_id=1, sequence=0)
        topic.end(1, ControlType.ABORT)
        topic.put("b", "committed", producer_id=1, sequence=1)
        topic.end(1, ControlType.COMMIT)
        topic.clean()
        topic.clean()
        topic.reopen(clean=True)  # its stored state knows the aborted transaction
        assert aborted(topic.log) == [(1, 0)]
        result = compact(topic.log, 0, now=NOW + HOUR)
        assert result is not None
        assert topic.shape(4) == [(2, 1, "data"), (3, 1, "marker")]
        for clean in restarts:
            topic.reopen(clean=clean)
            assert aborted(topic.log) == [], restarts


def test_a_transaction_whose_marker_is_gone_does_not_open_again_after_a_crash() -> None:
    """A snapshot from its middle may not outlive its marker: later ones need `.txnindex` files that are gone by now."""
    topic = Topic()
    topic.put("a", "aborted", producer_id=1, sequence=0)
    topic.log.roll(NOW)
    topic.log.flush()
    assert topic.log.directory.exists("00000000000000000001.snapshot")
    topic.end(1, ControlType.ABORT)
    topic.put("b", "kept")
    topic.log.roll(NOW)
    topic.put("c", "still open", producer_id=1, sequence=1)
    for now in (NOW, NOW, NOW + HOUR):
        assert compact(topic.log, 0, now=now) is not None
    assert topic.shape(4) == [(2, 1, "data"), (3, 1, "data")]
    topic.reopen(clean=False)
    (producer,) = topic.log.producers.describe()
    assert producer.current_txn_start_offset == 3
    assert topic.log.last_stable_offset(topic.log.log_end_offset) == 3


def test_the_marker_that_proves_a_producer_s_epoch_stays() -> None:
    """KIP-890: a marker may bring the next epoch, of which no batch was written yet."""
    topic = Topic()
    topic.put("a", "1", producer_id=1, sequence=0)
    topic.end(1, ControlType.COMMIT, epoch=1)
    topic.put("a", "2")
    for hours in range(4):
        topic.clean(NOW + hours * 2 * HOUR)
    assert topic.shape(3) == [(1, 1, "marker"), (2, 1, "data")]


def test_the_batch_that_proves_a_sequence_stays_until_the_producer_is_forgotten() -> None:
    topic = Topic()
    topic.put("a", "1", producer_id=1, sequence=0)
    topic.end(1, ControlType.COMMIT)
    topic.put("a", "2")
    topic.clean()
    assert topic.shape(3) == [(0, 0, "data"), (1, 1, "marker"), (2, 1, "data")], "empty, and so its marker stays"
    assert topic.log.expire_producers(Millis(NOW + 30 * 24 * HOUR)) == [1]
    topic.clean()
    assert topic.shape(3) == [(1, 1, "marker"), (2, 1, "data")]


def test_an_aborted_record_hides_no_older_one() -> None:
    topic = Topic()
    topic.put("a", "old")
    topic.put("a", "aborted", producer_id=1, sequence=0)
    topic.end(1, ControlType.ABORT)
    topic.put("z", "1", producer_id=1, sequence=1)
    topic.end(1, ControlType.COMMIT)
    topic.clean()
    assert topic.shape(5) == [(0, 1, "data"), (2, 1, "marker"), (3, 1, "data"), (4, 1, "marker")]


def test_nothing_is_cleaned_on_the_word_of_a_marker_that_is_not_durable() -> None:
    topic = Topic()
    topic.put("a", "aborted", producer_id=1, sequence=0)
    topic.put("b", "1")
    topic.log.roll(NOW)
    topic.log.flush()
    topic.end(1, ControlType.ABORT)
    decided = compaction.decide(topic.log, topic.log.log_end_offset)
    assert compaction.begin(topic.log, 0, NOW, decided) is None
    topic.log.flush()
    job = compaction.begin(topic.log, 0, NOW, decided)
    assert job is not None
    compaction.finish(topic.log, job)
