"""The traces of many small metadata changes on a real disk: the size of the directory, and the time of a restart."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kraftpy.broker.runtime import OsDirectory
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.quorum import Quorum


class Counts:
    """A state machine whose state does not grow: how often each of a thousand keys was changed."""

    def __init__(self) -> None:
        self.counts = [0] * 1000

    def apply(self, index: int, term: int, data: bytes) -> None:
        self.counts[int(data[1:7]) % 1000] += 1

    def snapshot(self) -> bytes:
        return b"\x90" + ",".join(map(str, self.counts)).encode()

    def capture(self) -> Callable[[], bytes]:
        data = self.snapshot()
        return lambda: data

    def decode(self, data: bytes) -> Callable[[], None]:
        return lambda: self.restore(data)

    def restore(self, data: bytes) -> None:
        self.counts = [int(count) for count in data[1:].split(b",")]


class ManyChanges(NamedTuple):
    largest_bytes: int
    seconds: float
    restart_seconds: float
    changes_after_restart: int


def _open(directory: Path) -> tuple[Journal, Counts, Quorum]:
    journal, machine = Journal(OsDirectory(directory)), Counts()
    loaded = journal.load()
    quorum = Quorum(
        node_id=1,
        voters={1: "one:9093"},
        journal=journal,
        loaded=loaded,
        machine=machine,
        rng=random.Random(1),
        now_ms=1,
    )
    quorum.tick(1)
    quorum.synced(journal.sync())
    return journal, machine, quorum


def many_changes(directory: Path, changes: int, *, at_once: int = 500, size_bytes: int = 100) -> ManyChanges:
    """Make this many changes, with a sync for every `at_once` of them, and start again without a clean stop."""
    journal, machine, quorum = _open(directory)
    largest = 0
    began = time.monotonic()
    for number in range(changes):
        quorum.propose(b"\x93%06d" % (number % 1_000_000) + bytes(size_bytes))
        if number % at_once == at_once - 1 or number == changes - 1:
            quorum.synced(journal.sync())
            if quorum.snapshot_due:
                captured = quorum.begin_snapshot()
                journal.save_snapshot(captured.index, captured.term, captured.encode())
                quorum.snapshot_saved(captured.index)
            largest = max(largest, sum(file.stat().st_size for file in directory.iterdir()))
    seconds = time.monotonic() - began
    began = time.monotonic()
    again, restarted, _ = _open(directory)
    restart_seconds = time.monotonic() - began
    journal.close()
    again.close()
    assert restarted.counts == machine.counts
    return ManyChanges(largest, seconds, restart_seconds, sum(restarted.counts))
