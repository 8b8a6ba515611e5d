"""The journal under power loss, damage and full disks: what was synced is there, what is damaged is refused."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.broker.runtime import OsDirectory
from kraftpy.metadata.commands import CreateTopics, NewTopic, RegisterBroker, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.journal import (
    JOURNAL,
    MAX_ENTRY_BYTES,
    SNAPSHOT,
    VOTE,
    CorruptJournalError,
    Entry,
    Journal,
    JournalError,
    Loaded,
    _encode,
    _Kind,
    _Record,
)
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import BrokerId, Millis, TopicId


class PowerLossError(Exception):
    """The machine is gone."""


def disk_with(files: dict[str, bytes]) -> MemoryDisk:
    """A disk on which these files are, safely."""
    disk = MemoryDisk()
    for name, data in files.items():
        disk.root.replace(name, data)
    return disk


def files_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.root.read(name) for name in disk.root.names()}


def opened(disk: MemoryDisk) -> Journal:
    journal = Journal(disk.root)
    journal.load()
    return journal


def entry(index: int, term: int, data: bytes) -> Entry:
    return Entry(index=index, term=term, data=data)


def after_kill(disk: MemoryDisk) -> Loaded:
    """Load the journal as a start finds it after the process died and the machine did not."""
    disk.crash(random.Random(0), Loss.NOTHING)
    return Journal(disk.root).load()


def lose_power_after(disk: MemoryDisk, operations: int) -> None:
    """Let the machine die after `operations` operations that change the disk, before the next one."""
    left = operations

    def count(operation: str, path: str) -> None:
        nonlocal left
        if operation in ("write", "sync", "truncate", "replace", "rename", "delete"):
            if left == 0:
                raise PowerLossError
            left -= 1

    disk.on_operation = count


def some_entries(journal: Journal, count: int, *, term: int = 1) -> list[Entry]:
    added = []
    for _ in range(count):
        data = f"command {journal.last_index + 1}".encode()
        added.append(entry(journal.append(term, data), term, data))
    return added


# -- in order


def test_entries_come_back_in_order_with_their_terms() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    written = some_entries(journal, 3, term=1) + some_entries(journal, 2, term=4)
    assert journal.durable_index == 0
    assert journal.sync() == 5
    assert (journal.first_index, journal.last_index, journal.last_term) == (1, 5, 4)
    disk.crash(random.Random(0), Loss.NOTHING)
    again = Journal(disk.root)
    loaded = again.load()
    assert loaded.snapshot is None
    assert loaded.entries == written
    assert [again.term_at(index) for index in range(7)] == [0, 1, 1, 1, 4, 4, None]
    assert (again.last_index, again.last_term, again.durable_index) == (5, 4, 5)


def test_an_index_is_durable_only_once_it_was_synced() -> None:
    journal = opened(MemoryDisk())
    some_entries(journal, 2)
    assert journal.sync() == 2
    some_entries(journal, 1)
    assert (journal.last_index, journal.durable_index) == (3, 2)
    assert journal.sync() == 3
    assert journal.sync() == 3


def test_entries_that_a_new_leader_has_otherwise_are_dropped() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    kept = some_entries(journal, 2, term=1)
    some_entries(journal, 3, term=2)
    journal.sync()
    journal.truncate_from(3)
    assert (journal.last_index, journal.last_term) == (2, 1)
    replaced = some_entries(journal, 1, term=3)
    assert journal.sync() == 3
    assert after_kill(disk).entries == kept + replaced


def test_what_was_dropped_and_not_replaced_is_no_longer_durable() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    kept = some_entries(journal, 5)
    journal.sync()
    journal.truncate_from(4)
    assert journal.sync() == 3
    assert after_kill(disk).entries == kept[:3]


@pytest.mark.parametrize("index", [0, 1, 2, 5])
def test_only_entries_that_are_there_can_be_dropped(index: int) -> None:
    journal = opened(MemoryDisk())
    some_entries(journal, 4)
    journal.sync()
    journal.save_snapshot(2, 1, b"state")
    with pytest.raises(ValueError, match="no entry"):
        journal.truncate_from(index)


def test_terms_do_not_fall_and_commands_have_a_bound() -> None:
    journal = opened(MemoryDisk())
    journal.append(2, b"")
    with pytest.raises(ValueError, match="term 1"):
        journal.append(1, b"")
    with pytest.raises(ValueError, match="too large"):
        journal.append(2, bytes(MAX_ENTRY_BYTES + 1))
    assert journal.last_index == 1


# -- snapshots


def test_a_snapshot_takes_the_place_of_the_entries_before_it() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    written = some_entries(journal, 10)
    journal.sync()
    size = len(disk.root.read(JOURNAL))
    journal.save_snapshot(7, 1, b"seven")
    assert len(disk.root.read(JOURNAL)) < size
    assert (journal.first_index, journal.last_index, journal.durable_index) == (8, 10, 10)
    written += some_entries(journal, 1)
    journal.sync()
    disk.crash(random.Random(0), Loss.NOTHING)
    again = Journal(disk.root)
    loaded = again.load()
    assert loaded.snapshot is not None
    assert (loaded.snapshot.index, loaded.snapshot.term, loaded.snapshot.data) == (7, 1, b"seven")
    assert loaded.entries == written[7:]
    assert [again.term_at(index) for index in (6, 7, 8, 11, 12)] == [None, 1, 1, 1, None]


def test_entries_appended_before_a_snapshot_and_not_synced_stay() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    some_entries(journal, 3)
    journal.sync()
    later = some_entries(journal, 2)
    journal.save_snapshot(3, 1, b"three")
    assert journal.durable_index == 3
    assert journal.sync() == 5
    assert after_kill(disk).entries == later


@pytest.mark.parametrize(("index", "term"), [(9, 3), (2, 2)])
def test_a_leaders_snapshot_that_the_log_does_not_hold_replaces_it(index: int, term: int) -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    some_entries(journal, 4)
    journal.sync()
    some_entries(journal, 1)
    journal.save_snapshot(index, term, b"theirs")
    assert (journal.first_index, journal.last_index, journal.last_term) == (index + 1, index, term)
    assert journal.sync() == index
    added = some_entries(journal, 1, term=term)
    journal.sync()
    loaded = after_kill(disk)
    assert loaded.snapshot is not None
    assert loaded.snapshot.index == index
    assert loaded.entries == added


def test_a_snapshot_is_newer_than_the_last_one() -> None:
    journal = opened(MemoryDisk())
    some_entries(journal, 4)
    journal.sync()
    journal.save_snapshot(3, 1, b"")
    with pytest.raises(ValueError, match="not newer"):
        journal.save_snapshot(3, 1, b"")


# -- the vote


def test_a_vote_is_kept_and_given_once_in_a_term() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    assert (journal.term, journal.voted_for) == (0, None)
    journal.note_vote(3, None)
    journal.sync()
    journal.note_vote(3, "node-2")
    journal.note_vote(3, "node-2")
    journal.sync()
    with pytest.raises(ValueError, match="vote"):
        journal.note_vote(3, "node-1")
    with pytest.raises(ValueError, match="vote"):
        journal.note_vote(2, None)
    disk.crash(random.Random(0), Loss.EVERYTHING)
    again = opened(disk)
    assert (again.term, again.voted_for) == (3, "node-2")


# -- power loss, anywhere


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 900)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("drop"), st.integers(1, 4)),
        st.tuples(st.just("snapshot"), st.integers(0, 3)),
        st.tuples(st.just("install"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("vote"), st.just(0)),
    ),
    min_size=1,
    max_size=20,
)
State = tuple[int, tuple[Entry, ...]]


class Model:
    """The states that a start may find: any since the last sync."""

    def __init__(self) -> None:
        self.base, self.base_term, self.term = 0, 0, 1
        self.log: list[Entry] = []
        self.allowed: list[State] = [(0, ())]
        self.number = 0
        self.votes = [0]

    @property
    def state(self) -> State:
        return self.base, tuple(self.log)

    def changed(self) -> None:
        self.allowed.append(self.state)

    def step(self, disk: MemoryDisk, journal: Journal, step: tuple[str, int]) -> Journal:
        word, amount = step
        match word:
            case "append":
                self.number += 1
                data = bytes([self.number % 251]) * amount
                self.log.append(entry(self.base + len(self.log) + 1, self.term, data))
                self.changed()
                assert journal.append(self.term, data) == self.log[-1].index
            case "sync":
                self.sync(journal)
            case "drop" if len(self.log) >= amount:
                index = self.log[-amount].index
                del self.log[-amount:]
                self.term += 1
                self.changed()
                journal.truncate_from(index)
            case "snapshot" if len(self.log) > amount:
                self.sync(journal)
                at = self.log[-amount - 1]
                before = self.state
                self.base, self.log = at.index, self.log[len(self.log) - amount :]
                self.allowed = [before, self.state]
                journal.save_snapshot(at.index, at.term, b"state %d" % at.index)
                self.allowed = [self.state]
            case "install":
                self.term += 1
                self.base, self.log = self.base + len(self.log) + amount, []
                self.changed()
                journal.save_snapshot(self.base, self.term, b"state %d" % self.base)
                self.allowed = [self.state]
            case "restart":
                journal.close()
                self.allowed = [self.state]
                journal = self.check(disk)
            case "vote":
                self.votes.append(self.votes[-1] + 1)
                journal.note_vote(self.votes[-1], "me")
                self.sync(journal)
                self.votes = self.votes[-1:]
            case _:
                pass
        return journal

    def sync(self, journal: Journal) -> None:
        assert journal.sync() == self.base + len(self.log)
        self.allowed = [self.state]

    def check(self, disk: MemoryDisk) -> Journal:
        journal = Journal(disk.root)
        loaded = journal.load()
        found = (loaded.snapshot.index if loaded.snapshot else 0, tuple(loaded.entries))
        assert found in self.allowed
        assert journal.term in self.votes
        if loaded.snapshot:
            assert loaded.snapshot.data == b"state %d" % loaded.snapshot.index
        self.base, self.log = found[0], list(found[1])
        self.allowed = [found]
        self.votes = [journal.term]
        return journal


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.tuples(steps, st.integers(0, 40)), min_size=1, max_size=3), st.integers(0, 2**32))
def test_what_was_synced_survives_power_losses(lives: list[tuple[list[tuple[str, int]], int]], seed: int) -> None:
    dice = random.Random(seed)
    disk, model = MemoryDisk(), Model()
    for life, operations in lives:
        journal = model.check(disk)
        lose_power_after(disk, operations)
        with contextlib.suppress(PowerLossError):
            for step in life:
                journal = model.step(disk, journal, step)
        disk.crash(dice)
        lose_power_after(disk, operations % 4)  # the start after it may be cut short too
        with contextlib.suppress(PowerLossError):
            opened(disk)
        disk.crash(dice)
        disk.on_operation = None
    model.check(disk)


def test_a_tail_that_was_read_is_synced_before_it_is_built_upon() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    written = some_entries(journal, 2)
    lose_power_after(disk, 1)  # the write, not the sync
    with pytest.raises(PowerLossError):
        journal.sync()
    disk.on_operation = None
    assert after_kill(disk).entries == written
    disk.crash(random.Random(0), Loss.EVERYTHING)
    assert Journal(disk.root).load().entries == written


def test_a_torn_tail_is_cut_off_the_file() -> None:
    disk, written, _ = three_batches()
    files = files_of(disk)
    torn = disk_with({JOURNAL: files[JOURNAL] + files[JOURNAL][-30:]})
    assert Journal(torn.root).load().entries == written
    assert files_of(torn) == files


# -- damage


def three_batches() -> tuple[MemoryDisk, list[Entry], int]:
    """Return a journal of three syncs that was never closed, its entries, and the start of the last batch."""
    disk = MemoryDisk()
    journal = opened(disk)
    written = some_entries(journal, 2)
    journal.sync()
    written += some_entries(journal, 2)
    journal.sync()
    start = len(disk.root.read(JOURNAL))
    written += some_entries(journal, 2)
    journal.sync()
    return disk, written, start


def damaged(disk: MemoryDisk, name: str) -> Iterator[tuple[int, Journal]]:
    """A journal on the disk with each byte of a file spoilt in turn."""
    files = files_of(disk)
    for position in range(len(files[name])):
        spoilt = disk_with(files)
        spoilt.damage(name, position, 0x41)
        yield position, Journal(spoilt.root)


def test_a_damaged_byte_before_the_last_sync_is_refused() -> None:
    disk, written, last_batch = three_batches()
    for position, journal in damaged(disk, JOURNAL):
        if position < last_batch:
            with pytest.raises(CorruptJournalError, match="/journal cannot be trusted"):
                journal.load()
        else:  # a torn tail looks the same; nothing that is good is lost with it
            assert journal.load().entries in (written[:4], written[:5])


def test_after_a_clean_stop_any_damaged_byte_is_refused() -> None:
    disk, written, _ = three_batches()
    journal = Journal(disk.root)
    assert journal.load().entries == written
    journal.save_snapshot(1, 1, b"one")
    journal.close()
    for name in (JOURNAL, SNAPSHOT, VOTE):
        for _, spoilt in damaged(disk, name):
            with pytest.raises(CorruptJournalError, match="cannot be trusted"):
                spoilt.load()


def test_after_a_clean_stop_a_shorter_file_is_refused() -> None:
    disk, _, _ = three_batches()
    opened(disk).close()
    files = files_of(disk)
    for size in range(len(files[JOURNAL])):
        with pytest.raises(CorruptJournalError):
            Journal(disk_with({**files, JOURNAL: files[JOURNAL][:size]}).root).load()


def test_what_a_snapshot_left_behind_is_known_to_be_synced() -> None:
    disk, _, _ = three_batches()
    opened(disk).save_snapshot(2, 1, b"two")
    for _, spoilt in damaged(disk, JOURNAL):
        with pytest.raises(CorruptJournalError):
            spoilt.load()


@pytest.mark.parametrize("name", [JOURNAL, SNAPSHOT])
def test_a_missing_file_is_refused(name: str) -> None:
    disk, _, _ = three_batches()
    opened(disk).save_snapshot(2, 1, b"two")
    disk.root.delete(name)
    with pytest.raises(CorruptJournalError, match="is missing"):
        Journal(disk.root).load()


def test_a_refused_start_changes_nothing_on_the_disk() -> None:
    disk, _, last_batch = three_batches()
    disk.damage(JOURNAL, last_batch // 2)
    before = files_of(disk)
    with pytest.raises(CorruptJournalError):
        Journal(disk.root).load()
    assert files_of(disk) == before


def test_a_command_that_holds_a_record_of_its_own_does_not_pass_for_one() -> None:
    """A client could send such bytes as a setting's value; torn, they must not read as proof of corruption."""
    disk = MemoryDisk()
    journal = opened(disk)
    forged = _encode(_Record(_Kind.ENTRY, 99, 99, b"forged"), 0, 1 << 40)
    journal.append(1, forged)
    journal.sync()
    data = disk.root.read(JOURNAL)
    assert forged in data
    assert Journal(disk_with({JOURNAL: data[:-1] + b"?"}).root).load().entries == []
    assert Journal(disk_with({JOURNAL: data[:70] + b"?" + data[71:]}).root).load().entries == []


# -- a disk that fails


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_write_nothing_more_is_taken(operation: str) -> None:
    disk, written, _ = three_batches()
    journal = opened(disk)
    some_entries(journal, 1)
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        journal.sync()
    for attempt in (journal.sync, lambda: journal.append(1, b""), lambda: journal.save_snapshot(1, 1, b"")):
        with pytest.raises(JournalError, match="restart the broker"):
            attempt()
    journal.close()
    disk.crash(random.Random(0), Loss.EVERYTHING)
    assert Journal(disk.root).load().entries == written


def test_a_journal_that_is_not_open_takes_nothing() -> None:
    journal = Journal(MemoryDisk().root)
    with pytest.raises(JournalError, match="not open"):
        journal.append(1, b"")
    journal.load()
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="not open"):
        journal.sync()


# -- the real files, and a state machine on top


def test_appends_go_on_while_a_thread_syncs_and_snapshots(tmp_path: Path) -> None:
    journal = Journal(OsDirectory(tmp_path))
    journal.load()
    written = []
    with ThreadPoolExecutor(1) as thread:
        for round_number in range(30):
            syncing = thread.submit(journal.sync)
            written += some_entries(journal, 50)
            durable = syncing.result()
            if round_number % 7 == 6:
                saving = thread.submit(journal.save_snapshot, durable, 1, b"%d" % durable)
                written += some_entries(journal, 50)
                saving.result()
    journal.close()
    loaded = Journal(OsDirectory(tmp_path)).load()
    assert loaded.snapshot is not None
    assert loaded.snapshot.data == b"%d" % loaded.snapshot.index
    assert loaded.entries == written[loaded.snapshot.index :]


def test_replaying_snapshot_and_journal_gives_the_live_image(tmp_path: Path) -> None:
    machine, journal = MetadataStateMachine(), Journal(OsDirectory(tmp_path))
    journal.load()
    commands = [
        RegisterBroker(broker_id=BrokerId(1), incarnation_id=bytes(16), endpoints=(), time_ms=Millis(0), fenced=False),
        *(
            CreateTopics(
                topics=(NewTopic(name=f"t{number}", topic_id=TopicId(bytes(15) + bytes([number])), partitions=3),),
                time_ms=Millis(number),
            )
            for number in range(2, 40)
        ),
    ]
    for number, command in enumerate(commands, 1):
        data = encode_command(command)
        assert journal.append(1, data) == number
        journal.sync()
        machine.apply(number, 1, data)
        if number % 15 == 0:
            journal.save_snapshot(number, 1, machine.snapshot())
    loaded = Journal(OsDirectory(tmp_path)).load()
    again = MetadataStateMachine()
    assert loaded.snapshot is not None
    again.restore(loaded.snapshot.data)
    for found in loaded.entries:
        again.apply(found.index, found.term, found.data)
    assert again.snapshot() == machine.snapshot()
    assert len(again.image.topics()) == 38
