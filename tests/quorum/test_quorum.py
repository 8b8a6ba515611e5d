"""The quorum as the broker drives it: elections, replication, restarts, hand-over, snapshots, voters."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pysyncobj
import pytest
from many_changes import many_changes
from quorum_node import THREE, Cluster, ListMachine, Node

from kraftpy.metadata import quorum
from kraftpy.metadata.journal import MAX_ENTRY_BYTES, Journal
from kraftpy.metadata.quorum_messages import MAX_SNAPSHOT_CHUNK_BYTES, command_in, unpack_snapshot
from kraftpy.metadata.raft import library
from kraftpy.metadata.raft.state import UNITS_PER_TICK
from kraftpy.testing.memory_files import Loss, MemoryDisk


def command(number: int) -> bytes:
    return b"\x93" + str(number).encode()


def commands(first: int, count: int) -> list[bytes]:
    return [command(number) for number in range(first, first + count)]


def propose(node: Node, *data: bytes) -> None:
    for each in data:
        assert node.quorum.propose(each) is not None


# -- one node


def test_a_single_voter_leads_at_its_first_tick() -> None:
    node = Node(1, {1: "one:9093"})
    node.quorum.tick(1000)
    assert node.quorum.is_leader
    assert node.quorum.commit_index == 0, "nothing is committed before it is on disk"
    node.sync()
    assert node.quorum.is_active
    assert (node.quorum.leader_id, node.quorum.term, node.quorum.commit_index) == (1, 1, 1)
    assert node.quorum.propose(command(1)) == (2, 1)
    assert node.machine.commands == []
    node.sync()
    assert (node.machine.commands, node.machine.places) == ([command(1)], [(2, 1)])


def test_a_single_voter_has_all_after_a_restart() -> None:
    node = Node(1, {1: "one:9093"})
    for number in range(3):
        node.quorum.tick(1000)
        node.sync()
        propose(node, command(number))
        node.sync()
        node.disk.crash(random.Random(0), Loss.EVERYTHING)
        node = Node(1, {1: "one:9093"}, disk=node.disk)
        assert node.machine.commands == []
    node.quorum.tick(1000)
    node.sync()
    assert node.machine.commands == commands(0, 3)
    assert node.quorum.term == 4


def test_a_journal_from_before_the_quorum_is_read() -> None:
    disk = MemoryDisk()
    journal = Journal(disk.root)
    journal.load()
    for number in range(5):
        journal.append(1, command(number))
    journal.sync()
    machine = ListMachine()
    machine.commands = commands(0, 3)
    journal.save_snapshot(3, 1, machine.snapshot())
    journal.close()
    node = Node(1, {1: "one:9093"}, disk=disk)
    node.quorum.tick(1000)
    node.sync()
    assert node.machine.commands == commands(0, 5)
    assert node.machine.places == [(4, 1), (5, 1)]
    assert node.quorum.voters == {1: "one:9093"}


# -- three


def test_three_nodes_elect_replicate_and_restart() -> None:
    cluster = Cluster()
    leader = cluster.leader()
    assert cluster.now_ms < 2000, "quicker than an election timeout"
    propose(leader, *commands(0, 50))
    cluster.settle()
    assert [node.machine.commands for node in cluster.nodes.values()] == [commands(0, 50)] * 3
    for node_id in sorted(THREE):
        cluster.kill(node_id, Loss.EVERYTHING)
    for node_id in sorted(THREE):
        cluster.start(node_id)
    leader = cluster.settle()
    propose(leader, command(50))
    cluster.settle()
    assert [node.machine.commands for node in cluster.nodes.values()] == [commands(0, 51)] * 3


def test_followers_apply_what_a_majority_has_and_only_then() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    cluster.isolate(leader.id)
    propose(leader, command(0))
    cluster.run(500)
    assert leader.machine.commands == []
    assert leader.quorum.commit_index < leader.quorum.last_index


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_leader_is_replaced_at_once(seed: int) -> None:
    cluster = Cluster()
    cluster.run(seed * 37)
    leader = cluster.settle()
    cluster.kill(leader.id)
    killed = cluster.now_ms
    new = cluster.leader()
    assert cluster.now_ms - killed < 1000
    assert new.quorum.term > leader.quorum.term


def test_a_leader_that_is_cut_off_steps_down_within_two_seconds() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    cluster.isolate(leader.id)
    cut = cluster.now_ms
    while leader.quorum.is_leader:
        cluster.step()
        assert cluster.now_ms - cut <= 2000
    assert cluster.leader().id != leader.id


def test_a_silent_leader_is_replaced() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    paused = cluster.nodes.pop(leader.id)  # stopped: its connections stay
    silent = cluster.now_ms
    cluster.leader()
    assert cluster.now_ms - silent < 3000
    cluster.nodes[leader.id] = paused
    cluster.run(100)
    assert not paused.quorum.is_leader
    cluster.settle()


def test_a_node_that_comes_back_disturbs_nobody() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    other = next(node_id for node_id in THREE if node_id != leader.id)
    term = leader.quorum.term
    cluster.isolate(other)
    cluster.run(20_000)
    cluster.heal()
    cluster.run(5_000)
    assert (leader.quorum.is_leader, leader.quorum.term) == (True, term)
    assert cluster.nodes[other].quorum.leader_id == leader.id


def test_a_follower_cut_off_from_the_leader_alone_disturbs_nobody() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    term = leader.quorum.term
    cluster.part(leader.id, next(node_id for node_id in THREE if node_id != leader.id))
    cluster.run(20_000)
    assert (leader.quorum.is_leader, leader.quorum.term, len(cluster.leaders())) == (True, term, 1)


def test_a_leader_hands_over() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    propose(leader, *commands(0, 10))
    leader.quorum.resign()
    began = cluster.now_ms
    assert leader.quorum.propose(command(10)) is None
    new = cluster.leader()
    assert new.id != leader.id
    assert cluster.now_ms - began < 200
    propose(new, command(10))
    cluster.settle()
    assert leader.machine.commands == commands(0, 11)


def test_a_leader_without_successor_only_stops_leading() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    for node_id in sorted(THREE.keys() - {leader.id}):
        cluster.kill(node_id)
    leader.quorum.resign()
    cluster.run(1100)
    assert leader.quorum.leader_id is None


def test_what_one_command_may_hold() -> None:
    node = Node(1, {1: "one:9093"})
    node.quorum.tick(1000)
    node.sync()
    with pytest.raises(ValueError, match="too large"):
        node.quorum.propose(bytes(MAX_ENTRY_BYTES))
    assert node.quorum.propose(bytes(MAX_ENTRY_BYTES - 1)) is not None
    assert node.quorum.propose(bytes(MAX_ENTRY_BYTES - 1)) is not None
    assert node.quorum.propose(bytes(MAX_ENTRY_BYTES - 1)) is None, "two such are waiting to be committed"
    node.sync()
    assert len(node.machine.commands) == 2
    assert node.quorum.propose(b"\x90") is not None


# -- snapshots


def test_a_node_that_was_away_is_caught_up_by_a_snapshot() -> None:
    cluster = Cluster(snapshot_after_entries=50)
    leader = cluster.settle()
    other = next(node_id for node_id in THREE if node_id != leader.id)
    cluster.kill(other)
    propose(leader, *(bytes([147]) + bytes(5000) + command(number) for number in range(400)))
    cluster.run(500)
    assert leader.journal.first_index > 300
    assert leader.quorum.committed_after(5, 1000) is None
    node = cluster.start(other)
    cluster.settle()
    cluster.run(50)
    assert node.machine.commands == leader.machine.commands
    assert node.journal.first_index > 300
    assert not leader.quorum._raft.leader.followers[other].outgoing


def test_a_restart_begins_at_the_snapshot() -> None:
    cluster = Cluster(snapshot_after_entries=50)
    leader = cluster.settle()
    propose(leader, *commands(0, 120))
    cluster.settle()
    cluster.run(50)
    for node_id in sorted(THREE):
        cluster.kill(node_id, Loss.EVERYTHING)
    for node_id in sorted(THREE):
        node = cluster.start(node_id)
        assert len(node.machine.commands) >= 50
    leader = cluster.settle()
    assert leader.machine.commands == commands(0, 120)


def test_a_snapshot_is_sent_in_chunks() -> None:
    cluster = Cluster(snapshot_after_entries=5)
    leader = cluster.settle()
    other = next(node_id for node_id in THREE if node_id != leader.id)
    cluster.kill(other)
    propose(leader, *(b"\x93" + bytes(1 << 20) for _ in range(9)))
    cluster.run(100)
    chunks: list[int] = []
    node = cluster.start(other)
    receive = node.quorum.receive

    def counted(peer: int, body: dict[str, object], now_ms: int) -> None:
        if body["type"] == "snapshot":
            data = body["data"]
            assert isinstance(data, bytes)
            chunks.append(len(data))
        receive(peer, body, now_ms)

    node.quorum.receive = counted  # type: ignore[method-assign]
    cluster.settle()
    assert len(chunks) >= 18
    assert max(chunks) <= MAX_SNAPSHOT_CHUNK_BYTES


def test_a_node_that_is_behind_applies_a_bounded_number_of_entries_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    leader = cluster.settle()
    behind = next(node for node in cluster.nodes.values() if node is not leader)
    known = behind.machine.apply

    def heavy(index: int, term: int, data: bytes) -> int:
        known(index, term, data)
        return UNITS_PER_TICK // 2 - 1

    monkeypatch.setattr(behind.machine, "apply", heavy)
    cluster.isolate(behind.id)
    propose(leader, *commands(0, 20))
    cluster.run(500)
    cluster.heal()
    applied = [0]
    while applied[-1] < 20:
        cluster.step()
        applied.append(len(behind.machine.commands))
        assert applied[-1] - applied[-2] <= 3, "after so much work it is the turn of others"
        if 0 < applied[-1] < 20:
            assert behind.quorum.next_tick_ms(cluster.now_ms) == cluster.now_ms
    assert behind.machine.commands == commands(0, 20)
    assert behind.quorum.next_tick_ms(cluster.now_ms) > cluster.now_ms


def test_what_a_follower_of_the_log_is_given() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    propose(leader, *commands(0, 20))
    cluster.settle()
    found = leader.quorum.committed_after(0, 10**6)
    assert found is not None
    assert [entry.index for entry in found] == list(range(1, leader.quorum.applied_index + 1))
    assert [data for entry in found if (data := command_in(entry.data)) is not None] == commands(0, 20)
    assert len(leader.quorum.committed_after(3, 1) or ()) == 1
    assert leader.quorum.committed_after(leader.quorum.applied_index, 100) == []
    assert leader.quorum.snapshot_for() is None, "it has to be encoded first"
    leader.work_on_snapshots()
    snapshot = leader.quorum.snapshot_for()
    assert snapshot is not None
    machine = ListMachine()
    machine.restore(unpack_snapshot(snapshot.data).state)
    assert (snapshot.index, machine.commands) == (leader.quorum.applied_index, commands(0, 20))


def test_a_snapshot_is_due_after_so_many_bytes() -> None:
    node = Node(1, {1: "one:9093"}, snapshot_after_bytes=1000)
    node.quorum.tick(1000)
    node.sync()
    propose(node, bytes(800))
    node.sync()
    assert not node.quorum.snapshot_due
    propose(node, bytes(200))
    node.sync()
    assert node.quorum.snapshot_due
    node.save_snapshots()
    assert not node.quorum.snapshot_due
    propose(node, bytes(800))
    node.sync()
    assert not node.quorum.snapshot_due, "counted since the last one"


# -- voters


def test_a_voter_is_added_once_it_has_caught_up_and_removed_again() -> None:
    cluster = Cluster(snapshot_after_entries=50)
    leader = cluster.settle()
    propose(leader, *commands(0, 120))
    assert leader.quorum.change_voter(add=(4, "four:9093")) is None
    assert "caught up" in (leader.quorum.why_no_change(add=4) or "")
    new = cluster.start(4)
    assert not new.quorum.voters.keys() & {4}
    cluster.settle()
    assert leader.quorum.change_voter(add=(4, "four:9093")) is not None
    assert leader.quorum.change_voter(remove=1) is None, "one at a time"
    cluster.settle()
    assert [node.quorum.voters for node in cluster.nodes.values()] == [{**THREE, 4: "four:9093"}] * 4
    gone = next(node_id for node_id in THREE if node_id != leader.id)
    assert leader.quorum.change_voter(remove=leader.id) is None, "it has to resign first"
    assert leader.quorum.change_voter(remove=gone) is not None
    cluster.settle()
    propose(leader, *commands(120, 120))
    cluster.settle()
    for node_id in sorted(cluster.nodes):
        cluster.kill(node_id, Loss.EVERYTHING)
    for node_id in (1, 2, 3, 4):
        cluster.start(node_id)
    leader = cluster.settle()
    assert leader.id != gone
    for node in cluster.nodes.values():
        assert sorted(node.quorum.voters) == sorted({1, 2, 3, 4} - {gone})
        assert node.machine.commands == commands(0, 240)


def test_a_voter_that_answers_stays_while_the_others_would_be_no_majority_without_it() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    dead, other = (node_id for node_id in THREE if node_id != leader.id)
    cluster.kill(dead, Loss.NOTHING)
    cluster.run(2_000)
    assert leader.quorum.change_voter(remove=other) is None, "the leader alone could never commit that"
    assert "silent" in (leader.quorum.why_no_change(remove=other) or "")
    assert leader.quorum.change_voter(remove=dead) is not None
    cluster.settle()
    assert sorted(leader.quorum.voters) == sorted({leader.id, other})
    cluster.start(dead)
    cluster.settle()
    assert leader.quorum.change_voter(add=(dead, THREE[dead])) is not None
    cluster.settle()
    assert leader.quorum.change_voter(remove=other) is not None, "now that it answers again"


def test_a_node_that_does_not_vote_never_campaigns() -> None:
    node = Node(4, THREE)
    node.quorum.connected(1, 1000)
    for now_ms in range(1000, 60_000, 500):
        node.quorum.tick(now_ms)
        assert {message.body["type"] for message in node.messages()} <= {"learn"}
    assert node.quorum.term == 0


def test_a_tick_at_the_time_that_was_said_is_not_due_again_at_that_time() -> None:
    """A deadline may not be exact as a binary fraction: 130.605 * 1000 is less than 130605."""
    node = Node(4, THREE)
    node.quorum.connected(1, 1000)
    began_ms = now_ms = 1000
    for _ in range(2000):
        due_ms = node.quorum.next_tick_ms(now_ms)
        assert due_ms > now_ms, (
            f"a tick {now_ms - began_ms} ms after the begin changes nothing and is due again at once"
        )
        now_ms = due_ms
        node.quorum.tick(now_ms)
        node.messages()


def test_a_node_that_does_not_vote_is_fed_though_every_voter_forgot_that_it_had_asked() -> None:
    """A voter whose disk was full restarts on the same connections, and does not know who asked before."""
    cluster = Cluster()
    cluster.settle()
    learner = cluster.start(4)
    cluster.settle()
    for node_id in sorted(THREE):
        anew = Node(node_id, disk=cluster.disks[node_id], now_ms=cluster.now_ms)
        cluster.nodes[node_id] = anew
        for other in sorted(cluster.nodes.keys() - {node_id}):
            anew.quorum.connected(other, cluster.now_ms)
    propose(cluster.leader(), *commands(0, 5))
    cluster.settle()
    assert learner.machine.commands == commands(0, 5)


def test_a_change_of_voters_that_was_not_committed_is_taken_back() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    cluster.start(4)
    cluster.settle()
    for voter in sorted(THREE.keys() - {leader.id}):
        cluster.part(leader.id, voter)
    assert leader.quorum.change_voter(add=(4, "four:9093")) is not None
    cluster.step()
    assert 4 in leader.quorum.voters
    assert 4 in cluster.nodes[4].quorum.voters, "from the moment that it has the entry"
    while leader.quorum.is_leader:
        cluster.step()
    new = cluster.leader()
    propose(new, *commands(0, 5))
    cluster.heal()
    cluster.settle()
    assert leader.quorum.voters == THREE
    assert leader.journal.last_index == new.journal.last_index


def test_a_removal_that_a_leader_loses_on_its_way_to_the_disk_leaves_somebody_who_may_lead() -> None:
    """The nodes that had it would not count as voters, and no node with a shorter log would get their votes."""
    cluster = Cluster()
    leader = cluster.settle()
    gone, left = sorted(THREE.keys() - {leader.id})
    assert leader.quorum.change_voter(remove=gone) is not None
    cluster.settle()
    assert sorted(leader.quorum.voters) == sorted({leader.id, left})
    assert leader.quorum.change_voter(remove=left) is not None
    for message in leader.quorum.take_messages():  # these may leave before anything is synced
        assert not message.after_sync
        cluster.nodes[message.peer].quorum.receive(leader.id, message.body, cluster.now_ms)
        cluster.nodes[message.peer].sync()
    cluster.kill(leader.id, Loss.EVERYTHING)
    cluster.start(leader.id)
    new = cluster.settle()
    propose(new, *commands(0, 5))
    cluster.settle()
    assert [node.machine.commands for node in cluster.nodes.values()] == [commands(0, 5)] * 3


def test_a_voter_that_was_removed_while_it_was_away_learns_it() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    gone = next(node_id for node_id in THREE if node_id != leader.id)
    cluster.kill(gone)
    assert leader.quorum.change_voter(remove=gone) is not None
    cluster.settle()
    term = leader.quorum.term
    node = cluster.start(gone)
    cluster.settle()
    assert gone not in node.quorum.voters
    assert leader.quorum.term == term


def test_voters_that_were_only_configured_stay_configuration() -> None:
    cluster = Cluster(snapshot_after_entries=10)
    propose(cluster.settle(), *commands(0, 30))
    cluster.settle()
    moved = {**THREE, 3: "elsewhere:9093"}
    cluster.kill(3)
    assert cluster.start(3, moved).quorum.voters == moved


def test_progress_is_what_describe_quorum_shows() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    gone = next(node_id for node_id in THREE if node_id != leader.id)
    cluster.run(1000)
    cluster.kill(gone)
    propose(leader, *commands(0, 5))
    cluster.run(500)
    progress = {each.id: each for each in leader.quorum.progress()}
    assert progress[leader.id].log_end_index == leader.quorum.last_index
    for node_id, each in progress.items():
        assert each.is_voter
        is_gone = node_id == gone
        assert (each.log_end_index < leader.quorum.last_index) == is_gone
        assert (cluster.now_ms - each.last_contact_ms > 450) == is_gone
        assert (cluster.now_ms - each.last_caught_up_ms > 450) == is_gone


# -- its place


def test_one_module_imports_the_library() -> None:
    package = Path(quorum.__file__).parents[1]
    named = re.compile(r"""(?:import|from|["'])\s*pysyncobj""")
    found = [file.name for file in sorted(package.rglob("*.py")) if named.search(file.read_text(encoding="utf-8"))]
    assert found == ["library.py"]


def test_one_module_knows_the_private_names_of_the_library() -> None:
    package = Path(quorum.__file__).parents[1]
    mangled = re.compile(r"\b_[A-Z][A-Za-z0-9]*__[A-Za-z]")
    found = [file.name for file in sorted(package.rglob("*.py")) if mangled.search(file.read_text(encoding="utf-8"))]
    assert found == ["library.py"]


def test_a_library_that_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="has no somethingElse"):
        library.check_names(library.library.SyncObj, frozenset({"onBecomeLeader", "somethingElse"}))
    monkeypatch.setattr(library, "LIBRARY_VERSION", "0.3.18")
    with pytest.raises(ImportError, match=r"0\.3\.18 exactly"):
        library.load_library()


def test_the_library_of_others_is_left_alone() -> None:
    assert pysyncobj.syncobj.monotonicTime is not library.library.monotonicTime
    assert pysyncobj.syncobj.pickle is not library.library.pickle
    assert pysyncobj.SyncObj is not library.library.SyncObj


def test_the_sockets_of_others_are_left_alone() -> None:
    said = "print(socket.inet_ntop(socket.AF_INET6, bytes(15) + bytes([1])))"
    program = f"import socket; import kraftpy.metadata.raft.library; {said}; import pysyncobj.tcp_connection; {said}"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (told.stdout, told.stderr) == ("::1\n::1\n", "")


def test_many_changes_leave_little(tmp_path: Path) -> None:
    made = many_changes(tmp_path, 20_000)
    assert made.changes_after_restart == 20_000
    assert made.largest_bytes < 10_500 * 200, "no more than the entries since the last snapshot"
