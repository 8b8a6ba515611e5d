"""The log directories of a running broker that fail, and what that costs: the partitions in them, and no others.

Invariant: a log directory that has failed stays out of use until a restart, no partition in it is in the table of
replicas, and each of them is offline with the directory's failure as its reason. `storage.disk` decides which errors
take a directory offline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.broker.storage.disk import Disks, costs_the_directory
from kraftpy.broker.storage.offline import Wanted
from kraftpy.ports import Directory
from kraftpy.types import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

DirectoryFailed = Callable[[str, str, Sequence[TopicPartition]], None]
"""Called immediately with a log directory that is out of use, the reason, and its partitions."""


class PartitionFetchers(Protocol):
    """The interface of the fetchers for partitions that other brokers lead."""

    def assign(self, changes: Iterable[tuple[Replica, BrokerId]]) -> None:
        """Fetch these partitions from these leaders from now on; `NO_LEADER` means not to fetch it."""
        ...

    def wake(self) -> None:
        """Retry failed leaders and partitions now, because brokers have come or gone."""
        ...


class DirectoryFailures:
    """Takes log directories out of use when they fail."""

    def __init__(
        self,
        directories: LogDirectories,
        disks: Disks,
        replicas: Replicas,
        fetchers: PartitionFetchers,
        directory_failed: DirectoryFailed,
    ) -> None:
        self._directories = directories
        self._disks = disks
        self._replicas = replicas
        self._fetchers = fetchers
        self._directory_failed = directory_failed
        self._releasing: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def storage_failed(self, directory: Directory, what: str, error: OSError, *, is_lasting: bool = False) -> bool:
        """Handle a storage error in a log directory; return whether it takes the directory offline.

        If `is_lasting`, any error does: after a failed sync, the contents of the disk are unknown.
        """
        if not is_lasting and not costs_the_directory(error):
            return False
        disk = self._disks.at(directory.path)
        if disk is None or disk.failure is not None or self._is_stopped:
            return True
        disk.failure = self._directories.failures[directory.path] = f"cannot {what} it: {error.strerror or error}"
        lost = self._replicas.in_directory(directory.path)
        for replica in lost:
            topic = self._replicas.image.topic_by_id(replica.topic_id)
            self._replicas.remove(replica)
            if topic is not None:
                wanted = Wanted(topic, replica.topic_partition.partition, replica.log.config)
                reason = f"its log directory is offline: {disk.failure}"
                self._replicas.offline.failed(wanted, reason, may_retry=False)
            replica.go_offline()
            self.release_later(replica)
        self._fetchers.assign([(replica, NO_LEADER) for replica in lost])
        self._directory_failed(directory.path, disk.failure, [replica.topic_partition for replica in lost])
        return True

    async def check_directories(self) -> None:
        """Notice a log directory that vanished or became read-only, even if it is not in use."""
        for disk in self._disks.usable:
            try:
                await asyncio.to_thread(self._directories.check, disk.directory)
            except OSError as error:
                self.storage_failed(disk.directory, "use", error)

    def release_later(self, replica: Replica) -> None:
        """Close a replica's files once nothing uses them."""
        task = asyncio.get_running_loop().create_task(_release_quietly(replica))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def stop(self) -> None:
        """Take no more directories out of use; return once the files of those that failed are closed."""
        self._is_stopped = True
        if self._releasing:
            await asyncio.wait(self._releasing)


async def _release_quietly(replica: Replica) -> None:
    try:
        await replica.release()
    except OSError as error:
        logger.debug("%s: its files cannot be closed: %s", replica.topic_partition, error)
