"""The checkpoint files of the log directories: recovery points, log start offsets and high watermarks.

Invariants: checkpoints are written one at a time, and never claim less than was promised. A new log start is in the
file before DeleteRecords answers, and a truncation before anything is appended. After a deletion that no checkpoint
reflects yet (`lacks_a_deletion`), no partition may be created: a new log would inherit an old one's entries.

A write continues if its caller is cancelled. High watermarks are only a hint for the next start (rule 10),
and those of 0 are left out: as long as nothing is written to them, partitions come and go without a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from kraftpy.broker.replication.directory_failures import DirectoryFailures
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.storage.disk import Disk, Disks
from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.types import TopicPartition

_LOOKED_AT_AT_ONCE = 1_000


class Checkpoints:
    """The checkpoints of one broker."""

    def __init__(self, replicas: Replicas, disks: Disks, failures: DirectoryFailures) -> None:
        self._replicas = replicas
        self._disks = disks
        self._failures = failures
        self.moving_in: dict[TopicPartition, tuple[Disk, PartitionLog]] = {}
        """Copies about to replace logs in other directories: their checkpoints are written first."""
        self._writing = asyncio.Lock()
        self._deletions = 0
        self._deletions_written = 0
        """How many of the deletions are known to be reflected in the checkpoints."""

    def deleted(self) -> None:
        """Record that partitions were deleted: until the next successful `write`, the files still name them."""
        self._deletions += 1

    @property
    def lacks_a_deletion(self) -> bool:
        """True if the files may still name a deleted partition."""
        return self._deletions != self._deletions_written

    async def write(self) -> None:
        """Write the recovery point and the start offset of each log, per log directory. Raises OSError."""
        await _to_the_end(self._write())

    async def write_log_start(self, log: PartitionLog, offset: int) -> None:
        """Write the checkpoints, unless a concurrent write already has this log start. Raises OSError."""
        await _to_the_end(self._write(unless=lambda: log.written_log_start >= offset))

    async def _write(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Write the checkpoints, `unless` another caller's write has made it unnecessary meanwhile."""
        async with self._writing:
            if unless():
                return
            deletions = self._deletions
            failure: OSError | None = None
            for disk in self._disks.usable:
                logs = {key: log for key, (into, log) in self.moving_in.items() if into is disk}
                points = {key: log.recovery_point for key, log in logs.items()}
                starts = {key: log.log_start_offset for key, log in logs.items()}
                async for some in in_slices(list(self._replicas), _LOOKED_AT_AT_ONCE):
                    for replica in some:
                        if replica.log_directory is disk.directory:
                            key, log = replica.topic_partition, replica.log
                            logs[key], points[key], starts[key] = log, log.recovery_point, log.log_start_offset
                try:
                    await asyncio.to_thread(disk.write_checkpoints, points, starts)
                except OSError as error:
                    if not self._failures.storage_failed(disk.directory, "write the checkpoints in", error):
                        failure = error
                    continue
                async for keys in in_slices(list(logs), _LOOKED_AT_AT_ONCE):
                    for key in keys:
                        logs[key].written_log_start = starts[key]
            if failure is not None:
                raise failure
            self._deletions_written = deletions

    async def write_high_watermarks(self) -> None:
        """Write the high watermarks, per log directory. Raises OSError."""
        await _to_the_end(self._write_high_watermarks())

    async def _write_high_watermarks(self) -> None:
        async with self._writing:
            for disk in self._disks.usable:
                marks: dict[TopicPartition, int] = {}
                async for some in in_slices(list(self._replicas), _LOOKED_AT_AT_ONCE):
                    for replica in some:
                        if replica.high_watermark and replica.log_directory is disk.directory:
                            marks[replica.topic_partition] = int(replica.high_watermark)
                if marks != disk.high_watermarks:
                    try:
                        await asyncio.to_thread(layout.write_offsets, disk.directory, layout.HIGH_WATERMARKS, marks)
                    except OSError as error:
                        if not self._failures.storage_failed(disk.directory, "write the high watermarks in", error):
                            raise
                        continue
                    disk.high_watermarks = marks


async def _to_the_end(writing: Coroutine[None, None, None]) -> None:
    """Wait for a write that continues if the caller is cancelled; then its outcome is ignored."""
    task = asyncio.ensure_future(writing)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.shield(task)
