"""Bytes that a node receives on a link, before the proof and after it.

Two of the product's own ends are joined without a network. The first byte says whether they have met before the rest
arrives as bytes, as a frame that bears the session's hash, or as the body of a message of the quorum. A link closes
itself on any mistake; no exception leaves it, except those of a refused body.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import link_frames

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.link import Link
from kraftpy.broker.metadata.transport import Links
from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.metadata.quorum_messages import BadMessageError, read_body

ALLOWED = (BadMessageError,)
MORE_BYTES = 2 << 20


class _Wire(asyncio.Transport):
    """Delivers written bytes to the other end when the test asks for it."""

    def __init__(self) -> None:
        super().__init__({"socket": _Socket()})
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class _Socket:
    def setsockopt(self, *arguments: int) -> None:
        pass


class _Group(asyncio.TaskGroup):
    pass


def one(data: bytes) -> None:
    """Try one input. It chooses how bytes arrive, and holds them."""
    if data:
        with asyncio.Runner() as runner:
            runner.run(_take(data[0], data[1:]))


async def _take(how: int, data: bytes) -> None:
    if how & 3 == 3:
        with contextlib.suppress(CodecError):
            read_body(unpack(data))
        return
    async with asyncio.TaskGroup() as group:
        incidents = Incidents(Complaints())
        tasks = Tasks(group, incidents)
        ends, wires = [], []
        for node in (1, 2):
            links = Links(node, is_voter=True, tasks=tasks, silence_ms=1000, secret=None)
            links.cluster_id = "cluster"
            links.receive("raft", lambda peer, body: None)
            links.serve("describe quorum", _describe)
            ends.append(Link(links, is_caller=node == 2))
            wires.append(_Wire())
        called, caller = ends
        for end, wire in zip(ends, wires, strict=True):
            end.connection_made(wire)
        if how & 3:
            _deliver(ends, wires)
            wires[1].written.clear()
        if how & 3 == 2:
            with contextlib.suppress(CodecError):
                frame = unpack(data)
                if isinstance(frame, list):
                    caller.send(frame)
            data = b"".join(wires[1].written)
        step = 1 + how // 4 % 16
        for start in range(0, min(len(data), 64 * step), step):
            called.data_received(data[start : start + step])
        called.data_received(data[64 * step :])
        await asyncio.sleep(0)
        for end in ends:
            end.close("the input is over")
        assert not incidents.count, incidents.last


async def _describe(peer: int, body: dict[str, Any]) -> dict[str, Any]:
    return {}


def _deliver(ends: list[Link], wires: list[_Wire]) -> None:
    for _ in range(6):
        for number in (1, 0):
            written, wires[number].written = wires[number].written, []
            for data in written:
                ends[1 - number].data_received(data)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Hellos, frames of every kind, bodies of the quorum."""
    for number in range(12):
        yield f"hello-{number}", b"\0" + link_frames.hello(Random(number))
    for number in range(24):
        frame = link_frames.message(Random(number))
        with contextlib.suppress(ValueError, OverflowError):
            yield f"frame-{number}", b"\2" + pack(frame)
    for number in range(24):
        kind, body = link_frames.body(Random(number))
        if kind == "raft":
            yield f"body-{number}", b"\3" + pack(body)
    yield "unproved", b"\1" + (20).to_bytes(4, "big") + bytes(20)
