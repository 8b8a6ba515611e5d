"""Answers whose records go from a log's file to the socket: in order, whole, and with nothing held for a slow peer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_wire import StartBroker, answer, ask, connect, create_topic, fetch, produce, resident_mb

from kraftpy.broker.connection import RECEIVE_BUFFER_BYTES, Connection
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.response_writer import Part, Response
from kraftpy.broker.runtime import OsDirectory
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.results import LogSlice
from kraftpy.ports import Directory
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.record_batch import encode_batch, split_batches
from kraftpy.testing.memory_files import MemoryDisk

BOUND_SECONDS = 20
FILE_BYTES = 24 << 20


class Server:
    """A listening socket; what is asked for is a stretch of one file, between some bytes."""

    def __init__(self, directory: Directory) -> None:
        self.data = Random(5).randbytes(1 << 20) * (FILE_BYTES >> 20)
        self.directory = directory
        file = directory.open("log")
        file.write(0, self.data)
        file.close()
        self.handle = LazyFile(directory, "log", FileCache(4))
        self.connections: list[Connection] = []
        self.complaints = Complaints()
        self.address = ("", 0)

    def answer_to(self, position: int, length: int) -> bytes:
        body = b"before" + self.data[position : position + length] + b"between" + self.data[:100_000] + b"after"
        return struct.pack(">i", len(body)) + body

    async def answer(self, frame: bytearray, connection: Connection) -> Response | None:
        position, length = struct.unpack(">qq", frame)
        if not length:
            return struct.pack(">i", 5) + b"short"
        whole = self.answer_to(position, length)
        pieces: list[Part] = [
            whole[:10], LogSlice(self.handle, position, length, 0), b"between", LogSlice(self.handle, 0, 100_000, 0),
            b"after",
        ]  # fmt: skip
        return pieces

    def opened(self, connection: Connection) -> bool:
        self.connections.append(connection)
        return True


@contextlib.asynccontextmanager
async def serving(directory: Directory) -> AsyncIterator[Server]:
    made = Server(directory)
    loop = asyncio.get_running_loop()
    incidents = Incidents(made.complaints)
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, incidents)
        listening = await loop.create_server(
            lambda: Connection(
                made.answer,
                tasks=tasks,
                memory=RequestMemory(),
                complaints=made.complaints,
                incidents=incidents,
                max_frame_bytes=1 << 20,
                receive_buffer=memoryview(bytearray(RECEIVE_BUFFER_BYTES)),
                opened=made.opened,
                closed=lambda connection: None,
            ),
            "127.0.0.1",
            0,
        )
        made.address = listening.sockets[0].getsockname()
        yield made
        listening.close()
        for connection in made.connections:
            connection.abort()


def asking(position: int, length: int) -> bytes:
    return struct.pack(">iqq", 16, position, length)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_answers_are_whole_and_in_order(tmp_path: Path, kind: str) -> None:
    """Long, short, and both again; a file of the operating system's, and one that can only be copied."""
    directory: Directory = OsDirectory(tmp_path) if kind == "file" else MemoryDisk().root
    async with serving(directory) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1 << 16)
        wanted = [(0, 1), (0, 0), (7, 3_000_000), (0, 0), (0, 0), (1 << 20, 20 << 20), (5, 0), (11, 70_000)]
        writer.write(b"".join(asking(*each) for each in wanted))
        async with asyncio.timeout(BOUND_SECONDS):
            for position, length in wanted:
                expected = server.answer_to(position, length) if length else struct.pack(">i", 5) + b"short"
                assert await reader.readexactly(len(expected)) == expected
        writer.close()
        await eventually(lambda: not server.handle.pins)


async def test_a_peer_that_stops_reading_costs_no_memory_and_then_gets_it_all(tmp_path: Path) -> None:
    async with serving(OsDirectory(tmp_path)) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1 << 16)
        writer.write(asking(0, FILE_BYTES))
        await eventually(lambda: bool(server.connections) and server.handle.pins == 2)
        transport: Any = server.connections[0]._transport
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            await asyncio.sleep(0)
            assert transport.get_write_buffer_size() <= 10
        assert server.handle.pins == 2
        expected = server.answer_to(0, FILE_BYTES)
        async with asyncio.timeout(BOUND_SECONDS):
            assert await reader.readexactly(len(expected)) == expected
        await eventually(lambda: not server.handle.pins)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        writer.close()


@pytest.mark.parametrize("how", ["peer", "broker"])
async def test_a_connection_lost_midway_releases_the_file(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(OsDirectory(tmp_path)) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1 << 16)
        writer.write(asking(0, FILE_BYTES) * 2)
        await reader.readexactly(100_000)
        assert server.handle.pins == 2
        if how == "peer":
            writer.transport.abort()
        else:
            server.connections[0].abort()
        await eventually(lambda: not server.handle.pins)
        writer.close()
    assert caplog.messages == []


async def test_a_file_that_is_deleted_under_way_is_sent_to_its_end(tmp_path: Path) -> None:
    directory = OsDirectory(tmp_path)
    async with serving(directory) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1 << 16)
        writer.write(asking(0, FILE_BYTES))
        expected = server.answer_to(0, FILE_BYTES)
        async with asyncio.timeout(BOUND_SECONDS):
            assert await reader.readexactly(1000) == expected[:1000]
            server.handle.close()
            directory.delete("log")
            assert await reader.readexactly(len(expected) - 1000) == expected[1000:]
        writer.close()


async def test_a_file_that_becomes_shorter_costs_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The promised bytes cannot be sent, and nothing else may be sent in their place."""
    async with serving(OsDirectory(tmp_path)) as server:
        reader, writer = await asyncio.open_connection(*server.address, limit=1 << 16)
        writer.write(asking(0, FILE_BYTES) + asking(0, 0))
        expected = server.answer_to(0, FILE_BYTES)
        found = await reader.readexactly(100_000)
        os.truncate(tmp_path / "log", FILE_BYTES // 2)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(BOUND_SECONDS):
                while more := await reader.read(1 << 20):
                    found += more
        assert len(found) < len(expected)
        assert expected.startswith(found)
        await eventually(lambda: not server.handle.pins)
        writer.close()
    assert any("early" in line for line in caplog.messages)


# --- a broker ---------------------------------------------------------------------------------------------------------


def wanted(topic: str, offsets: dict[int, int], bytes_each: int) -> FetchRequest:
    partitions = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=bytes_each)
        for number, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, topics=[FetchTopic(topic=topic, partitions=partitions)]
    )


@pytest.mark.parametrize("least", ["0", "1000", "2147483647"])
def test_both_ways_give_the_same(start_broker: StartBroker, least: str) -> None:
    """Several partitions in one answer, sealed segments and the one that is written, in every version."""
    broker = start_broker(settings={"kraftpy.fetch.zero.copy.min.bytes": least})
    dice = Random(3)
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "mixed", 3, internal_segment_bytes="30000")
        written: list[list[bytes]] = [[], [], []]
        for number in range(60):
            data = encode_batch([(1, None, dice.randbytes(dice.choice([10, 900, 5000])), ())])
            assert produce(connection, "mixed", data, partition=number % 3).error_code == ErrorCode.NONE
            written[number % 3].append(data[21:])  # the bytes that the broker does not stamp
        for version in (4, 11, 12):
            found: list[list[bytes]] = [[], [], []]
            offsets = dict.fromkeys(range(3), 0)
            while any(offset < 20 for offset in offsets.values()):
                answered = ask(connection, ApiKey.FETCH, version, wanted("mixed", offsets, 8000)).responses[0]
                for partition in answered.partitions:
                    assert partition.error_code == ErrorCode.NONE
                    for header, data in split_batches(partition.records):
                        assert header.base_offset == offsets[partition.partition_index]
                        found[partition.partition_index].append(bytes(data[21:]))
                        offsets[partition.partition_index] = header.next_offset
            assert found == written
    assert "Traceback" not in broker.log_text


def test_slow_readers_of_a_deleted_topic(start_broker: StartBroker) -> None:
    """Ten readers that do not read 8 MB each: the broker holds none of it; a deleted topic is sent to its end."""
    broker = start_broker(settings={"kraftpy.fetch.zero.copy.min.bytes": "1000"})
    with connect(broker.bootstrap) as connection, contextlib.ExitStack() as stack:
        create_topic(connection, "wide")
        for _ in range(9):
            assert produce(connection, "wide", encode_batch([(1, None, bytes(900_000), ())])).error_code == 0
        fetch(connection, "wide", 0)
        before = resident_mb(broker.pid)
        request = wanted("wide", {0: 0}, 50 << 20)
        slow: list[socket.socket] = []
        for _ in range(10):
            each = stack.enter_context(connect(broker.bootstrap))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 300_000)
            each.sendall(encode_request(ApiKey.FETCH, 12, 7, "slow", request))
            each.recv(1, socket.MSG_PEEK)  # the answer has begun
            slow.append(each)
        assert resident_mb(broker.pid) - before < 30
        ask(connection, ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["wide"], timeout_ms=5000))
        for each in slow:
            found = answer(each, ApiKey.FETCH, 12).responses[0].partitions[0]
            assert len(split_batches(found.records)) == 9
    assert "Traceback" not in broker.log_text
