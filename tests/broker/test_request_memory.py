"""All connections share bounded memory, even if clients announce, hoard or do not read; and they give it back.

Tests about the frames of clients that have not logged in run with TLS and SASL in front of the connections too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from kraftpy.broker.connection import HOARDING_SECONDS, RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.request_memory import NO_LIMIT, SMALL_BYTES, RequestMemory
from kraftpy.broker.security.listeners import SecureListeners
from kraftpy.config import load
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import PLAIN_MODULE, secure_listeners

MIB = 1 << 20
MAX_FRAME_BYTES = 4 * MIB
BOUND_SECONDS = 20
ASK_VERSIONS = b"\x00\x12" + bytes(6)
"""The beginning of a request for the versions, which is answered before a client has logged in."""

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """The real connections, in front of answers that the test holds back or lets go."""

    def __init__(self, limit: int, tls: ssl.SSLContext | None) -> None:
        self.memory = RequestMemory(limit, MAX_FRAME_BYTES)
        self.tls = tls
        """With which a peer connects; None in clear text."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[bytes] = []
        self.connections: list[Connection] = []
        self._peers: list[asyncio.StreamWriter] = []
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
        peer = await asyncio.open_connection(*self.address, ssl=self.tls)
        self._peers.append(peer[1])
        return peer

    async def stop(self) -> None:
        """End every connection at both ends."""
        for connection in self.connections:
            connection.abort()
        for writer in self._peers:
            if not writer.is_closing():
                writer.transport.abort()
        async with asyncio.timeout(BOUND_SECONDS):
            for writer in self._peers:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        self._peers.clear()


class Listener:
    """A broker's listener, as far as it stands between a socket and a connection."""

    def __init__(self, name: str, secured: SecureListeners, certificates: Certificates) -> None:
        self.name = name
        self.tls = certificates.client() if name.endswith("SSL") else None
        """With which a client connects."""
        self._secured = secured

    def protocol(self, connection: Connection) -> asyncio.BaseProtocol:
        """Return the protocol for an accepted socket: to this client, who has not logged in."""
        return self._secured.protocol(self.name, connection, connection.answer)


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Listener]:
    """A listener of each protocol; before a login, frames may be as large as after it."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    names = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    settings = {
        "listeners": ",".join(f"{name}://{HOST}:{number}" for number, name in enumerate(names, 1)),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.server.max.receive.size": str(MAX_FRAME_BYTES),
        "log.dirs": "unused",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_a="b";'
            for name in names[2:]
        },
        **certificates.settings(),
    }
    secured = secure_listeners(load("".join(f"{name}={value}\n" for name, value in settings.items())).config)
    return {name: Listener(name, secured, certificates) for name in names}


@pytest.fixture(params=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def listener(request: pytest.FixtureRequest, listeners: dict[str, Listener]) -> Listener:
    """Each of them."""
    return listeners[request.param]


@contextlib.asynccontextmanager
async def serving(limit: int = NO_LIMIT, *, at: Listener | None = None) -> AsyncIterator[Server]:
    made, complaints = Server(limit, None if at is None else at.tls), Complaints()
    buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
    incidents = Incidents(complaints)
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, incidents)

        def accepted() -> asyncio.BaseProtocol:
            connection = Connection(
                made.answer,
                tasks=tasks,
                memory=made.memory,
                complaints=complaints,
                incidents=incidents,
                max_frame_bytes=MAX_FRAME_BYTES,
                receive_buffer=buffer,
                opened=made.opened,
                closed=lambda connection: None,
            )
            return connection if at is None else at.protocol(connection)

        listening = await asyncio.get_running_loop().create_server(accepted, HOST, 0, backlog=1000)
        made.address = listening.sockets[0].getsockname()
        try:
            yield made
        finally:
            listening.close()
            await made.stop()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def begun(size: int, sent: int) -> bytes:
    """The beginning of a frame of `size` bytes."""
    return struct.pack(">i", size) + ASK_VERSIONS[:sent].ljust(sent, b"\0")


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


async def test_what_is_announced_costs_no_more_than_what_arrives(listener: Listener) -> None:
    async with serving(at=listener) as server:
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
            for _, writer in peers:
                writer.transport.abort()
            server.connections.clear()
            del peers, writer
            # A compiled object cannot be referred to weakly.
            await eventually(lambda: not any(type(each) is Connection for each in gc.get_objects()))
        finally:
            gc.enable()
        assert server.memory.held == server.memory.receiving == 0


async def test_large_frames_that_do_not_fit_together_all_arrive(listener: Listener) -> None:
    """Send more of them at once, in pieces, than the memory holds: none waits forever, and the bound holds."""
    async with serving(limit=MAX_FRAME_BYTES, at=listener) as server:
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


async def test_who_hoards_is_closed_when_others_need_the_memory(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(limit=MAX_FRAME_BYTES, at=listener) as server:
        hoarders = [await server.peer() for _ in range(4)]
        for _, writer in hoarders:
            writer.write(begun(MAX_FRAME_BYTES, MIB))
        await eventually(lambda: sum(each.is_receiving for each in server.connections) == 4)
        for each in server.connections:
            began_long_ago(each)
        reader, writer = await server.peer()
        writer.write(begun(2 * MIB, 2 * MIB))
        assert await answer(reader) == ASK_VERSIONS
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


async def test_a_frame_that_does_not_get_on_is_overdue(listener: Listener) -> None:
    async with serving(at=listener) as server:
        _, slow = await server.peer()
        slow.write(begun(MAX_FRAME_BYTES, 1))
        await eventually(lambda: any(each.is_receiving for each in server.connections))
        (connection,) = server.connections
        began_at = connection._progress_at
        assert connection.overdue(began_at + 5, 10, 600) is None
        slow.write(ASK_VERSIONS[1:2])
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


async def test_the_beginning_of_a_size_is_the_beginning_of_a_frame(listener: Listener) -> None:
    async with serving(at=listener) as server:
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
