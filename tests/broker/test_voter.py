"""A voter whose disk fills up: it is silent until there is room again, no matter what reaches it in between."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kraftpy.broker.containment import DirectoryFailed
from kraftpy.broker.metadata.voter import Voter
from kraftpy.broker.runtime import SystemClock
from kraftpy.metadata.quorum_messages import checksum, pack_snapshot
from kraftpy.metadata.raft import log as raft_log
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.memory_files import MemoryDisk

BOUND_SECONDS = 30.0
NODE, PEER = 1, 2
THREE = {1: "one:9093", 2: "two:9093", 3: "three:9093"}


class Machine:
    state = b""

    def apply(self, index: int, term: int, data: bytes | memoryview) -> None: ...

    def snapshot(self) -> bytes:
        return b""

    def capture(self) -> Callable[[], bytes]:
        data = self.snapshot()
        return lambda: data

    def decode(self, data: bytes) -> Callable[[], None]:
        return lambda: self.restore(data)

    def restore(self, data: bytes) -> None:
        self.state = data


class Peers:
    """Links whose other end is the test."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.given_up: list[int] = []
        self.receivers: dict[str, Callable[[int, dict[str, Any]], None]] = {}
        self.connection: Callable[[int, bool], None] = lambda *_: None

    def receive(self, kind: str, receiver: Callable[[int, dict[str, Any]], None]) -> None:
        self.receivers[kind] = receiver

    def serve(self, kind: str, handler: object) -> None: ...

    def on_connection(self, callback: Callable[[int, bool], None]) -> None:
        self.connection = callback

    def send(self, peer: int, kind: str, body: dict[str, Any]) -> bool:
        self.sent.append(body)
        return True

    def answers(self, kind: str) -> list[dict[str, Any]]:
        return [body for body in self.sent if body["type"] == kind]

    def disconnect(self, peer: int) -> None:
        self.given_up.append(peer)

    def sends_a_snapshot(self, index: int, data: bytes) -> None:
        body = {
            "type": "snapshot", "term": 1, "index": index, "last_term": 1, "size": len(data), "offset": 0,
            "checksum": checksum(data), "data": data,
        }  # fmt: skip
        self.receivers["raft"](PEER, body)

    def bring_up_to(self, index: int, term: int) -> None:
        """One that does not vote asks to be fed, and then has it all."""
        self.receivers["raft"](PEER, {"type": "learn"})
        body = {
            "type": "next_node_idx", "term": term, "next_node_idx": index + 1, "last_index": index,
            "reset": False, "success": True, "round": 0,
        }  # fmt: skip
        self.receivers["raft"](PEER, body)

    def wants_a_vote(self, term: int) -> None:
        body = {"type": "request_vote", "term": term, "last_log_index": 0, "last_log_term": 0, "transfer": True}
        self.receivers["raft"](PEER, body)


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not reached():  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.005)


def hold_the_loop_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def voter_of(
    peers: Peers,
    tasks: asyncio.TaskGroup,
    machine: Machine,
    on_change: Callable[[], None],
    voters: Mapping[int, str] = THREE,
    election_timeout_ms: int = 600_000,
    snapshot_after_bytes: int = 1_000_000,
) -> Voter:
    return Voter(
        node_id=NODE,
        voters=voters,
        election_timeout_ms=election_timeout_ms,
        fetch_timeout_ms=600_000,
        snapshot_after_bytes=snapshot_after_bytes,
        new_machine=lambda: machine,
        on_change=on_change,
        clock=SystemClock(),
        links=peers,  # type: ignore[arg-type]
        tasks=tasks,
    )


async def test_a_snapshot_is_in_the_image_before_it_is_on_disk_and_so_is_its_index() -> None:
    """Otherwise a node with a full disk would return to the earlier image, and lead what others lead by then."""
    disk, peers = MemoryDisk(), Peers()
    seen: list[tuple[bytes, int]] = []

    class Filling(Machine):
        """The disk fills up just when the snapshot is in the image."""

        def restore(self, data: bytes) -> None:
            super().restore(data)
            for operation in ("write", "sync", "replace"):
                disk.fail(operation, errno.ENOSPC, count=10)

    machine = Filling()
    async with asyncio.TaskGroup() as tasks:
        voter = voter_of(peers, tasks, machine, lambda: seen.append((machine.state, voter.applied_index)))
        await voter.start(disk.root)
        peers.connection(PEER, True)
        await asyncio.sleep(0)
        peers.sends_a_snapshot(5, pack_snapshot(0, THREE, b"newer"))
        await until(lambda: peers.given_up)
        assert (b"newer", 5) in seen
        assert (b"newer", 0) not in seen[: seen.index((b"newer", 5))], "with the image of 5 and the index before"
        assert voter.refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert voter.refusal.message == "the metadata journal cannot be written: No space left on device"
        disk.heal()
        await voter.stop()


class Long(Machine):
    """A machine whose snapshots take until the event loop has served another task."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending: list[str] = []

    def _wait(self, what: str) -> None:
        self.pending.append(what)
        is_served = threading.Event()
        self.loop.call_soon_threadsafe(is_served.set)
        assert is_served.wait(BOUND_SECONDS), f"nobody is served while it {what}"

    def capture(self) -> Callable[[], bytes]:
        def encode() -> bytes:
            self._wait("encodes")
            return b"encoded"

        return encode

    def decode(self, data: bytes) -> Callable[[], None]:
        self._wait("decodes")
        return lambda: self.restore(data)


async def test_others_are_served_while_a_snapshot_is_encoded_for_the_disk_and_for_an_observer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raft_log, "_KEPT_BYTES", 0)
    machine, peers = Long(), Peers()
    async with asyncio.TaskGroup() as tasks:
        voter = voter_of(peers, tasks, machine, lambda: None, voters={NODE: ""}, snapshot_after_bytes=100)
        await voter.start(MemoryDisk().root)
        await until(lambda: voter.is_active)
        assert voter.propose(bytes(200))
        await until(lambda: voter.quorum is not None and voter.quorum.committed_after(0, 1) is None)
        assert machine.pending == ["encodes"]
        answer = await asyncio.wait_for(voter._follow(9, {"after": 0, "leader": -1, "term": -1}), BOUND_SECONDS)
        assert answer["snapshot"][2] == pack_snapshot(0, {NODE: ""}, b"encoded")
        again = await asyncio.wait_for(voter._follow(8, {"after": 0, "leader": -1, "term": -1}), BOUND_SECONDS)
        assert again["snapshot"] == answer["snapshot"]
        assert machine.pending == ["encodes"] * 2, "the second observer is sent the same"
        await voter.stop()


async def test_others_are_served_while_a_leaders_snapshot_is_decoded() -> None:
    machine, peers = Long(), Peers()
    async with asyncio.TaskGroup() as tasks:
        voter = voter_of(peers, tasks, machine, lambda: None)
        await voter.start(MemoryDisk().root)
        peers.connection(PEER, True)
        await asyncio.sleep(0)
        peers.sends_a_snapshot(5, pack_snapshot(0, THREE, b"newer"))
        await until(lambda: peers.answers("snapshot_ack"))
        assert machine.pending == ["decodes"]
        assert (machine.state, voter.applied_index) == (b"newer", 5)
        await voter.stop()


async def test_a_voter_refuses_commands_before_the_start_and_after_the_end_and_blames_no_disk() -> None:
    """A single node's command is refused with these: Kafka's controller times out commands when it shuts down."""
    async with asyncio.TaskGroup() as tasks:
        voter = voter_of(Peers(), tasks, Machine(), lambda: None)
        assert voter.refusal.code is ErrorCode.NOT_CONTROLLER
        await voter.start(MemoryDisk().root)
        await voter.stop()
        assert voter.refusal.code is ErrorCode.REQUEST_TIMED_OUT
        assert voter.refusal.message == "The controller is shutting down."
        assert not await voter.reopen()


async def test_a_message_that_comes_while_the_disk_has_just_filled_up_does_not_end_the_node() -> None:
    """The journal has failed in its thread, and refuses the next vote; the loop does not know of it yet."""
    disk, peers = MemoryDisk(), Peers()
    loop, is_writing, may_write = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    async with asyncio.TaskGroup() as tasks:
        voter = voter_of(peers, tasks, Machine(), lambda: None)
        await voter.start(disk.root)
        peers.connection(PEER, True)
        await asyncio.sleep(0)

        def hold(operation: str, path: str) -> None:
            loop.call_soon_threadsafe(is_writing.set)
            assert may_write.wait(BOUND_SECONDS)

        disk.on_operation = hold
        for operation in ("write", "sync", "replace"):
            disk.fail(operation, errno.ENOSPC, count=10)
        peers.wants_a_vote(1)
        async with asyncio.timeout(BOUND_SECONDS):
            await is_writing.wait()
        may_write.set()
        journal = voter._journal
        assert journal is not None
        hold_the_loop_until(lambda: journal.has_failed)
        peers.wants_a_vote(2)
        await until(lambda: peers.given_up)
        assert peers.given_up == [PEER], "so that it looks for others"
        assert "response_vote" not in [body["type"] for body in peers.sent], "nothing is on the disk"

        disk.on_operation = None
        disk.heal()
        await until(lambda: voter.quorum is not None)
        peers.wants_a_vote(3)
        await until(lambda: "response_vote" in [body["type"] for body in peers.sent])
        assert voter.term == 3
        await voter.stop()


async def test_a_journal_that_was_damaged_while_the_disk_was_full_ends_the_node_with_what_is_to_be_done() -> None:
    disk, peers = MemoryDisk(), Peers()

    async def live() -> None:
        async with asyncio.TaskGroup() as tasks:
            voter = voter_of(peers, tasks, Machine(), lambda: None)
            await voter.start(disk.root)
            peers.connection(PEER, True)
            await asyncio.sleep(0)
            for term in (1, 2):
                peers.wants_a_vote(term)
                await until(lambda term=term: len(peers.answers("response_vote")) == term)
            for operation in ("write", "sync", "replace"):
                disk.fail(operation, errno.ENOSPC, count=10)
            peers.wants_a_vote(3)
            await until(lambda: peers.given_up)
            disk.damage("journal", disk.root.open("journal").size() // 2, 1)
            disk.heal()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    (error,) = raised.value.exceptions
    assert isinstance(error, DirectoryFailed), "which the server says in a line, where any other is a traceback"
    assert "cannot be trusted" in str(error)


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "its disk is full"])
async def test_who_changes_the_voters_of_a_node_that_ends_is_told_that_it_is_not_known(is_stopped: bool) -> None:
    """Another node may have asked: its link waits for the answer, and the node ends only after every answer."""
    disk, peers = MemoryDisk(), Peers()
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
        voter = voter_of(peers, tasks, Machine(), lambda: None, {NODE: THREE[NODE]}, election_timeout_ms=10)
        await voter.start(disk.root)
        await until(lambda: voter.is_active)
        peers.connection(PEER, True)
        peers.bring_up_to(voter.applied_index, voter.term)
        quorum = voter.quorum
        assert quorum is not None
        await until(lambda: quorum.why_no_change(add=PEER, remove=None) is None)
        adding = tasks.create_task(voter.change_voter(add=(PEER, THREE[PEER])))
        await until(lambda: PEER in quorum.voters)
        assert not adding.done(), "the one that is added has not answered"
        if is_stopped:
            peers.connection(PEER, False)  # no peer takes over the lead
            await voter.stop()
        else:
            for operation in ("write", "sync", "replace"):
                disk.fail(operation, errno.ENOSPC, count=10)
            voter.propose(b"something")
            await until(lambda: voter.quorum is None)
        assert await adding == "this node left the quorum: it is not known whether the voters changed"
        disk.heal()
        await voter.stop()
