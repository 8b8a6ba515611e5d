"""A real broker for a test, a notebook or a demo: its own process, its own directory, a free port.

`EmbeddedBroker` is a context manager around `kraftpy server`. The process ends with the `with` block, and its data
too unless `data_dir` was given. Nothing here is a mock: the same code serves in production.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

_READY = re.compile(r"ready: node \d+, \w+://(?P<address>\S+:\d+)")


class BrokerDied(RuntimeError):
    """The broker's process did not become ready, or ended; the message holds what it wrote."""


class EmbeddedBroker:
    """One `kraftpy server` on a free port of 127.0.0.1.

    `data_dir` keeps the data after the block (a temporary directory otherwise). `settings` are broker settings by
    Kafka's own names: `EmbeddedBroker(settings={"num.partitions": "3"})`. Raises BrokerDied where it does not start.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        settings: dict[str, str] | None = None,
        start_timeout: float = 30.0,
        stop_timeout: float = 30.0,
    ) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="kraftpy-") if data_dir is None else data_dir)
        self._settings = dict(settings or {})
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.bootstrap = ""
        self.ready_line = ""

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def log_text(self) -> str:
        """What the broker wrote to standard error, of all its runs."""
        path = self.data_dir / "server.log"
        return path.read_text() if path.exists() else ""

    def __enter__(self) -> EmbeddedBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start, or start again on the same port and directory; returns when clients can connect."""
        assert self._process is None, "the broker is running"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": str(self.data_dir / "logs"),
            **self._settings,
        }
        command = [sys.executable, "-m", "kraftpy", "server"]
        for name, value in settings.items():
            command += ["--override", f"{name}={value}"]
        # A broker started by a test must not pick up settings meant for another one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        with (self.data_dir / "server.log").open("a") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=environment
            )
        self.ready_line = self._first_line()
        match = _READY.search(self.ready_line)
        if match is None:
            self.kill()
            raise BrokerDied(f"the broker did not become ready: {self.ready_line or self.log_text[-2000:]}")
        self.bootstrap = match["address"]
        self._port = int(self.bootstrap.rpartition(":")[2])

    def _first_line(self) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return ""
        return process.stdout.readline()

    def stop(self) -> int:
        """SIGTERM, and wait; the exit status. Does nothing when it is not running."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL, and wait: what a crash of the process leaves behind."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            return process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerDied(f"the broker did not stop within {self._stop_timeout:g} s and was killed") from None

    def close(self) -> None:
        """Stop, and remove the data unless its directory was given."""
        try:
            self.stop()
        finally:
            if self._temporary:
                shutil.rmtree(self.data_dir, ignore_errors=True)
