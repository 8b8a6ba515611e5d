"""Real `kraftpy server` processes, each in a network namespace and on a disk of its own; needs root, and no Docker.

    node n              namespace kraftpy-chaos-PID-n, address 198.18.X.n, an ext4 image on /run/kraftpy-chaos-PID/n
    the switch          namespace kraftpy-chaos-PID-switch with a bridge, to which every node has a cable (veth)
    clients             this process, by a cable of its own, 198.18.X.254; it reaches every node, even if links between
                        nodes are cut

    partition           iptables in the receiver's namespace drops what comes from the sender; each direction on its own
    slow, lossy         the packets of a node pass through `chaos.worlds.proxy`
    clock-skew, -strobe the node runs under `chaos.worlds.skewed`
    what breaks disks   each is an ext4 image of this machine: see `chaos.worlds.machines`

Nothing stays behind: a run holds a lock, and the next run removes everything that has a dead run's number in its name.
Nodes die with the run (PR_SET_PDEATHSIG).

Left out: more than 250 nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.nemesis import Cut, NodeId
from chaos.worlds import skewed
from chaos.worlds.disks import Disk, mounts_below, thaw, tool, unmount
from chaos.worlds.machines import STOP_SECONDS, Machines, missing_packages
from chaos.worlds.places import PREFIX, RUN_DIRECTORY, Place, free_subnet, run_of
from chaos.worlds.proxying import QUEUE, PacketProxy, in_network
from chaos.worlds.skewed import set_skew

CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093

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
    """Return why this machine cannot have namespaces, in one line; None if it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if (absent := missing_packages(PACKAGES)) is not None:
        return f"namespaces need {absent}"
    name = f"{PREFIX}-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode == 0:
        tried = subprocess.run(
            in_network(Path("/run/netns", name), "iptables", "-w", "-S"), capture_output=True, text=True
        )
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def _tried(*command: str) -> None:
    subprocess.run(command, capture_output=True)


def _is_held(directory: Path) -> bool:
    """Return True if the run that made this directory lives."""
    try:
        with (directory / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def remove_leftovers() -> list[int]:
    """Remove the remains of dead runs; return their numbers."""
    names = tool("ip", "netns", "list").split() + os.listdir(RUN_DIRECTORY) + os.listdir("/sys/class/net")
    runs = sorted({run for name in names if (run := run_of(name)) is not None})
    dead = [run for run in runs if run != os.getpid() and not _is_held(RUN_DIRECTORY / f"{PREFIX}-{run}")]
    for run in dead:
        remove(run)
    return dead


def remove(run: int) -> None:
    """End and remove everything with this run's number. Does all it can, and tries again after a failure."""
    directory = RUN_DIRECTORY / f"{PREFIX}-{run}"
    own = mounts_below(directory)
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


class NamespacesWorld(Machines):
    """The world: a `chaos.worlds.living.LiveWorld`. `directory` is where images, settings and logs are kept."""

    name = "namespaces"

    def __init__(self, directory: Path, *, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, tuple(range(1, nodes + 1)), settings)
        self._place: Place | None = None
        self._lock: Any = None
        self._disks: dict[NodeId, Disk] = {}
        self._processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._proxies: dict[NodeId, PacketProxy] = {}

    @property
    def place(self) -> Place:
        """Set once the world is open."""
        assert self._place is not None, "the world is not open"
        return self._place

    def address(self, node: NodeId) -> tuple[str, int]:
        """Return the address for clients, which other nodes use as well."""
        return self.place.host(node), CLIENT_PORT

    def controller_address(self, node: NodeId) -> tuple[str, int]:
        """Return the address at which other voters reach it."""
        return self.place.host(node), CONTROLLER_PORT

    def disk_of(self, node: NodeId) -> Disk:
        """Return its disk."""
        return self._disks[node]

    def server_log(self, node: NodeId) -> str:
        """Return the output of all its runs."""
        return (self._home(node) / "server.log").read_text(encoding="utf-8", errors="replace")

    def last_words(self, node: NodeId) -> str:
        """Return the end of its log."""
        return " / ".join(self.server_log(node).splitlines()[-3:])[-600:]

    def _home(self, node: NodeId) -> Path:
        return self._directory / f"node-{node}"

    # --- making and removing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lay the network, make the disks, start every node. RuntimeError in one line where something is missing."""
        if (why := missing()) is not None:
            raise RuntimeError(why)
        await asyncio.to_thread(self._lay)
        for node in self.nodes:
            await self.launch(node)

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
            "kraftpy.quorum.secret": "a secret of the namespaces",
            "log.dirs": str(self._disks[node].data),
            "default.replication.factor": replicas,
            "min.insync.replicas": str(min(2, len(self.nodes))),
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.min.isr": str(min(2, len(self.nodes))),
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
        for proxy in self._proxies.values():
            await proxy.kill()
        for process in self._processes.values():
            process.kill()
            await asyncio.to_thread(process.wait)
        self._processes.clear()
        self._proxies.clear()
        if self._lock is not None:
            self._lock.close()
        self._place = None

    def _network(self, node: NodeId) -> Path:
        return Path("/run/netns", self.place.namespace(node))

    # --- processes ------------------------------------------------------------------------------------------------

    def is_running(self, node: NodeId) -> bool:
        """Return True if its process lives, paused or not."""
        process = self._processes.get(node)
        if process is None:
            return False
        status = process.poll()
        if status is None:
            return True
        del self._processes[node]
        self._ended(node, f" with status {status}")
        return False

    async def launch(self, node: NodeId) -> None:
        """Start it from the loop's own thread, so that the node dies with that thread."""
        home = self._home(node)
        self._began(node)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        settings = str(home / "server.properties")
        server = [sys.executable, "-m", skewed.__name__, str(self._clock(node)), "server", settings]
        with (home / "server.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(  # noqa: ASYNC220 - see above
                in_network(self._network(node), *server),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=inherited, start_new_session=True,
            )  # fmt: skip

    async def kill(self, node: NodeId) -> None:
        """Send SIGKILL, and wait."""
        if not self.is_running(node):
            return
        process = self._processes.pop(node)
        process.kill()
        await asyncio.to_thread(process.wait)

    async def end(self, node: NodeId) -> int | None:
        """Send SIGTERM (and SIGCONT), and wait; SIGKILL in the end."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            return None

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
        await asyncio.to_thread(tool, *in_network(self._network(node), "iptables", "-w", *arguments))

    def _dropped(self, link: Cut) -> tuple[str, ...]:
        return "INPUT", "-s", self.place.host(link[0]), "-j", "DROP"

    async def cut(self, links: Sequence[Cut]) -> None:
        """Drop packets from the first of each pair that arrive at the second."""
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
        """Send the node's packets from and to the others through a proxy that delays and loses them."""
        if not (delay_ms or jitter_ms or loss):
            await self._end_proxy(node)
            return
        proxy = self._proxies.get(node) or await self._start_proxy(node)
        proxy.set({"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss})

    async def _start_proxy(self, node: NodeId) -> PacketProxy:
        proxy = self._proxies[node] = PacketProxy(self._network(node))
        if not await proxy.is_ready():
            raise RuntimeError("the proxy for packets did not start")
        await self._divert(node, "-A")
        return proxy

    async def _end_proxy(self, node: NodeId) -> None:
        proxy = self._proxies.pop(node, None)
        if proxy is None:
            return
        await self._divert(node, "-D")
        if await proxy.end() != 0:
            self._problems.append(f"the proxy for node {node} failed")

    async def _divert(self, node: NodeId, how: str) -> None:
        for other in self.nodes:
            if other != node:
                to_queue = ("-j", "NFQUEUE", "--queue-num", str(QUEUE), "--queue-bypass")
                await self._iptables(node, how, "INPUT", "-s", self.place.host(other), *to_queue)
                await self._iptables(node, how, "OUTPUT", "-d", self.place.host(other), *to_queue)

    async def mend_network(self, node: NodeId) -> None:
        """Remove rules and proxy."""
        await self._end_proxy(node)
        await self._iptables(node, "-F")

    # --- clocks and disks -----------------------------------------------------------------------------------------

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Set the clock at once."""
        set_skew(self._clock(node), skew_ms)

    def make_disk(self, node: NodeId) -> None:
        """Mount an empty disk."""
        self._disks[node].make()
