"""Many partitions on one node: the cost of an idle partition, and of thousands of them.

The server may open 1,024 files. It is stopped and started, receives records for each partition, is killed and started
again. Memory is resident set size, before and after the partitions are created; each part of the server that creates
them has been used once before. Descriptors are counted through /proc, every few milliseconds for their maximum.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from bench.brokers import bootstrap_of, server_command
from kraftpy.client import Admin, Consumer, NewTopic, Producer, TopicPartition

PARTITIONS: Final = 5000
FILES: Final = 1024
TARGET_START_S: Final = 10.0
TARGET_KB: Final = 10.0
TOPICS: Final = 500
_IDLE_S: Final = 10.0
_SETTLE_S: Final = 2.0  # work that is left to be done is not memory at rest
_DEADLINE_S: Final = 120.0
_SAMPLE_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Seconds, kB per partition, descriptors, and use of one core in per cent."""

    create_one_topic_s: float
    create_many_topics_s: float
    idle_kb: float
    used_kb: float
    idle_cpu_percent: float
    files_at_rest: int
    files_at_most: int
    produce_s: float
    consume_s: float
    stop_s: float
    start_after_stop_s: float
    start_after_kill_s: float


class _Server:
    """A server with few descriptors, on a directory that outlives it."""

    def __init__(self, directory: Path) -> None:
        started = time.perf_counter()
        command = ["sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh", *server_command(directory)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.process = psutil.Process(self._process.pid)
        assert self._process.stdout is not None
        self.bootstrap = bootstrap_of(self._process.stdout.readline())
        self.start_s = time.perf_counter() - started
        self.files_at_most = 0
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def __enter__(self) -> _Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    @property
    def files(self) -> int:
        """Return the number of open descriptors."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    @property
    def resident_kb(self) -> float:
        """Return the resident set size in kB."""
        return float(self.process.memory_info().rss) / 1e3

    def cpu_percent(self, seconds: float) -> float:
        """Return the use of one core over `seconds`, in per cent."""
        before = self.process.cpu_times()
        time.sleep(seconds)
        after = self.process.cpu_times()
        return (after.user + after.system - before.user - before.system) / seconds * 100

    def stop(self) -> float:
        """Stop it cleanly; return the time it took."""
        started = time.perf_counter()
        self._process.terminate()
        self._end()
        if self._process.returncode:
            raise RuntimeError(f"the server ended with status {self._process.returncode}")
        return time.perf_counter() - started

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(_DEADLINE_S)
        finally:
            self._process.kill()
            self._process.communicate()
            self._is_over.set()
            self._sampler.join()

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            try:
                self.files_at_most = max(self.files_at_most, self.files)
            except OSError:
                return


def run(under: Path) -> Found:
    """Run everything."""
    with _directory(under) as directory, _Server(directory) as server:
        create_many_topics_s = asyncio.run(_create(server.bootstrap, TOPICS, PARTITIONS // TOPICS))
    with _directory(under) as directory:
        with _Server(directory) as server:
            asyncio.run(_use("warm", server.bootstrap, 1))
            time.sleep(_SETTLE_S)
            before_kb = server.resident_kb
            create_one_topic_s = asyncio.run(_create(server.bootstrap, 1, PARTITIONS))
            time.sleep(_SETTLE_S)
            idle_kb = (server.resident_kb - before_kb) / PARTITIONS
            files_at_rest = server.files
            idle_cpu_percent = server.cpu_percent(_IDLE_S)
            produce_s, consume_s = asyncio.run(_use("topic-0", server.bootstrap, PARTITIONS))
            used_kb = (server.resident_kb - before_kb) / PARTITIONS
            stop_s = server.stop()
            files_at_most = server.files_at_most
        with _Server(directory) as server:
            start_after_stop_s = server.start_s
            asyncio.run(_produce("topic-0", server.bootstrap, PARTITIONS))
            server.kill()
            files_at_most = max(files_at_most, server.files_at_most)
        with _Server(directory) as server:
            start_after_kill_s = server.start_s
            asyncio.run(_consume("topic-0", server.bootstrap, PARTITIONS, 2))
            files_at_most = max(files_at_most, server.files_at_most)
    return Found(
        create_one_topic_s=create_one_topic_s,
        create_many_topics_s=create_many_topics_s,
        idle_kb=idle_kb,
        used_kb=used_kb,
        idle_cpu_percent=idle_cpu_percent,
        files_at_rest=files_at_rest,
        files_at_most=files_at_most,
        produce_s=produce_s,
        consume_s=consume_s,
        stop_s=stop_s,
        start_after_stop_s=start_after_stop_s,
        start_after_kill_s=start_after_kill_s,
    )


@contextmanager
def _directory(under: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-bench-", dir=under))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


async def _create(bootstrap: str, topics: int, partitions: int) -> float:
    """Create topics; return the time it took."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        started = time.perf_counter()
        await admin.create_topics(
            [NewTopic(name=f"topic-{number}", num_partitions=partitions) for number in range(topics)]
        )
        return time.perf_counter() - started


async def _use(topic: str, bootstrap: str, partitions: int) -> tuple[float, float]:
    """Write a record to each partition, creating missing topics, and read all; return both times."""
    return await _produce(topic, bootstrap, partitions), await _consume(topic, bootstrap, partitions, 1)


async def _produce(topic: str, bootstrap: str, partitions: int) -> float:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        started = time.perf_counter()
        for number in range(partitions):
            await producer.send(topic, b"value", partition=number)
        await producer.flush()
        return time.perf_counter() - started


async def _consume(topic: str, bootstrap: str, partitions: int, each: int) -> float:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(topic, number) for number in range(partitions))
        started = time.perf_counter()
        missing = partitions * each
        while missing:
            found = await consumer.getmany(timeout_ms=_DEADLINE_S * 1000)
            if not found:
                raise RuntimeError(f"{missing} records of {topic} were not to be had")
            missing -= sum(map(len, found.values()))
        return time.perf_counter() - started
