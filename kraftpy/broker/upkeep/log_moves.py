"""Moves replicas between this broker's log directories (AlterReplicaLogDirs, KIP-113).

    topic-0 in one directory, served;  topic-0.<id>-future in the other, copied until it has the same
    -> one rename: the other is topic-0;  then the old one is topic-0.<id>-delete

The copy is made like a follower's, batch by batch, on the event loop and in small pieces; if the log is truncated below
what was copied, the copy starts over. When it is complete, it is synced, its checkpoint is written, and it is renamed
into place: until the rename is durable nothing that was appended to the new log counts as synced. The copy carries a
note of its origin (`layout.MOVED_FROM`) until the old log is gone, so that a start that finds both knows which one
counts. So a crash at any point leaves the old one or the new one.

A move that is not finished when the broker stops continues after the next start, which recognizes it by the directory's
name and keeps as much of the copy as the log still has (`log.copies`). A request for a replica that is not here yet is
kept in memory only, as in Kafka.

`num.replica.alter.log.dirs.threads` moves run at once, in the order of the requests: as many as there are log
directories, if it is not set. Together they keep to `replica.alter.log.dirs.io.max.bytes.per.second`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kraftpy.broker.containment import Incidents
from kraftpy.broker.patience import sync_patiently
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.replication.throttle import Allowance
from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.disk import Disk
from kraftpy.config import BrokerConfig
from kraftpy.config.settings import whole_number
from kraftpy.log import copies, layout
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import LeaderEpoch, Offset, TopicPartition

logger = logging.getLogger(__name__)

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
MOST_REQUESTED = 10_000
_PIECE_BYTES = 256 * 1024
_LAST_BYTES = 4 << 20
"""How much may be missing when the move is completed: it is copied without a pause."""
_FLUSH_BYTES = 64 << 20
_RETRY_MS = 2_000
_LOOK_SECONDS = 1.0
_MOST_AT_ONCE = 64
_FILES_WHILE_OPENING = 8
_LONGEST_FILE_NAME = 255


class Future(NamedTuple):
    """A copy in progress, for DescribeLogDirs."""

    key: TopicPartition
    size_bytes: int
    offset_lag: int


class _Move:
    """One replica on the move."""

    def __init__(self, replica: Replica, disk: Disk, name: str, *, is_begun: bool) -> None:
        self.replica = replica
        self.disk = disk
        self.name = name
        self.is_begun = is_begun
        """True if the directory may hold a copy that was begun before the broker started."""
        self.retry_at_ms = 0
        """When to try again, in monotonic milliseconds."""
        self.log: PartitionLog | None = None
        self.is_over = False
        """The move was completed or given up."""
        self.is_done = False
        self.is_busy = False
        """The copy is in use and must not be removed now."""
        self.unsynced_bytes = 0
        self.clean_until = replica.operations.clean_until
        self.has_complained = False

    def goes_on(self) -> bool:
        """Return whether it is neither done nor given up: check again after each await."""
        return not self.is_over


_MOVE = "move between log directories"


class _RetryLater(Exception):
    """The copy cannot continue now and is retried later."""


class LogMoves:
    """Every move of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        image: Callable[[], Image],
        manager: ReplicaManager,
        incidents: Incidents,
    ) -> None:
        self._incidents = incidents
        self._config = config
        self._clock = clock
        self._image = image
        self._manager = manager
        self._replicas = manager.replicas
        self._moves: dict[TopicPartition, _Move] = {}
        self._awake = asyncio.Event()
        self._allowance = Allowance()

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that changed while the broker runs."""
        self._config = config

    # --- requests ----------------------------------------------------------------------------

    async def alter(self, path: str, key: TopicPartition) -> ErrorCode:
        """Move a replica to a log directory; return the code to answer AlterReplicaLogDirs with."""
        if len(layout.future_partition_name(key, uuid.uuid4().hex)) > _LONGEST_FILE_NAME:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        path = str(Path(path))
        manager, replicas = self._manager, self._replicas
        name = layout.future_partition_name(key, uuid.uuid4().hex)
        if len(name) > layout.MOST_NAME_CHARACTERS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if path not in manager.directories.paths:
            return ErrorCode.LOG_DIR_NOT_FOUND
        disk = manager.disks.at(path)
        if disk is None or disk.failure is not None or replicas.offline.has_failed(key):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if path in manager.directories.cordoned:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        replica = replicas.held(key)
        if replica is None:
            manager.opener.requested_directories[key] = path
            while len(manager.opener.requested_directories) > MOST_REQUESTED:
                del manager.opener.requested_directories[next(iter(manager.opener.requested_directories))]
            is_known = self._image().partition(*key) is not None
            return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not self._needs_a_copy(replica, disk):
            return ErrorCode.NONE
        try:
            await asyncio.to_thread(_make, disk, name, replica)
        except OSError as error:
            if not manager.failures.storage_failed(disk.directory, "make a log in", error):
                logger.error("%s cannot be moved to %s: %s", key, path, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._needs_a_copy(replica, disk):  # another request may have come first
            self._begin(replica, disk, name, is_begun=False)
        else:
            self._delete_later(disk, name)
        return ErrorCode.NONE

    def _needs_a_copy(self, replica: Replica, disk: Disk) -> bool:
        """Return whether a copy has to be begun; give up a copy in another directory."""
        before = self._moves.get(replica.topic_partition)
        if before is not None and before.disk is disk:
            return False
        if before is not None:
            self._give_up(before)
        return replica.log_directory is not disk.directory

    def resume(self) -> None:
        """Continue the moves that were in progress when the broker stopped: the copies found in the directories."""
        for disk in self._manager.disks:
            for name, key in sorted(disk.futures.items()):
                replica = self._replicas.held(key)
                if replica is not None and replica.log_directory is not disk.directory and key not in self._moves:
                    self._begin(replica, disk, name, is_begun=True)
                elif key not in self._replicas.offline:
                    self._delete_later(disk, name)

    def futures_in(self, path: str) -> Iterator[Future]:
        """Yield the copies in progress in a log directory."""
        for key in sorted(self._moves):
            move = self._moves[key]
            if move.disk.directory.path == path:
                end_offset = move.replica.log.log_start_offset if move.log is None else move.log.log_end_offset
                size = 0 if move.log is None else move.log.segments.size_bytes
                yield Future(key, size, max(0, move.replica.log_end_offset - end_offset))

    def _begin(self, replica: Replica, disk: Disk, name: str, *, is_begun: bool) -> None:
        key = replica.topic_partition
        logger.info("%s: copying from %s to %s", key, replica.log_directory.path, disk.directory.path)
        self._moves[key] = _Move(replica, disk, name, is_begun=is_begun)
        self._awake.set()

    def _give_up(self, move: _Move) -> None:
        """Stop making the copy; its files are deleted once nothing uses them."""
        move.is_over = True
        if self._moves.get(move.replica.topic_partition) is move:
            del self._moves[move.replica.topic_partition]
        if not move.is_busy:
            self._clear(move)

    def _clear(self, move: _Move) -> None:
        if move.log is not None:
            move.log.release()
        if move.disk.failure is None:
            self._delete_later(move.disk, move.name)

    def _delete_later(self, disk: Disk, name: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, _delete_quietly, disk, name)

    # --- the work ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Make the moves until cancelled."""
        at_once = self._config.num_replica_alter_log_dirs_threads or len(self._manager.disks)
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(max(1, min(at_once, _MOST_AT_ONCE))):
                    workers.create_task(self._make_moves())
        finally:
            for move in self._moves.values():
                if move.log is not None:
                    move.log.release()
                    move.log, move.is_begun = None, True

    async def _make_moves(self) -> None:
        """Make one move after another; several tasks do this at a time."""
        while True:
            move = self._next()
            if move is not None:
                await self._advance(move)
                continue
            self._awake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_MS / 1000 if self._moves else None):
                    await self._awake.wait()

    def _next(self) -> _Move | None:
        """Return the first move that is neither in progress nor to be retried later."""
        now = self._clock.monotonic_ms()
        return next((each for each in self._moves.values() if not each.is_busy and each.retry_at_ms <= now), None)

    async def _advance(self, move: _Move) -> None:
        """Copy until the move is over or cannot continue for now."""
        move.is_busy = True
        try:
            while move.goes_on():
                if self._is_pointless(move):
                    self._give_up(move)
                elif move.log is None:
                    await self._open(move)
                elif await self._copy(move) and await self._complete(move):
                    return
        except (_RetryLater, OSError, KafkaError) as error:
            if not move.goes_on():
                return
            move.retry_at_ms = self._clock.monotonic_ms() + _RETRY_MS
            if isinstance(error, OSError) and self._manager.failures.storage_failed(
                move.disk.directory, "copy a log to", error
            ):
                self._give_up(move)
            elif not move.has_complained:
                move.has_complained = True
                logger.error(
                    "%s: cannot be copied to %s for now: %s",
                    move.replica.topic_partition,
                    move.disk.directory.path,
                    error,
                )
        except Exception as error:
            self._incidents.note(f"{move.replica.topic_partition}: {_MOVE}", error, kind=_MOVE)
            if move.goes_on():
                self._give_up(move)
        finally:
            move.is_busy = False
            if not (move.goes_on() or move.is_done):
                self._clear(move)

    def _is_pointless(self, move: _Move) -> bool:
        """Return whether the replica or the directory is gone."""
        held = self._replicas.held(move.replica.topic_partition)
        return held is not move.replica or move.disk.failure is not None

    async def _open(self, move: _Move) -> None:
        """Open the copy that was begun before the broker started, or begin an empty one at the log's start offset."""
        replica = move.replica
        if move.is_begun:
            move.is_begun = False  # this copy is useless, but another one can be made
            if await self._continue(move):
                return
        start = replica.log.log_start_offset
        replica.operations.lowest_truncation = None
        move.clean_until = replica.operations.clean_until
        log = await asyncio.to_thread(self._open_empty, move, start)
        log.move_to(replica.log.files)
        move.log = log

    async def _continue(self, move: _Move) -> bool:
        """Open a copy and drop records that the log does not have; return whether it can be continued."""
        replica, where = move.replica, move.disk.directory.path
        opened = await asyncio.to_thread(self._open_begun, move)
        if opened is None:
            return False
        log, move.clean_until = opened
        try:
            if replica.operations.is_truncating:
                move.is_begun = True
                raise _RetryLater("the log is being truncated")
            replica.operations.lowest_truncation = None
            end = None if self._is_pointless(move) else copies.common_end(log, replica.log)
            if end is not None:
                await asyncio.to_thread(_cut, log, end, move.clean_until)
                log.move_to(replica.log.files)
                move.log = log
                logger.info("%s: the copy in %s continues at offset %d", replica.topic_partition, where, end)
        except KafkaError as error:
            logger.warning("%s: the copy in %s cannot be continued: %s", replica.topic_partition, where, error)
        finally:
            if move.log is not log:
                log.release()
        return move.log is log

    def _open_begun(self, move: _Move) -> tuple[PartitionLog, Offset] | None:
        """Return a copy that was begun before, with the end of its clean part; None if it cannot be opened. Blocks."""
        replica = move.replica
        directory = OsDirectory(Path(move.disk.directory.path) / move.name)
        try:
            progress = copies.read_progress(directory)
            if progress is None or layout.read_topic_id(directory) != replica.topic_id:
                return None
            log = self._open_log(directory, replica, progress.recovery_point, progress.log_start_offset)
        except layout.CorruptFile as error:
            logger.warning("%s: the copy cannot be continued: %s", replica.topic_partition, error)
            return None
        return log, Offset(progress.clean_until)

    def _open_empty(self, move: _Move, start: int) -> PartitionLog:
        replica = move.replica
        name = layout.future_partition_name(replica.topic_partition, uuid.uuid4().hex)
        directory = _make(move.disk, name, replica)
        before, move.name = move.name, name
        move.disk.directory.delete(before)  # only once the other is there: a crash in between would forget the move
        log = self._open_log(directory, replica)
        if start:
            log.truncate_fully_and_start_at(start)
        copies.write_progress(log, move.clean_until)
        return log

    def _open_log(
        self, directory: OsDirectory, replica: Replica, recovery_point: int = 0, log_start_offset: int = 0
    ) -> PartitionLog:
        return PartitionLog.open(
            directory,
            replica.log.config,
            now=self._clock.now(),
            topic_id=replica.topic_id,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            files=FileCache(_FILES_WHILE_OPENING),
            expiration_ms=self._config.producer_id_expiration_ms,
        )

    async def _copy(self, move: _Move) -> bool:
        """Copy one piece, within the throttle; return whether the copy is nearly complete."""
        assert move.log is not None
        if wait_ms := self._allowance.wait_ms(self._rate(), self._clock.monotonic_ms()):
            await asyncio.sleep(min(wait_ms / 1000, _LOOK_SECONDS))
            return False
        copied = self._copy_piece(move)
        if copied is None:
            return False
        move.unsynced_bytes += copied
        self._allowance.spend(copied)
        if move.unsynced_bytes >= _FLUSH_BYTES:  # little by little, so that the last sync is short
            await self._flush(move)
        await asyncio.sleep(0)
        return not move.is_over and copied < _PIECE_BYTES // 2

    def _copy_piece(self, move: _Move) -> int | None:
        """Copy one piece without a pause; return its size in bytes, or None if the copy must start over.

        Raises OSError, KafkaError, _NotNow.
        """
        log, replica = move.log, move.replica
        assert log is not None
        if replica.operations.is_truncating:
            raise _RetryLater("the log is being truncated")
        source = replica.log
        operations = replica.operations
        lowest, operations.lowest_truncation = operations.lowest_truncation, None
        is_truncated = lowest is not None and lowest < log.log_end_offset
        if is_truncated or source.log_start_offset > log.log_end_offset:  # rare: start over rather than truncate a copy
            log.release()
            move.log = None
            return None
        if source.log_start_offset > log.log_start_offset:
            log.advance_log_start(source.log_start_offset)
        if log.log_end_offset >= source.log_end_offset:
            return 0
        try:
            records = source.read(log.log_end_offset, _PIECE_BYTES, min_one_batch=True).records
        except OSError as error:
            self._manager.failures.storage_failed(replica.log_directory, "read a log in", error)
            raise _RetryLater(f"it cannot be read: {error}") from error
        if not records:
            raise _RetryLater("the log gives nothing behind what is copied")
        log.config = source.config
        epoch = LeaderEpoch(max(replica.leader_epoch, source.epochs.latest))
        log.append(bytearray(records), leader_epoch=epoch, now=self._clock.now(), origin=Origin.REPLICA)
        move.has_complained = False
        return len(records)

    def _rate(self) -> int:
        image, static = self._image(), self._config.replica_alter_log_dirs_io_max_bytes_per_second
        for resource in (str(self._config.node_id), ""):
            value = image.configs(ConfigResourceType.BROKER, resource).get(RATE)
            if value is not None:
                return whole_number(value, static)
        return static

    async def _flush(self, move: _Move) -> None:
        assert move.log is not None
        log, move.unsynced_bytes = move.log, 0
        is_partial = True
        while is_partial and (job := log.begin_flush()) is not None:
            try:
                await asyncio.to_thread(job.run)
            finally:
                log.finish_flush(job)
            is_partial = job.is_partial
        await asyncio.to_thread(copies.write_progress, log, move.clean_until)

    # --- completion --------------------------------------------------------------------------

    async def _complete(self, move: _Move) -> bool:
        """Replace the log with the copy, if the copy is still complete; return whether that was done."""
        assert move.log is not None
        await self._flush(move)
        async with self._manager.changing:  # no partitions are opened or deleted meanwhile
            if move.is_over or self._is_pointless(move):
                return False
            async with move.replica.operations.undisturbed():
                if not await self._has_all(move):
                    return False
                old = self._swap(move)
                await sync_patiently(move.disk.directory, self._incidents.complaints)
            await self._drop(move, old)
        return True

    async def _has_all(self, move: _Move) -> bool:
        """Copy the rest, and sync all that is synced in the log. Afterwards nothing may be awaited."""
        replica, log, disk = move.replica, move.log, move.disk
        assert log is not None
        await asyncio.to_thread(_note_origin, log, replica)
        written: tuple[int, int] | None = None
        while not move.is_over:
            if replica.log_end_offset - log.log_end_offset > _LAST_BYTES:  # offsets, which are fewer than bytes
                return False
            rest = _LAST_BYTES
            while rest > 0 and (copied := self._copy_piece(move)):
                rest -= copied
            if log.is_closed or log.log_end_offset != replica.log_end_offset:
                return False
            if log.recovery_point < replica.log.recovery_point:
                await self._flush(move)
                continue
            if written == (log.recovery_point, log.log_start_offset):
                return not self._is_pointless(move)
            self._manager.checkpoints.moving_in[replica.topic_partition] = (disk, log)
            try:
                written = (log.recovery_point, log.log_start_offset)
                await self._manager.checkpoints.write()
            finally:
                del self._manager.checkpoints.moving_in[replica.topic_partition]
        return False

    def _swap(self, move: _Move) -> PartitionLog:
        """Replace the log in one step, on the loop. Returns the old log."""
        replica, log, key = move.replica, move.log, move.replica.topic_partition
        assert log is not None
        directory = log.directory
        assert isinstance(directory, OsDirectory)
        directory.delete(layout.COPY_PROGRESS)
        move.disk.directory.rename(move.name, str(key))
        directory.renamed(str(key))
        log.take_over(replica.log)
        move.is_over = move.is_done = True
        del self._moves[key]
        return replica.moved(log, move.disk.directory, move.clean_until)

    async def _drop(self, move: _Move, old: PartitionLog) -> None:
        """Delete the old log, which nothing needs any more."""
        key, new = move.replica.topic_partition, move.replica.log
        source = next(disk for disk in self._manager.disks if key in disk.partitions)
        source.partitions.discard(key)
        source.forget(key)
        move.disk.partitions.add(key)
        old.release()
        aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
        try:
            await asyncio.to_thread(_set_aside, source, key, aside)
        except OSError as error:  # the next start finds both, and the note tells which one counts
            if not self._manager.failures.storage_failed(source.directory, "rename in", error):
                logger.error("%s: cannot delete its old files in %s: %s", key, source.directory.path, error)
        else:
            await asyncio.to_thread(new.directory.delete, layout.MOVED_FROM)
            self._manager.deletions.delete_directory(new, source.directory, aside)
        logger.info("%s: has moved from %s to %s", key, source.directory.path, move.disk.directory.path)
        await self._manager.checkpoints.write()


def _make(disk: Disk, name: str, replica: Replica) -> OsDirectory:
    """Create the directory of a copy, with its topic's id: from then on a restart knows of the move. Blocks."""
    directory = OsDirectory(Path(disk.directory.path) / name)
    layout.write_partition_metadata(directory, layout.PartitionMetadata(replica.topic_id))
    disk.directory.sync()
    return directory


def _note_origin(log: PartitionLog, replica: Replica) -> None:
    """Record the copy's origin durably, with the same sync promise as the origin's. Blocks."""
    log.promise(synced_before_ack=replica.log.promises_synced)
    if replica.log.directory.exists(layout.MOVED_FROM):  # a crash left it there: only one of them may have it
        replica.log.directory.delete(layout.MOVED_FROM)
        replica.log.directory.sync()
    log.directory.replace(layout.MOVED_FROM, f"{replica.log_directory.path}\n".encode())


def _cut(log: PartitionLog, end: int, clean_until: Offset) -> None:
    """Drop the copy's records beyond `end`, and record that before anything is appended. Blocks."""
    log.truncate_to(end)
    copies.write_progress(log, clean_until)


def _set_aside(source: Disk, key: TopicPartition, aside: str) -> None:
    source.directory.rename(str(key), aside)
    source.directory.sync()


def _delete_quietly(disk: Disk, name: str) -> None:
    try:
        disk.directory.delete(name)
    except OSError as error:
        logger.error("cannot delete %s/%s, which is no longer needed: %s", disk.directory.path, name, error)
