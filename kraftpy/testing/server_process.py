"""`kraftpy server` as a child process: start it, wait until it is ready, signal it, reap it.

Everything here blocks. The server's standard error is appended to `log`, over all of its runs.

A test sends the server's faults over a socket that it inherits (`kraftpy.testing.node`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.testing.rules import Rule

_TAIL_CHARACTERS = 2000
_OBEY_SECONDS = 10.0
_NODE = "kraftpy.testing.node"
_MEANT_FOR_ANOTHER = ("KAFKA_", "KRAFTPY_PROCESSES", "KRAFTPY_PORT_STEP")


class BrokerDied(RuntimeError):
    """The server's process did not become ready, or ended; the message holds its output."""


class ServerProcess:
    """A server started with these arguments of `kraftpy server`.

    With `own_session` a Ctrl-C in the terminal does not reach it: the starter decides how it ends. `open_files` limits
    the files it may have open (by default as many as this process may). `rules` are in force from its start; its hits
    name it `node`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
        own_session: bool,
        node: int = 0,
        rules: Sequence[Rule] = (),
    ) -> None:
        self._log = log
        self._said = b""
        self._failed = ""
        # A server started by a test must not pick up settings meant for another one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_MEANT_FOR_ANOTHER)}
        # A shell sets the limit: code of ours that ran between fork and exec might not be safe with threads.
        limited = [] if open_files is None else ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"]
        self._control, inherited_end = socket.socketpair()
        self._control.settimeout(_OBEY_SECONDS)
        self._unanswered = 0
        self._telling = threading.Lock()
        self._control.sendall(_encoded(node, rules))
        descriptor = inherited_end.fileno()
        with inherited_end, open(log, "ab", opener=_for_this_user) as errors:
            self._process = subprocess.Popen(
                [*limited, sys.executable, "-m", _NODE, str(descriptor), "server", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**inherited, **(environment or {})},
                start_new_session=own_session,
                pass_fds=[descriptor],
            )

    @property
    def pid(self) -> int:
        """The process id, valid until the process was waited for."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    def obey(self, node: int, rules: Sequence[Rule], *, wait: bool) -> None:
        """Put exactly these rules in force; with `wait`, before this returns. Does nothing once the process has ended.

        Raises BrokerDied if it is running and does not answer.
        """
        with self._telling:
            try:
                self._control.sendall(_encoded(node, rules))
                self._unanswered += 1
                while wait and self._unanswered:
                    answered = self._control.recv(4096).count(b"\n")
                    if not answered:
                        return
                    self._unanswered -= answered
            except TimeoutError:
                raise BrokerDied(f"node {node} does not answer: {self.log_text[-_TAIL_CHARACTERS:]}") from None
            except OSError:
                return

    def wait_ready(self, deadline: float) -> str:
        """Return the line that says it is ready.

        If none comes by `deadline` (`time.monotonic`), kills it, raises BrokerDied.
        """
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
        """The server's standard error, over all runs with this log."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing if the process has ended."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals, timeout: float) -> int:
        """Send a signal, wait for the end and return the exit status. If it is late, kills it and raises BrokerDied."""
        self.send(number)
        return self.wait(timeout)

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status. If it is late, kills it and raises BrokerDied."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerDied(f"the broker did not stop within {timeout:g} s and was killed") from None
        finally:
            self._control.close()
        return status


def _for_this_user(path: str, flags: int) -> int:
    """Open a server's output for this user alone: it may be as private as the data."""
    return os.open(path, flags, 0o600)


def _encoded(node: int, rules: Sequence[Rule]) -> bytes:
    return json.dumps([node, [rule.as_value() for rule in rules]]).encode() + b"\n"
