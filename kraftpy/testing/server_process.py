"""`kraftpy server` as a child process: started, waited for until it says that it is ready, signalled, reaped.

Everything here blocks. What the server writes to standard error is appended to `log`, over all of its runs.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_CHARACTERS = 2000


class BrokerDied(RuntimeError):
    """The server's process did not become ready, or ended; the message holds what it wrote."""


class ServerProcess:
    """A server that was started with these arguments of `kraftpy server`.

    With `own_session` a Ctrl-C in the terminal does not reach it: who started it decides how it ends. `open_files` is
    how many files the kernel lets it have open (by default as many as this process may).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
        own_session: bool,
    ) -> None:
        self._log = log
        self._said = b""
        self._failed = ""
        # A server started by a test must not pick up settings meant for another one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        # A shell sets the limit: what a process of ours could run between fork and exec, may not be safe in threads.
        limited = [] if open_files is None else ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*limited, sys.executable, "-m", "kraftpy", "server", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**inherited, **(environment or {})},
                start_new_session=own_session,
            )

    @property
    def pid(self) -> int:
        """The process id, for as long as it was not waited for."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal, once it has ended; None while it runs."""
        return self._process.poll()

    def wait_ready(self, deadline: float) -> str:
        """The line that says it is ready; `deadline` is one of `time.monotonic`. Raises BrokerDied, and kills it."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                more = os.read(self._process.stdout.fileno(), 4096)
                if not more:
                    break
                self._said += more
        line = self._said.partition(b"\n")[0].decode(errors="replace")
        if " ready: node " not in line:
            self.end(signal.SIGKILL, 30.0)
            raise BrokerDied(f"the broker did not become ready: {line or self.log_text[-_TAIL_CHARACTERS:]}")
        return line

    @property
    def log_text(self) -> str:
        """What it wrote to standard error, of all runs with this log."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where it has ended."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, timeout: float) -> int:
        """Send a signal and wait for the end; the exit status. Raises BrokerDied, and kills it, where that is late."""
        self.send(number)
        return self.wait(timeout)

    def wait(self, timeout: float) -> int:
        """Wait for the end; the exit status. Raises BrokerDied, and kills it, where that is late."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerDied(f"the broker did not stop within {timeout:g} s and was killed") from None
