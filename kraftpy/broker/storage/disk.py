"""The log directories of a broker: the partitions that each holds, and their checkpoints.

A damaged checkpoint costs only what it would have saved: a scan, a look at deleted records, a cleaning from the start,
or learning the high watermark again.

`ports.failure_of` alone classifies failures (docs/how-to/disks.md has a table). A lack of room, descriptors, memory or
threads is temporary and fails only the request that met it; a failed disk, which returns wrong data or none, takes the
directory offline for the rest of this process's life. Kafka takes a directory offline when it is full, too; here a full
one still serves what it holds.

Reading and writing checkpoints blocks: call it from a thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.log import layout
from kraftpy.ports import Directory, Failure, failure_of
from kraftpy.types import TopicId, TopicPartition

logger = logging.getLogger(__name__)

_STRAY = "-stray"


def costs_the_directory(error: OSError) -> bool:
    """Return whether a failure takes its log directory out of use, not only the request that met it."""
    return failure_of(error) is Failure.DISK


@dataclass(slots=True)
class Disk:
    """One log directory, with its checkpoints as of the broker's start."""

    directory: Directory
    clean: bool
    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    cleaner_offsets: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions that have a directory here, or are about to."""
    new: set[TopicPartition] = field(default_factory=set)
    """Partitions that had none before and are not open yet."""
    futures: dict[str, TopicPartition] = field(default_factory=dict)
    """Copies that were being made here when the broker stopped."""
    failure: str | None = None
    """Why the directory is out of use."""

    def forget(self, key: TopicPartition) -> None:
        """Forget a partition's checkpoints, which belong to one that is gone."""
        self.recovery_points.pop(key, None)
        self.log_start_offsets.pop(key, None)
        self.cleaner_offsets.pop(key, None)
        self.high_watermarks.pop(key, None)

    def set_aside_if_foreign(self, key: TopicPartition, topic_id: TopicId) -> None:
        """Rename a partition's directory if it belongs to an earlier topic of the same name. Blocks."""
        found = layout.read_topic_id(self.directory.child(str(key)))
        if found is None or found == topic_id:
            return
        aside = f"{key}.{uuid.uuid4().hex}{_STRAY}"
        logger.warning("%s/%s is of another topic of that name; set aside as %s", self.directory.path, key, aside)
        self.directory.rename(str(key), aside)
        self.forget(key)

    def write_checkpoints(
        self, recovery_points: dict[TopicPartition, int], log_start_offsets: dict[TopicPartition, int]
    ) -> None:
        """Write the recovery points and log start offsets of its logs. Raises OSError."""
        layout.write_offsets(self.directory, layout.RECOVERY_POINTS, recovery_points)
        layout.write_offsets(self.directory, layout.LOG_START_OFFSETS, log_start_offsets)


class Disks:
    """The log directories that could be used at start, in order. Each stays here if it fails later."""

    def __init__(self) -> None:
        self._disks: list[Disk] = []
        self._cordoned: Callable[[], frozenset[str]] = frozenset

    def __iter__(self) -> Iterator[Disk]:
        return iter(self._disks)

    def __len__(self) -> int:
        return len(self._disks)

    def read(self, directories: LogDirectories) -> None:
        """Read the directories, at start. Blocks. Raises OSError as `read_disks` does."""
        self._disks = read_disks(directories)
        self._cordoned = lambda: directories.cordoned

    @property
    def usable(self) -> list[Disk]:
        """The directories that have not failed."""
        return [disk for disk in self._disks if disk.failure is None]

    def at(self, path: str) -> Disk | None:
        """Return the directory with this path."""
        return next((disk for disk in self._disks if disk.directory.path == path), None)

    def holding(self, key: TopicPartition) -> Disk | None:
        """Return the first directory that holds a partition, or is about to."""
        return next((disk for disk in self._disks if key in disk.partitions), None)

    def place(self, key: TopicPartition, requested: str | None) -> Disk:
        """Choose the directory of a new partition: the requested one, or the one with the fewest partitions.

        A cordoned directory is chosen only if all are: the partition may have been assigned before they were cordoned.
        """
        cordoned = self._cordoned()
        usable = [disk for disk in self.usable if disk.directory.path not in cordoned] or self.usable
        chosen = [disk for disk in usable if disk.directory.path == requested]
        disk = min(chosen or usable, key=lambda disk: len(disk.partitions))
        disk.partitions.add(key)
        disk.new.add(key)
        return disk

    def forget(self, key: TopicPartition) -> None:
        """Forget a partition that was deleted."""
        for disk in self._disks:
            disk.partitions.discard(key)
            disk.forget(key)


def read_disks(directories: LogDirectories) -> list[Disk]:
    """Return the log directories with their partitions and checkpoints; remnants of deleted partitions are removed.

    A directory that cannot be read is out of use from the start. Raises OSError if the node needs it.
    """
    disks: list[Disk] = []
    for directory, clean in zip(directories.opened, directories.clean, strict=True):
        try:
            disks.append(_read_disk(directory, clean=clean))
        except OSError as error:
            if directories.is_needed(directory.path) or not costs_the_directory(error):
                raise
            logger.critical("log directory %s is offline: it cannot be read: %s", directory.path, error)
            directories.failures[directory.path] = str(error)
            directories.may_lack = True
    _finish_interrupted_moves(disks)
    return disks


def _finish_interrupted_moves(disks: list[Disk]) -> None:
    """Delete the source of a partition that an interrupted move left in two directories."""
    for disk in disks:
        for key in sorted(disk.partitions):
            others = [other for other in disks if other is not disk and key in other.partitions]
            if not others or any(_moved_from(disk, key) != other.directory.path for other in others):
                continue
            for other in others:
                logger.warning("%s/%s has moved to %s and is deleted", other.directory.path, key, disk.directory.path)
                aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
                other.directory.rename(str(key), aside)
                other.directory.sync()
                other.directory.delete(aside)
                other.partitions.discard(key)
                other.forget(key)
            disk.directory.child(str(key)).delete(layout.MOVED_FROM)


def _moved_from(disk: Disk, key: TopicPartition) -> str | None:
    try:
        return disk.directory.child(str(key)).read(layout.MOVED_FROM).decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def _read_disk(directory: Directory, *, clean: bool) -> Disk:
    try:
        points = layout.read_offsets(directory, layout.RECOVERY_POINTS)
    except layout.CorruptFile as error:
        logger.warning("%s; every log in it is scanned", error)
        clean, points = False, {}
    try:
        starts = layout.read_offsets(directory, layout.LOG_START_OFFSETS)
    except layout.CorruptFile as error:
        logger.warning("%s; deleted records that still have a segment reappear", error)
        starts = {}
    try:
        cleaned = layout.read_offsets(directory, layout.CLEANER_OFFSETS)
    except layout.CorruptFile as error:
        logger.warning("%s; its logs are compacted from their start", error)
        cleaned = {}
    try:
        marks = layout.read_offsets(directory, layout.HIGH_WATERMARKS)
    except layout.CorruptFile as error:
        logger.warning("%s; its high watermarks have to be learnt again", error)
        marks = {}
    disk = Disk(directory, clean, points, starts, cleaned, marks, set(layout.partitions(directory)))
    disk.futures = layout.future_partitions(directory)
    for name in layout.deleted_partitions(directory):
        directory.delete(name)
    return disk
