"""One connection: bytes in any pieces, answers in the order asked, and a bound on what a peer can make it hold."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from kraftpy.broker.connection import RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.protocol.errors import ProtocolError

SEED = 20261121
MAX_FRAME_BYTES = 1 << 20
BOUND_SECONDS = 20


class Server:
    """A listening socket whose connections are the real ones; answers are made by the test."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.connections: list[Connection] = []
        self.closed: list[Connection] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.accepts = True
        self.memory = RequestMemory()
        self.complaints = Complaints()
        self.address = ("", 0)

    async def answer(self, frame: bytearray, connection: Connection) -> bytes | None:
        self.asked.append(bytes(frame))
        await self.gate.wait()
        if frame.startswith(b"bad"):
            raise ProtocolError("bad frame")
        if frame.startswith(b"mistake"):
            raise RuntimeError("a mistake of ours")
        if frame.startswith(b"silent"):
            return None
        if frame.startswith(b"large"):
            return struct.pack(">i", 1 << 20) + bytes(1 << 20)
        return struct.pack(">i", len(frame)) + bytes(frame)

    def opened(self, connection: Connection) -> bool:
        self.connections.append(connection)
        return self.accepts


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
    loop = asyncio.get_running_loop()
    incidents = Incidents(made.complaints)
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, incidents)
        listening = await loop.create_server(
            lambda: Connection(
                made.answer,
                tasks=tasks,
                memory=made.memory,
                complaints=made.complaints,
                incidents=incidents,
                max_frame_bytes=MAX_FRAME_BYTES,
                receive_buffer=buffer,
                opened=made.opened,
                closed=made.closed.append,
            ),
            "127.0.0.1",
            0,
        )
        made.address = listening.sockets[0].getsockname()
        yield made
        listening.close()
        for connection in made.connections:
            connection.abort()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for belongs to the broker, which sets no event
            await asyncio.sleep(0.001)


async def read_frames(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    found = []
    async with asyncio.timeout(BOUND_SECONDS):
        for _ in range(count):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            found.append(await reader.readexactly(size))
    return found


async def test_frames_byte_by_byte(server: Server) -> None:
    bodies = [b"a", b"", b"four", b"x" * 300]
    reader, writer = await asyncio.open_connection(*server.address)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"".join(map(frame, bodies)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert await read_frames(reader, len(bodies)) == bodies
    writer.close()


async def test_frames_torn_anywhere(server: Server) -> None:
    chance = Random(SEED)
    bodies = [chance.randbytes(chance.choice((0, 1, 3, 100, 5000, 70_000, 300_000))) for _ in range(60)]
    stream = b"".join(map(frame, bodies))
    reader, writer = await asyncio.open_connection(*server.address)

    async def send() -> None:
        position = 0
        while position < len(stream):
            piece = chance.choice((1, 2, 3, 5, 1000, 65_536, 400_000))
            writer.write(stream[position : position + piece])
            position += piece
            await writer.drain()
            await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    assert await read_frames(reader, len(bodies)) == bodies
    await sending
    writer.close()


async def test_two_connections_in_turn_do_not_mix(server: Server) -> None:
    """They share the buffer they are read into."""
    chance = Random(SEED)
    peers = [await asyncio.open_connection(*server.address) for _ in range(4)]
    bodies = [[bytes([number]) * chance.randrange(1, 2000) for _ in range(50)] for number in range(4)]
    streams = [b"".join(map(frame, mine)) for mine in bodies]
    while any(streams):
        for number, (_, writer) in enumerate(peers):
            piece = chance.randrange(1, 3000)
            writer.write(streams[number][:piece])
            streams[number] = streams[number][piece:]
        await asyncio.sleep(0)
    for (reader, writer), mine in zip(peers, bodies, strict=True):
        assert await read_frames(reader, len(mine)) == mine
        writer.close()


async def test_answers_leave_in_the_order_asked(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    server.gate.clear()
    bodies = [b"%d" % number for number in range(500)]
    writer.write(b"".join(map(frame, bodies)))
    await eventually(lambda: len(server.asked) == 1)
    assert server.asked == [b"0"], "one at a time"
    server.gate.set()
    assert await read_frames(reader, 500) == bodies
    writer.close()


async def test_a_request_without_an_answer_holds_nothing_up(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(frame(b"silent") + frame(b"next"))
    assert await read_frames(reader, 1) == [b"next"]
    writer.close()


@pytest.mark.parametrize("body", [struct.pack(">i", -1), struct.pack(">i", MAX_FRAME_BYTES + 1), frame(b"bad")])
async def test_what_is_malformed_closes_and_what_came_before_is_answered(server: Server, body: bytes) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(frame(b"good"))
    assert await read_frames(reader, 1) == [b"good"]
    writer.write(body)
    async with asyncio.timeout(BOUND_SECONDS):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    await eventually(lambda: len(server.closed) == 1)
    writer.close()


async def test_a_mistake_of_ours_costs_one_connection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    other_reader, other_writer = await asyncio.open_connection(*server.address)
    writer.write(frame(b"mistake"))
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert "unexpected error" in caplog.text
    other_writer.write(frame(b"still"))
    assert await read_frames(other_reader, 1) == [b"still"]
    writer.close()
    other_writer.close()


async def test_a_peer_that_leaves_ends_what_it_waited_for(server: Server) -> None:
    server.gate.clear()
    _, writer = await asyncio.open_connection(*server.address)
    writer.write(frame(b"wait"))
    await eventually(lambda: len(server.asked) == 1)
    writer.close()
    await eventually(lambda: len(server.closed) == 1)


async def test_requests_that_have_arrived_are_served_when_the_peer_leaves(server: Server) -> None:
    """A producer with acks=0 closes its socket as soon as it has sent its last request."""
    server.gate.clear()
    _, writer = await asyncio.open_connection(*server.address)
    bodies = [b"silent %d" % number for number in range(50)]
    writer.write(b"".join(map(frame, bodies)))
    await eventually(lambda: len(server.asked) == 1)
    writer.close()
    await eventually(lambda: server.connections[0]._peer_has_left)
    assert not server.closed
    server.gate.set()
    await eventually(lambda: len(server.closed) == 1)
    assert server.asked == bodies


async def test_answers_that_the_peer_no_longer_takes_end_its_connection(server: Server) -> None:
    server.gate.clear()
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"".join(frame(b"large") for _ in range(50)))
    await eventually(lambda: len(server.asked) == 1)
    writer.close()
    await eventually(lambda: server.connections[0]._peer_has_left)
    server.gate.set()
    await eventually(lambda: len(server.closed) == 1)
    assert len(server.asked) < 50
    assert await reader.read() == b""


async def test_a_peer_that_asks_and_does_not_read_is_not_served_on(server: Server) -> None:
    """Answers pile up in one place only: the next request is not begun before the last answer is on its way."""
    reader, writer = await asyncio.open_connection(*server.address)
    requests = 200
    writer.write(b"".join(frame(b"large") for _ in range(requests)))
    await eventually(lambda: len(server.asked) > 1)
    served = -1
    while served != len(server.asked):  # until the sockets are full
        served = len(server.asked)
        await asyncio.sleep(0.05)
    assert served < 20, "20 MB at most wait in the kernel's buffers"
    answers = await read_frames(reader, requests)
    assert {len(each) for each in answers} == {1 << 20}
    writer.close()


async def test_a_peer_that_sends_and_is_not_served_is_not_read_on(server: Server) -> None:
    """Behind a long poll, a queue of a bounded size: not what the peer likes to send."""
    server.gate.clear()
    loop = asyncio.get_running_loop()
    peer = socket.create_connection(server.address)
    peer.setblocking(False)
    large = frame(bytes(MAX_FRAME_BYTES))
    sent = 0
    try:
        while sent < 100 * len(large):
            async with asyncio.timeout(0.3):
                await loop.sock_sendall(peer, large)
            sent += len(large)
    except TimeoutError:
        pass
    held = sum(connection._queued_bytes for connection in server.connections)
    assert held <= 2 * MAX_FRAME_BYTES
    assert sent < 20 * len(large), "the rest waits in the peer"
    peer.close()


async def test_a_refused_connection_is_closed(server: Server) -> None:
    server.accepts = False
    reader, writer = await asyncio.open_connection(*server.address)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


async def test_a_connection_to_a_broker_that_has_failed_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """A failed broker cancels all its tasks and starts no more; the listener closes a moment later."""
    loop = asyncio.get_running_loop()
    made, closed = Server(), asyncio.Event()
    incidents = Incidents(made.complaints)
    buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    async def fail() -> None:
        raise RuntimeError("the disk")

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await closed.wait()  # as a broker that is about to end does
            raise

    async def broker() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, incidents)
            group.create_task(linger())
            listening = await loop.create_server(
                lambda: Connection(
                    made.answer,
                    tasks=tasks,
                    memory=made.memory,
                    complaints=made.complaints,
                    incidents=incidents,
                    max_frame_bytes=MAX_FRAME_BYTES,
                    receive_buffer=buffer,
                    opened=made.opened,
                    closed=made.closed.append,
                ),
                "127.0.0.1",
                0,
            )
            listeners.append(listening)
            host, port = listening.sockets[0].getsockname()
            failing = group.create_task(fail())
            askers.append(loop.create_task(_is_closed(host, port, failing, closed)))

    askers: list[asyncio.Task[bool]] = []
    listeners: list[asyncio.Server] = []
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await broker()
    assert await askers[0]
    listeners[0].close()
    assert len(made.closed) == 1
    assert "Traceback" not in caplog.text


async def _is_closed(host: str, port: int, failing: asyncio.Task[None], closed: asyncio.Event) -> bool:
    await asyncio.wait([failing])
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                return await reader.read(1) == b""
            return True
    finally:
        writer.close()
        closed.set()
