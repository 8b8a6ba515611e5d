"""Each defect of the Raft library, by its number in docs/explanation/raft-library.md: only the stock library has it.

If an override closes the defect, a third test takes the override away and sees the defect again.

One file because it follows the numbered list on that page, one defect after another.
"""

from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.journal import FileJournal
from pysyncobj.node import Node as StockName
from quorum_node import THREE, Cluster, ListMachine, Node
from stock_library import Stock, kept_journal

from kraftpy.metadata import quorum_messages as wire
from kraftpy.metadata.journal import Journal, Snapshot
from kraftpy.metadata.quorum import QuorumStoppedError
from kraftpy.metadata.quorum_messages import BadMessageError
from kraftpy.metadata.raft.follower import Follower
from kraftpy.metadata.raft.leader import Leader
from kraftpy.metadata.raft.state import BATCH_BYTES
from kraftpy.testing.memory_files import Loss, MemoryDisk

Body = dict[str, Any]
NOW = 10_000


# -- ours, by hand


def data_of(index: int, word: str = "") -> bytes:
    return b"\x93" + f"{word}{index}".encode()


def some(first: int, last: int, term: int, word: str = "") -> list[list[Any]]:
    return [[wire.COMMAND + data_of(index, word), index, term] for index in range(first, last + 1)]


def entries_body(
    entries: list[list[Any]], *, term: int, commit: int = 0, previous: tuple[int, int] = (0, 0), round_: int = 1
) -> Body:
    return {
        "type": "append_entries", "term": term, "commit_index": commit, "prevLogIdx": previous[0],
        "prevLogTerm": previous[1], "entries": entries, "round": round_,
    }  # fmt: skip


def snapshot_body(snapshot: Snapshot, *, term: int, offset: int = 0, length: int | None = None) -> Body:
    data = snapshot.data[offset:] if length is None else snapshot.data[offset : offset + length]
    return {
        "type": "snapshot", "term": term, "index": snapshot.index, "last_term": snapshot.term,
        "size": len(snapshot.data), "checksum": wire.checksum(snapshot.data), "offset": offset, "data": data,
    }  # fmt: skip


def snapshot_of(last: int, term: int) -> Snapshot:
    machine = ListMachine()
    machine.commands = [data_of(index) for index in range(1, last + 1)]
    return Snapshot(index=last, term=term, data=wire.pack_snapshot(0, THREE, machine.snapshot()))


def connected(node: Node) -> Node:
    for peer in sorted(node.quorum.voters.keys() - {node.id}):
        node.quorum.connected(peer, NOW)
    node.messages()
    return node


def follower() -> Node:
    """Node 2, with nothing yet."""
    return connected(Node(2, now_ms=NOW))


def answers(node: Node, peer: int) -> list[Body]:
    return [message.body for message in node.messages() if message.peer == peer]


def tell(node: Node, peer: int, body: Body) -> list[Body]:
    node.quorum.receive(peer, body, NOW)
    return answers(node, peer)


def make_leader(node: Node) -> None:
    """Let the peer 3 poll and vote for it."""
    node.quorum.tick(NOW + 10_000)
    term = node.quorum.term + 1
    granted = {"type": "response_prevote", "term": term, "granted": True, "current_term": term - 1}
    node.quorum.receive(3, granted, NOW)
    node.messages()
    node.quorum.receive(3, {"type": "response_vote", "term": term}, NOW)
    node.messages()
    assert node.quorum.is_leader


# -- D1: a follower cuts off what matches


def test_d1_stock_drops_acknowledged_entries_on_an_old_message() -> None:
    node = Stock().table("b", "ac")
    node.append("a", 2, 6, term=1, commit=1, previous_term=0)
    assert node.take("a")[-1]["next_node_idx"] == 7
    node.append("a", 3, 3, term=1, commit=1, previous_term=1)
    assert node.places()[-1] == (3, 1), "4, 5 and 6 were acknowledged"


def test_d1_ours_keeps_what_matches() -> None:
    node = follower()
    tell(node, 1, entries_body(some(1, 6, 1), term=1))
    (answer,) = tell(node, 1, entries_body(some(3, 4, 1), term=1, commit=6, previous=(2, 1)))
    assert (answer["success"], answer["next_node_idx"]) == (True, 5), "no more than what was compared"
    assert node.quorum.last_index == 6
    assert node.quorum.commit_index == 4
    tell(node, 1, {"type": "heartbeat", "term": 1, "round": 9})
    tell(node, 1, entries_body([], term=1, previous=(2, 1)))
    assert node.quorum.last_index == 6


def test_d1_ours_drops_only_where_terms_conflict() -> None:
    node = follower()
    tell(node, 1, entries_body(some(1, 6, 1), term=1, commit=2))
    tell(node, 3, entries_body(some(3, 4, 1) + some(5, 5, 2, "new"), term=2, previous=(2, 1)))
    assert node.quorum.last_index == 5
    assert node.journal.term_at(5) == 2


def test_d1_ours_stops_rather_than_drop_what_is_committed() -> None:
    node = follower()
    tell(node, 1, entries_body(some(1, 6, 1), term=1, commit=6))
    with pytest.raises(QuorumStoppedError, match="committed"):
        node.quorum.receive(3, entries_body(some(5, 5, 2), term=2, previous=(4, 1)), NOW)
    assert node.journal.last_index == 6


def test_d1_without_the_fix_entries_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Follower._only_new_entries

    def without_fix(self: Follower, body: Body) -> Body:
        fixed(self, body)
        return body

    monkeypatch.setattr(Follower, "_only_new_entries", without_fix)
    node = follower()
    tell(node, 1, entries_body(some(1, 6, 1), term=1))
    tell(node, 1, entries_body(some(3, 4, 1), term=1, previous=(2, 1)))
    assert node.quorum.last_index == 4


# -- D2: messages that say nothing of the log move the commit index


@pytest.mark.parametrize("serialized", [(b"part", True, False), None])
def test_d2_stock_reports_a_lost_command_as_committed(serialized: object) -> None:
    node = Stock().table("a")
    node.lead("b")
    node.receive("b", {"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": True})
    node.tick(0.01)
    results: list[tuple[object, int]] = []
    node.put("key", "lost", callback=lambda result, error: results.append((result, error)))
    node.tick(0.01)
    node.receive("c", {"type": "append_entries", "term": 2, "commit_index": 200, "serialized": serialized})
    node.tick(0.01)
    assert results == [("lost", 0)]


def test_d2_ours_commits_nothing_on_a_heartbeat_or_a_chunk() -> None:
    node = connected(Node(1, now_ms=NOW))
    make_leader(node)
    place = node.quorum.propose(data_of(0, "lost"))
    node.messages()
    assert place is not None
    snapshot = snapshot_of(200, 2)
    tell(node, 3, {"type": "heartbeat", "term": 2, "round": 1})
    tell(node, 3, snapshot_body(snapshot, term=2, length=10))
    tell(node, 3, {"type": "heartbeat", "term": 2, "round": 2})
    assert (node.quorum.commit_index, node.machine.commands) == (0, [])


# -- D3: acknowledgements without a term


def test_d3_stock_counts_an_acknowledgement_of_an_earlier_leadership() -> None:
    node = Stock().table("b", "ac")
    node.lead("c")
    node.receive("c", {"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": True})
    node.tick(0.01)
    assert node.raftCommitIndex == 2, "the message carries no term: it may be of any"


def earlier_acknowledgement(node: Node) -> Body:
    return {
        "type": "next_node_idx", "term": node.quorum.term - 1, "next_node_idx": node.quorum.last_index + 1,
        "reset": False, "success": True, "round": 1, "last_index": node.quorum.last_index,
    }  # fmt: skip


def leader_of_a_later_term() -> Node:
    node = follower()
    tell(node, 1, entries_body(some(1, 4, 6), term=6))
    node.quorum.disconnected(1, NOW)
    make_leader(node)
    node.quorum.propose(data_of(0))
    node.messages()
    return node


def test_d3_ours_does_not() -> None:
    node = leader_of_a_later_term()
    tell(node, 3, earlier_acknowledgement(node))
    assert node.quorum.commit_index == 0
    tell(node, 3, {**earlier_acknowledgement(node), "term": node.quorum.term})
    assert node.quorum.commit_index == node.quorum.last_index


def test_d3_without_the_fix_nobody_has_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "_is_of_this_leadership", lambda self, body: True)
    node = leader_of_a_later_term()
    tell(node, 3, earlier_acknowledgement(node))
    assert node.quorum.commit_index == node.quorum.last_index


# -- D4, D5, D8: what a crash leaves


def test_d4_stock_loses_the_end_of_the_journal_in_a_trim(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    class Killed(FileJournal):
        left = 10**9

        def add(self, command: bytes, idx: int, term: int) -> None:
            if self.left == 0:
                raise KilledError
            self.left -= 1
            super().add(command, idx, term)

    journal = Killed(str(tmp_path / "journal"))
    for index in range(1, 101):
        journal.add(b"x", index, 1)
    journal.left = 20
    with pytest.raises(KilledError):
        journal.deleteEntriesTo(10)
    journal._destroy()
    again = FileJournal(str(tmp_path / "journal"))
    last = again[-1][1]
    again._destroy()
    assert last == 30, "31 to 100 had been acknowledged"


def journal_with(entries: int) -> tuple[MemoryDisk, Journal]:
    disk = MemoryDisk()
    journal = Journal(disk.root)
    journal.load()
    for index in range(1, entries + 1):
        journal.append(1, wire.COMMAND + data_of(index))
    journal.sync()
    return disk, journal


@pytest.mark.parametrize("operations", range(12))
@pytest.mark.parametrize("loss", list(Loss))
def test_d4_d5_ours_loses_nothing_wherever_a_trim_is_interrupted(operations: int, loss: Loss) -> None:
    disk, journal = journal_with(100)
    left = operations

    def count(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    snapshot = snapshot_of(90, 1)
    disk.on_operation = count
    try:
        journal.save_snapshot(90, 1, snapshot.data)
    except OSError:
        assert operations < 11
    disk.on_operation = None
    disk.crash(random.Random(operations), loss)
    node = Node(1, {1: "one"}, disk=disk, now_ms=NOW)
    node.quorum.tick(NOW)
    node.sync()
    assert node.machine.commands == [data_of(index) for index in range(1, 101)]


def test_d5_stock_forgets_acknowledged_entries_when_killed_between_dump_and_trim(tmp_path: Path) -> None:
    stock = Stock()
    journal = kept_journal()
    stock.library.createJournal = lambda _: journal
    settings = {
        "fullDumpFile": str(tmp_path / "dump"), "journalFile": "journal", "useFork": False,
        "logCompactionMinEntries": 5, "logCompactionMinTime": 10**9,
    }  # fmt: skip
    node = stock.table("a", **settings)
    node.append("b", 2, 20, term=1, commit=10, previous_term=0)
    assert node.take("b")[-1]["next_node_idx"] == 21
    node.tick(0.01)
    assert (tmp_path / "dump").exists()
    again = stock.table("a", **settings)
    again.tick(0.01)
    assert again.places()[-1] == (10, 1), "11 to 20 had been acknowledged"


def test_d8_stock_never_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    journal = FileJournal(str(tmp_path / "journal"))
    journal.add(b"x", 1, 1)
    journal.setCurrentTerm(3, "a")
    journal.onOneSecondTimer()
    journal._destroy()
    assert synced == []


def test_d8_ours_answers_after_a_sync_only() -> None:
    node = follower()
    node.quorum.receive(1, entries_body(some(1, 3, 1), term=1), NOW)
    (message,) = node.quorum.take_messages()
    assert message.after_sync
    assert node.quorum.needs_sync
    before = node.disk.syncs
    node.sync()
    assert node.disk.syncs >= before + 2, "the term and the entries"
    node.disk.crash(random.Random(0), Loss.EVERYTHING)
    again = Node(2, disk=node.disk, now_ms=NOW)
    assert (again.quorum.last_index, again.quorum.term) == (3, 1)


def test_d8_ours_counts_the_leaders_own_entries_once_they_are_synced() -> None:
    node = connected(Node(1, now_ms=NOW))
    make_leader(node)
    node.quorum.propose(data_of(0))
    last = node.quorum.last_index
    acknowledgement = {**earlier_acknowledgement(node), "term": node.quorum.term}
    node.quorum.receive(3, acknowledgement, NOW)
    assert node.quorum.commit_index < last, "one of three has it on disk"
    node.sync()
    assert node.quorum.commit_index == last


def test_a_vote_outlives_the_machine() -> None:
    node = follower()
    ask = {"type": "request_vote", "term": 5, "last_log_index": 0, "last_log_term": 0, "transfer": False}
    node.quorum.receive(1, ask, NOW)
    (message,) = node.quorum.take_messages()
    assert message.after_sync
    node.sync()
    node.disk.crash(random.Random(0), Loss.EVERYTHING)
    again = connected(Node(2, disk=node.disk, now_ms=NOW))
    assert tell(again, 3, ask) == [], "it has voted for node 1 in this term"


# -- D6, D7: snapshots


def stock_snapshot(stock: Stock, path: Path, index: int) -> bytes:
    """Return the snapshot that a leader sends which has applied this much."""
    node = stock.table("b", "ac", fullDumpFile=str(path), useFork=False, logCompactionMinEntries=2)
    node.append("a", 2, index, term=1, commit=index, previous_term=0)
    node.tick(0.01)
    return path.read_bytes()


def test_d6_stock_goes_back_with_a_stale_snapshot(tmp_path: Path) -> None:
    stock = Stock()
    data = stock_snapshot(stock, tmp_path / "theirs", 5)
    node = stock.table("c", "ab", fullDumpFile=str(tmp_path / "ours"), useFork=False)
    node.append("a", 2, 20, term=1, commit=20, previous_term=0)
    node.tick(0.01)
    assert node.raftLastApplied == 20
    for part in ((data, True, False), (b"", False, True)):
        node.receive("a", {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": part})
    assert (node.raftLastApplied, node.places()[-1]) == (5, (5, 1)), "6 to 20 were acknowledged and applied"


def with_entries(*, commit: int) -> Node:
    node = follower()
    tell(node, 1, entries_body(some(1, 10, 1), term=1, commit=commit))
    return node


def test_d6_ours_refuses_a_stale_snapshot() -> None:
    node = with_entries(commit=8)
    (*_, answer) = tell(node, 1, snapshot_body(snapshot_of(5, 1), term=1))
    assert (answer["status"], answer["offset"]) == (wire.SNAPSHOT_STALE, 9)
    assert node.quorum.received_snapshot is None
    assert (node.quorum.applied_index, node.quorum.last_index, len(node.machine.commands)) == (8, 10, 8)


def test_d6_without_the_fix_the_state_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "_is_stale", lambda self, index: False)
    node = with_entries(commit=8)
    tell(node, 1, snapshot_body(snapshot_of(5, 1), term=1))
    assert len(node.machine.commands) == 5


def test_d6_ours_keeps_the_entries_behind_a_snapshot() -> None:
    node = with_entries(commit=4)
    node.quorum.receive(1, snapshot_body(snapshot_of(7, 1), term=1), NOW)
    node.save_snapshots()
    assert (node.quorum.applied_index, node.quorum.last_index, node.journal.first_index) == (7, 10, 8)
    again = Node(2, disk=node.disk, now_ms=NOW)
    assert (again.quorum.applied_index, again.quorum.last_index) == (7, 10)


def test_d6_ours_drops_entries_that_do_not_agree_with_it() -> None:
    node = with_entries(commit=4)
    node.quorum.receive(3, snapshot_body(snapshot_of(7, 2), term=2), NOW)
    node.save_snapshots()
    assert (node.quorum.applied_index, node.quorum.last_index, node.journal.last_index) == (7, 7, 7)


def test_d7_stock_says_success_to_a_broken_snapshot(tmp_path: Path) -> None:
    node = Stock().table("c", "ab", fullDumpFile=str(tmp_path / "dump"), useFork=False)
    node.append("a", 2, 3, term=1, commit=1, previous_term=0)
    node.take("a")
    for part in ((b"not a snapshot", True, False), (b"", False, True)):
        node.receive("b", {"type": "append_entries", "term": 2, "commit_index": 1, "serialized": part})
    (answer,) = node.take("b")
    assert (answer["success"], answer["next_node_idx"]) == (True, 4)


@pytest.mark.parametrize("broken", ["a byte", "the state", "the voters"])
def test_d7_ours_refuses_a_broken_snapshot(broken: str) -> None:
    node = with_entries(commit=4)
    good = snapshot_of(20, 2)
    before = node.disk.root.read("journal")
    if broken == "a byte":
        body = snapshot_body(good, term=2)
        body["data"] = bytes([*body["data"][:-1], body["data"][-1] ^ 1])
    else:
        state = b"\x01" if broken == "the state" else b"\x90"
        data = wire.pack_snapshot(3, THREE, state)
        if broken == "the voters":
            data = data.replace(b"\x01one", b"\xc0one")[:-1]
        body = snapshot_body(Snapshot(index=20, term=2, data=data), term=2)
    (*_, answer) = tell(node, 3, body)
    assert answer["status"] == wire.SNAPSHOT_REFUSED
    assert node.quorum.received_snapshot is None
    assert (node.quorum.applied_index, len(node.machine.commands)) == (4, 4)
    assert node.disk.root.read("journal") == before


# -- D9, D10: forwarded commands


def test_d9_stock_takes_an_old_answer_for_a_new_request() -> None:
    stock = Stock()
    requests = []
    results: list[tuple[object, int]] = []
    for value, told in ((1, lambda result, error: None), (2, lambda result, error: results.append((result, error)))):
        node = stock.table("b", "ac")  # the second time: a restart
        node.append("a", 2, 1, term=1, commit=1, previous_term=0)
        node.put("key", value, callback=told)
        node.tick(0.01)
        requests.append(next(m for m in node.take("a") if m["type"] == "apply_command")["request_id"])
    assert requests == [1, 1]
    node.receive("a", {"type": "apply_command_response", "request_id": 1, "log_idx": 2, "log_term": 1})
    entries = [(node.command("key", 1), 2, 1)]
    node.receive(
        "a",
        {"type": "append_entries", "term": 1, "commit_index": 2, "prevLogIdx": 1, "prevLogTerm": 0, "entries": entries},
    )
    node.tick(0.01)
    assert results == [(1, 0)], "put(2) was told the result of put(1)"


def test_d10_stock_never_answers_a_command_whose_forwarding_failed() -> None:
    node = Stock().table("b", "ac")
    node.append("a", 2, 1, term=1, commit=1, previous_term=0)
    node._SyncObj__transport.send = lambda peer, message: False
    results: list[object] = []
    node.put("key", 1, callback=lambda *result: results.append(result))
    for _ in range(100):
        node.append("a", 2, 1, term=1, commit=1, previous_term=0)
        node.tick(0.1)
    assert results == []


@pytest.mark.parametrize("kind", ["apply_command", "apply_command_response", "status", "add"])
def test_d9_d10_ours_knows_no_forwarding(kind: str) -> None:
    node = follower()
    assert node.quorum.propose(data_of(0)) is None, "only a leader takes commands"
    with pytest.raises(BadMessageError):
        node.quorum.receive(1, {"type": kind, "command": b"", "request_id": 1}, NOW)


# -- D11: exceptions


def test_d11_stock_repeats_an_entry_that_raises() -> None:
    node = Stock().table("a", "")
    node.lead()
    node.count("n", fails=True)
    node.put("after", 1)
    raised = 0
    for _ in range(5):
        try:
            node.tick(0.05)
        except RuntimeError:
            raised += 1
    assert raised >= 4
    assert node.table["n"] == raised, "once for each tick"
    assert "after" not in node.table


def test_d11_stock_applies_twice_when_a_callback_raises() -> None:
    node = Stock().table("a", "")
    node.lead()

    def told(result: object, error: int) -> None:
        raise RuntimeError

    node.count("n", callback=told)
    for _ in range(4):
        try:
            node.tick(0.05)
        except RuntimeError:
            continue
    assert node.table["n"] == 2


def test_d11_ours_stops_once_and_stays_stopped() -> None:
    class Poisoned(ListMachine):
        def apply(self, index: int, term: int, data: bytes) -> None:
            super().apply(index, term, data)
            raise RuntimeError("a newer schema")

    node = Node(1, {1: "one"}, now_ms=NOW, machine=Poisoned())
    node.quorum.tick(NOW)
    node.sync()
    node.quorum.propose(data_of(0))
    with pytest.raises(QuorumStoppedError, match="entry 2 of term 1 cannot be applied: a newer schema"):
        node.sync()
    for again in (lambda: node.quorum.tick(NOW), node.quorum.take_messages):
        with pytest.raises(QuorumStoppedError):
            again()
    assert len(node.machine.commands) == 1
    assert not node.quorum.is_leader


# -- D13, D19, D22: the flow of entries


def test_d13_stock_sends_the_rest_of_the_log_for_each_of_many_resets() -> None:
    node = Stock().table("a", "b", appendEntriesBatchSizeBytes=100)
    node.lead("b")
    for number in range(50):
        node.put(f"key {number}", "x" * 60)
    node.tick(0.2)
    node.take("b")
    for _ in range(10):
        node.receive("b", {"type": "next_node_idx", "next_node_idx": 3, "reset": True, "success": False})
        node.tick(0.2)
    assert len(node.take("b")) > 10 * 20


def test_d13_ours_has_one_probe_in_flight() -> None:
    node = connected(Node(1, now_ms=NOW, batch_bytes=100))
    make_leader(node)
    for number in range(50):
        node.quorum.propose(data_of(number, "x" * 60))
    sent = [body for body in answers(node, 3) if body["type"] == "append_entries"]
    assert sent == [], "the probe with the leader's first entry is not answered yet"
    reset = {
        "type": "next_node_idx", "term": node.quorum.term, "next_node_idx": 1, "reset": True, "success": False,
        "round": node.quorum._raft.leader.followers[3].in_flight[-1].round, "last_index": 0,
    }  # fmt: skip
    sent = [body for _ in range(10) for body in tell(node, 3, reset) if body["type"] == "append_entries"]
    assert [body["prevLogIdx"] for body in sent] == [0]


def test_d19_stock_breaks_an_entry_of_a_multiple_of_the_batch() -> None:
    stock = Stock()
    leader, node = stock.table("a", "b"), stock.table("b", "a")
    leader.lead("b")
    leader.tick(0.2)
    for message in leader.take("b"):
        if message["type"] == "append_entries":
            node.receive("a", message)
    leader._applyCommand(b"\1" + bytes(131_071), None)
    leader.tick(0.2)
    leader.tick(0.2)

    def receive_all() -> None:
        for message in leader.take("b"):
            node.receive("a", message)

    with pytest.raises(EOFError):
        receive_all()


@pytest.mark.parametrize("size", [BATCH_BYTES - 1, BATCH_BYTES, 2 * BATCH_BYTES, 5 << 20])
def test_d19_ours_sends_an_entry_in_one_piece(size: int) -> None:
    cluster = Cluster()
    leader = cluster.settle()
    assert leader.quorum.propose(bytes(size)) is not None
    cluster.settle()
    assert [[len(command) for command in node.machine.commands] for node in cluster.nodes.values()] == [[size]] * 3


def test_d22_stock_waits_for_a_period_by_default() -> None:
    stock = Stock()
    nodes = {name: stock.table(name, "abc".replace(name, "")) for name in "abc"}
    nodes["a"].lead("b")

    def turn(seconds: float) -> None:
        for node in nodes.values():
            node.tick(seconds / 3)
        for name, node in nodes.items():
            for other in nodes:
                for message in node.take(other):
                    nodes[other].receive(name, message)

    for _ in range(40):
        turn(0.05)
    waits = []
    for number in range(10):
        results: list[object] = []
        nodes["a"].put("key", number, callback=lambda *result, told=results: told.append(result))
        began = stock.clock.now_s
        while not results:
            turn(0.01)
        waits.append(stock.clock.now_s - began)
    assert max(waits) > 0.05


def test_d22_ours_commits_without_time_passing() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    assert leader.quorum.propose(data_of(0)) is not None
    began = cluster.now_ms
    for _ in range(3):
        cluster.step(0)
    assert (leader.machine.commands, cluster.now_ms) == ([data_of(0)], began)


# -- D20, D24, D25: elections, and what follows


def test_d20_stock_counts_one_vote_twice() -> None:
    node = Stock().table("a", "bcde")
    node.lead("b", "b")
    assert node._isLeader()


def test_d20_ours_counts_a_voter_once_and_voters_only() -> None:
    five = {**THREE, 4: "four", 5: "five"}
    node = connected(Node(1, five, now_ms=NOW))
    node.quorum.connected(9, NOW)
    node.quorum.tick(NOW + 10_000)
    for peer in (3, 3, 9, 9):
        poll = {"type": "response_prevote", "term": 1, "granted": True, "current_term": 0}
        node.quorum.receive(peer, poll, NOW)
    assert node.quorum.term == 0, "one of five would vote"
    node.quorum.receive(4, {"type": "response_prevote", "term": 1, "granted": True, "current_term": 0}, NOW)
    node.messages()
    assert node.quorum.term == 1
    for peer in (3, 3, 9, 9):
        node.quorum.receive(peer, {"type": "response_vote", "term": 1}, NOW)
    assert not node.quorum.is_leader
    node.quorum.receive(4, {"type": "response_vote", "term": 1}, NOW)
    assert node.quorum.is_leader


def test_d23_stock_keeps_nothing_that_was_set_before_its_constructor(tmp_path: Path) -> None:
    stock = Stock()

    class Early(stock.Table):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.state = ["all of it"]
            super().__init__("a", "", fullDumpFile=str(tmp_path / "dump"), useFork=False, logCompactionMinEntries=2)

    node = Early()
    node.lead()
    for number in range(5):
        node.put(str(number), number)
    for _ in range(3):
        node.tick(0.05)
    assert b"all of it" not in pickle.dumps(node._SyncObj__serializer.deserialize()[0])


def test_d23_ours_snapshots_what_the_machine_says_however_old_that_is() -> None:
    machine = ListMachine()
    machine.commands = [b"set before there was a quorum"]
    node = Node(1, {1: "one:9093"}, machine=machine, snapshot_after_entries=2)
    while not machine.places or not node.quorum.snapshot_due:
        node.quorum.tick(NOW)
        node.sync()
        node.quorum.propose(b"more")
    node.save_snapshots()
    again = Node(1, {1: "one:9093"}, disk=node.disk)
    assert again.machine.commands[:2] == [b"set before there was a quorum", b"more"]


def test_d24_stock_leaves_a_deposed_leader_in_the_dark() -> None:
    node = Stock().table("b", "ac")
    node.append("c", 2, 2, term=7, commit=1, previous_term=0)
    node.take("a")
    node.append("a", 2, 2, term=3, commit=1, previous_term=0)
    assert node.take("a") == []


def test_d24_ours_tells_it() -> None:
    node = follower()
    tell(node, 3, entries_body(some(1, 1, 7), term=7))
    assert tell(node, 1, entries_body(some(1, 1, 3), term=3)) == [{"type": "term", "term": 7}]
    assert tell(node, 1, {"type": "heartbeat", "term": 3, "round": 1}) == [{"type": "term", "term": 7}]
    deposed = connected(Node(1, now_ms=NOW))
    make_leader(deposed)
    deposed.quorum.receive(2, {"type": "term", "term": 7}, NOW)
    assert (deposed.quorum.is_leader, deposed.quorum.term) == (False, 7)


def diverged(index: int) -> list[tuple[bytes, int, int]]:
    """Return a node's log after a crash: two nodes have a hundred entries of term 2, and one has five of term 1."""
    common = [(b"\1", 1, 1), (b"\1", 2, 1), (b"\1", 3, 1)]
    if index == 3:
        return [*common, *((b"\1", place, 1) for place in range(4, 9))]
    return [*common, *((b"\1" + bytes(10_000), place, 2) for place in range(4, 104))]


def test_d25_stock_never_repairs_a_conflict_that_is_longer_than_a_batch() -> None:
    stock = Stock()
    stock.library.createJournal = lambda name: journals[name]
    journals = {name: kept_journal() for name in "abc"}
    for number, name in enumerate("abc", 1):
        journals[name].add(b"\1", 1, 0)
        for entry in diverged(number)[1:]:
            journals[name].add(*entry)
        journals[name].setCurrentTerm(2, None)
    nodes = {name: stock.table(name, "abc".replace(name, ""), journalFile=name) for name in "abc"}
    nodes["a"].lead("b")
    for _ in range(2000):
        for name, node in nodes.items():
            node.tick(0.005)
            for other in nodes:
                for message in node.take(other):
                    nodes[other].receive(name, message)
    assert nodes["b"].places()[-1][0] > 103
    assert nodes["c"].places()[-1][0] < 103, "30 s on a healthy network"


def test_d25_ours_repairs_it_in_a_few_rounds() -> None:
    cluster = Cluster({}, batch_bytes=64 << 10)
    cluster.voters = THREE
    for node_id in THREE:
        disk = cluster.disks[node_id] = MemoryDisk()
        journal = Journal(disk.root)
        journal.load()
        for data, _, term in diverged(node_id):
            journal.append(term, data)
        journal.note_vote(2, None)
        journal.sync()
        journal.close()
    for node_id in THREE:
        cluster.start(node_id)
    cluster.leader()
    began = cluster.now_ms
    cluster.settle()
    assert cluster.now_ms - began < 500
    assert {node.quorum.last_index for node in cluster.nodes.values()} == {104}


# -- D26: of our own making


def after_install() -> tuple[Node, Body]:
    """A follower with entries behind the snapshot that its leader has not compared."""
    node = with_entries(commit=4)
    tell(node, 1, snapshot_body(snapshot_of(7, 1), term=3))
    node.save_snapshots()
    (answer,) = answers(node, 1)
    return node, answer


def test_d26_ours_neither_commits_nor_acknowledges_what_stayed_behind_a_snapshot() -> None:
    node, answer = after_install()
    assert node.quorum.last_index == 10
    assert (answer["status"], answer["offset"], node.quorum.commit_index) == (wire.SNAPSHOT_INSTALLED, 8, 7)
    tell(node, 1, entries_body(some(8, 8, 3, "other"), term=3, previous=(7, 1)))
    assert (node.quorum.last_index, node.journal.term_at(8)) == (8, 3)


def test_d26_without_the_fix_it_is_committed_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "_verified_after_install", lambda self, snapshot: self._state.log.last_index)
    node, answer = after_install()
    assert (answer["offset"], node.quorum.commit_index, len(node.machine.commands)) == (11, 10, 10)


# -- found since: D27 to D30


def test_d27_stock_sends_again_what_is_under_way_at_each_acknowledgement() -> None:
    node = Stock().table("a", "b", appendEntriesBatchSizeBytes=250)
    node.lead("b")
    for number in range(40):
        node.put(f"key {number}", "x" * 100)
    node.tick(0.2)
    node.tick(0.2)
    sent = [message for message in node.take("b") if message.get("entries")]
    assert sent[-1]["entries"][-1][1] == 42, "all of it is under way"
    for message in sent[:5]:  # and is acknowledged in order
        last = message["entries"][-1][1]
        node.receive("b", {"type": "next_node_idx", "next_node_idx": last + 1, "reset": False, "success": True})
        node.tick(0.2)
    again = sum(len(message.get("entries", ())) for message in node.take("b"))
    assert again > 4 * 30


def test_d27_ours_sends_each_entry_once() -> None:
    cluster = Cluster(batch_bytes=100)
    leader = cluster.settle()
    sent: dict[int, int] = dict.fromkeys(THREE, 0)
    for node in cluster.nodes.values():

        def counted(peer: int, body: Body, now_ms: int, node: Node = node, receive: Any = node.quorum.receive) -> None:
            sent[node.id] += len(body.get("entries", ()))
            receive(peer, body, now_ms)

        node.quorum.receive = counted  # type: ignore[method-assign]
    for number in range(200):
        leader.quorum.propose(data_of(number, "x" * 100))
    cluster.settle()
    assert sorted(sent.values()) == [0, 200, 200]


def test_d28_stock_never_tells_a_node_that_it_was_removed() -> None:
    node = Stock().table("a", "bc", dynamicMembershipChange=True)
    node.lead("b")
    node.receive("b", {"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": True})
    node.tick(0.2)
    node.take("c")
    node._applyCommand(pickle.dumps(["rem", "c", StockName("c")]), None, 2)
    for _ in range(20):
        node.tick(0.2)
    assert [message for message in node.take("c") if message.get("entries")] == []


def test_d29_stock_lets_a_node_that_has_nothing_vote_at_once() -> None:
    node = Stock().table("a", "", dynamicMembershipChange=True)
    node.lead()
    for _ in range(3):
        node.tick(0.2)
    node._applyCommand(pickle.dumps(["add", "b", StockName("b")]), None, 2)
    node.tick(0.2)
    results: list[object] = []
    node.put("key", 1, callback=lambda *result: results.append(result))
    for _ in range(50):
        node.tick(0.2)
    assert results == [], "one of two is no majority: nothing can be committed until b is up and has everything"


def test_d30_stock_campaigns_at_once_when_it_has_stepped_down() -> None:
    node = Stock().table("a", "bc", leaderFallbackTimeout=2.0)
    node.lead("b")
    term = node.raftCurrentTerm
    node.tick(2.5)
    assert not node._isLeader()
    node.tick(0.01)
    assert node.raftCurrentTerm == term + 1, "its election timeout is of before it led"


def test_d30_ours_changes_no_term_alone() -> None:
    node = connected(Node(1, now_ms=NOW))
    make_leader(node)
    term = node.quorum.term
    for now_ms in range(NOW + 12_000, NOW + 60_000, 100):
        node.quorum.tick(now_ms)
        node.messages()
    assert (node.quorum.is_leader, node.quorum.term) == (False, term)


def test_what_a_learner_had_in_an_earlier_leadership_does_not_count() -> None:
    node = connected(Node(1, now_ms=NOW))
    node.quorum.connected(4, NOW)
    node.quorum.receive(4, {"type": "learn"}, NOW)
    make_leader(node)
    acknowledged = {**earlier_acknowledgement(node), "term": node.quorum.term}
    tell(node, 4, acknowledged)
    assert {each.id: each.log_end_index for each in node.quorum.progress()}[4] == node.quorum.last_index
    tell(node, 3, {"type": "heartbeat", "term": node.quorum.term + 1, "round": 1})
    node.quorum.disconnected(3, NOW)
    node.quorum.connected(3, NOW)
    node.quorum.tick(NOW + 20_000)
    make_leader(node)
    assert {each.id: each.log_end_index for each in node.quorum.progress()}[4] == 0
