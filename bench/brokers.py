"""The two brokers to measure, each in its own process: ours on a fresh directory, and librdkafka's mock.

Our broker is started like an ordinary server, with four partitions per topic like the mock, and is ended with SIGKILL:
its data are discarded, so it need not make them durable.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PARTITIONS = 4
SMALL_LOGS = {
    "log.retention.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.bytes": str(64 << 20),
}
"""Settings with which a long run does not fill the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A broker that answers."""

    name: str
    bootstrap: str
    process: psutil.Process

    def load(self, what: str, *arguments: str, before: Callable[[], None] | None = None) -> dict[str, Any]:
        """Run `bench.load` against it; return its figures, and `broker_cpu`, the broker's seconds of processor time.

        `before` is called when a producer is ready to send.
        """
        command = [sys.executable, "-m", "bench.load", what, "--bootstrap", self.bootstrap, *arguments]
        if before is not None:
            command.append("--wait")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if before is not None:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError(f"{command} did not get ready")
                before()
            used = self.cpu_seconds()
            output, _ = process.communicate("go\n" if before is not None else "")
        if process.returncode:
            raise RuntimeError(f"{command} failed")
        figures: dict[str, Any] = json.loads(output)
        figures["broker_cpu"] = self.cpu_seconds() - used
        return figures

    def cpu_seconds(self) -> float:
        """Return the processor time it has used."""
        times = self.process.cpu_times()
        return times.user + times.system


PROGRAM = (sys.executable, "-m", "kraftpy")


def server_command(
    directory: Path, *, port: int = 0, settings: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM
) -> list[str]:
    """Return the command that starts our broker; `program` replaces `kraftpy`."""
    more = settings or {}
    settings = {
        "log.dirs": str(directory),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "num.partitions": str(PARTITIONS),
        **more,
    }
    overrides = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
    return [*program, "server", *overrides]


def bootstrap_of(ready_line: str) -> str:
    """Return host and port from a server's ready line. Raises RuntimeError if it is a different line."""
    _, scheme, rest = ready_line.partition("PLAINTEXT://")
    if not scheme:
        raise RuntimeError(f"the server said {ready_line!r}")
    return rest.split(",")[0].strip()


@contextmanager
def ours(
    under: Path, settings: Mapping[str, str] | None = None, *, program: Sequence[str] = PROGRAM
) -> Iterator[Running]:
    """Run our server on a new directory under `under`, which is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-bench-", dir=under))
    command = server_command(directory, settings=settings, program=program)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        bootstrap = bootstrap_of(process.stdout.readline())
        yield Running(name="kraftpy", bootstrap=bootstrap, process=psutil.Process(process.pid))
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(directory)


@contextmanager
def mock() -> Iterator[Running]:
    """Run librdkafka's mock cluster of one broker."""
    command = [sys.executable, "-m", "bench.load", "mock"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        bootstrap = json.loads(process.stdout.readline())["bootstrap"]
        yield Running(name="mock", bootstrap=bootstrap, process=psutil.Process(process.pid))
    finally:
        process.kill()
        process.communicate()
