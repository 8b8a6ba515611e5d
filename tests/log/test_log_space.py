"""The space a growing log asks for ahead, on a real file system, and that it gives it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from log_model import NOW, batch, config, open_log

from kraftpy.broker.runtime import OsDirectory
from kraftpy.log.partition_log import PartitionLog
from kraftpy.types import Millis

PIECE = 256 * 1024
SLACK = 64 * 1024  # the size that a file system rounds to


def grown(tmp_path: Path, pieces: int, **settings: Any) -> PartitionLog:
    topic = {"segment_bytes": 1 << 30, "max_message_bytes": 1 << 20, "segment_index_bytes": 1 << 20, **settings}
    log = open_log(OsDirectory(tmp_path), topic=config(**topic))
    for _ in range(pieces):
        log.append(batch(os.urandom(PIECE)), leader_epoch=0, now=Millis(NOW))
    return log


def unused(path: Path) -> int:
    found = path.stat()
    return found.st_blocks * 512 - found.st_size


def test_what_was_asked_for_ahead_is_given_back_when_the_log_is_closed(tmp_path: Path) -> None:
    log = grown(tmp_path, 10)
    file = tmp_path / "00000000000000000000.log"
    assert 10 * PIECE < file.stat().st_size < 10 * PIECE + SLACK
    assert unused(file) <= 10 * PIECE + SLACK
    log.close()
    assert unused(file) <= SLACK


def test_and_when_a_segment_is_rolled_though_it_was_left_by_a_crash(tmp_path: Path) -> None:
    grown(tmp_path, 10)  # and never closed
    log = open_log(
        OsDirectory(tmp_path),
        topic=config(segment_bytes=1 << 30, max_message_bytes=1 << 20, segment_index_bytes=1 << 20),
    )
    assert log.log_end_offset == 10
    log.roll(Millis(NOW))
    assert unused(tmp_path / "00000000000000000000.log") <= SLACK
    log.close()


def test_a_log_that_is_small_asks_for_nothing(tmp_path: Path) -> None:
    grown(tmp_path, 3)
    assert unused(tmp_path / "00000000000000000000.log") <= SLACK


def test_a_preallocated_segment_has_all_its_space_from_its_first_record_on(tmp_path: Path) -> None:
    size = 8 << 20
    log = grown(tmp_path, 0, preallocate=True, segment_bytes=size)
    assert not list(tmp_path.iterdir()), "a partition that is not used takes none"
    log.append(batch(os.urandom(PIECE)), leader_epoch=0, now=Millis(NOW))
    file = tmp_path / "00000000000000000000.log"
    assert PIECE < file.stat().st_size < PIECE + SLACK
    assert size - SLACK <= file.stat().st_blocks * 512 <= size + SLACK
    log.roll(Millis(NOW))
    assert unused(file) <= SLACK, "a segment that is sealed keeps what it used"
    log.append(batch(os.urandom(PIECE)), leader_epoch=0, now=Millis(NOW))
    following = tmp_path / "00000000000000000001.log"
    assert unused(following) >= size - PIECE - SLACK
    log.close()
    assert unused(following) <= SLACK
