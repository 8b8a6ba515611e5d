"""The recovery of a node after SIGKILL: time from its start to the first record fetched, and the bytes that it scans.

Several topics of four partitions are filled with records of 1 KB through a real server, which is then killed without
warning. It is started twice: on the files as they are, and (killed once more) without its recovery points, which is the
worst case: every byte of every log is read and checked.

Run: python -m bench.recovery [GIB] [--topics N] [--directory DIR]     (default 10; needs that much disk)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.brokers import PARTITIONS, Running, bootstrap_of, server_command
from kraftpy.broker.runtime import OsDirectory
from kraftpy.log import layout

RECORD_BYTES = 1000
TARGET_S = 10.0
SETTINGS = ("linger.ms=50", "batch.size=1000000", "compression.type=none")
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One start after SIGKILL."""

    what: str
    behind_gb: float
    """Behind the recovery points, from the beginning of a segment: what has to be read."""
    ready_s: float
    fetched_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The size of the log, and the figures of each restart."""

    gigabytes: float
    partitions: int
    restarts: list[Restart]


def run(gibibytes: float, under: Path, *, topics: int = 2) -> Found:
    """Fill a node, kill it, and measure how soon it serves again."""
    names = [f"topic-{number}" for number in range(topics)]
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-", dir=under) as name:
        directory = Path(name)
        with _server(directory) as (broker, _):
            count = int(gibibytes * (1 << 30) / RECORD_BYTES)
            arguments = ["--topics", ",".join(names), "--count", str(count), "--size", str(RECORD_BYTES)]
            arguments += ["--partitions", str(PARTITIONS)]
            broker.load("produce", *arguments, *(part for each in SETTINGS for part in ("--setting", each)))
        restarts = [_restart("as it was left", directory, names[0])]
        (directory / layout.RECOVERY_POINTS).unlink(missing_ok=True)
        restarts.append(_restart("without recovery points", directory, names[0]))
        written = sum(file.stat().st_size for file in directory.glob("*/*.log"))
    return Found(gigabytes=written / 1e9, partitions=topics * PARTITIONS, restarts=restarts)


@contextmanager
def _server(directory: Path) -> Iterator[tuple[Running, float]]:
    """Run a server on that directory, with its start-up time; kill it at the end."""
    started = time.perf_counter()
    process = subprocess.Popen(server_command(directory), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        bootstrap = bootstrap_of(process.stdout.readline())
        ready_s = time.perf_counter() - started
        yield Running(name="kraftpy", bootstrap=bootstrap, process=psutil.Process(process.pid)), ready_s
    finally:
        process.kill()
        process.communicate()


def _restart(what: str, directory: Path, topic: str) -> Restart:
    behind = _behind_recovery_points(directory)
    started = time.perf_counter()
    with _server(directory) as (broker, ready_s):
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "bench", "fetch.wait.max.ms": 10, "log_level": 0}
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(_PATIENCE_S)
        fetched_s = time.perf_counter() - started
        consumer.close()
        if message is None or message.error() is not None:
            raise RuntimeError("no record came back")
    return Restart(what=what, behind_gb=behind / 1e9, ready_s=ready_s, fetched_s=fetched_s)


def _behind_recovery_points(directory: Path) -> int:
    """Return the bytes of the segments that are not wholly before their partition's recovery point."""
    points = layout.read_offsets(OsDirectory(directory), layout.RECOVERY_POINTS)
    behind = 0
    for partition in layout.partitions(OsDirectory(directory)):
        files = sorted((directory / str(partition)).glob("*.log"))
        first = bisect_right([int(file.stem) for file in files], points.get(partition, 0)) - 1
        behind += sum(file.stat().st_size for file in files[max(0, first) :])
    return behind


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("gibibytes", type=float, nargs="?", default=10.0)
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    arguments = parser.parse_args()
    found = run(arguments.gibibytes, arguments.directory, topics=arguments.topics)
    print(f"{found.gigabytes:.1f} GB in {found.partitions} partitions, SIGKILL")
    for each in found.restarts:
        print(
            f"{each.what}: {each.behind_gb:.2f} GB to be read again, ready after {each.ready_s:.2f} s, "
            f"first record fetched after {each.fetched_s:.2f} s"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
