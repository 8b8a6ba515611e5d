"""The view that a replica's parts have of it: its current log, and a handler of storage errors."""

from __future__ import annotations

from typing import Protocol

from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Directory
from kraftpy.replication.leader import Leader
from kraftpy.types import Offset, TopicPartition


class StorageFailed(Protocol):
    """Handles a storage error in a log directory (`DirectoryFailures.storage_failed`)."""

    def __call__(self, directory: Directory, what: str, error: OSError, *, is_lasting: bool = False) -> bool:
        """Return whether the error takes the directory offline."""
        ...


class LogHolder(Protocol):
    """A replica as its parts see it: the log as of now, which a move to another directory replaces."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        ...

    @property
    def log(self) -> PartitionLog:
        """The log."""
        ...

    @property
    def log_directory(self) -> Directory:
        """The log directory that holds the log."""
        ...

    @property
    def leading(self) -> Leader | None:
        """The leader's state; None if this replica does not lead."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """Everything before it is known to be committed."""
        ...

    @property
    def last_stable_offset(self) -> Offset:
        """Everything before it is committed and belongs to no open transaction."""
        ...
