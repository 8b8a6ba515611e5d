"""All connections share bounded memory, even if clients announce, hoard or do not read; and they give it back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import struct
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from kraftpy.broker.connection import HOARDING_SECONDS, RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.containment import Complaints, Incidents
from kraftpy.broker.request_memory import NO_LIMIT, SMALL_BYTES, RequestMemory

MIB = 1 << 20
MAX_FRAME_BYTES = 4 * MIB
BOUND_SECONDS = 20

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """The real connections, in front of answers that the test holds back or lets go."""

    def __init__(self, limit: int) -> None:
        self.memory = RequestMemory(limit, MAX_FRAME_BYTES)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[bytes] = []
        self.connections: list[Connection] = []
        self.most_held = 0
        self.on_first: Callable[[], None] | None = None
        self.address = ("", 0)

    async def answer(self, frame: bytearray, connection: Connection) -> bytes:
        self.asked.append(bytes(frame[:8]))
        self.most_held = max(self.most_held, self.memory.held)
        if self.on_first is not None:
            asyncio.get_running_loop().call_soon(self.on_first)
            self.on_first = None
        if frame.startswith(b"wait"):
            await self.gate.wait()
        body = bytes(2 * MIB) if frame.startswith(b"large") else bytes(frame[:8])
        return struct.pack(">i", len(body)) + body

    def opened(self, connection: Connection) -> bool:
        self.connections.append(connection)
        return True

    async def peer(self) -> Peer:
        return await asyncio.open_connection(*self.address)


@contextlib.asynccontextmanager
async def serving(limit: int = NO_LIMIT) -> AsyncIterator[Server]:
    made, complaints = Server(limit), Complaints()
    buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
    async with asyncio.TaskGroup() as tasks:
        listening = await asyncio.get_running_loop().create_server(
            lambda: Connection(
                made.answer,
                tasks=tasks,
                memory=made.memory,
                complaints=complaints,
                incidents=Incidents(complaints),
                max_frame_bytes=MAX_FRAME_BYTES,
                receive_buffer=buffer,
                opened=made.opened,
                closed=lambda connection: None,
            ),
            "127.0.0.1",
            0,
            backlog=1000,
        )
        made.address = listening.sockets[0].getsockname()
        try:
            yield made
        finally:
            listening.close()
            for connection in made.connections:
                connection.abort()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def begun(size: int, sent: int) -> bytes:
    """The beginning of a frame of `size` bytes."""
    return struct.pack(">i", size) + bytes(sent)


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(BOUND_SECONDS):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for belongs to the broker, which sets no event
            await asyncio.sleep(0.001)


def began_long_ago(connection: Connection) -> None:
    connection._partial_began_at -= 10 * HOARDING_SECONDS


async def test_what_is_announced_costs_no_more_than_what_arrives() -> None:
    async with serving() as server:
        peers = [await server.peer() for _ in range(100)]
        for _, writer in peers:
            writer.write(begun(MAX_FRAME_BYTES, 1))
        await eventually(lambda: sum(each.is_receiving for each in server.connections) == 100)
        assert server.memory.held == sum(len(each._partial or b"") for each in server.connections)
        assert server.memory.held <= 100 * SMALL_BYTES
        for _, writer in peers:
            writer.write(bytes(MIB))
        await eventually(lambda: all(each._partial_bytes == MIB + 1 for each in server.connections))
        assert server.memory.held <= 100 * 2 * (MIB + SMALL_BYTES)
        for _, writer in peers:
            writer.close()


async def test_a_connection_that_ends_leaves_nothing_for_the_garbage_collector() -> None:
    async with serving() as server:
        gc.collect()
        gc.disable()
        try:
            peers = [await server.peer() for _ in range(3)]
            peers[0][1].write(begun(MAX_FRAME_BYTES, MIB))
            peers[1][1].write(frame(b"wait") + frame(bytes(MIB)))
            peers[2][1].write(frame(b"large") * 20)
            await eventually(lambda: len(server.asked) > 1 and any(each.is_receiving for each in server.connections))
            gone = [weakref.ref(each) for each in server.connections]
            for _, writer in peers:
                writer.transport.abort()
            server.connections.clear()
            del peers, writer
            await eventually(lambda: all(each() is None for each in gone))
        finally:
            gc.enable()
        assert server.memory.held == server.memory.receiving == 0


async def test_large_frames_that_do_not_fit_together_all_arrive() -> None:
    """Send more of them at once, in pieces, than the memory holds: none waits forever, and the bound holds."""
    async with serving(limit=MAX_FRAME_BYTES) as server:
        peers = [await server.peer() for _ in range(8)]

        async def send(writer: asyncio.StreamWriter) -> None:
            whole = begun(MAX_FRAME_BYTES, MAX_FRAME_BYTES)
            for start in range(0, len(whole), 300_000):
                writer.write(whole[start : start + 300_000])
                await writer.drain()
                await asyncio.sleep(0)

        async with asyncio.timeout(BOUND_SECONDS):
            await asyncio.gather(*(send(writer) for _, writer in peers), *(answer(reader) for reader, _ in peers))
        slack = len(peers) * (RECEIVE_BUFFER_BYTES + SMALL_BYTES)
        assert server.most_held <= MAX_FRAME_BYTES * 3 // 2 + slack
        await eventually(lambda: server.memory.held == 0)
        for _, writer in peers:
            writer.close()


async def test_small_frames_are_served_while_large_ones_wait() -> None:
    async with serving(limit=2 * MAX_FRAME_BYTES) as server:
        hoarders = [await server.peer() for _ in range(6)]
        for _, writer in hoarders:
            writer.write(begun(MAX_FRAME_BYTES, MAX_FRAME_BYTES - 1))
        await eventually(lambda: server.memory.has_waiters)
        reader, writer = await server.peer()
        for number in range(50):
            writer.write(frame(b"%d" % number))
            assert await answer(reader) == b"%d" % number
        assert server.memory.has_waiters, "the large ones wait still"
        for _, other in [*hoarders, (reader, writer)]:
            other.close()


async def test_who_hoards_is_closed_when_others_need_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(limit=MAX_FRAME_BYTES) as server:
        hoarders = [await server.peer() for _ in range(4)]
        for _, writer in hoarders:
            writer.write(begun(MAX_FRAME_BYTES, MIB))
        await eventually(lambda: sum(each.is_receiving for each in server.connections) == 4)
        for each in server.connections:
            began_long_ago(each)
        reader, writer = await server.peer()
        writer.write(begun(2 * MIB, 2 * MIB))
        assert await answer(reader) == bytes(8)
        assert sum(each._is_over for each in server.connections) >= 1
        assert "queued.max.request.bytes is used up" in caplog.text
        for _, other in [*hoarders, (reader, writer)]:
            other.close()


async def test_requests_behind_one_that_waits_are_counted() -> None:
    async with serving() as server:
        server.gate.clear()
        _, writer = await server.peer()
        writer.write(frame(b"wait") + frame(bytes(1000)) * 10)
        await eventually(lambda: len(server.asked) == 1 and server.memory.held == 10_004)
        server.gate.set()
        await eventually(lambda: server.memory.held == 0)
        writer.close()


async def test_an_answer_that_is_not_read_is_counted_and_given_back() -> None:
    async with serving() as server:
        reader, writer = await server.peer()
        writer.write(frame(b"large") * 20)
        await eventually(lambda: any(each.responses.unread_since is not None for each in server.connections))
        assert server.memory.held > SMALL_BYTES
        for _ in range(20):
            assert len(await answer(reader)) == 2 * MIB
        await eventually(lambda: server.memory.held == 0)
        writer.close()


async def test_a_frame_that_does_not_get_on_is_overdue() -> None:
    async with serving() as server:
        _, slow = await server.peer()
        slow.write(begun(MAX_FRAME_BYTES, 1))
        await eventually(lambda: any(each.is_receiving for each in server.connections))
        (connection,) = server.connections
        began_at = connection._progress_at
        assert connection.overdue(began_at + 5, 10, 600) is None
        slow.write(b"x")
        await eventually(lambda: connection._partial_bytes == 2)
        assert connection._progress_at == began_at, "a byte now and then is no progress"
        assert connection.overdue(began_at + 11, 10, 600) is not None
        slow.write(bytes(MIB))
        await eventually(lambda: connection._partial_bytes == 2 + MIB)
        assert connection.overdue(connection._progress_at + 5, 10, 600) is None
        slow.write(bytes(MAX_FRAME_BYTES - MIB - 2))
        await eventually(lambda: len(server.asked) == 1)
        assert connection.overdue(began_at + 1000, 10, 6000) is None, "between two frames a connection is only idle"
        slow.close()


async def test_the_beginning_of_a_size_is_the_beginning_of_a_frame() -> None:
    async with serving() as server:
        _, slow = await server.peer()
        slow.write(b"\0")
        await eventually(lambda: any(each._rest for each in server.connections))
        (connection,) = server.connections
        began_at = connection._progress_at
        slow.write(b"\0")
        await eventually(lambda: len(connection._rest) == 2)
        assert connection._progress_at == began_at
        assert connection.overdue(began_at + 11, 10, 600) is not None
        slow.close()


async def test_an_answer_that_is_not_read_is_overdue() -> None:
    async with serving() as server:
        _, writer = await server.peer()
        writer.write(frame(b"large") * 20)
        await eventually(lambda: any(each.responses.unread_since is not None for each in server.connections))
        (connection,) = server.connections
        since = connection.responses.unread_since
        assert since is not None
        assert connection.overdue(since + 599, 60, 600) is None
        assert connection.overdue(since + 601, 60, 600) is not None
        writer.close()


async def test_requests_sent_ahead_leave_others_their_turn() -> None:
    async with serving() as server:
        _, greedy = await server.peer()
        reader, modest = await server.peer()
        await eventually(lambda: len(server.connections) == 2)
        greedy.write(frame(b"ahead") * 64)
        modest.write(frame(b"one"))
        assert await answer(reader) == b"one"
        assert server.asked.index(b"one") < 40, "it did not wait for all of the other's"
        greedy.close()
        modest.close()


async def test_a_stop_begins_nothing_that_was_sent_ahead() -> None:
    """A broker that stops aborts its connections: it is heard between two requests, not after all of them."""
    async with serving() as server:
        _, greedy = await server.peer()
        await eventually(lambda: len(server.connections) == 1)
        server.on_first = server.connections[0].abort
        greedy.write(frame(b"ahead") * 64)
        await eventually(lambda: server.connections[0]._is_over)
        assert 1 <= len(server.asked) < 40
        greedy.close()


async def test_bad_frames_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server:
        for _ in range(20):
            reader, writer = await server.peer()
            writer.write(struct.pack(">i", -5))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    assert caplog.text.count("a request of -5 bytes") == 1
