"""The cluster of docker/compose.yaml, overlaid with docker/compose.chaos.yaml, in containers here; needs root.

    clients             this process, at the ports that compose.yaml publishes; it reaches every node, whatever is cut
                        between nodes
    kill, stop, pause   `docker kill`, `docker stop` and `docker start`, `docker pause` (the freezer of a control group)
    partition           iptables in the containers' network namespaces, at both ends of a link: a container that comes
                        back has a new namespace, and until that has its rules the other end's hold
    slow, lossy         a container's packets pass through `chaos.worlds.proxy`
    clock-skew, -strobe libfaketime in the image (docker/chaos.Dockerfile), by a file that it reads all the time
    disk-full, slow-disk, fsync-error, lose-unsynced, lose-disk, corruption
                        the volume is an ext4 image of this machine (`chaos.worlds.disks`)

What a node is given after it lost its disk or a byte of it is as in `chaos.worlds.namespaces`.

The image is built from this source tree each time, from a base that docker/base-image.sh makes where none can be
pulled. Where no engine answers and dockerd is installed, one is started, and ended with the world.

Nothing stays behind: a run holds a lock, and removes first what a dead one has left. A node that ends by itself stays
down until somebody starts it, and is a problem of the run.

Left out: more or fewer nodes than compose.yaml has. Under libfaketime 0.9.10 each `time.sleep` of Python 3.11 fails
with EINVAL; a node calls it only where `log.cleaner.io.max.bytes.per.second` is set, as here it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
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
from chaos.worlds.administrator import has_no_vote, refetch_damaged, wait_until_serving
from chaos.worlds.asking import Asking
from chaos.worlds.containers import (
    NETWORK,
    NODES,
    QUEUE,
    ROOT,
    RUN_DIRECTORY,
    CommandFailed,
    Container,
    Engine,
    command,
    own_mounts,
    packet_filter,
    settings_file,
    succeeds,
)
from chaos.worlds.disks import AFTER_SYNC, AT_ONCE, corruptible, flip, thaw, unmount

COMPOSE_FILES: Final = (ROOT / "docker/compose.yaml", ROOT / "docker/compose.chaos.yaml")
PROJECT: Final = "kraftpy-chaos"
PORTS: Final[Mapping[NodeId, int]] = {1: 9092, 2: 9094, 3: 9096}
CONTROLLER_PORT: Final = 9093
_STOP_SECONDS: Final = 120
_REJOIN_SECONDS: Final = 120.0
_FRESH_SECONDS: Final = 60.0
_SERVES_SECONDS: Final = 60.0
_REFUSED_JOURNAL: Final = re.compile(r"journal|snapshot|vote")

PACKAGES: Final = {
    "docker": "docker.io",
    "iptables-restore": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
}
"""Commands, and the Debian package each is in."""


class DockerWorld(Asking):
    """The world: a `chaos.live.LiveWorld`. `directory` is where the disks' images are kept."""

    name = "docker"

    def __init__(self, directory: Path, *, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        if nodes != len(NODES):
            raise RuntimeError(f"docker/compose.yaml has {len(NODES)} nodes")
        self.nodes = NODES
        self._directory = directory.absolute()
        self._settings = dict(settings or {})
        self._engine = Engine()
        self._compose: tuple[str, ...] = ()
        self._lock: Any = None
        self._containers = {node: Container(node, self._directory) for node in NODES}
        self._cuts: Counter[Cut] = Counter()
        self._problems: list[str] = []
        self._may_end: set[NodeId] = set()  # a fault may have it end by itself
        self._harmed: set[NodeId] = set()  # a byte of its logs was changed
        self._harmed_journal: set[NodeId] = set()
        self._forgot: set[NodeId] = set()  # it has an empty disk and has not been started on it

    @property
    def abilities(self) -> frozenset[Kind]:
        """All there are."""
        return frozenset(Kind) - {Kind.SEVERAL}

    @property
    def left_out(self) -> Mapping[Kind, str]:
        """Nothing."""
        return {}

    def address(self, node: NodeId) -> tuple[str, int]:
        """At the port that compose.yaml publishes."""
        return "localhost", PORTS[node]

    def controller_address(self, node: NodeId) -> tuple[str, int]:
        """Where the other voters reach it."""
        return f"kafka{node}", CONTROLLER_PORT

    def container_name(self, node: NodeId) -> str:
        """For the engine."""
        return self._containers[node].name

    def incarnation(self, node: NodeId) -> int:
        """How often it was started."""
        return self._containers[node].starts

    def is_running(self, node: NodeId) -> bool:
        """Whether its process lives."""
        container = self._containers[node]
        if container.is_running:
            return True
        if container.is_wanted:
            container.is_wanted = False
            if node not in self._may_end and node not in self._harmed_journal:
                self._problems.append(f"node {node} ended by itself: {container.last_words()}")
        return False

    def problems(self) -> list[str]:
        """What was seen so far."""
        return list(self._problems)

    def server_log(self, node: NodeId) -> str:
        """Of all its runs."""
        return self._containers[node].log()

    async def log_directory(self, node: NodeId) -> Path:
        """As it is mounted on this machine."""
        return self._containers[node].disk.data

    # --- making and removing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Build the image, make the disks, start every node. RuntimeError in one line where something is missing."""
        if os.geteuid() != 0:
            raise RuntimeError("containers with disks and networks that break need root")
        if absent := sorted({package for tool, package in PACKAGES.items() if shutil.which(tool) is None}):
            raise RuntimeError(f"containers need {', '.join(absent)} (Debian: apt-get install {' '.join(absent)})")
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
            await container.began()

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
        """Containers, network and mounts, of this run or of one that died."""
        own = own_mounts()
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

    async def kill(self, node: NodeId) -> None:
        """`docker kill`."""
        if self.is_running(node):
            await self._containers[node].kill()

    async def stop(self, node: NodeId) -> None:
        """`docker stop`; what takes two minutes is killed, and is a problem.

        As an operator would, this waits until the others that were just started serve.
        """
        now = time.monotonic()
        fresh = [
            other
            for other, container in self._containers.items()
            if other != node
            and self.is_running(other)
            and not container.is_paused
            and now - container.started_at < _FRESH_SECONDS
        ]
        await wait_until_serving(self, fresh, _SERVES_SECONDS)
        if not self.is_running(node):
            return
        container = self._containers[node]
        await container.resume()
        container.is_wanted = False
        await command("docker", "stop", "--time", _STOP_SECONDS, container.name)
        container.pid = 0
        status = await container.inspect(".State.ExitCode")
        if status != "0" and node not in self._may_end:
            self._problems.append(f"node {node} stopped with status {status}: {container.last_words()}")

    async def start(self, node: NodeId) -> None:
        """`docker start`, if it does not run, on a disk that works and with the network as it is."""
        container = self._containers[node]
        if container.disk.is_shut_down:
            await self.kill(node)
            await asyncio.to_thread(container.disk.mount_again)
        if self.is_running(node):
            return
        if node in self._harmed_journal and _REFUSED_JOURNAL.search(container.last_words()):
            await self.lose_disk(node)
        if node in self._forgot:
            if not await has_no_vote(self, node):
                return  # later, when there is a majority without it
            self._forgot.discard(node)
        await command("docker", "start", container.name)
        await container.began()
        await self._set_network(container)

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
        """Drop what the first of each pair sends to the second."""
        for link in links:
            self._cuts[link] += 1
        await self._set_networks(links)

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""
        for link in links:
            self._cuts[link] -= 1
        await self._set_networks(links)

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Have the node's packets from and to the others go through a proxy that delays and loses them."""
        weather = {"delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss}
        container = self._containers[node]
        container.weather = weather if any(weather.values()) else {}
        await self._set_network(container)

    async def _set_networks(self, links: Sequence[Cut]) -> None:
        for node in sorted({end for link in links for end in link}):
            await self._set_network(self._containers[node])

    async def _set_network(self, container: Container) -> None:
        """Make its packet filter and its proxy what they should be."""
        if not self.is_running(container.node):
            await self._end_proxy(container)
            return
        if container.weather:
            await self._begin_proxy(container)
        cuts = {link for link, count in self._cuts.items() if count > 0}
        table = packet_filter(container.node, cuts, is_diverted=bool(container.weather))
        try:
            await command(*container.inside("iptables-restore", "--wait"), given=table)
        except CommandFailed:
            if self.is_running(container.node):  # else its network ended with it
                raise
        if not container.weather:
            await self._end_proxy(container)

    async def _begin_proxy(self, container: Container) -> None:
        await self._end_proxy(container)  # it may be of a network that is gone
        proxy = subprocess.Popen(  # noqa: ASYNC220 - from the loop's own thread, with which it is to die
            container.inside(sys.executable, "-m", packet_proxy.__name__, str(QUEUE)),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        container.proxy = proxy
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        if await asyncio.to_thread(proxy.stdout.readline) != b"ready\n":
            if self.is_running(container.node):
                raise RuntimeError("the proxy for packets did not start")
            return
        proxy.stdin.write(json.dumps(container.weather).encode() + b"\n")
        proxy.stdin.flush()

    async def _end_proxy(self, container: Container) -> None:
        proxy, container.proxy = container.proxy, None
        if proxy is None:
            return
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            proxy.stdin.close()
        await asyncio.to_thread(proxy.wait)
        proxy.stdout.close()

    # --- clocks and disks -----------------------------------------------------------------------------------------

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """At once."""
        self._containers[node].set_clock(skew_ms)

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Full, slow or good."""
        disk = self._containers[node].disk
        if disk.is_shut_down:
            return
        if full:
            self._may_end.add(node)  # a node without space for its journal ends
        await asyncio.to_thread(disk.set_slow, 0)
        await asyncio.to_thread(disk.fill if full else disk.empty)
        await asyncio.to_thread(disk.set_slow, fsync_delay_ms)
        if not full and not fsync_delay_ms and node in self._may_end:
            await self.start(node)

    async def fail_fsync(self, node: NodeId) -> None:
        """And everything after it: the disk has gone, with all that was written on it."""
        self._may_end.add(node)
        await asyncio.to_thread(self._containers[node].disk.shut_down, AFTER_SYNC)

    async def lose_unsynced(self, node: NodeId) -> None:
        """The disk takes nothing more, the process dies, and the disk is mounted as after a power failure."""
        self._may_end.add(node)
        disk = self._containers[node].disk
        await asyncio.to_thread(disk.shut_down, AT_ONCE)
        await self.kill(node)
        await asyncio.to_thread(disk.mount_again)

    async def lose_disk(self, node: NodeId) -> None:
        """The process dies, and has an empty volume when it starts again."""
        await self.kill(node)
        container = self._containers[node]
        await asyncio.to_thread(container.disk.set_slow, 0)
        await asyncio.to_thread(unmount, container.disk.mounted)
        await asyncio.to_thread(container.make_disk)
        self._forgot.add(node)
        self._harmed.discard(node)
        self._harmed_journal.discard(node)

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Flip one bit of a file, under the node's feet."""
        chance = Random(seed)
        data = self._containers[node].disk.data
        files = await asyncio.to_thread(lambda: sorted(corruptible(data, of)))
        if not files:
            return False
        self._may_end.add(node)
        (self._harmed_journal if of == "quorum journal" else self._harmed).add(node)
        await asyncio.to_thread(flip, chance.choice(files), chance)
        return True

    # --- healing --------------------------------------------------------------------------------------------------

    async def heal_all(self) -> None:
        """Everything that is wrong, as an operator would: disks, network, processes, votes, damaged copies."""
        self._cuts.clear()
        for container in self._containers.values():
            await container.resume()
            container.set_clock(0)
            container.weather = {}
            await self._set_network(container)
            await asyncio.to_thread(container.disk.set_slow, 0)
            await asyncio.to_thread(container.disk.empty)
        deadline = time.monotonic() + _REJOIN_SECONDS
        while time.monotonic() < deadline:
            for node in NODES:
                await self.start(node)
            await asyncio.sleep(0.5)
            if all(self.is_running(node) for node in NODES) and not await self.wait_ready(5.0):
                break
        if late := await self.restore_voters(_REJOIN_SECONDS):
            self._problems.append(f"nodes {late} do not vote again after {_REJOIN_SECONDS:g} s")
        for node in sorted(self._harmed):
            self._problems += await refetch_damaged(self, node, self._containers[node].disk.data)
        self._harmed.clear()
        self._may_end.clear()
