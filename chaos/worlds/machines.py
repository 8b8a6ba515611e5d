"""A world of real nodes, each on its own breakable disk: the common part of namespaces and containers.

    disk-full           a file takes all the space that the disk has left
    slow-disk           the file system is frozen for a time, released for a moment, and frozen again
    fsync-error         the file system is synced and shut down: every operation fails with EIO until it is mounted
                        again
    lose-unsynced       the file system is shut down without writing anything more, the process killed, and the disk
                        mounted again: what was neither synced nor written back by then is gone, as after a power
                        failure
    lose-disk           a new file system. The node's vote is taken away before it starts, and given back once it has
                        caught up: a voter that forgets its vote may vote twice
    corruption          one bit of a file is flipped. When all is healed, damaged logs are fetched again
                        (`kraftpy topic refetch`). A node that refuses its journal loses its vote and starts without

No last copy is ever taken: before a node loses data, or a byte of it, all other nodes must answer, and each of its
replicas must have another one in sync. The world waits for that; if it does not happen, the action is left out
(`nemesis.FaultSkipped`). Acknowledged records are in the memory of all in-sync replicas: taking them from the last of
these goes beyond the promise of a log without `kraftpy.flush.before.ack` (KIP-966). The quorum keeps its majority as
well: more than half of the voters keep their journals.

A node that ends without being asked to stays down until it is started, and is a problem of the run unless a current
fault may have ended it.

Left out: hardware that lies about syncs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from chaos.nemesis import Cut, FaultSkipped, Kind, NodeId
from chaos.worlds.administrator import has_no_vote, refetch_damaged, wait_until_serving
from chaos.worlds.asking import Asking
from chaos.worlds.disks import AFTER_SYNC, AT_ONCE, Disk, corruptible, flip, unmount
from kraftpy.broker.storage.directories import METADATA_DIRECTORY

STOP_SECONDS: Final = 120
_REJOIN_SECONDS: Final = 120.0
_COPIES_SECONDS: Final = 15.0
_SETTLE_SECONDS: Final = 0.5
_QUORUM_JOURNAL: Final = "quorum journal"
_ENDED_BY_SIGTERM: Final = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM})
"""The status of a process that had no handler yet, and so had begun nothing: it was only just started."""
_REFUSED_JOURNAL: Final = re.compile(r"journal|snapshot|vote")


def missing_packages(packages: Mapping[str, str]) -> str | None:
    """Return the Debian packages of the missing commands, and how to install them."""
    absent = sorted({package for command, package in packages.items() if shutil.which(command) is None})
    return f"{', '.join(absent)} (Debian: apt-get install {' '.join(absent)})" if absent else None


class Machines(Asking):
    """Everything of a `chaos.worlds.living.LiveWorld` except how nodes are made, run and connected."""

    fresh_seconds: ClassVar[float] = 10.0
    """A node started this recently may not serve yet; the world waits for it before it stops another."""
    serves_seconds: ClassVar[float] = 15.0
    """The longest such wait."""

    def __init__(self, directory: Path, nodes: tuple[NodeId, ...], settings: Mapping[str, str] | None) -> None:
        self.nodes = nodes
        self._directory = directory.absolute()
        self._settings = dict(settings or {})
        self._cuts: Counter[Cut] = Counter()
        self._starts: Counter[NodeId] = Counter()
        self._started_at: dict[NodeId, float] = {}
        self._problems: list[str] = []
        self._may_end: set[NodeId] = set()  # a fault may make it end
        self._harmed: set[NodeId] = set()  # a byte of its logs was changed
        self._harmed_journal: set[NodeId] = set()
        self._forgot: set[NodeId] = set()  # it has no journal and has not been started without one

    # --- what each world has of its own ---------------------------------------------------------------------------

    @abstractmethod
    def is_running(self, node: NodeId) -> bool:
        """Return True if its process lives, paused or not. `_ended` is called once for each that ended unasked."""

    @abstractmethod
    def disk_of(self, node: NodeId) -> Disk:
        """Return its disk."""

    @abstractmethod
    def last_words(self, node: NodeId) -> str:
        """Return the end of its log."""

    @abstractmethod
    async def kill(self, node: NodeId) -> None:
        """End it at once, and wait."""

    @abstractmethod
    async def resume(self, node: NodeId) -> None:
        """Let it continue, if it was paused."""

    @abstractmethod
    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Set its clock at once."""

    @abstractmethod
    async def mend_network(self, node: NodeId) -> None:
        """Undo all that was done to its packets; `_cuts` is empty by then."""

    @abstractmethod
    async def launch(self, node: NodeId) -> None:
        """Start its process, which does not run, with the network in its intended state."""

    @abstractmethod
    async def end(self, node: NodeId) -> int | None:
        """Ask the running process to end, and wait; return its status, or None if it had to be killed."""

    @abstractmethod
    def make_disk(self, node: NodeId) -> None:
        """Mount an empty disk in place of the old one."""

    # --- what is said of it ---------------------------------------------------------------------------------------

    @property
    def abilities(self) -> frozenset[Kind]:
        """Return every kind."""
        return frozenset(Kind) - {Kind.SEVERAL}

    @property
    def left_out(self) -> Mapping[Kind, str]:
        """Return nothing."""
        return {}

    def incarnation(self, node: NodeId) -> int:
        """Return how often it was started."""
        return self._starts[node]

    def problems(self) -> list[str]:
        """Return the problems seen so far."""
        return list(self._problems)

    async def log_directory(self, node: NodeId) -> Path:
        """Return the directory mounted on this machine."""
        return self.disk_of(node).data

    def _began(self, node: NodeId) -> None:
        self._starts[node] += 1
        self._started_at[node] = time.monotonic()

    def _ended(self, node: NodeId, how: str) -> None:
        """Note a node that ended without being asked to."""
        if node not in self._may_end and node not in self._harmed_journal:
            self._problems.append(f"node {node} ended by itself{how}: {self.last_words(node)}")

    # --- processes ------------------------------------------------------------------------------------------------

    async def stop(self, node: NodeId) -> None:
        """Ask it to end, and wait; a node that takes two minutes is killed, and is a problem.

        As an operator would, this waits until the others that were just started serve.
        """
        if not self.is_running(node):
            return
        since = time.monotonic() - self.fresh_seconds
        fresh = [each for each in self.nodes if self._started_at.get(each, since) > since]
        others = [each for each in fresh if each != node]
        await wait_until_serving(self, others, self._may_serve, self.serves_seconds)
        if not self.is_running(node):
            return
        status = await self.end(node)
        if status is None:
            self._problems.append(f"node {node} did not stop within {STOP_SECONDS} s: {self.last_words(node)}")
        elif status != 0 and node not in self._may_end and not (status in _ENDED_BY_SIGTERM and node in fresh):
            self._problems.append(f"node {node} stopped with status {status}: {self.last_words(node)}")

    def _may_serve(self, node: NodeId) -> bool:
        """Return True if it is worth waiting for the node."""
        return self.is_running(node)

    async def start(self, node: NodeId) -> None:
        """Start the node unless it runs, on a disk that works."""
        disk = self.disk_of(node)
        if disk.is_shut_down:
            await self.kill(node)
            await asyncio.to_thread(disk.mount_again)
        if self.is_running(node):
            return
        if node in self._harmed_journal and _REFUSED_JOURNAL.search(self.last_words(node)):
            await asyncio.to_thread(disk.set_slow, 0)
            await asyncio.to_thread(shutil.rmtree, disk.data / METADATA_DIRECTORY)
            self._harmed_journal.discard(node)
            self._forgot.add(node)
        if node in self._forgot:
            if not await has_no_vote(self, node):
                return  # later, when there is a majority without it
            self._forgot.discard(node)
        await self.launch(node)

    # --- disks ----------------------------------------------------------------------------------------------------

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Make the disk full, slow or good."""
        disk = self.disk_of(node)
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
        """Fail it, and everything after it: the disk is gone, with all that was written to it."""
        self._may_end.add(node)
        await asyncio.to_thread(self.disk_of(node).shut_down, AFTER_SYNC)

    async def _spare_the_last_copy(self, node: NodeId) -> None:
        if alone := await self.wait_for_copies(node, _COPIES_SECONDS):
            raise FaultSkipped(alone[0])

    async def _spare_the_majority(self, node: NodeId) -> None:
        voters = await self.voters()
        if voters is None:
            raise FaultSkipped("nobody says who votes")
        left = {*voters} - {node} - self._forgot - self._harmed_journal
        if len(left) <= len(voters) // 2:
            raise FaultSkipped(f"without node {node} there are too few voters: {sorted(voters)}")

    async def lose_unsynced(self, node: NodeId) -> None:
        """Stop the disk and kill the process; mount the disk as after a power failure."""
        await self._spare_the_last_copy(node)
        self._may_end.add(node)
        await asyncio.to_thread(self.disk_of(node).shut_down, AT_ONCE)
        await self.kill(node)
        await asyncio.to_thread(self.disk_of(node).mount_again)

    async def lose_disk(self, node: NodeId) -> None:
        """Kill the process, and give it an empty disk for its next start."""
        await self._spare_the_last_copy(node)
        await self._spare_the_majority(node)
        await self.kill(node)
        disk = self.disk_of(node)
        await asyncio.to_thread(disk.set_slow, 0)
        await asyncio.to_thread(unmount, disk.mounted)
        await asyncio.to_thread(self.make_disk, node)
        self._forgot.add(node)
        self._harmed.discard(node)
        self._harmed_journal.discard(node)

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Flip one bit of a file while the node runs."""
        await self._spare_the_last_copy(node)
        if of == _QUORUM_JOURNAL:
            await self._spare_the_majority(node)
        chance = Random(seed)
        data = self.disk_of(node).data
        files = await asyncio.to_thread(lambda: sorted(corruptible(data, of)))
        if not files:
            return False
        self._may_end.add(node)
        (self._harmed_journal if of == _QUORUM_JOURNAL else self._harmed).add(node)
        await asyncio.to_thread(flip, chance.choice(files), chance)
        return True

    # --- healing --------------------------------------------------------------------------------------------------

    async def heal_all(self) -> None:
        """Mend everything as an operator would: disks, network, processes, votes, damaged copies."""
        self._cuts.clear()
        for node in self.nodes:
            await self.resume(node)
            await self.set_clock(node, 0)
            await self.mend_network(node)
            await asyncio.to_thread(self.disk_of(node).set_slow, 0)
            await asyncio.to_thread(self.disk_of(node).empty)
        deadline = time.monotonic() + _REJOIN_SECONDS
        while time.monotonic() < deadline:
            for node in self.nodes:
                await self.start(node)
            await asyncio.sleep(_SETTLE_SECONDS)
            if all(self.is_running(node) for node in self.nodes) and not await self.wait_ready(5.0):
                break
        if late := await self.restore_voters(_REJOIN_SECONDS):
            self._problems.append(f"nodes {late} do not vote again after {_REJOIN_SECONDS:g} s")
        for node in sorted(self._harmed):
            self._problems += await refetch_damaged(self, node, self.disk_of(node).data)
        self._harmed.clear()
        self._may_end.clear()
