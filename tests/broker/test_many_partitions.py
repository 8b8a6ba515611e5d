"""More partitions than the server may have files open: made, written, read, stopped, started, killed, started again."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from kraftpy.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from kraftpy.testing.server_process import ServerProcess

FILES = 256
PARTITIONS = 600
FILES_OF_LOGS = FILES // 4
FILES_OTHERWISE = 40  # the journal, the locks, the listener, a client or two; few of them at a time
DEADLINE_S = 120.0
TOPIC = "many"


class Server:
    """A server that the kernel lets have few files open."""

    def __init__(self, directory: Path, *settings: str) -> None:
        overrides = [f"log.dirs={directory / 'data'}", "listeners=PLAINTEXT://127.0.0.1:0", *settings]
        self._process = ServerProcess(
            [part for override in overrides for part in ("--override", override)],
            log=directory / "server.log",
            open_files=FILES,
            own_session=False,
        )
        ready = self._process.wait_ready(time.monotonic() + DEADLINE_S)
        found = re.search(r"PLAINTEXT://(\S+:\d+)", ready)
        assert found is not None, ready
        self.bootstrap = found[1]
        self._watched = psutil.Process(self._process.pid)
        self.most_files = 0

    @property
    def files(self) -> int:
        return self._watched.num_fds()

    @property
    def log_text(self) -> str:
        return self._process.log_text

    def end(self, number: signal.Signals) -> int:
        return self._process.end(number, DEADLINE_S)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Note how many files it has open at most."""
        is_over = threading.Event()

        def count() -> None:
            while not is_over.wait(0.005):
                try:
                    self.most_files = max(self.most_files, self.files)
                except psutil.Error:
                    return

        counting = threading.Thread(target=count, name="counting")
        counting.start()
        try:
            yield
        finally:
            is_over.set()
            counting.join()


async def create(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS)])


async def write(bootstrap: str, value: bytes) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for delivery in [await producer.send(TOPIC, value, partition=number) for number in range(PARTITIONS)]:
            await delivery


async def read(bootstrap: str, each: int) -> dict[int, list[bytes | None]]:
    values: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
        deadline = time.monotonic() + DEADLINE_S
        while sum(map(len, values.values())) < PARTITIONS * each and time.monotonic() < deadline:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                values[partition.partition] += [record.value for record in records]
    return values


def test_more_partitions_than_descriptors(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        with server.counted():
            asyncio.run(create(server.bootstrap))
            assert server.files < FILES_OTHERWISE, "a partition that was made and not used holds no file"
            asyncio.run(write(server.bootstrap, b"1"))
            assert asyncio.run(read(server.bootstrap, 1)) == {key: [b"1"] for key in range(PARTITIONS)}
            assert server.files < FILES_OF_LOGS + FILES_OTHERWISE
            assert server.end(signal.SIGTERM) == 0
        assert server.most_files <= FILES

        server = Server(tmp_path, "kraftpy.flush.before.ack=true")
        with server.counted():
            assert server.files < FILES_OTHERWISE, "a start leaves no file of a partition open"
            asyncio.run(write(server.bootstrap, b"2"))
            server.end(signal.SIGKILL)

        server = Server(tmp_path)
        assert asyncio.run(read(server.bootstrap, 2)) == {key: [b"1", b"2"] for key in range(PARTITIONS)}
        assert server.end(signal.SIGTERM) == 0
        assert " ERROR " not in server.log_text
        assert " CRITICAL " not in server.log_text
    finally:
        server.end(signal.SIGKILL)
