"""The cluster of docker/compose.yaml, overlaid with docker/compose.chaos.yaml, in containers here; needs root.

    clients             this process, at the ports that compose.yaml publishes; it reaches every node, even if links
                        between nodes are cut
    kill, stop, pause   `docker kill`, `docker stop` and `docker start`, `docker pause` (the freezer of a control group)
    partition           iptables in the containers' network namespaces, at both ends of a link: a container that comes
                        back has a new namespace, and until that has its rules the other end's hold
    slow, lossy         a container's packets pass through `chaos.worlds.proxy`
    clock-skew, -strobe libfaketime in the image (docker/chaos.Dockerfile), by a file that it reads all the time
    what breaks disks   the volume is an ext4 image of this machine: see `chaos.worlds.machines`

The image is built from this source tree each time, from a base that docker/base-image.sh makes if none can be pulled.
If no engine answers and dockerd is installed, one is started, and ended with the world.

Nothing stays behind: a run holds a lock, and removes first what a dead one has left.

Left out: more or fewer nodes than compose.yaml has. Under libfaketime 0.9.10 each `time.sleep` of Python 3.11 fails
with EINVAL; a node only calls it if `log.cleaner.io.max.bytes.per.second` is set, and here it is not.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from chaos.nemesis import Cut, NodeId
from chaos.worlds.containers import (
    NETWORK,
    NODES,
    RUN_DIRECTORY,
    CommandFailed,
    Container,
    Engine,
    command,
    packet_filter,
    settings_file,
    succeeds,
)
from chaos.worlds.disks import Disk, mounts_below, thaw, unmount
from chaos.worlds.machines import STOP_SECONDS, Machines, missing_packages
from chaos.worlds.proxying import ROOT, PacketProxy

COMPOSE_FILES: Final = (ROOT / "docker/compose.yaml", ROOT / "docker/compose.chaos.yaml")
PROJECT: Final = "kraftpy-chaos"
PORTS: Final[Mapping[NodeId, int]] = {1: 9092, 2: 9094, 3: 9096}
CONTROLLER_PORT: Final = 9093
_KILLED: Final = 137
"""The engine's exit status for a container that did not end when asked to."""

PACKAGES: Final = {
    "docker": "docker.io",
    "iptables-restore": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
}
"""Commands, and the Debian package each is in."""


class DockerWorld(Machines):
    """The world: a `chaos.worlds.living.LiveWorld`. `directory` holds the images of the disks."""

    name = "docker"
    fresh_seconds: ClassVar[float] = 60.0
    serves_seconds: ClassVar[float] = 60.0

    def __init__(self, directory: Path, *, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        if nodes != len(NODES):
            raise RuntimeError(f"docker/compose.yaml has {len(NODES)} nodes")
        super().__init__(directory, NODES, settings)
        self._engine = Engine()
        self._compose: tuple[str, ...] = ()
        self._lock: Any = None
        self._containers = {node: Container(node, self._directory) for node in NODES}

    def address(self, node: NodeId) -> tuple[str, int]:
        """Return the port that compose.yaml publishes."""
        return "localhost", PORTS[node]

    def controller_address(self, node: NodeId) -> tuple[str, int]:
        """Return the address at which other voters reach it."""
        return f"kafka{node}", CONTROLLER_PORT

    def container_name(self, node: NodeId) -> str:
        """Return the container's name, as the engine knows it."""
        return self._containers[node].name

    def disk_of(self, node: NodeId) -> Disk:
        """Return the node's disk."""
        return self._containers[node].disk

    def server_log(self, node: NodeId) -> str:
        """Return the output of all its runs."""
        return self._containers[node].log()

    def last_words(self, node: NodeId) -> str:
        """Return the end of its log."""
        return self._containers[node].last_words()

    # --- making and removing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Build the image, make the disks, start every node. Raises RuntimeError in one line if something is
        missing."""
        if os.geteuid() != 0:
            raise RuntimeError("containers with disks and networks that break need root")
        if (absent := missing_packages(PACKAGES)) is not None:
            raise RuntimeError(f"containers need {absent}")
        self._take_lock()
        await self._engine.open()
        given = self._directory / "settings.yaml"
        self._directory.mkdir(parents=True, exist_ok=True)
        given.write_text(settings_file(self._settings), encoding="utf-8")
        files = [part for file in (*COMPOSE_FILES, given) for part in ("--file", str(file))]
        if await succeeds("docker", "compose", "version"):
            tool: tuple[str, ...] = ("docker", "compose")
        elif shutil.which("docker-compose") is not None:
            tool = ("docker-compose",)
        else:
            raise RuntimeError("`docker compose` is not installed here (Debian: apt-get install docker-compose)")
        self._compose = (*tool, *files, "--project-name", PROJECT)
        await self._remove()
        await self._engine.build()
        for container in self._containers.values():
            await asyncio.to_thread(container.make)
        await self._ask_compose("up", "--detach", "--no-build")
        for container in self._containers.values():
            container.name = await self._name_of(container.service)
            await self._container_began(container)

    def _take_lock(self) -> None:
        RUN_DIRECTORY.mkdir(exist_ok=True)
        self._lock = (RUN_DIRECTORY / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise RuntimeError("another run has the ports of docker/compose.yaml") from None

    async def _ask_compose(self, *arguments: object) -> str:
        environment = {"KRAFTPY_CHAOS": str(RUN_DIRECTORY), "KRAFTPY_CHAOS_NETWORK": NETWORK}
        return await command(*self._compose, *arguments, environment=environment)

    async def _name_of(self, service: str) -> str:
        labels = {"project": PROJECT, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        return await command("docker", "ps", "--all", "--quiet", *filters)

    async def _remove(self) -> None:
        """Remove containers, network and mounts, of this run or of one that died."""
        own = mounts_below(RUN_DIRECTORY)
        for path in own:
            await asyncio.to_thread(thaw, path)
        frozen = await command("docker", "ps", "--quiet", "--filter=status=paused",
                               f"--filter=label=com.docker.compose.project={PROJECT}")  # fmt: skip
        for name in frozen.split():
            await command("docker", "unpause", name)
        await self._ask_compose("down", "--volumes", "--timeout", 0)
        for path in own:
            await asyncio.to_thread(unmount, path)
        for container in self._containers.values():
            await asyncio.to_thread(shutil.rmtree, RUN_DIRECTORY / container.service, ignore_errors=True)

    async def close(self) -> None:
        """End every container, and remove network and mounts; images of the disks stay where they are."""
        if self._lock is None:
            return
        for container in self._containers.values():
            await self._end_proxy(container)
            await asyncio.to_thread(container.disk.set_slow, 0)
        if self._compose:
            await self._remove()
        await self._engine.close()
        self._lock.close()
        self._lock = None

    # --- processes ------------------------------------------------------------------------------------------------

    def is_running(self, node: NodeId) -> bool:
        """Return True if its process lives, paused or not."""
        container = self._containers[node]
        if container.is_running:
            return True
        if container.is_wanted:
            container.is_wanted = False
            self._ended(node, "")
        return False

    async def launch(self, node: NodeId) -> None:
        """`docker start`, with the network in its intended state."""
        container = self._containers[node]
        await command("docker", "start", container.name)
        await self._container_began(container)
        await self._set_network(container)

    async def _container_began(self, container: Container) -> None:
        await container.began()
        self._began(container.node)

    async def kill(self, node: NodeId) -> None:
        """`docker kill`."""
        if self.is_running(node):
            await self._containers[node].kill()

    async def end(self, node: NodeId) -> int | None:
        """`docker stop`, which kills the container if it takes longer."""
        container = self._containers[node]
        await container.resume()
        container.is_wanted = False
        await command("docker", "stop", "--time", STOP_SECONDS, container.name)
        container.pid = 0
        status = int(await container.inspect(".State.ExitCode"))
        return None if status == _KILLED else status

    def _may_serve(self, node: NodeId) -> bool:
        return self.is_running(node) and not self._containers[node].is_paused

    async def pause(self, node: NodeId) -> None:
        """`docker pause`."""
        container = self._containers[node]
        if self.is_running(node) and not container.is_paused:
            await container.pause()

    async def resume(self, node: NodeId) -> None:
        """`docker unpause`."""
        await self._containers[node].resume()

    # --- network --------------------------------------------------------------------------------------------------

    async def cut(self, links: Sequence[Cut]) -> None:
        """Drop packets from the first of each pair to the second."""
        for link in links:
            self._cuts[link] += 1
        await self._set_networks(links)

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""
        for link in links:
            self._cuts[link] -= 1
        await self._set_networks(links)

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Send the node's packets from and to the others through a proxy that delays and loses them."""
        impairment = {"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss}
        container = self._containers[node]
        container.impairment = impairment if any(impairment.values()) else {}
        await self._set_network(container)

    async def _set_networks(self, links: Sequence[Cut]) -> None:
        for node in sorted({end for link in links for end in link}):
            await self._set_network(self._containers[node])

    async def _set_network(self, container: Container) -> None:
        """Bring its packet filter and its proxy into the intended state."""
        if not self.is_running(container.node):
            await self._end_proxy(container)
            return
        if container.impairment:
            await self._begin_proxy(container)
        cuts = {link for link, count in self._cuts.items() if count > 0}
        table = packet_filter(container.node, cuts, is_diverted=bool(container.impairment))
        try:
            await command(*container.inside("iptables-restore", "--wait"), given=table)
        except CommandFailed:
            if self.is_running(container.node):  # otherwise its network ended with it
                raise
        if not container.impairment:
            await self._end_proxy(container)

    async def _begin_proxy(self, container: Container) -> None:
        await self._end_proxy(container)  # it may belong to a network that is gone
        container.proxy = PacketProxy(container.network)
        if await container.proxy.is_ready():
            container.proxy.set(container.impairment)
        elif self.is_running(container.node):
            raise RuntimeError("the proxy for packets did not start")

    async def _end_proxy(self, container: Container) -> None:
        proxy, container.proxy = container.proxy, None
        if proxy is not None:
            await proxy.end()

    async def mend_network(self, node: NodeId) -> None:
        """Remove rules and proxy."""
        container = self._containers[node]
        container.impairment = {}
        await self._set_network(container)

    # --- clocks and disks -----------------------------------------------------------------------------------------

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Set the clock at once."""
        self._containers[node].set_clock(skew_ms)

    def make_disk(self, node: NodeId) -> None:
        """Make an empty volume."""
        self._containers[node].make_disk()
