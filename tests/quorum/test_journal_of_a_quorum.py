"""A quorum's demands on its journal beyond a single node's: votes with the next sync, appends during a sync."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kraftpy.metadata.journal import Journal, JournalError
from kraftpy.testing.memory_files import Loss, MemoryDisk


def opened(disk: MemoryDisk) -> Journal:
    journal = Journal(disk.root)
    journal.load()
    return journal


def test_a_noted_vote_is_durable_after_the_next_sync() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    assert not journal.is_dirty
    journal.note_vote(3, None)
    journal.note_vote(3, "2")
    assert journal.is_dirty
    assert (journal.term, journal.voted_for) == (0, None)
    with pytest.raises(ValueError, match="vote of term 3 for 2"):
        journal.note_vote(3, "1")
    with pytest.raises(ValueError, match="vote"):
        journal.note_vote(2, None)
    journal.sync()
    assert (journal.term, journal.voted_for, journal.is_dirty) == (3, "2", False)
    disk.crash(random.Random(0), Loss.EVERYTHING)
    again = opened(disk)
    assert (again.term, again.voted_for) == (3, "2")
    with pytest.raises(ValueError, match="vote"):
        again.note_vote(3, "1")


def test_entries_may_come_while_a_sync_runs() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    journal.append(1, b"before")
    is_in_sync, may_go_on = threading.Event(), threading.Event()

    def slow(operation: str, path: str) -> None:
        if operation == "sync":
            is_in_sync.set()
            assert may_go_on.wait(10)

    disk.on_operation = slow
    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(journal.sync)
        assert is_in_sync.wait(10)
        assert journal.is_dirty
        journal.append(1, b"meanwhile")
        journal.note_vote(2, "1")
        assert journal.durable_index == 0
        may_go_on.set()
        assert syncing.result() == 1
    assert journal.is_dirty
    assert (journal.durable_index, journal.last_index, journal.term) == (1, 2, 0)
    assert journal.sync() == 2
    assert journal.term == 2


def test_what_was_dropped_while_a_sync_ran_is_not_durable() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    for _ in range(10):
        journal.append(1, b"old")
    is_in_sync, may_go_on = threading.Event(), threading.Event()

    def slow(operation: str, path: str) -> None:
        if operation == "sync":
            is_in_sync.set()
            assert may_go_on.wait(10)

    disk.on_operation = slow
    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(journal.sync)
        assert is_in_sync.wait(10)
        journal.truncate_from(6)
        for _ in range(3):
            journal.append(2, b"new")
        may_go_on.set()
        syncing.result()
    assert journal.durable_index == 5, "6 to 8 are others than those that were synced"
    assert journal.sync() == 8
    assert journal.durable_index == 8


def test_after_a_failure_nothing_is_taken() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    journal.append(1, b"")
    disk.fail("sync")
    with pytest.raises(OSError, match="error"):
        journal.sync()
    for attempt in (lambda: journal.append(1, b""), lambda: journal.note_vote(1, None), journal.sync):
        with pytest.raises(JournalError, match="failed earlier"):
            attempt()
