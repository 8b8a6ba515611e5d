"""`kraftpy server` as a child process: started, waited for until it says that it is ready, signalled, reaped.

Everything here blocks. What the server writes to standard error is appended to `log`, over all of its runs.

What the server does wrong, if a test wants it to, it is told over a socket that it inherits (`kraftpy.testing.node`).
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


class BrokerDied(RuntimeError):
    """The server's process did not become ready, or ended; the message holds what it wrote."""


class ServerProcess:
    """A server that was started with these arguments of `kraftpy server`.

    With `own_session` a Ctrl-C in the terminal does not reach it: who started it decides how it ends. `open_files` is
    how many files the kernel lets it have open (by default as many as this process may). `rules` hold from its start;
    it is `node` in what it notes of them.
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
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        # A shell sets the limit: what a process of ours could run between fork and exec, may not be safe in threads.
        limited = [] if open_files is None else ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"]
        self._control, inherited_end = socket.socketpair()
        self._control.settimeout(_OBEY_SECONDS)
        self._unanswered = 0
        self._telling = threading.Lock()
        self._control.sendall(_told(node, rules))
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
        """The process id, for as long as it was not waited for."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal, once it has ended; None while it runs."""
        return self._process.poll()

    def obey(self, node: int, rules: Sequence[Rule], *, wait: bool) -> None:
        """Have these rules, and no others, in force; with `wait`, when this returns. Nothing happens once it has ended.

        Raises BrokerDied where it runs and does not answer.
        """
        with self._telling:
            try:
                self._control.sendall(_told(node, rules))
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


def _told(node: int, rules: Sequence[Rule]) -> bytes:
    return json.dumps([node, [rule.as_value() for rule in rules]]).encode() + b"\n"
