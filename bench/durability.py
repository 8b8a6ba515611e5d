"""The cost of a sync before each acknowledgement: latencies, requests per second and syncs, by number of producers.

    python -m bench.durability [--quick] [--directory DIR]

One node and three topics: by default, with `flush.messages=1`, and with `kraftpy.flush.before.ack`. Each producer has a
connection of its own and sends records of 1 KB one by one, to any of four partitions. The broker's process counts its
calls of `fdatasync` and `fsync` in a file that both processes map.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import runpy
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import PARTITIONS, ours
from kraftpy.client import Admin, NewTopic, Producer

MODES: dict[str, dict[str, str]] = {
    "default: the page cache": {},
    "`flush.messages=1`": {"flush.messages": "1"},
    "`kraftpy.flush.before.ack`": {"kraftpy.flush.before.ack": "true"},
}
PRODUCERS = (1, 16, 64)
RECORD_BYTES = 1024
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The figures of produce requests with one record each."""

    mode: str
    producers: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    syncs_per_request: float

    def __str__(self) -> str:
        return (
            f"{self.mode:28} {self.producers:3} producers: {self.requests_per_s:7,.0f} requests/s, p50 "
            f"{self.p50_ms:.2f}, p99 {self.p99_ms:.2f} ms, {self.syncs_per_request:.3f} syncs a request"
        )


def count_syncs(path: str) -> None:
    """Make this process count its syncs in a file from now on."""
    Path(path).write_bytes(bytes(_COUNT.size))
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), _COUNT.size)
    lock = threading.Lock()

    def counted(sync: Callable[[int], None]) -> Callable[[Any], None]:
        def call(descriptor: Any) -> None:
            with lock:
                _COUNT.pack_into(shared, 0, _COUNT.unpack_from(shared)[0] + 1)
            sync(descriptor)

        return call

    os.fdatasync, os.fsync = counted(os.fdatasync), counted(os.fsync)


def disk_ms(directory: Path, syncs: int = 200) -> float:
    """Return the median time (ms) of appending 1 KB to a file and syncing it."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for number in range(syncs):
            os.pwrite(file.fileno(), bytes(RECORD_BYTES), number * RECORD_BYTES)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return sorted(taken)[syncs // 2]


async def measure(bootstrap: str, topic: str, mode: str, producers: int, seconds: float, counter: Path) -> Found:
    """Produce for `seconds` and return the figures."""
    taken: list[float] = []
    value = bytes(RECORD_BYTES)
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(
                Producer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=False, linger_ms=0)
            )
            for _ in range(producers)
        ]
        for number, producer in enumerate(made):
            await producer.send_and_wait(topic, value, partition=number % PARTITIONS)

        async def produce(producer: Producer, number: int, ends: float) -> None:
            while (began := time.perf_counter()) < ends:
                await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
                taken.append((time.perf_counter() - began) * 1000)
                number += 1

        before, began = _syncs(counter), time.perf_counter()
        await asyncio.gather(*(produce(each, number, began + seconds) for number, each in enumerate(made)))
        spent, syncs = time.perf_counter() - began, _syncs(counter) - before
    taken.sort()
    return Found(
        mode=mode,
        producers=producers,
        requests_per_s=len(taken) / spent,
        p50_ms=taken[len(taken) // 2],
        p99_ms=taken[len(taken) * 99 // 100],
        syncs_per_request=syncs / len(taken),
    )


def _syncs(counter: Path) -> int:
    count: int = _COUNT.unpack(counter.read_bytes())[0]
    return count


async def compare(bootstrap: str, seconds: float, counter: Path) -> list[Found]:
    """Measure every mode with every number of producers."""
    topics = {mode: f"mode-{number}" for number, mode in enumerate(MODES)}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name=topics[mode], num_partitions=PARTITIONS, config=config) for mode, config in MODES.items()]
        )
    await measure(bootstrap, topics[next(iter(MODES))], "", 16, seconds / 2, counter)  # warm
    return [
        await measure(bootstrap, topics[mode], mode, producers, seconds, counter)
        for mode in MODES
        for producers in PRODUCERS
    ]


def run(directory: Path, seconds: float = 4.0) -> tuple[float, list[Found]]:
    """Run a broker under `directory`; return the disk's time for a sync, and the figures."""
    with tempfile.TemporaryDirectory(dir=directory) as aside:
        counter = Path(aside) / "syncs"
        with ours(directory, program=[sys.executable, "-m", "bench.durability", "serve", str(counter)]) as broker:
            return disk_ms(directory), asyncio.run(compare(broker.bootstrap, seconds, counter))


def main() -> None:
    """Print the figures."""
    if sys.argv[1:2] == ["serve"]:
        count_syncs(sys.argv[2])
        sys.argv[1:3] = []
        runpy.run_module("kraftpy", run_name="__main__", alter_sys=True)
        return
    parser = argparse.ArgumentParser(prog="python -m bench.durability")
    parser.add_argument("--quick", action="store_true", help="half a second each rather than 4")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    sync_ms, found = run(arguments.directory, 0.5 if arguments.quick else 4.0)
    print(f"a sync of 1 KB: {sync_ms:.2f} ms")
    for each in found:
        print(each)


if __name__ == "__main__":
    main()
