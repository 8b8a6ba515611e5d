"""The cost of compaction, and its effect on producers.

    python -m bench.compaction [--quick]

First, a log of 5,000,000 records with 100,000 keys and values of 100 bytes is written, and the broker's own cleaner
process compacts it; time, speed and memory are measured. Then a topic of 3,000,000 such records on a broker is changed
to `cleanup.policy=compact`. Before, during and after its compaction, a client sends records of 1 KB one by one to
another topic. `--quick` uses a tenth of the records.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer as ConfluentProducer

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.cleaning_process import CleaningProcess
from kraftpy.broker.storage.compaction_runner import carry_out
from kraftpy.client import Admin, NewTopic, Producer, ResourceType
from kraftpy.config.topic import TopicConfig
from kraftpy.log import compaction
from kraftpy.log.deletion import delete_files
from kraftpy.log.layout import CLEANER_OFFSETS
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import Millis

RECORDS, KEYS, VALUE_BYTES = 5_000_000, 100_000, 100
BROKER_RECORDS = 3_000_000
NOW = Millis(1_700_000_000_000)
TABLE, MEASURED = "table", "measured"
_BATCH = 100
_QUIET_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """The figures of one compacted log."""

    records: int
    seconds: float
    bytes_before: int
    bytes_after: int
    peak_mb: float
    """Resident memory of the process that cleaned, at most."""

    def __str__(self) -> str:
        speed, before, after = self.bytes_before / self.seconds / 1e6, self.bytes_before / 1e6, self.bytes_after / 1e6
        return (
            f"{self.records:,} records cleaned in {self.seconds:.1f} s, {speed:.0f} MB/s; "
            f"{before:.0f} MB became {after:.0f}; {self.peak_mb:.0f} MB of memory"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """The latencies of produce requests, in milliseconds."""

    requests: int
    p50_ms: float
    p99_ms: float
    worst_ms: float

    def __str__(self) -> str:
        return f"{self.requests:,} requests: p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, worst {self.worst_ms:.1f} ms"


def fill(directory: Path, records: int) -> PartitionLog:
    """Write a durable log of `records` records, with its last segment sealed."""
    topic = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=128 << 20)
    log = PartitionLog.open(OsDirectory(directory), topic, now=NOW, clean=True)
    rng = random.Random(1)
    value = rng.randbytes(VALUE_BYTES)
    for _ in range(records // _BATCH):
        batch = [(NOW, b"key-%08d" % rng.randrange(KEYS), value, ()) for _ in range(_BATCH)]
        log.append(bytearray(encode_batch(batch)), leader_epoch=0, now=NOW)
    log.roll(NOW)
    log.flush()
    return log


async def clean(log: PartitionLog, records: int) -> Cleaning:
    """Compact the whole log in a process, as the broker does."""
    process = CleaningProcess(float("inf"))
    job = compaction.begin(log, 0, NOW, compaction.decide(log, log.log_end_offset))
    assert job is not None
    peaks: list[int] = []

    async def watch() -> None:
        while True:
            peaks.extend(_peak_bytes(child) for child in psutil.Process().children())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    result = await carry_out(log, job, process.clean, lambda files: delete_files(log.directory, files))
    seconds = time.perf_counter() - began
    watching.cancel()
    await process.end()
    assert result is not None
    return Cleaning(
        records=records,
        seconds=seconds,
        bytes_before=result.bytes_before,
        bytes_after=result.bytes_after,
        peak_mb=max(peaks) / 1e6,
    )


def _peak_bytes(process: psutil.Process) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


async def latencies(bootstrap: str, is_over: Callable[[], bool]) -> list[float]:
    """Send records one by one until `is_over`; return their latencies in milliseconds."""
    taken: list[float] = []
    value = bytes(1024)
    async with Producer(bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, linger_ms=0) as producer:
        for _ in range(50):
            await producer.send_and_wait(MEASURED, value)  # warm
        while len(taken) < 100 or not is_over():
            began = time.perf_counter()
            await producer.send_and_wait(MEASURED, value)
            taken.append((time.perf_counter() - began) * 1000)
    return taken


def summary(taken: list[float]) -> Latencies:
    """Return their percentiles."""
    taken = sorted(taken)
    return Latencies(
        requests=len(taken), p50_ms=taken[len(taken) // 2], p99_ms=taken[len(taken) * 99 // 100], worst_ms=taken[-1]
    )


async def produce_meanwhile(broker: EmbeddedBroker, records: int) -> tuple[Latencies, Latencies]:
    """Return latencies at rest (before and after) and during compaction."""
    config = {"cleanup.policy": "delete", "segment.bytes": str(16 << 20), "file.delete.delay.ms": "0"}
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        topics = [NewTopic(name=TABLE, num_partitions=1, config=config), NewTopic(name=MEASURED, num_partitions=1)]
        await admin.create_topics(topics)
        await asyncio.to_thread(_fill_topic, broker.bootstrap, records)

        def after(seconds: float) -> Callable[[], bool]:
            ends = time.perf_counter() + seconds
            return lambda: time.perf_counter() > ends

        at_rest = await latencies(broker.bootstrap, after(_QUIET_SECONDS))
        await admin.alter_configs({(ResourceType.TOPIC, TABLE): {"cleanup.policy": "compact"}})
        await asyncio.to_thread(_wait_for_cleaner, broker)
        checkpoint = broker.data_dir / "logs" / CLEANER_OFFSETS
        cleaned = await latencies(
            broker.bootstrap, lambda: checkpoint.exists() and f"{TABLE} 0" in checkpoint.read_text()
        )
        at_rest += await latencies(broker.bootstrap, after(_QUIET_SECONDS))
    return summary(at_rest), summary(cleaned)


def _wait_for_cleaner(broker: EmbeddedBroker) -> None:
    while not psutil.Process(broker.pid).children():
        time.sleep(0.01)


def _fill_topic(bootstrap: str, records: int) -> None:
    rng = random.Random(2)
    value = rng.randbytes(VALUE_BYTES)
    producer = ConfluentProducer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 10**7}
    )
    for _ in range(records):
        producer.produce(TABLE, value, b"key-%08d" % rng.randrange(KEYS))
    if producer.flush(300):
        raise RuntimeError("the topic could not be filled")


def run(directory: Path, scale: float = 1.0) -> tuple[Cleaning, Latencies, Latencies]:
    """Run everything under `directory`."""
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        records = int(RECORDS * scale)
        cleaning = asyncio.run(clean(fill(Path(temporary) / "log-0", records), records))
    settings = {"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0.01"}
    with (
        tempfile.TemporaryDirectory(dir=directory) as temporary,
        EmbeddedBroker(temporary, settings=settings) as broker,
    ):
        at_rest, cleaned = asyncio.run(produce_meanwhile(broker, int(BROKER_RECORDS * scale)))
    return cleaning, at_rest, cleaned


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.compaction")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    cleaning, at_rest, cleaned = run(arguments.directory, 0.1 if arguments.quick else 1.0)
    print(cleaning)
    print(f"producing at rest:          {at_rest}")
    print(f"producing while it cleaned: {cleaned}")


if __name__ == "__main__":
    main()
