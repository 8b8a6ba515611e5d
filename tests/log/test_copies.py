"""The part of a log that a copy still has in common with it after a restart (`log.copies`)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from kraftpy.config.topic import TopicConfig
from kraftpy.log.copies import common_end, read_progress, write_progress
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.record_batch import encode_batch, stamp
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import Millis

Batch = tuple[int, bytes]
"""The leader epoch of a batch, and the value of each of its two records."""


def made(batches: Sequence[Batch], start: int = 0, **settings: str) -> PartitionLog:
    """A log with these batches of two records each."""
    log = PartitionLog.open(MemoryDisk().root.child("t-0"), TopicConfig(**settings), now=Millis(0))  # type: ignore[arg-type]
    if start:
        log.truncate_fully_and_start_at(start)
    for number, (epoch, value) in enumerate(batches):
        batch = bytearray(encode_batch([(1, None, value, ()), (1, None, value, ())]))
        stamp(batch, start + 2 * number, epoch, None)
        log.append(batch, leader_epoch=epoch, now=Millis(0), origin=Origin.REPLICA)
    return log


@pytest.mark.parametrize(
    ("copy", "source", "end"),
    [
        pytest.param([(0, b"a")], [(0, b"a"), (0, b"b")], 2, id="a beginning"),
        pytest.param([(0, b"a"), (0, b"b")], [(0, b"a")], 2, id="the log lost its end"),
        pytest.param([(0, b"a"), (0, b"b")], [(0, b"a"), (1, b"c")], 2, id="and was written in a new epoch"),
        pytest.param([(0, b"a"), (2, b"b")], [(0, b"a"), (3, b"c")], 2, id="an epoch that the log never had"),
        pytest.param([(0, b"a"), (2, b"b"), (4, b"d")], [(0, b"a"), (2, b"b"), (3, b"c")], 4, id="the last of several"),
        pytest.param([(5, b"a")], [(6, b"a")], None, id="nothing in common"),
        pytest.param([(0, b"x")], [(0, b"a")], None, id="another record in the same epoch"),
        pytest.param([], [(0, b"a")], None, id="an empty copy"),
        pytest.param([(0, b"a")], [], None, id="an empty log"),
    ],
)
def test_the_common_part(copy: list[Batch], source: list[Batch], end: int | None) -> None:
    assert common_end(made(copy), made(source)) == end


def test_logs_that_begin_elsewhere_have_nothing_in_common() -> None:
    later = made([(0, b"a")], start=10)
    assert common_end(made([(0, b"a")]), later) is None, "the log's records begin behind the copy"
    assert common_end(later, made([(0, b"a")] * 7)) is None, "the copy lacks records at the beginning"


def test_random_histories_never_keep_what_the_log_has_not() -> None:
    """The common part is equal in both, and no shorter than the last epoch boundary before they diverge."""
    chance = Random(3)
    for _ in range(300):
        shared = sorted(chance.choices(range(4), k=chance.randrange(5)))
        history = [(epoch, b"s%d" % number) for number, epoch in enumerate(shared)]
        last = shared[-1] if shared else 0
        copy, source = list(history), list(history)
        for batches, odd in ((copy, 1), (source, 0)):  # no epoch is used twice for different records
            for epoch in sorted(chance.choices(range(last + 1, last + 9), k=chance.randrange(4))):
                if epoch % 2 == odd:
                    batches.append((epoch, bytes([odd])))
        end = common_end(made(copy), made(source)) or 0
        assert copy[: end // 2] == source[: end // 2]
        assert end == 2 * len(history)


def test_progress_is_kept_and_damage_is_noticed() -> None:
    log = made([(0, b"a"), (0, b"b")])
    directory = log.directory
    assert read_progress(directory) is None
    log.flush()
    write_progress(log, clean_until=2)
    assert read_progress(directory) == (4, 0, 2)
    whole = directory.read("copy-progress")
    for place in range(len(whole)):
        directory.replace("copy-progress", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_progress(directory) is None
