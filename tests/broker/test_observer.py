"""A node that does not vote: whom it asks, where some of the voters cannot tell it anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgpack
import pytest

from kraftpy.broker.link import LinkError
from kraftpy.broker.observer import Observer
from kraftpy.metadata.journal import Journal
from kraftpy.testing.memory_files import MemoryDisk

BOUND_SECONDS = 30.0
KNOWS_NOTHING = {"leader": -1, "term": -1, "applied": 0, "voters": [], "entries": []}
"""What a voter says whose disk is full."""


class Machine:
    def __init__(self) -> None:
        self.applied: list[bytes] = []

    def apply(self, index: int, term: int, data: bytes | memoryview) -> None:
        self.applied.append(bytes(data))

    def snapshot(self) -> bytes:
        packed: bytes = msgpack.packb(self.applied)
        return packed

    def restore(self, data: bytes) -> None:
        self.applied = msgpack.unpackb(data)


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


@pytest.mark.parametrize("how_1_is", ["full", "behind", "silent"])
async def test_one_voter_that_knows_nothing_does_not_keep_it_from_asking_another(how_1_is: str) -> None:
    links, machine = Voters(how_1_is), Machine()
    async with asyncio.TaskGroup() as tasks:
        observer = Observer(
            snapshot_after_bytes=1_000,
            new_machine=lambda: machine,
            stirred=lambda: None,
            voters_are=lambda _: None,
            links=links,  # type: ignore[arg-type]
            tasks=tasks,
        )
        disk = MemoryDisk()
        await observer.start(disk.root)
        commands = [b"\x93" + bytes([number]) * 300 for number in range(1, 6)]
        links.entries = [(number, 2, command) for number, command in enumerate(commands, 1)]
        async with asyncio.timeout(BOUND_SECONDS):
            while machine.applied != commands or links.asked[1] < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        assert (observer.leader_id, observer.term) in [(3, 2), (None, 2)]
        await observer.stop()
    loaded = Journal(disk.root).load()
    assert loaded.snapshot is not None, "more than 1,000 bytes came"
    assert loaded.snapshot.index + len(loaded.entries) == len(commands)
