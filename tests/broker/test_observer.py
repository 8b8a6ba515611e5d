"""A node that does not vote: which voters it asks when some of them cannot answer."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from kraftpy.broker.containment import Complaints, DirectoryFailed, Fatal, Incidents, Tasks
from kraftpy.broker.metadata.link_messages import LinkError
from kraftpy.broker.metadata.observer import Observer
from kraftpy.metadata.codec import unpack
from kraftpy.metadata.commands import NewerSchemaError
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.quorum_messages import pack_snapshot
from kraftpy.metadata.raft.state import UNITS_PER_TICK
from kraftpy.testing.memory_files import MemoryDisk

BOUND_SECONDS = 30.0
KNOWS_NOTHING = {"leader": -1, "term": -1, "applied": 0, "voters": [], "entries": []}
"""The error of a voter whose disk is full."""


class Machine:
    def __init__(self) -> None:
        self.applied: list[bytes] = []

    def apply(self, index: int, term: int, data: bytes | memoryview) -> int | None:
        self.applied.append(bytes(data))
        return None

    def snapshot(self) -> bytes:
        packed: bytes = msgpack.packb(self.applied)
        return packed

    def capture(self) -> Callable[[], bytes]:
        data = self.snapshot()
        return lambda: data

    def decode(self, data: bytes) -> Callable[[], None]:
        return lambda: self.restore(data)

    def restore(self, data: bytes) -> None:
        self.applied = msgpack.unpackb(data)


class Strict(Machine):
    """A machine that refuses bytes it cannot read, as the metadata machine does."""

    def apply(self, index: int, term: int, data: bytes | memoryview) -> int | None:
        if data == b"newer":
            raise NewerSchemaError("upgrade this node")
        return super().apply(index, term, data)

    def restore(self, data: bytes) -> None:
        self.applied = unpack(data)


class Voters:
    """Links to three voters, of which 3 leads and is not connected, 2 follows it, and 1 is `how_1_is`."""

    def __init__(self, how_1_is: str) -> None:
        self.peers = [1, 2]
        self.how_1_is = how_1_is
        self.asked: Counter[int] = Counter()
        self.entries: list[tuple[int, int, bytes]] = []

    def is_connected(self, peer: int) -> bool:
        return peer in self.peers

    async def request(self, peer: int, kind: str, body: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        self.asked[peer] += 1
        await asyncio.sleep(0.001)
        if peer == 1 and self.how_1_is == "silent":
            raise LinkError("no answer")
        if peer == 1:
            return dict(KNOWS_NOTHING, term=1 if self.how_1_is == "behind" else -1)
        new = [entry for entry in self.entries if entry[0] > body["after"]]
        applied = self.entries[-1][0] if self.entries else 0
        return {"leader": 3, "term": 2, "applied": applied, "voters": [], "entries": new}


class Resigned(Voters):
    """1 has led and lost its majority, which it says at once; 2 has not heard of that. Then 1 leads again."""

    def __init__(self) -> None:
        super().__init__("resigned")
        self.leads_again = False

    async def request(self, peer: int, kind: str, body: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        self.asked[peer] += 1
        await asyncio.sleep(0)
        known = {"term": 2, "applied": 1, "voters": []}
        if peer == 2:
            return {"leader": 1, "entries": [], **known}
        if not self.leads_again:
            return {"leader": -1, "entries": [], **known}
        return {"leader": 1, "entries": [(1, 2, b"one")], **known}


def observer_of(links: Voters, machine: Machine, tasks: asyncio.TaskGroup) -> Observer:
    return Observer(
        snapshot_after_bytes=1_000,
        new_machine=lambda: machine,
        on_change=lambda: None,
        set_voters=lambda _: None,
        links=links,  # type: ignore[arg-type]
        tasks=tasks,
    )


async def test_a_leader_that_resigned_is_not_asked_again_at_once_because_another_voter_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kraftpy.broker.metadata.observer._PAUSE_SECONDS", 10 * BOUND_SECONDS)
    links, machine = Resigned(), Machine()
    async with asyncio.TaskGroup() as tasks:
        observer = observer_of(links, machine, tasks)
        await observer.start(MemoryDisk().root)
        async with asyncio.timeout(BOUND_SECONDS):
            while links.asked[2] < 1:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0)
        for _ in range(300):
            await asyncio.sleep(0)
        assert links.asked == {1: 1, 2: 1}
        await observer.stop()


async def test_a_leader_that_resigned_is_followed_when_it_leads_again() -> None:
    links, machine = Resigned(), Machine()
    async with asyncio.TaskGroup() as tasks:
        observer = observer_of(links, machine, tasks)
        await observer.start(MemoryDisk().root)
        async with asyncio.timeout(BOUND_SECONDS):
            while links.asked[1] < 3:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.001)
            links.leads_again = True
            while observer.leader_id != 1 or not machine.applied:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.001)
        assert machine.applied == [b"one"]
        await observer.stop()


@pytest.mark.parametrize("how_1_is", ["full", "behind", "silent"])
async def test_one_voter_that_knows_nothing_does_not_keep_it_from_asking_another(how_1_is: str) -> None:
    links, machine = Voters(how_1_is), Machine()
    async with asyncio.TaskGroup() as tasks:
        observer = observer_of(links, machine, tasks)
        disk = MemoryDisk()
        await observer.start(disk.root)
        commands = [b"\x93" + bytes([number]) * 300 for number in range(1, 6)]
        links.entries = [(number, 2, command) for number, command in enumerate(commands, 1)]
        async with asyncio.timeout(BOUND_SECONDS):
            while machine.applied != commands or links.asked[1] < 2:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.005)
        assert (observer.leader_id, observer.term) in [(3, 2), (None, 2)]
        await observer.stop()
    loaded = Journal(disk.root).load()
    assert loaded.snapshot is not None, "more than 1,000 bytes came"
    assert loaded.snapshot.index + len(loaded.entries) == len(commands)


async def test_others_run_while_an_observer_that_is_behind_applies_what_it_lacks() -> None:
    """By its units of work: three of these entries are as much as may be applied in one turn of the loop."""
    links = Voters("silent")
    links.entries = [(number, 2, b"entry") for number in range(1, 31)]
    turn = 0
    applied: Counter[int] = Counter()

    class Heavy(Machine):
        def apply(self, index: int, term: int, data: bytes | memoryview) -> int:
            super().apply(index, term, data)
            applied[turn] += 1
            return UNITS_PER_TICK // 2 - 1

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        observer = observer_of(links, Heavy(), tasks)
        counting = tasks.create_task(count())
        await observer.start(MemoryDisk().root)
        async with asyncio.timeout(BOUND_SECONDS):
            while observer.applied_index < 30:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.005)
        counting.cancel()
        await observer.stop()
    assert sum(applied.values()) == 30
    assert max(applied.values()) <= 3


async def test_a_disk_that_fails_ends_the_node_with_a_message() -> None:
    disk, links, machine = MemoryDisk(), Voters("silent"), Machine()

    async def live() -> None:
        async with asyncio.TaskGroup() as tasks:
            await observer_of(links, machine, tasks).start(disk.root)
            for operation in ("write", "sync", "replace"):
                disk.fail(operation, errno.EIO, count=10)
            links.entries = [(1, 2, b"one")]

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(BOUND_SECONDS):
            await live()
    (error,) = raised.value.exceptions
    assert isinstance(error, DirectoryFailed), "which the server says in a line, where any other is a traceback"
    assert str(error) == "the metadata journal cannot be written: Input/output error; this node stops"


class Odd(Voters):
    """1 and 2 know of the leader; 1 answers oddly."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__("odd")
        self.answer = answer
        self.refused: Counter[int] = Counter()

    def refuse_body(self, peer: int, error: Exception) -> None:
        self.refused[peer] += 1

    async def request(self, peer: int, kind: str, body: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        self.asked[peer] += 1
        await asyncio.sleep(0.001)
        if peer == 1:
            return {"leader": 3, "term": 2, "applied": 9, "voters": [], "entries": [], **self.answer}
        entries = [(1, 2, b"\x00one"), (2, 2, b"\x00two")][body["after"] :]
        return {"leader": 3, "term": 2, "applied": 2, "voters": [], "entries": entries}


@pytest.mark.parametrize(
    "answer",
    [
        {"snapshot": [7, 2, b"\xc1\x01spoilt"]},
        {"snapshot": [7, 2, pack_snapshot(0, {1: "h:1"}, b"\xc1")]},
        {"entries": [(1, 2, b"\x00one"), (2, 1, b"\x00of an earlier term")]},
    ],
)
async def test_what_no_voter_says_is_refused_and_another_is_asked(answer: dict[str, Any]) -> None:
    links, machine = Odd(answer), Strict()
    incidents = Incidents(Complaints())
    async with asyncio.TaskGroup() as group:
        observer = observer_of(links, machine, Tasks(group, incidents))  # type: ignore[arg-type]
        await observer.start(MemoryDisk().root)
        async with asyncio.timeout(BOUND_SECONDS):
            while observer.applied_index < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.005)
        await observer.stop()
    assert machine.applied == [b"one", b"two"]
    assert links.refused[1] > 0
    assert incidents.count == 0


async def test_an_entry_of_a_newer_version_ends_the_node_with_a_message() -> None:
    links = Voters("silent")
    links.entries = [(1, 2, b"\x00newer")]

    async def follows() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, Incidents(Complaints()))
            observer = observer_of(links, Strict(), tasks)  # type: ignore[arg-type]
            await observer.start(MemoryDisk().root)
            await asyncio.sleep(BOUND_SECONDS)

    with pytest.raises(ExceptionGroup) as failure:
        await follows()
    found = failure.value.exceptions[0]
    assert isinstance(found, Fatal)
    assert str(found) == "upgrade this node"
