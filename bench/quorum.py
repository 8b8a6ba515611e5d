"""The effect of the metadata quorum's syncs on producers: latencies with and without a stream of metadata writes.

    python -m bench.quorum [--quick]

One node has its metadata journal and its logs on one disk. A client sends records of 1 KB one by one, without
lingering, and another changes a topic's setting a hundred times a second, which syncs the journal each time. The
journal is synced in a thread, so the producer should not wait for it, except for the processor that they share.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.brokers import ours
from kraftpy.client import Admin, NewTopic, Producer, ResourceType

TOPIC, CHANGED = "measured", "changed"
PACE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """The latencies of produce requests, in milliseconds, and the number of metadata writes meanwhile."""

    requests: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    metadata_writes: int

    def __str__(self) -> str:
        return (
            f"{self.requests} requests: p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, worst {self.worst_ms:.1f} ms; "
            f"{self.metadata_writes} metadata writes"
        )


def _producer(bootstrap: str) -> Producer:
    return Producer(bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, linger_ms=0)


async def measure(bootstrap: str, seconds: float, *, with_writes: bool) -> Latencies:
    """Produce for `seconds` and return the latencies."""
    writes = 0
    taken: list[float] = []
    async with Admin(bootstrap_servers=bootstrap) as admin, _producer(bootstrap) as producer:

        async def change() -> None:
            nonlocal writes
            while True:
                setting = {"retention.ms": str(1_000_000 + writes)}
                await admin.alter_configs({(ResourceType.TOPIC, CHANGED): setting})
                writes += 1
                await asyncio.sleep(PACE_S)

        changing = asyncio.create_task(change()) if with_writes else None
        value = bytes(1024)
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            await producer.send_and_wait(TOPIC, value)
            taken.append((time.perf_counter() - began) * 1000)
        if changing is not None:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
    taken.sort()
    return Latencies(
        requests=len(taken),
        p50_ms=taken[len(taken) // 2],
        p99_ms=taken[len(taken) * 99 // 100],
        worst_ms=taken[-1],
        metadata_writes=writes,
    )


async def compare(bootstrap: str, seconds: float) -> tuple[Latencies, Latencies]:
    """Measure without and with metadata writes."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=TOPIC, num_partitions=1), NewTopic(name=CHANGED, num_partitions=1)])
    await measure(bootstrap, seconds / 4, with_writes=True)  # warm
    return await measure(bootstrap, seconds, with_writes=False), await measure(bootstrap, seconds, with_writes=True)


def run(directory: Path, seconds: float = 20.0) -> tuple[Latencies, Latencies]:
    """Run a broker under `directory`, without and with metadata writes."""
    with ours(directory) as broker:
        return asyncio.run(compare(broker.bootstrap, seconds))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.quorum")
    parser.add_argument("--quick", action="store_true", help="3 seconds each rather than 20")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    without, with_writes = run(arguments.directory, 3.0 if arguments.quick else 20.0)
    print(f"without metadata writes: {without}")
    print(f"with metadata writes:    {with_writes}")


if __name__ == "__main__":
    main()
