"""Opens the logs of partitions, or creates them, several at once in threads, and adds their replicas to the table.

Invariants: a directory is opened only if its topic's id is the partition's, and set aside otherwise; a partition is
created only if its records cannot be anywhere else: no directory may hold it, and the metadata does not say that they
were lost. No partition is created while a checkpoint may still name a deleted one. A partition that cannot be opened is
offline, with the reason, and costs no other partition anything.

One call at a time, which the replica manager's lock ensures: a log opened twice would lose what was written to the
first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence

from kraftpy.broker.containment import Incidents
from kraftpy.broker.descriptors import Descriptors
from kraftpy.broker.patience import sync_patiently
from kraftpy.broker.replication.checkpoints import Checkpoints
from kraftpy.broker.replication.directory_failures import DirectoryFailures
from kraftpy.broker.replication.host import ReplicaHost
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.broker.storage.disk import Disk, Disks
from kraftpy.broker.storage.disk_reads import DiskReads
from kraftpy.broker.storage.offline import Wanted
from kraftpy.broker.storage.opening import Opening
from kraftpy.broker.threads import Threads
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.log.appending import BatchLimits
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.metadata.commands import ReplicaState
from kraftpy.ports import Failure, failure_of
from kraftpy.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

FILES_WHILE_OPENING = 8
"""A thread that opens a log keeps no more files open; the cache shared by all logs belongs to the loop alone."""
THREADS_THAT_SYNC = 16
"""Creating and closing partitions waits for the disk, which syncs many files in the time of one."""
_CREATED_AT_ONCE = 100
"""New partitions created, and then usable, before the next ones are begun."""
_THREADS_FOR_MANY = 3
"""Threads that create many partitions compete with the event loop for the interpreter, which delays the loop."""
_TASKS = 64
"""The number of tasks that open logs: more than threads, so that no thread waits for the event loop."""
_LOOKED_AT_AT_ONCE = 1_000
"""Partitions that are looked at before others get the event loop."""
_ADDED_AT_ONCE = 500
_PAUSES_SECONDS = (0.02, 0.1, 0.3)
"""Pauses between attempts to open a log while descriptors are short; after them it is offline and retried later."""

_Failed = tuple[Wanted, Exception]


class ReplicaOpener:
    """Opens and creates this broker's partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        host: ReplicaHost,
        replicas: Replicas,
        directories: LogDirectories,
        disks: Disks,
        failures: DirectoryFailures,
        checkpoints: Checkpoints,
        incidents: Incidents,
        descriptors: Descriptors,
    ) -> None:
        self.config = config
        self._host = host
        self._replicas = replicas
        self._offline = replicas.offline
        self._directories = directories
        self._disks = disks
        self._failures = failures
        self._checkpoints = checkpoints
        self._incidents = incidents
        self._complaints = incidents.complaints
        self._work_files = descriptors.work_files
        self._files = FileCache(descriptors.cached_files, descriptors.pinned_files, DiskReads().count)
        self._limits = BatchLimits(
            config.kraftpy_batch_max_records,
            config.kraftpy_batch_max_headers,
            config.kraftpy_batch_max_expanded_bytes,
        )
        self.requested_directories: dict[TopicPartition, str] = {}
        """Requested log directories of partitions that are not here yet."""
        creators = max(1, min(THREADS_THAT_SYNC, self._work_files // (FILES_WHILE_OPENING + 2)))
        self._creators = Threads(creators, thread_name_prefix="make-log")

    def close(self) -> None:
        """End the threads."""
        self._creators.shutdown()

    async def open(self, partitions: Sequence[Wanted]) -> AsyncIterator[list[Replica]]:
        """Open partitions, or create them; those that cannot be opened are offline.

        Yields the replicas in groups, as they become available; each has no role yet.
        """
        wanted: list[Wanted] = []
        async for some in in_slices(partitions, _LOOKED_AT_AT_ONCE):
            wanted += [each for each in some if self._may_open(each)]
        if wanted and self._checkpoints.lacks_a_deletion:
            try:
                await self._checkpoints.write()
            except OSError as error:
                text = "no partitions are created: the checkpoints cannot be written: %s"
                self._complaints.write(logger, logging.ERROR, "create", "", text, error)
                for each in wanted:
                    why = f"it is not created: the checkpoints cannot be written: {error}"
                    self._offline.failed(each, why, state=None, may_retry=True)
                return
        self._offline.opening(wanted)
        new = [each for each in wanted if self._disks.holding(each.key) is None]
        created = {each.key for each in new}
        yield await self._open_some([each for each in wanted if each.key not in created], len(wanted))
        threads = _THREADS_FOR_MANY if len(new) > _CREATED_AT_ONCE else len(new)
        for first in range(0, len(new), _CREATED_AT_ONCE):
            yield await self._open_some(new[first : first + _CREATED_AT_ONCE], threads)

    # --- what may be opened ------------------------------------------------------------------

    def _may_open(self, wanted: Wanted) -> bool:
        """Return whether a partition may be opened, or created if it is nowhere; if not, mark it offline."""
        disk = self._disks.holding(wanted.key)
        if disk is not None:
            others = [
                other.directory.path for other in self._disks if other is not disk and wanted.key in other.partitions
            ]
            if others:
                text = f"it is in {disk.directory.path} and in {others[0]}: one of them has to go"
                if self._offline.failed(wanted, text, may_retry=False):
                    logger.error("%s is offline: %s", wanted.key, text)
                return False
            if disk.failure is not None:
                self._offline.failed(wanted, f"its log directory is offline: {disk.failure}", may_retry=False)
            return disk.failure is None
        if self._offline.may_begin(wanted):
            return True
        text, state = "its records are gone with its log directory", ReplicaState.LOST
        if failed := next(iter(self._directories.failures), None):
            text, state = f"it may be in {failed}, which is offline", ReplicaState.OFFLINE
        if self._offline.failed(wanted, text, state, may_retry=False):
            logger.error("%s is offline: %s", wanted.key, text)
        return False

    def _disk_for(self, key: TopicPartition) -> Disk:
        """Return the partition's log directory; for a new one, the requested directory or the one with the fewest."""
        return self._disks.holding(key) or self._disks.place(key, self.requested_directories.pop(key, None))

    # --- on the event loop -------------------------------------------------------------------

    async def _open_some(self, wanted: Sequence[Wanted], jobs_at_most: int) -> list[Replica]:
        opened, failures = await self._open_all(wanted, jobs_at_most)
        for each, failure in failures:
            # A replica that is alone and is new here: no other broker could lead it, and the metadata has better to do.
            is_reported = len(each.partition.replicas) > 1 or not any(each.key in disk.new for disk in self._disks)
            is_short = _is_short(failure)
            state = ReplicaState.OFFLINE if is_reported and not is_short else None
            is_new = self._offline.failed(each, str(failure), state, may_retry=True)
            if is_short:
                self._complaints.own(logger, "open", "%s: cannot open the log for now: %s", each.key, failure)
            elif is_new:
                logger.error("%s is offline: %s", each.key, failure)
        if any(replica.log.report.missing_offsets for replica in opened):
            try:
                await self._checkpoints.write()  # otherwise later writes could pass for synced after the next crash
            except OSError as error:
                text = "the checkpoints cannot be written: %s"
                self._complaints.write(logger, logging.ERROR, "checkpoint", "", text, error)
        return opened

    async def _open_all(self, wanted: Sequence[Wanted], jobs_at_most: int) -> tuple[list[Replica], list[_Failed]]:
        """Open logs in several threads, at most `jobs_at_most` jobs; return the replicas, and the failures."""
        if not wanted:
            return [], []
        creates = not all(self._disks.holding(each.key) is not None for each in wanted)
        recovery_threads = self.config.num_recovery_threads_per_data_dir * len(self._disks)
        threads = max(1, min(recovery_threads, self._work_files // (FILES_WHILE_OPENING + 2)))
        with Opening(len(wanted), threads, recovery_threads, self._creators if creates else None) as opening:
            placed: list[tuple[Disk, Wanted]] = []
            async for some in in_slices(wanted, _LOOKED_AT_AT_ONCE):
                placed += [(self._disk_for(each.key), each) for each in some]
            pieces = (placed[first::jobs_at_most] for first in range(min(jobs_at_most, len(placed))))
            # A few tasks for any number of logs: starting a task for each would take the event loop's time.
            jobs = [
                asyncio.ensure_future(self._open_pieces(opening, pieces))
                for _ in range(min(_TASKS, jobs_at_most, len(placed)))
            ]
            telling = asyncio.create_task(opening.tell())
            try:
                done = await asyncio.gather(*jobs, return_exceptions=True)
            finally:
                telling.cancel()
            results: dict[TopicPartition, Replica | Exception] = {}
            for found in done:
                if isinstance(found, BaseException):
                    raise found
                results.update(found)
            replicas, failures = await self._add(wanted, results)
            if creates:
                await self._sync_names()
        return replicas, failures

    async def _open_pieces(
        self, opening: Opening, pieces: Iterator[Sequence[tuple[Disk, Wanted]]]
    ) -> dict[TopicPartition, Replica | Exception]:
        """Open the logs of one piece after another until none is left; other tasks take pieces, too."""
        found: dict[TopicPartition, Replica | Exception] = {}
        for piece in pieces:
            found.update(await self._open_in(opening, piece))
        return found

    async def _open_in(
        self, opening: Opening, placed: Sequence[tuple[Disk, Wanted]]
    ) -> dict[TopicPartition, Replica | Exception]:
        """Open logs one after another; retry those that lacked descriptors or threads after a pause."""
        loop = asyncio.get_running_loop()
        found: dict[TopicPartition, Replica | Exception] = {}
        for pause in (0.0, *_PAUSES_SECONDS):
            if pause:
                await asyncio.sleep(pause)
            try:
                found.update(await loop.run_in_executor(opening.pool, self._open_each, placed, opening))
            except OSError as error:  # no thread can be started
                found.update({wanted.key: error for _, wanted in placed})
            placed = [each for each in placed if _is_short(found[each[1].key])]
            if not placed:
                break
        return found

    async def _add(
        self, wanted: Sequence[Wanted], results: dict[TopicPartition, Replica | Exception]
    ) -> tuple[list[Replica], list[_Failed]]:
        """Add what was opened to the table, unless its directory has failed meanwhile."""
        replicas: list[Replica] = []
        failures: list[_Failed] = []
        for number, each in enumerate(wanted):
            if number % _ADDED_AT_ONCE == _ADDED_AT_ONCE - 1:
                await asyncio.sleep(0)
            opened = results[each.key]
            if isinstance(opened, (OSError, layout.CorruptFile)):
                failures.append((each, opened))
            elif isinstance(opened, Exception):
                self._incidents.note(f"{each.key}: opening", opened, kind="opening")
                failures.append((each, opened))
            elif (failure := self._failure_of(opened)) is not None:
                failures.append((each, OSError(failure)))
                self._failures.release_later(opened)
            else:
                self._replicas.add(opened)
                if opened.lacks_records:
                    self._offline.mark_shortened((opened.topic_id, opened.topic_partition.partition))
                self._offline.gone(opened.topic_partition)
                for disk in self._disks:
                    disk.new.discard(opened.topic_partition)
                replicas.append(opened)
        return replicas, failures

    def _failure_of(self, replica: Replica) -> str | None:
        disk = self._disks.at(replica.log_directory.path)
        return None if disk is None else disk.failure

    async def _sync_names(self) -> None:
        """Make the names of new directories durable."""
        for disk in self._disks.usable:
            try:
                await sync_patiently(disk.directory, self._complaints)
            except OSError as error:
                self._failures.storage_failed(disk.directory, "sync", error, is_lasting=True)

    # --- in a thread -------------------------------------------------------------------------

    def _open_each(
        self, placed: Sequence[tuple[Disk, Wanted]], opening: Opening
    ) -> dict[TopicPartition, Replica | Exception]:
        found: dict[TopicPartition, Replica | Exception] = {}
        with opening.job():
            for disk, wanted in placed:
                try:
                    found[wanted.key] = self._open(disk, wanted, opening)
                except Exception as error:  # affects this one alone
                    found[wanted.key] = error
        return found

    def _open(self, disk: Disk, wanted: Wanted, opening: Opening) -> Replica:
        key, topic, config = wanted.key, wanted.topic, wanted.config
        if disk.directory.exists(str(key)):
            disk.set_aside_if_foreign(key, topic.topic_id)
        log = PartitionLog.open(
            disk.directory.child(str(key)),
            config,
            now=self._host.now(),
            topic_id=topic.topic_id,
            clean=disk.clean,
            recovery_point=disk.recovery_points.get(key, 0),
            log_start_offset=disk.log_start_offsets.get(key, 0),
            files=FileCache(FILES_WHILE_OPENING),
            expiration_ms=self.config.producer_id_expiration_ms,
            progress=opening.progress(),
            side_by_side=opening.side_by_side,
        )
        opening.opened += 1
        if not log.report.clean:
            logger.info("%s: recovered: %s", key, log.report)
        log.checks_reads = self.config.kraftpy_fetch_check_crcs
        log.limits = self._limits
        log.move_to(self._files)  # closes its files in this thread: thousands of logs are opened at once
        replica = Replica(key, topic.topic_id, disk.directory, log, self._host)
        known = disk.high_watermarks.get(key, 0)
        replica.lacks_records = log.report.missing_offsets > 0 or log.log_end_offset < known
        replica.high_watermark = Offset(min(max(known, log.log_start_offset), log.log_end_offset))
        replica.operations.clean_until = Offset(disk.cleaner_offsets.get(key, 0))
        return replica


def _is_short(opened: Replica | Exception) -> bool:
    """Return whether the process lacked resources, and the log is not at fault."""
    return isinstance(opened, OSError) and failure_of(opened) is Failure.RESOURCES
