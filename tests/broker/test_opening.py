"""Several logs are opened at once, and the progress is reported (rule 44)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.storage import opening
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.broker.storage.opening import Opening
from kraftpy.broker.upkeep import maintenance
from kraftpy.config import BrokerConfig, load
from kraftpy.config.topic import TopicConfig
from kraftpy.log import layout
from kraftpy.log.index import OffsetIndex, TimeIndex
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.scanning import Scanned
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Millis, TopicPartition

PATIENCE_S = 60.0


def found(end_offset: int) -> Scanned:
    return Scanned(0, end_offset, OffsetIndex(), TimeIndex(), -1, 0, [], [], None)


def meeting(barrier: threading.Barrier, end_offset: int) -> Callable[[], Scanned]:
    def scan() -> Scanned:
        barrier.wait(PATIENCE_S)
        return found(end_offset)

    return scan


def test_segments_of_one_log_are_scanned_side_by_side() -> None:
    barrier = threading.Barrier(2)
    with Opening(1, opening_threads=1, scanning_threads=2) as logs:
        scans = logs.side_by_side([meeting(barrier, number) for number in range(4)])
        assert [each.end_offset for each in scans] == [0, 1, 2, 3]


def test_several_logs_are_opened_at_once() -> None:
    barrier = threading.Barrier(2)
    with Opening(5, opening_threads=2, scanning_threads=2) as logs:
        jobs = [logs.pool.submit(barrier.wait, PATIENCE_S) for _ in range(4)]
        assert len([job.result(PATIENCE_S) for job in jobs]) == 4


def test_when_scans_are_closed_none_is_running_and_none_begins() -> None:
    """The files behind a torn segment are deleted then; a scan that began later would recreate the file."""
    begun: list[int] = []
    go_on = threading.Event()

    def scan(number: int) -> Callable[[], Scanned]:
        def job() -> Scanned:
            begun.append(number)
            if number:
                go_on.wait(PATIENCE_S)
            return found(number)

        return job

    with Opening(1, opening_threads=1, scanning_threads=1) as logs:
        scans = logs.side_by_side([scan(number) for number in range(50)])
        assert next(scans).end_offset == 0
        go_on.set()
        scans.close()
        after = list(begun)
        assert logs.pool.submit(lambda: list(begun)).result(PATIENCE_S) == after
    assert begun == after


async def test_people_are_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_TELL_EVERY_S", 0.001)
    said: list[str] = []
    told = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    with Opening(3, opening_threads=1, scanning_threads=1) as logs:
        one, other = logs.progress(), logs.progress()
        one(0, 4_000_000_000)
        other(0, 1_000_000_000)
        one(1_500_000_000, 4_000_000_000)
        logs.opened = 1
        telling = asyncio.create_task(logs.tell(say))
        await asyncio.wait_for(told.wait(), PATIENCE_S)
        telling.cancel()
    assert said[0].startswith("opening logs: 1 of 3 partitions, 2 left; after a crash: 1.50 of 5.00 GB read again, ")
    assert "MB/s" in said[0]


def test_a_real_log_is_scanned_in_threads(tmp_path: Path) -> None:
    """Some megabytes in many segments, with a torn one in the middle."""
    topic, now = TopicConfig(segment_bytes=100_000), Millis(1_700_000_000_000)
    log = PartitionLog.open(OsDirectory(tmp_path), topic, now=now)
    value = Random(1).randbytes(1000)
    for _ in range(500):
        log.append(encode_batch([(now, None, value, ())] * 4), leader_epoch=0, now=now)
    log.release()
    bases = sorted(int(file.stem) for file in tmp_path.glob("*.log"))
    assert len(bases) > 15
    with (tmp_path / f"{bases[7]:020d}.log").open("r+b") as file:
        file.truncate(5000)
    told: list[tuple[int, int]] = []
    with Opening(1, opening_threads=1, scanning_threads=3) as logs:
        again = PartitionLog.open(
            OsDirectory(tmp_path),
            topic,
            now=now,
            side_by_side=logs.side_by_side,
            progress=lambda done, total: told.append((done, total)),
        )
    assert again.log_end_offset == bases[7] + 4
    assert [segment.base_offset for segment in again.segments] == bases[:8]
    assert sorted(int(file.stem) for file in tmp_path.glob("*.log")) == bases[:8]
    assert told[0][0] == 0
    assert max(done for done, _ in told) <= told[0][1]
    again.release()


def test_rule_44_the_marker_of_a_clean_stop_is_taken_before_any_log_is_opened(tmp_path: Path) -> None:
    config = BrokerConfig.of({"node.id": "1", "log.dirs": str(tmp_path)})
    marker = tmp_path / layout.CLEAN_SHUTDOWN

    def opened() -> LogDirectories:
        directories = LogDirectories(config, SystemClock())
        directories.open()
        return directories

    first = opened()
    assert first.clean == [False]
    first.close(3, is_clean=True)
    assert marker.exists()
    second = opened()
    assert (second.clean, second.previous_broker_epoch) == ([True], 3)
    assert not marker.exists(), "a crash from here on is one"
    second.close(4, is_clean=False)
    assert not marker.exists(), "a stop that could not be clean leaves none"
    third = opened()
    assert third.clean == [False]
    third.close(5, is_clean=False)


async def test_sealed_segments_that_are_synced_are_written_down_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a start after a crash would read again data synced up to a minute before."""
    monkeypatch.setattr(maintenance, "_FLUSH_CHECK_MS", 10)
    monkeypatch.setattr(maintenance, "_CHECKPOINT_AT_MOST_EVERY_MS", 0)
    overrides = [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", "num.partitions=1"]
    config = load("", {}, overrides).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        assert await auto_create_topics(["a"], broker.metadata, config, SystemClock()) == {}
        log, now = broker.replicas.leader("a", 0).log, SystemClock().now()
        log.append(encode_batch([(now, b"k", b"v", ())]), leader_epoch=log.epochs.latest, now=now)
        log.roll(now)
        async with asyncio.timeout(PATIENCE_S):
            written = OsDirectory(tmp_path)
            while layout.read_offsets(written, layout.RECOVERY_POINTS).get(TopicPartition("a", 0)) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await broker.stop()
