"""Machines for a cluster of Spark and brokers: network namespaces on one bridge; needs root.

    machine n      namespace kraftpy-spark-PID-NAME, address 198.18.X.n, a cable (veth) to the bridge
    the switch     namespace kraftpy-spark-PID-switch
    this process   a cable of its own, 198.18.X.254

A machine's processes see no more of the file system than it is given: `hides` are directories that are empty for them,
`sees` are directories that are mounted somewhere else for them. Processes end with this one (PR_SET_PDEATHSIG), and
namespaces with the block; the next run removes those of a run that was killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.worlds.places import free_subnet

PREFIX = "kraftpy-spark"
SECONDS = 120
"""How long a condition is waited for, unless a test says otherwise."""


def missing() -> str | None:
    """Return why this machine cannot have namespaces, or None."""
    if os.geteuid() != 0:
        return "namespaces need root"
    absent = [name for name in ("ip", "setpriv", "mount") if shutil.which(name) is None]
    return f"missing: {', '.join(absent)}" if absent else None


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def wait_until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait until a condition is true, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)
    return found


@dataclass(slots=True)
class Machine:
    """One namespace, and what was started in it."""

    name: str
    namespace: str
    host: str
    log: Path
    hides: tuple[Path, ...] = ()
    sees: Mapping[Path, Path] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, cwd: Path = Path("/")
    ) -> subprocess.Popen[bytes]:
        """Start a program in this machine; its output is appended to the machine's log."""
        mounts = [f"mount --bind {shlex.quote(str(real))} {shlex.quote(str(seen))}" for real, seen in self.sees.items()]
        mounts += [f"mount -t tmpfs none {shlex.quote(str(each))}" for each in self.hides]
        script = " && ".join([*mounts, f"cd {shlex.quote(str(cwd))}", 'exec setpriv --pdeathsig KILL "$@"'])
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    "sh",
                    "-c",
                    script,
                    "sh",
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", **environment},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def pids(self) -> list[int]:
        """All processes of this machine."""
        return [int(each) for each in ip("netns", "pids", self.namespace).split()]

    def pids_of(self, word: str) -> list[int]:
        """Those whose command line has a word."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self) -> None:
        """SIGKILL for everything at once, as if the power went."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.poll()
            time.sleep(0.05)
        for process in self.processes:
            process.wait()
        self.processes.clear()

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Network:
    """The bridge, and the machines on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machines: dict[str, Machine] = {}
        self._run = f"{PREFIX}-{os.getpid()}"
        self._switch = f"{self._run}-switch"
        self._subnet = ""
        self._cable = f"ks{os.getpid() % 100_000}"

    def __enter__(self) -> Network:
        remove_leftovers()
        self._subnet = f"198.18.{free_subnet(ip('-o', 'addr'), (os.getpid() + 125) % 250)}"
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            self._plug(None, 254)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.machines.values():
            machine.kill()
        self._remove()

    def add(self, name: str, **seeing: Any) -> Machine:
        """Add a machine; the keywords are those of `Machine`."""
        number = 10 + len(self.machines)
        namespace = f"{self._run}-{name}"
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        self._plug(namespace, number)
        machine = Machine(name, namespace, self._host(number), self.directory / f"{name}.log", **seeing)
        self.machines[name] = machine
        return machine

    def _host(self, number: int) -> str:
        return f"{self._subnet}.{number}"

    def _plug(self, namespace: str | None, number: int) -> None:
        """Lay a cable from the switch to a namespace, or to this one."""
        here, there = f"{self._cable}n{number}", f"{self._cable}s{number}"
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self._switch)
        ip("-n", self._switch, "link", "set", there, "master", "bridge", "up")
        inside = [] if namespace is None else ["-n", namespace]
        if namespace is not None:
            ip("link", "set", here, "netns", namespace)
        ip(*inside, "addr", "add", f"{self._host(number)}/24", "dev", here)
        ip(*inside, "link", "set", here, "up")

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(self._run + "-"):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line]


def remove_leftovers() -> None:
    """Remove the namespaces of runs that have died."""
    for name in _namespaces():
        if name.startswith(PREFIX + "-"):
            run = name.removeprefix(PREFIX + "-").split("-")[0]
            if run.isdecimal() and not Path("/proc", run).exists():
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
