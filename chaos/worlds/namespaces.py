"""Real `kraftpy server` processes, each in a network namespace and on a disk of its own; needs root, and no Docker.

    node n              namespace kraftpy-chaos-PID-n, address 198.18.X.n, an ext4 image on /run/kraftpy-chaos-PID/n
    the switch          namespace kraftpy-chaos-PID-switch with a bridge, to which every node has a cable (veth)
    clients             this process, by a cable of its own, 198.18.X.254; it reaches every node, whatever is cut
                        between nodes

    partition           iptables in the receiver's namespace drops what comes from the sender; each direction on its own
    slow, lossy         the packets of a node pass through `chaos.worlds.proxy`
    clock-skew, -strobe the node runs under `chaos.worlds.skewed`
    disk-full           a file takes all the space that the disk has left
    slow-disk           the file system is frozen for so long, let go for a moment, and frozen again
    fsync-error         the file system is synced and shut down: all that is asked of it fails with EIO, until it is
                        mounted anew
    lose-unsynced       the file system is shut down without writing anything more, the process killed, the disk mounted
                        anew: what was not synced and not written back by then is gone, as after a power failure
    lose-disk           a new file system. The node's vote is taken away before it starts, and given back once it has
                        caught up: a voter that forgets its vote may vote twice
    corruption          one bit of a file is flipped. When all is healed, what is wrong in a log is fetched anew
                        (`kraftpy topic refetch`); a node that refuses its journal is treated as one that lost its disk

Nothing stays behind: a run holds a lock; whatever has a dead run's number in its name, the next run removes. Nodes die
with the run (PR_SET_PDEATHSIG).

Left out: hardware that lies about syncs; more than 250 nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.nemesis import Cut, Kind, NodeId
from chaos.worlds import proxy as packet_proxy
from chaos.worlds import skewed
from chaos.worlds.administrator import has_no_vote, refetch_damaged, wait_until_serving
from chaos.worlds.asking import Asking
from chaos.worlds.disks import AFTER_SYNC, AT_ONCE, Disk, corruptible, flip, thaw, tool, unmount
from chaos.worlds.places import PREFIX, RUN_DIRECTORY, Place, free_subnet, run_of
from chaos.worlds.skewed import set_skew

CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
_QUEUE: Final = 1
_STOP_SECONDS: Final = 120.0
_REJOIN_SECONDS: Final = 90.0
_REFUSED_JOURNAL: Final = re.compile(r"journal|snapshot|vote")

PACKAGES: Final = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "losetup": "mount",
}
"""Commands, and the Debian package each is in."""


def missing() -> str | None:
    """Why this machine cannot have namespaces, in one line; None if it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if absent := sorted({package for command, package in PACKAGES.items() if shutil.which(command) is None}):
        return f"namespaces need {', '.join(absent)} (Debian: apt-get install {' '.join(absent)})"
    name = f"{PREFIX}-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode == 0:
        tried = subprocess.run(
            ["nsenter", f"--net=/run/netns/{name}", "iptables", "-w", "-S"], capture_output=True, text=True
        )
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def _tried(*command: str) -> None:
    subprocess.run(command, capture_output=True)


def _is_held(directory: Path) -> bool:
    """Whether the run that made this directory lives."""
    try:
        with (directory / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def remove_leftovers() -> list[int]:
    """Remove what dead runs have left; their numbers."""
    names = tool("ip", "netns", "list").split() + os.listdir(RUN_DIRECTORY) + os.listdir("/sys/class/net")
    runs = sorted({run for name in names if (run := run_of(name)) is not None})
    dead = [run for run in runs if run != os.getpid() and not _is_held(RUN_DIRECTORY / f"{PREFIX}-{run}")]
    for run in dead:
        remove(run)
    return dead


def remove(run: int) -> None:
    """End and remove everything that has this run's number. Does what it can, again after it failed."""
    directory = RUN_DIRECTORY / f"{PREFIX}-{run}"
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    own = [Path(path) for path in mounts if path.startswith(f"{directory}/")]
    for path in own:
        thaw(path)
    names = [name for name in tool("ip", "netns", "list").split() if name.startswith(f"{PREFIX}-{run}-")]
    for name in names:
        for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    _tried("ip", "link", "del", f"kch{run}")
    for name in names:
        _tried("ip", "netns", "del", name)
    for path in own:
        unmount(path)
    shutil.rmtree(directory, ignore_errors=True)


class NamespacesWorld(Asking):
    """The world: a `chaos.live.LiveWorld`. `directory` is where images, settings and logs are kept."""

    name = "namespaces"

    def __init__(self, directory: Path, *, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.nodes = tuple(range(1, nodes + 1))
        self._directory = directory.absolute()
        self._settings = dict(settings or {})
        self._place: Place | None = None
        self._lock: Any = None
        self._disks: dict[NodeId, Disk] = {}
        self._processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._starts: Counter[NodeId] = Counter()
        self._cuts: Counter[Cut] = Counter()
        self._proxies: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._problems: list[str] = []
        self._may_end: set[NodeId] = set()  # a fault may have it end by itself
        self._harmed: set[NodeId] = set()  # a byte of its logs was changed
        self._harmed_journal: set[NodeId] = set()
        self._forgot: set[NodeId] = set()  # it has an empty disk and has not been started on it
        self._rejoining: set[NodeId] = set()
        self._started_at: dict[NodeId, float] = {}

    @property
    def abilities(self) -> frozenset[Kind]:
        """All there are."""
        return frozenset(Kind) - {Kind.SEVERAL}

    @property
    def left_out(self) -> Mapping[Kind, str]:
        """Nothing."""
        return {}

    @property
    def place(self) -> Place:
        """Once it is open."""
        assert self._place is not None, "the world is not open"
        return self._place

    def address(self, node: NodeId) -> tuple[str, int]:
        """For clients; the other nodes use it as well."""
        return self.place.host(node), CLIENT_PORT

    def controller_address(self, node: NodeId) -> tuple[str, int]:
        """Where the other voters reach it."""
        return self.place.host(node), CONTROLLER_PORT

    def incarnation(self, node: NodeId) -> int:
        """How often it was started."""
        return self._starts[node]

    def is_running(self, node: NodeId) -> bool:
        """Whether its process lives."""
        process = self._processes.get(node)
        if process is None:
            return False
        status = process.poll()
        if status is None:
            return True
        del self._processes[node]
        if node not in self._may_end and node not in self._harmed_journal:
            self._problems.append(f"node {node} ended by itself with status {status}: {self._tail(node)}")
        return False

    def problems(self) -> list[str]:
        """What was seen so far."""
        return list(self._problems)

    def server_log(self, node: NodeId) -> str:
        """Of all its runs."""
        return (self._home(node) / "server.log").read_text(encoding="utf-8", errors="replace")

    def _tail(self, node: NodeId) -> str:
        return " / ".join(self.server_log(node).splitlines()[-3:])[-600:]

    async def log_directory(self, node: NodeId) -> Path:
        """As it is mounted."""
        return self._disks[node].data

    def _home(self, node: NodeId) -> Path:
        return self._directory / f"node-{node}"

    # --- making and removing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lay the network, make the disks, start every node. RuntimeError in one line where something is missing."""
        if (why := missing()) is not None:
            raise RuntimeError(why)
        await asyncio.to_thread(self._lay)
        for node in self.nodes:
            self._launch(node)

    def _lay(self) -> None:
        remove_leftovers()
        subnet = free_subnet(tool("ip", "-o", "addr"), os.getpid() % 250)
        self._place = Place(run=os.getpid(), subnet=subnet)
        remove(os.getpid())
        self.place.directory.mkdir()
        self._lock = (self.place.directory / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for arguments in self.place.laying(self.nodes):
            tool("ip", *arguments)
        for node in self.nodes:
            self._home(node).mkdir(parents=True, exist_ok=True)
            (self._home(node) / "server.log").unlink(missing_ok=True)
            self._disks[node] = Disk(self._home(node) / "disk.ext4", self.place.directory / str(node))
            self._disks[node].make()
            set_skew(self._clock(node), 0)
            text = "".join(f"{name}={value}\n" for name, value in self._properties(node).items())
            (self._home(node) / "server.properties").write_text(text, encoding="utf-8")

    def _clock(self, node: NodeId) -> Path:
        return self._home(node) / "clock"

    def _properties(self, node: NodeId) -> dict[str, str]:
        host, replicas = self.place.host(node), str(min(3, len(self.nodes)))
        voters = ",".join(f"{voter}@{self.place.host(voter)}:{CONTROLLER_PORT}" for voter in self.nodes)
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://{host}:{CLIENT_PORT},CONTROLLER://{host}:{CONTROLLER_PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._disks[node].data),
            "default.replication.factor": replicas,
            "min.insync.replicas": str(min(2, len(self.nodes))),
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.num.partitions": "4",
            "log.roll.ms": "30000",
            **self._settings,
        }

    async def close(self) -> None:
        """End every process, and remove namespaces and mounts; settings, logs and images stay where they are."""
        if self._place is None:
            return
        for disk in self._disks.values():
            await asyncio.to_thread(disk.set_slow, 0)
        await asyncio.to_thread(remove, self.place.run)
        for process in (*self._processes.values(), *self._proxies.values()):
            process.kill()
            await asyncio.to_thread(process.wait)
        self._processes.clear()
        self._proxies.clear()
        if self._lock is not None:
            self._lock.close()
        self._place = None

    def _inside(self, node: NodeId, *command: str) -> list[str]:
        """The command in the node's namespace; it dies with this process."""
        return [
            *("nsenter", f"--net=/run/netns/{self.place.namespace(node)}"),
            *("setpriv", "--pdeathsig", "KILL"),
            *command,
        ]

    def _launch(self, node: NodeId) -> None:
        """From the loop's own thread, with which the node is to die."""
        home = self._home(node)
        self._starts[node] += 1
        self._started_at[node] = time.monotonic()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        with (home / "server.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                self._inside(
                    node, sys.executable, "-m", skewed.__name__, str(self._clock(node)), "server",
                    str(home / "server.properties"),
                ),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=inherited, start_new_session=True,
            )  # fmt: skip

    # --- processes ------------------------------------------------------------------------------------------------

    async def kill(self, node: NodeId) -> None:
        """SIGKILL, and wait."""
        if not self.is_running(node):
            return
        process = self._processes.pop(node)
        process.kill()
        await asyncio.to_thread(process.wait)

    async def stop(self, node: NodeId) -> None:
        """SIGTERM (and SIGCONT), and wait; what takes two minutes is killed, and is a problem.

        As an operator would, this waits until the others that were just started serve.
        """
        if not self.is_running(node):
            return
        await self._others_serve(node)
        if not self.is_running(node):
            return
        process = self._processes.pop(node)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            self._problems.append(f"node {node} did not stop within {_STOP_SECONDS:g} s: {self._tail(node)}")
            return
        if status != 0 and node not in self._may_end:
            self._problems.append(f"node {node} stopped with status {status}: {self._tail(node)}")

    async def _others_serve(self, node: NodeId) -> None:
        fresh = [
            other for other in self.nodes if other != node and time.monotonic() - self._started_at.get(other, 0) < 10
        ]
        await wait_until_serving(self, [other for other in fresh if self.is_running(other)], 15)

    async def start(self, node: NodeId) -> None:
        """Start it, if it does not run, on a disk that works."""
        disk = self._disks[node]
        if disk.is_shut_down:
            await self.kill(node)
            await asyncio.to_thread(disk.mount_again)
        if self.is_running(node):
            return
        if node in self._harmed_journal and _REFUSED_JOURNAL.search(self._tail(node)):
            await self.lose_disk(node)
        if node in self._forgot:
            if not await has_no_vote(self, node):
                return  # later, when there is a majority without it
            self._forgot.discard(node)
            self._rejoining.add(node)
        self._launch(node)

    async def pause(self, node: NodeId) -> None:
        """SIGSTOP."""
        if self.is_running(node):
            self._processes[node].send_signal(signal.SIGSTOP)

    async def resume(self, node: NodeId) -> None:
        """SIGCONT."""
        if self.is_running(node):
            self._processes[node].send_signal(signal.SIGCONT)

    # --- network --------------------------------------------------------------------------------------------------

    async def _iptables(self, node: NodeId, *arguments: str) -> None:
        await asyncio.to_thread(tool, *self._inside(node, "iptables", "-w", *arguments))

    def _dropped(self, link: Cut) -> tuple[str, ...]:
        return "INPUT", "-s", self.place.host(link[0]), "-j", "DROP"

    async def cut(self, links: Sequence[Cut]) -> None:
        """Drop what arrives from the first of each pair at the second."""
        for link in links:
            self._cuts[link] += 1
            if self._cuts[link] == 1:
                await self._iptables(link[1], "-I", *self._dropped(link))

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""
        for link in links:
            self._cuts[link] -= 1
            if self._cuts[link] == 0:
                await self._iptables(link[1], "-D", *self._dropped(link))

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Have the node's packets from and to the others go through a proxy that delays and loses them."""
        if not (delay_ms or jitter_ms or loss):
            await self._end_proxy(node)
            return
        proxy = self._proxies.get(node) or await self._start_proxy(node)
        assert proxy.stdin is not None
        weather = {"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss}
        proxy.stdin.write(json.dumps(weather).encode() + b"\n")
        proxy.stdin.flush()

    async def _start_proxy(self, node: NodeId) -> subprocess.Popen[bytes]:
        proxy = subprocess.Popen(  # noqa: ASYNC220 - from the loop's own thread, with which it is to die
            self._inside(node, sys.executable, "-m", packet_proxy.__name__, str(_QUEUE)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._proxies[node] = proxy
        assert proxy.stdout is not None
        if await asyncio.to_thread(proxy.stdout.readline) != b"ready\n":
            raise RuntimeError("the proxy for packets did not start")
        await self._divert(node, "-A")
        return proxy

    async def _end_proxy(self, node: NodeId) -> None:
        proxy = self._proxies.pop(node, None)
        if proxy is None:
            return
        await self._divert(node, "-D")
        assert proxy.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            proxy.stdin.close()
        if await asyncio.to_thread(proxy.wait) != 0:
            self._problems.append(f"the proxy for node {node} failed")
        assert proxy.stdout is not None
        proxy.stdout.close()

    async def _divert(self, node: NodeId, how: str) -> None:
        for other in self.nodes:
            if other != node:
                to_queue = ("-j", "NFQUEUE", "--queue-num", str(_QUEUE), "--queue-bypass")
                await self._iptables(node, how, "INPUT", "-s", self.place.host(other), *to_queue)
                await self._iptables(node, how, "OUTPUT", "-d", self.place.host(other), *to_queue)

    # --- clocks and disks -----------------------------------------------------------------------------------------

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """At once."""
        set_skew(self._clock(node), skew_ms)

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Full, slow or good."""
        disk = self._disks[node]
        if disk.is_shut_down:
            return
        if full:
            self._may_end.add(node)  # a node without space for its journal ends
        await asyncio.to_thread(disk.set_slow, 0)
        await asyncio.to_thread(disk.fill if full else disk.empty)
        await asyncio.to_thread(disk.set_slow, fsync_delay_ms)
        if not full and not fsync_delay_ms and node in self._may_end and not self.is_running(node):
            await self.start(node)

    async def fail_fsync(self, node: NodeId) -> None:
        """And everything after it: the disk has gone, with all that was written on it."""
        self._may_end.add(node)
        await asyncio.to_thread(self._disks[node].shut_down, AFTER_SYNC)

    async def lose_unsynced(self, node: NodeId) -> None:
        """The disk takes nothing more, the process dies, and the disk is mounted as after a power failure."""
        self._may_end.add(node)
        await asyncio.to_thread(self._disks[node].shut_down, AT_ONCE)
        await self.kill(node)
        await asyncio.to_thread(self._disks[node].mount_again)

    async def lose_disk(self, node: NodeId) -> None:
        """The process dies, and has an empty disk when it starts again."""
        await self.kill(node)
        disk = self._disks[node]
        await asyncio.to_thread(disk.set_slow, 0)
        await asyncio.to_thread(unmount, disk.mounted)
        await asyncio.to_thread(disk.make)
        self._forgot.add(node)
        self._harmed.discard(node)
        self._harmed_journal.discard(node)

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Flip one bit of a file, under the node's feet."""
        chance = Random(seed)
        files = await asyncio.to_thread(lambda: sorted(corruptible(self._disks[node].data, of)))
        if not files:
            return False
        self._may_end.add(node)
        (self._harmed_journal if of == "quorum journal" else self._harmed).add(node)
        await asyncio.to_thread(flip, chance.choice(files), chance)
        return True

    # --- healing --------------------------------------------------------------------------------------------------

    async def heal_all(self) -> None:
        """Everything that is wrong, as an operator would: disks, network, processes, votes, damaged copies."""
        for node in self.nodes:
            await self.resume(node)
            set_skew(self._clock(node), 0)
            await self._end_proxy(node)
            await self._iptables(node, "-F")
            await asyncio.to_thread(self._disks[node].set_slow, 0)
            await asyncio.to_thread(self._disks[node].empty)
        self._cuts.clear()
        deadline = time.monotonic() + _REJOIN_SECONDS
        while time.monotonic() < deadline:
            for node in self.nodes:
                await self.start(node)
            await asyncio.sleep(0.5)
            if all(self.is_running(node) for node in self.nodes) and not await self.wait_ready(5.0):
                break
        if late := await self.restore_voters(_REJOIN_SECONDS):
            self._problems.append(f"nodes {late} do not vote again after {_REJOIN_SECONDS:g} s")
        self._rejoining.clear()
        for node in sorted(self._harmed):
            self._problems += await refetch_damaged(self, node, self._disks[node].data)
        self._harmed.clear()
        self._may_end.clear()
