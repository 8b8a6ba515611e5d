"""Start-up time and idle memory of `kraftpy server`: each start is a new process, with a warm disk cache.

A start is timed from the creation of the process to the first ApiVersions response, by a client that tries to connect
every millisecond; then once more, on the directory of the first start, which SIGTERM ended. Memory is resident set
size, including shared libraries.
"""

from __future__ import annotations

import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.brokers import ours, server_command
from kraftpy.testing.ports import ReservedPorts

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_DEADLINE_S = 30.0
TARGET_S = 0.5
TARGET_MB = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Medians: seconds of starts on a new and on a used directory, MB before and after use."""

    runs: int
    new_s: float
    worst_new_s: float
    again_s: float
    import_free_s: float
    """The time of a Python that does nothing, for comparison."""
    started_mb: float
    used_mb: float


def run(under: Path, *, runs: int = 11, idle_s: float = 10.0) -> Starts:
    """Start it `runs` times."""
    new, again, nothing = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="kraftpy-bench-", dir=under) as directory:
            new.append(_start(Path(directory)))
            again.append(_start(Path(directory)))
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)
        nothing.append(time.perf_counter() - started)
    with ours(under) as broker:
        started_mb = broker.process.memory_info().rss / 1e6
        broker.load("produce", "--count", "10000", "--topics", "memory")
        broker.load("consume", "--topics", "memory")
        time.sleep(idle_s)
        used_mb = broker.process.memory_info().rss / 1e6
    return Starts(
        runs=runs,
        new_s=statistics.median(new),
        worst_new_s=max(new),
        again_s=statistics.median(again),
        import_free_s=statistics.median(nothing),
        started_mb=started_mb,
        used_mb=used_mb,
    )


def _start(directory: Path) -> float:
    """Return the seconds from the start of the process to its first response; end it with SIGTERM."""
    ports = ReservedPorts()
    port = ports.reserve()
    started = time.perf_counter()
    process = subprocess.Popen(server_command(directory, port=port), stdout=subprocess.DEVNULL)
    try:
        while not _answers(port):
            if process.poll() is not None or time.perf_counter() - started > _DEADLINE_S:
                raise RuntimeError(f"no server after {time.perf_counter() - started:.1f} s")
            time.sleep(0.001)
        return time.perf_counter() - started
    finally:
        ports.close()
        process.terminate()
        try:
            process.wait(_DEADLINE_S)
        finally:
            if psutil.pid_exists(process.pid):
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S) as client:
            client.sendall(_API_VERSIONS)
            return len(client.recv(8)) == 8
    except ConnectionError:
        return False
