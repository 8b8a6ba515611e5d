"""A real broker for a test, a notebook or a demo, with its own process, its own directory and a free port.

`EmbeddedBroker` is a context manager around `kraftpy server`. The process ends with the `with` block, and its data are
deleted unless `data_dir` was given. Nothing here is a mock: the same code serves in production. For several nodes, use
`kraftpy.testing.nodes.Cluster`; for faults, see `kraftpy.testing.faults`.
"""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType

from kraftpy.config.sources import is_password, variable_name
from kraftpy.testing.faults import Fault, Faults, Faulty, Nodes, several
from kraftpy.testing.ports import ReservedPorts
from kraftpy.testing.server_process import BrokerDied, ServerProcess

__all__ = ["BrokerDied", "EmbeddedBroker"]

_READY = re.compile(r"ready: node \d+, \w+://(?P<address>\S+:\d+)")


class EmbeddedBroker(Faulty):
    """One `kraftpy server` on a free port of 127.0.0.1.

    `data_dir` keeps the data after the block (a temporary directory otherwise). `settings` are broker settings by
    Kafka's own names: `EmbeddedBroker(settings={"num.partitions": "3"})`. Raises BrokerDied if the broker does not
    start.
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
        self._node = int(self._settings.get("node.id", "1"))
        self._processes: dict[int, ServerProcess] = {}
        self._paused: set[int] = set()
        self._faults = Faults(self._processes, self._paused, lambda: self.data_dir / "faults")
        self._ports = ReservedPorts()
        self._port = 0
        self.bootstrap = ""
        self.ready_line = ""

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._running.pid

    @property
    def log_text(self) -> str:
        """The broker's standard error, over all of its runs."""
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
        """Start, or restart on the same port and directory. Returns when clients can connect."""
        assert not self._processes, "the broker is running"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._port = self._port or self._ports.reserve()
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": str(self.data_dir / "logs"),
            **self._settings,
        }
        # Every user of the machine can read a command line.
        secrets = {name: settings.pop(name) for name in list(settings) if is_password(name)}
        arguments = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
        process = ServerProcess(
            arguments,
            log=self.data_dir / "server.log",
            environment={variable_name(name): value for name, value in secrets.items()},
            own_session=False,
            node=self._node,
            rules=self._faults.rules_of(self._node),
        )
        self._processes[self._node] = process
        try:
            self.ready_line = process.wait_ready(time.monotonic() + self._start_timeout)
        except BrokerDied:
            del self._processes[self._node]
            raise
        match = _READY.search(self.ready_line)
        if match is None:
            self.kill()
            raise BrokerDied(f"the broker did not become ready: {self.ready_line}")
        self.bootstrap = match["address"]

    def stop(self) -> int:
        """Send SIGTERM and wait. Returns the exit status, 0 if the broker was not running."""
        self.resume()
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL and wait, leaving behind what a crash of the process would."""
        return self._end(signal.SIGKILL)

    def pause(self) -> Fault:
        """Send SIGSTOP: the broker stops working, and its connections stay open. Healed by `resume`."""
        self._running.send(signal.SIGSTOP)
        self._paused.add(self._node)
        return Fault("pause", self.resume)

    def resume(self) -> None:
        """Send SIGCONT. Does nothing unless the broker is paused."""
        if self._paused:
            self._running.send(signal.SIGCONT)
            self._paused.clear()

    def heal(self) -> None:
        """Heal every fault except a pause."""
        self._faults.heal()

    @property
    def _running(self) -> ServerProcess:
        process = self._processes.get(self._node)
        assert process is not None, "the broker is not running"
        return process

    def _targets(self, broker: Nodes) -> tuple[int, ...]:
        if broker is not None and set(several(broker, ())) != {self._node}:
            raise ValueError(f"the only broker is {self._node}, not {broker}")
        return (self._node,)

    def _end(self, number: signal.Signals) -> int:
        process = self._processes.pop(self._node, None)
        self._paused.clear()
        return 0 if process is None else process.end(number, self._stop_timeout)

    def close(self) -> None:
        """Heal all faults, stop the broker, and remove its data unless their directory was given."""
        try:
            self.resume()
            self.heal()
            self.stop()
        finally:
            self._ports.close()
            if self._temporary:
                shutil.rmtree(self.data_dir, ignore_errors=True)
