"""Describe the machine of a run, and keep its host's memory out of the measurement.

The host may back a virtual machine's memory only when it is first touched, and take it back some seconds after it was
freed. The page cache of a broker that writes a gigabyte then costs ten times as much as on memory that is backed, and
the host is measured instead. Right before a run, `warm` touches as much memory as the run will use, until that is as
fast as memory.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

PACKAGES = [
    "kraftpy",
    "confluent-kafka",
    "crc32c",
    "cramjam",
    "kafka-python",
    "aiokafka",
    "numpy",
    "pyarrow",
    "pyspark",
]
_WARM_BYTES_PER_S = 1.5e9
_WARM_ROUNDS = 5


def describe(under: Path) -> list[str]:
    """Describe processor, memory, file system, kernel and versions in lines; nothing that names the machine."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    memory = psutil.virtual_memory().total / 2**30
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"{_cpu_model()}, {os.cpu_count()} cores, {memory:.0f} GiB memory, data on {_file_system(under)}",
        f"{platform.system()} {platform.release().split('-')[0]}, {platform.python_implementation()} "
        f"{platform.python_version()}",
        ", ".join(found),
        *_idle(),
    ]


def _idle() -> list[str]:
    """Say what an idle processor of a virtual machine does, on which the cost of each wait depends."""
    try:
        polls_ns = int(Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns").read_text())
    except (OSError, ValueError):
        return []
    if not polls_ns:
        return ["idle processors leave the virtual machine at once"]
    return [f"idle processors poll for up to {polls_ns / 1000:.0f} us before they leave the virtual machine"]


def load_average() -> float:
    """Return the average number of runnable processes in the last minute."""
    return os.getloadavg()[0]


def warm(under: Path, size_bytes: int, write_bytes: int = 1_000_000) -> None:
    """Write that many bytes and delete them, until the kernel hands out pages that are backed.

    `write_bytes` should be the size of the run's writes, because the kernel keeps pages by the size of their groups.
    """
    chunk = bytes(write_bytes)
    path = under / f"kraftpy-bench-warm-{os.getpid()}"
    for _ in range(_WARM_ROUNDS):
        started = time.perf_counter()
        try:
            with path.open("wb", buffering=0) as file:
                for _ in range(0, size_bytes, write_bytes):
                    file.write(chunk)
            seconds = time.perf_counter() - started
        finally:
            path.unlink(missing_ok=True)
        if size_bytes / seconds >= _WARM_BYTES_PER_S:
            return


def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _file_system(under: Path) -> str:
    best, kind = "", "an unknown file system"
    for partition in psutil.disk_partitions(all=True):
        mount = partition.mountpoint
        if under.resolve().is_relative_to(mount) and len(mount) > len(best):
            best, kind = mount, partition.fstype
    return kind
