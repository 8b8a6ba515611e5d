"""An engine, and a node's container with its disk, clock and network: the parts of the world of containers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from chaos.nemesis import Cut, NodeId
from chaos.worlds.disks import Disk
from chaos.worlds.proxying import QUEUE, ROOT, PacketProxy, in_network

RUN_DIRECTORY: Final = Path("/run/kraftpy-chaos-docker")
BASE_IMAGE: Final = "python:3.11-slim-bookworm"
NETWORK: Final = "10.213.77"
NODES: Final = (1, 2, 3)
_USER: Final = 1000  # the image's appuser
_COMMAND_SECONDS: Final = 900.0
_PAUSE_ATTEMPTS: Final = 10


class CommandFailed(RuntimeError):
    """A command exited with a status other than 0; the message is the last thing it printed."""


async def command(*arguments: object, given: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command, run from the root of the source tree. Raises CommandFailed and
    FileNotFoundError."""
    process = await asyncio.create_subprocess_exec(
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            output, errors = await process.communicate(None if given is None else given.encode())
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    if process.returncode != 0:
        said = (errors or output).decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise CommandFailed(f"{' '.join(map(str, arguments[:3]))}: {said[-1]}")
    return output.decode(errors="replace").strip()


async def succeeds(*arguments: object) -> bool:
    """Return True if the command exists and exits with status 0."""
    try:
        await command(*arguments)
    except (CommandFailed, FileNotFoundError):
        return False
    return True


def address_of(node: NodeId) -> str:
    """Return the address that docker/compose.chaos.yaml assigns."""
    return f"{NETWORK}.{10 + node}"


def settings_file(settings: Mapping[str, str]) -> str:
    """Return a compose file, in JSON, that sets these settings on every node under the names of Kafka's image."""
    services = {f"kafka{node}": {"environment": as_environment(settings)} for node in NODES}
    return json.dumps({"services": services})


def as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return KAFKA_LOG_ROLL_MS for log.roll.ms, and so on; dollars in values are doubled for compose."""
    escapes = str.maketrans({"_": "__", "-": "___", ".": "_"})
    return {f"KAFKA_{name.translate(escapes).upper()}": value.replace("$", "$$") for name, value in settings.items()}


def packet_filter(node: NodeId, cuts: Collection[Cut], *, is_diverted: bool) -> str:
    """Return a node's filter table for `iptables-restore`; diverted packets go through the queue."""
    lines = ["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]"]
    for other in NODES:
        if other == node:
            continue
        address = address_of(other)
        if (other, node) in cuts:
            lines.append(f"-A INPUT -s {address} -j DROP")
        if (node, other) in cuts:
            lines.append(f"-A OUTPUT -d {address} -j DROP")
        if is_diverted:
            lines.append(f"-A INPUT -s {address} -j NFQUEUE --queue-num {QUEUE} --queue-bypass")
            lines.append(f"-A OUTPUT -d {address} -j NFQUEUE --queue-num {QUEUE} --queue-bypass")
    return "\n".join([*lines, "COMMIT", ""])


class Engine:
    """The Docker engine of this machine."""

    def __init__(self) -> None:
        self._daemon: subprocess.Popen[bytes] | None = None

    async def open(self) -> None:
        """Use the running engine, or start one. Raises RuntimeError."""
        if await succeeds("docker", "info"):
            return
        if shutil.which("dockerd") is None:
            raise RuntimeError(
                "no Docker engine answers, and none is installed here (Debian: apt-get install docker.io)"
            )
        log = Path(tempfile.gettempdir(), "kraftpy-chaos-dockerd.log")
        self._daemon = await asyncio.to_thread(self._start, log)
        while self._daemon.poll() is None:
            if await succeeds("docker", "info"):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"dockerd does not start; its log is {log}")

    def _start(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                ["dockerd"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    async def build(self) -> None:
        """Build the images of this source tree. Raises CommandFailed."""
        has_base = await succeeds("docker", "image", "inspect", BASE_IMAGE)
        if not has_base and not await succeeds("docker", "pull", BASE_IMAGE):
            await command(ROOT / "docker/base-image.sh")
        await command("docker", "build", "--file", "docker/Dockerfile", "--tag", "kraftpy", ".")
        await command("docker", "build", "--file", "docker/chaos.Dockerfile", "--tag", "kraftpy-chaos", "docker")

    async def close(self) -> None:
        """End the daemon if it was started here."""
        if self._daemon is not None:
            self._daemon.terminate()
            await asyncio.to_thread(self._daemon.wait)
            self._daemon = None


class Container:
    """A node's container, its disk and its clock."""

    def __init__(self, node: NodeId, directory: Path) -> None:
        self.node = node
        self.service = f"kafka{node}"
        self.disk = Disk(directory / f"node-{node}" / "disk.ext4", RUN_DIRECTORY / self.service / "disk")
        self.name = ""
        self.is_wanted = False
        """True if it was started, and nothing done since should have ended it."""
        self.is_paused = False
        self.pid = 0
        self.proxy: PacketProxy | None = None
        self.impairment: dict[str, float] = {}

    def make(self) -> None:
        """Make its disk and its clock. Raises RuntimeError."""
        self.disk.image.parent.mkdir(parents=True, exist_ok=True)
        (RUN_DIRECTORY / self.service / "chaos").mkdir(parents=True)
        self.set_clock(0)
        self.make_disk()

    def make_disk(self) -> None:
        """Make a new disk that the image's user may write to."""
        self.disk.make()
        os.chown(self.disk.data, _USER, _USER)

    def set_clock(self, skew_ms: int) -> None:
        """Replace, as a whole, the file that libfaketime reads."""
        clock = RUN_DIRECTORY / self.service / "chaos/clock"
        beside = clock.with_suffix(".new")
        beside.write_text(f"{skew_ms / 1000:+.3f}\n", encoding="ascii")
        beside.rename(clock)

    @property
    def is_running(self) -> bool:
        """Return True if its process lives, paused or not."""
        return self.pid > 0 and Path(f"/proc/{self.pid}").exists()

    async def inspect(self, what: str) -> str:
        """Return one value of `docker inspect`."""
        return await command("docker", "inspect", "--format", f"{{{{{what}}}}}", self.name)

    async def began(self) -> None:
        """Note that its process is a new one."""
        self.pid = int(await self.inspect(".State.Pid"))
        self.is_paused = False
        self.is_wanted = True

    async def pause(self) -> None:
        """Stop it in its tracks. A first version of control groups may fail to while the machine is busy."""
        for attempts_left in reversed(range(_PAUSE_ATTEMPTS)):
            try:
                await command("docker", "pause", self.name)
            except CommandFailed:
                if not attempts_left:
                    raise
                await asyncio.sleep(0.2)
            else:
                self.is_paused = True
                return

    async def resume(self) -> None:
        """Let it continue."""
        if self.is_paused and self.is_running:
            await command("docker", "unpause", self.name)
        self.is_paused = False

    async def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        await self.resume()  # the engine cannot kill a paused container
        self.is_wanted = False
        if self.is_running:
            try:
                await command("docker", "kill", self.name)
            except CommandFailed:
                if self.is_running:  # otherwise it ended just now
                    raise
        await command("docker", "wait", self.name)
        self.pid = 0

    def log(self) -> str:
        """Return both streams, of all its runs."""
        if not self.name:
            return ""
        done = subprocess.run(
            ["docker", "logs", self.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return done.stdout.decode(errors="replace")

    def last_words(self) -> str:
        """Return the end of its log."""
        return " / ".join(self.log().splitlines()[-3:])[-600:]

    @property
    def network(self) -> Path:
        """Return the network namespace of its process."""
        return Path(f"/proc/{self.pid}/ns/net")

    def inside(self, *arguments: str) -> list[str]:
        """Return the command wrapped to run in its network; it dies with this process."""
        return in_network(self.network, *arguments)
