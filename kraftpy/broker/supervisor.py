"""`kraftpy server --processes N`: one supervisor, which forks a process for each node and runs until it is stopped.

The supervisor has imported everything a node needs before it forks, so the processes share that memory. It has no
thread, no event loop and no connection, so it can fork again at any time. It prints one line on standard output when
all nodes are ready. All processes write to one standard error, with their node's id on every line.

Before all nodes are ready, the end of one stops the others, and the supervisor exits with its status: settings that
cannot be used have to be seen. Later, a process that ends is named in a line and started again, after `_FIRST_PAUSE`
seconds, and twice as many each time it ends early: its partitions have other leaders or none until then, and the other
processes, which are not concerned, serve on.

SIGTERM and SIGINT stop all nodes: brokers first, while the controllers still move their leaderships, then the
controllers. A process that takes longer than `_ORDERLY_SECONDS` no longer delays the controllers' stop; one that takes
longer than `_MOST_SECONDS` is killed. The exit status is 0 if every process has stopped cleanly, else 1. SIGUSR1 makes
every node print its health. If the supervisor is killed, its nodes stop by themselves (`supervision`). A process group
of their own keeps a Ctrl-C at the terminal from the nodes: the supervisor stops them in order.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kraftpy import __version__
from kraftpy.broker import apis
from kraftpy.broker.authorization import guards
from kraftpy.broker.handlers.table import HANDLERS
from kraftpy.broker.log_lines import say
from kraftpy.broker.server import EXIT_FAILURE, run, seconds_since_process_start
from kraftpy.broker.supervision import Supervision
from kraftpy.config import BrokerConfig

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 32.0
_STEADY_SECONDS: Final = 60.0
"""A process that ends after it has run for this long is started again after the first pause."""
_ORDERLY_SECONDS: Final = 15.0
_MOST_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Node:
    """A node and its process."""

    config: BrokerConfig
    pid: int | None = None
    report: int = -1
    """The pipe on which it tells that it is ready."""
    listeners: str = ""
    """Its listeners as it reported them; empty while it is not ready."""
    began_at: float = 0.0
    pause: float = _FIRST_PAUSE
    starts_at: float | None = None
    """When it is to be started again."""
    was_told_to_stop: bool = False

    @property
    def node_id(self) -> int:
        return self.config.node_id


def import_everything() -> None:
    """Import the modules that nodes import on demand, so that the processes share them."""
    from kraftpy.broker.metadata import configured_links, observer, voter  # noqa: F401

    for key in HANDLERS:
        apis.load(key)
        guards.guard_of(key)


def supervise(configs: Sequence[BrokerConfig]) -> int:
    """Run a process for each of these nodes until a signal stops them; return the exit status."""
    return _Supervisor(configs).run()


class _Supervisor:
    """The processes, and what the signals ask for."""

    def __init__(self, configs: Sequence[BrokerConfig]) -> None:
        self._nodes = [_Node(config) for config in configs]
        self._format = configs[0].kraftpy_log_format
        self._lifeline, self._own_end = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._was_ready = False
        self._stops_at: float | None = None
        """When the stop began; None until then."""
        self._status = 0
        self._is_stop_asked = self._is_health_asked = self._was_killed = False

    def run(self) -> int:
        """Start the processes and look after them until all have ended; return the exit status."""
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        signal.signal(signal.SIGUSR1, self._ask_for_health)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for node in self._nodes:
            self._start(node)
        while self._stops_at is None or any(node.pid is not None for node in self._nodes):
            self._wait()
            if self._is_stop_asked:
                self._stop()
            self._reap()
            if self._stops_at is None:
                self._start_again()
            else:
                self._hurry(time.monotonic() - self._stops_at)
        return self._status

    # --- starting ---------------------------------------------------------------------------------

    def _start(self, node: _Node) -> None:
        node.report, theirs = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the child has its own handlers
        try:
            pid = os.fork()
            if pid == 0:
                self._become(node, Supervision(self._lifeline, theirs))
        except OSError as error:
            os.close(node.report)
            node.report = -1
            self._say(node, "ERROR", f"its process cannot be started: {error.strerror}")
            self._ended(node, EXIT_FAILURE)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(theirs)
        node.pid, node.listeners, node.starts_at = pid, "", None
        node.began_at = time.monotonic()
        with contextlib.suppress(OSError):  # the child does the same; either may be first
            os.setpgid(pid, pid)
        self._selector.register(node.report, selectors.EVENT_READ, node)

    def _become(self, node: _Node, supervision: Supervision) -> None:
        """Be the node's process: this does not return."""
        status = EXIT_FAILURE
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            os.close(self._own_end)
            for each in self._nodes:
                if each.report >= 0:
                    os.close(each.report)
            self._selector.close()
            self._woken.close()
            self._waker.close()
            status = run(node.config, supervision)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _start_again(self) -> None:
        for node in self._nodes:
            if node.starts_at is not None and node.starts_at <= time.monotonic():
                self._start(node)

    # --- looking after them -------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until a signal came, a node is ready, or something is due."""
        for key, _ in self._selector.select(self._seconds_left()):
            node: _Node | None = key.data
            if node is None:
                with contextlib.suppress(BlockingIOError):
                    while self._woken.recv(4096):
                        pass
                continue
            told = os.read(node.report, 4096).decode()
            if not told:
                self._close_report(node)
                continue
            node.listeners += told
            if node.listeners.endswith("\n"):
                self._on_ready(node)
        if self._is_health_asked:
            self._is_health_asked = False
            self._send(signal.SIGUSR1, [node for node in self._nodes if node.listeners])

    def _seconds_left(self) -> float | None:
        """Return the seconds until something is due; None if nothing is."""
        now = time.monotonic()
        due = [node.starts_at for node in self._nodes if node.starts_at is not None]
        if self._stops_at is not None:
            due = [at for at in (self._stops_at + _ORDERLY_SECONDS, self._stops_at + _MOST_SECONDS) if at > now]
            due.append(now + 1)
        return None if not due else max(0.0, min(due) - now)

    def _on_ready(self, node: _Node) -> None:
        node.listeners = node.listeners.strip()
        if self._was_ready:
            self._say(node, "INFO", "is ready again")
        elif all(each.listeners for each in self._nodes):
            self._was_ready = True
            listeners = ", ".join(each.listeners for each in self._nodes)
            nodes = f"nodes {self._nodes[0].node_id} to {self._nodes[-1].node_id}"
            seconds = seconds_since_process_start()
            print(f"kraftpy {__version__} ready: {nodes}, {listeners}, {seconds:.2f} s", flush=True)

    def _reap(self) -> None:
        for pid, status in _ended_children():
            for node in self._nodes:
                if node.pid == pid:
                    node.pid = None
                    self._close_report(node)
                    self._ended(node, os.waitstatus_to_exitcode(status))

    def _ended(self, node: _Node, status: int) -> None:
        """Handle the end of a node's process. A negative status is the signal that killed it."""
        how = described_end(status)
        node.listeners = ""
        if self._stops_at is not None:
            if status not in (0, -signal.SIGTERM):
                self._status = self._status or EXIT_FAILURE
                self._say(node, "CRITICAL", how)
            return
        if not self._was_ready:
            self._say(node, "CRITICAL", f"{how} before it was ready: all nodes stop")
            self._status = status if status > 0 else EXIT_FAILURE
            self._stop()
            return
        if time.monotonic() - node.began_at >= _STEADY_SECONDS:
            node.pause = _FIRST_PAUSE
        node.starts_at = time.monotonic() + node.pause
        self._say(node, "ERROR" if status else "INFO", f"{how}; it starts again in {node.pause:g} s")
        node.pause = min(2 * node.pause, _LONGEST_PAUSE)

    def _close_report(self, node: _Node) -> None:
        if node.report >= 0:
            self._selector.unregister(node.report)
            os.close(node.report)
            node.report = -1

    def _say(self, node: _Node, level: str, text: str) -> None:
        say(self._format, node.node_id, level, f"node {node.node_id} {text}")

    # --- stopping -----------------------------------------------------------------------------------

    def _ask_to_stop(self, number: int, frame: object) -> None:
        self._is_stop_asked = True

    def _ask_for_health(self, number: int, frame: object) -> None:
        self._is_health_asked = True

    def _stop(self) -> None:
        if self._stops_at is None:
            self._stops_at = time.monotonic()
            for node in self._nodes:
                node.starts_at = None

    def _hurry(self, seconds: float) -> None:
        """Tell processes to stop, `seconds` after the stop began: brokers, then controllers, and kill those left."""
        brokers = [node for node in self._nodes if not node.config.is_controller]
        self._tell_to_stop(brokers)
        if seconds >= _ORDERLY_SECONDS or all(node.pid is None for node in brokers):
            self._tell_to_stop(self._nodes)
        if seconds >= _MOST_SECONDS and not self._was_killed:
            self._was_killed = True
            for node in self._nodes:
                if node.pid is not None:
                    self._say(node, "CRITICAL", f"has not stopped within {_MOST_SECONDS:g} s and is killed")
            self._send(signal.SIGKILL, self._nodes)

    def _tell_to_stop(self, nodes: Sequence[_Node]) -> None:
        self._send(signal.SIGTERM, [node for node in nodes if not node.was_told_to_stop])
        for node in nodes:
            node.was_told_to_stop = True

    @staticmethod
    def _send(number: signal.Signals, nodes: Sequence[_Node]) -> None:
        for node in nodes:
            if node.pid is not None:  # not waited for yet, so the id is still its own
                os.kill(node.pid, number)


def described_end(status: int) -> str:
    """Say how a process ended, by its exit status, negative for a signal."""
    if status >= 0:
        return f"ended with status {status}"
    known = {each.value: each.name for each in signal.Signals}
    return f"was killed by {known.get(-status, f'signal {-status}')}"


def _ended_children() -> Iterator[tuple[int, int]]:
    """Yield (pid, wait status) of children that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
