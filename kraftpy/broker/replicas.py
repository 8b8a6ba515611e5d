"""The partitions this broker holds, on the disks it has.

Appends and reads run on the event loop: they touch the page cache. What may block for long runs in threads: opening
(recovery), syncing, deleting, checkpoints.

Invariants: a partition's directory carries its topic's id before any data, so that the log of a topic that was deleted
and created again is never taken for the new one's; a directory that the metadata does not know is never deleted, only
set aside. One thing at a time opens and deletes partitions, for a log opened twice would lose what was written to the
first. Checkpoints are written one at a time, and never say less than what was promised: where one could not be written
after a deletion, no partition is created until it could, lest a new log inherit what was written of an old one.

A partition that cannot be opened while the broker runs (a full disk) is offline, answers KAFKA_STORAGE_ERROR, and is
tried again from time to time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from kraftpy.broker.directories import LogDirectories
from kraftpy.broker.replica import Replica
from kraftpy.config import BrokerConfig, TopicConfig
from kraftpy.config.topic import topic_config
from kraftpy.log import layout
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog, delete_files
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.metadata.records import ConfigChanged, PartitionChanged, PartitionCreated, Record, TopicDeleted
from kraftpy.ports import Clock, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)

_STRAY = "-stray"
_FILES_WHILE_OPENING = 8
"""A thread that opens a log keeps no more files open; the cache that all logs share is the loop's alone."""


@dataclass(slots=True)
class _Disk:
    """One log directory, and what its checkpoints said when the broker started."""

    directory: Directory
    clean: bool
    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    cleaner_offsets: dict[TopicPartition, int]
    partitions: set[TopicPartition] = field(default_factory=set)


class _Wanted(NamedTuple):
    """A partition that the metadata gives this broker."""

    topic: Topic
    number: int
    partition: Partition
    config: TopicConfig

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.number)


_Failure = tuple[TopicPartition, OSError | layout.CorruptFile]


class Replicas:
    """Every partition of this broker, by topic name and by topic id."""

    def __init__(self, config: BrokerConfig, clock: Clock, directories: LogDirectories) -> None:
        self._config = config
        self._clock = clock
        self._directories = directories
        self._disks: list[_Disk] = []
        self._files = FileCache()
        self._by_name: dict[TopicPartition, Replica] = {}
        self._by_id: dict[tuple[TopicId, int], Replica] = {}
        self._offline: dict[TopicPartition, _Wanted] = {}
        self._changing = asyncio.Lock()
        self._checkpointing = asyncio.Lock()
        self._checkpoint_is_stale = False
        self._later: set[asyncio.TimerHandle] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_name.values()))

    # --- lookups -----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> Replica:
        """The partition's replica. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR)."""
        key = TopicPartition(topic, partition)
        replica = self._by_name.get(key)
        if replica is None:
            if key in self._offline:
                raise _offline_error(key)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{partition}")
        return replica

    def leader_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """The same by topic id. Raises KafkaError (UNKNOWN_TOPIC_ID, KAFKA_STORAGE_ERROR)."""
        replica = self._by_id.get((topic_id, partition))
        if replica is None:
            for key, wanted in self._offline.items():
                if wanted.topic.topic_id == topic_id and wanted.number == partition:
                    raise _offline_error(key)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no partition {partition} of topic {topic_id.hex()}")
        return replica

    @property
    def directories(self) -> list[str]:
        """The log directories' paths."""
        return self._directories.paths

    def in_directory(self, path: str) -> list[Replica]:
        """The partitions in a log directory, sorted."""
        return [self._by_name[key] for key in sorted(self._by_name) if self._by_name[key].log_directory.path == path]

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, image: Image) -> None:
        """Open every partition the metadata gives this broker; several at once. Raises OSError, CorruptFile."""
        await asyncio.to_thread(self._read_disks)
        configs = {topic.name: self._topic_config(topic.name, image) for topic in image.topics()}
        for _, failure in await self._open_all(
            [_Wanted(topic, number, partition, configs[topic.name]) for topic, number, partition in image.partitions()]
        ):
            raise failure
        known = set(self._by_name)
        for disk in self._disks:
            for stray in sorted(disk.partitions - known):
                logger.warning("%s/%s belongs to no topic; it is left alone", disk.directory.path, stray)

    async def stop(self) -> bool:
        """Make every log durable, close it, and write the checkpoints that let the next start skip the scan.

        Whether all of it could be done; where not, the next start has to scan.
        """
        for handle in self._later:
            handle.cancel()
        is_clean = True
        for replica in self:
            await replica.settle()  # from here on the loop leaves the files to the thread that closes them
        # As many at once as there are threads: closing is waiting for the disk, which syncs several as fast as one.
        for replica, failure in await asyncio.gather(*(_close(replica) for replica in self)):
            if failure is not None:
                logger.critical("%s: cannot be closed cleanly: %s", replica.topic_partition, failure)
                is_clean = False
        try:
            await self.checkpoint()
        except OSError as error:
            logger.critical("the checkpoints cannot be written: %s", error)
            is_clean = False
        return is_clean

    async def apply(self, records: Sequence[Record], image: Image) -> None:
        """Act on changed metadata; returns when new partitions can be used and deleted ones are gone."""
        async with self._changing:
            await self._apply(records, image)

    async def _apply(self, records: Sequence[Record], image: Image) -> None:
        created = []
        for record in records:
            match record:
                case PartitionCreated():
                    topic = image.topic_by_id(record.topic_id)
                    if topic is not None:
                        partition = topic.partitions[record.partition]
                        config = self._topic_config(topic.name, image)
                        created.append(_Wanted(topic, record.partition, partition, config))
                case PartitionChanged():
                    replica = self._by_id.get((record.topic_id, record.partition))
                    if replica is not None and record.leader_epoch != replica.leader_epoch:
                        replica.lead(record.leader_epoch)
                case ConfigChanged(resource_type=ConfigResourceType.TOPIC):
                    self._reconfigure(record.resource_name, image)
                case TopicDeleted():
                    await self._delete(record)
                case _:
                    pass
        await self._create(created)

    async def _create(self, wanted: Sequence[_Wanted]) -> None:
        """Open new partitions; those that cannot be are offline."""
        if wanted and self._checkpoint_is_stale:
            try:
                await self.checkpoint()
            except OSError as error:
                logger.error("no partitions are created: the checkpoints cannot be written: %s", error)
                self._offline.update((each.key, each) for each in wanted)
                return
        self._offline.update((each.key, each) for each in wanted)
        for key, failure in await self._open_all(wanted):
            logger.error("%s is offline: %s", key, failure)

    async def retry_offline(self) -> list[TopicPartition]:
        """Try to open what could not be opened; the partitions that are there now."""
        async with self._changing:  # what is being opened is offline until it is open: never a second time
            wanted = list(self._offline.values())
            if wanted:
                await self._create(wanted)
            return [each.key for each in wanted if each.key in self._by_name]

    def _topic_config(self, topic: str, image: Image) -> TopicConfig:
        return topic_config(image.topic_configs(topic), self._config)

    def _reconfigure(self, topic: str, image: Image) -> None:
        config = self._topic_config(topic, image)
        for replica in self:
            if replica.topic_partition.topic == topic:
                replica.log.config = config

    # --- opening -----------------------------------------------------------------------------

    def _read_disks(self) -> None:
        for directory, clean in zip(self._directories.opened, self._directories.clean, strict=True):
            try:
                points = layout.read_offsets(directory, layout.RECOVERY_POINTS)
            except layout.CorruptFile as error:
                logger.warning("%s; every log in it is scanned", error)
                clean, points = False, {}
            try:
                starts = layout.read_offsets(directory, layout.LOG_START_OFFSETS)
            except layout.CorruptFile as error:
                logger.warning("%s; deleted records that still have a segment show again", error)
                starts = {}
            try:
                cleaned = layout.read_offsets(directory, layout.CLEANER_OFFSETS)
            except layout.CorruptFile as error:
                logger.warning("%s; its logs are compacted from their start", error)
                cleaned = {}
            self._disks.append(_Disk(directory, clean, points, starts, cleaned, set(layout.partitions(directory))))
            for name in layout.deleted_partitions(directory):
                directory.delete(name)

    async def _open_all(self, wanted: Sequence[_Wanted]) -> list[_Failure]:
        """Open logs, in several threads; what stood in the way of those that could not be."""
        if not wanted:
            return []
        loop = asyncio.get_running_loop()
        threads = self._config.num_recovery_threads_per_data_dir * len(self._disks)
        with ThreadPoolExecutor(min(threads, len(wanted)), thread_name_prefix="open-log") as pool:
            opening = [loop.run_in_executor(pool, self._open, self._disk_for(each.key), each) for each in wanted]
            failures: list[_Failure] = []
            for each, opened in zip(wanted, await asyncio.gather(*opening, return_exceptions=True), strict=True):
                if isinstance(opened, (OSError, layout.CorruptFile)):
                    failures.append((each.key, opened))
                elif isinstance(opened, BaseException):
                    raise opened
                else:
                    opened.log.move_to(self._files)
                    self._by_name[opened.topic_partition] = opened
                    self._by_id[(opened.topic_id, opened.topic_partition.partition)] = opened
                    self._offline.pop(opened.topic_partition, None)
            return failures

    def _disk_for(self, key: TopicPartition) -> _Disk:
        """Where the partition is, or the log directory with the fewest partitions."""
        for disk in self._disks:
            if key in disk.partitions:
                return disk
        disk = min(self._disks, key=lambda disk: len(disk.partitions))
        disk.partitions.add(key)
        return disk

    def _open(self, disk: _Disk, wanted: _Wanted) -> Replica:
        key, topic, partition, config = wanted.key, wanted.topic, wanted.partition, wanted.config
        if disk.directory.exists(str(key)):
            self._set_aside_if_foreign(disk, key, topic.topic_id)
        log = PartitionLog.open(
            disk.directory.child(str(key)),
            config,
            now=self._clock.now(),
            topic_id=topic.topic_id,
            clean=disk.clean,
            recovery_point=disk.recovery_points.get(key, 0),
            log_start_offset=disk.log_start_offsets.get(key, 0),
            files=FileCache(_FILES_WHILE_OPENING),
            expiration_ms=self._config.producer_id_expiration_ms,
        )
        if not log.report.clean:
            logger.info("%s: recovered: %s", key, log.report)
        replica = Replica(key, topic.topic_id, disk.directory, log, partition.leader_epoch)
        replica.lead(partition.leader_epoch)
        replica.clean_until = Offset(disk.cleaner_offsets.get(key, 0))
        return replica

    def _set_aside_if_foreign(self, disk: _Disk, key: TopicPartition, topic_id: TopicId) -> None:
        found = layout.read_topic_id(disk.directory.child(str(key)))
        if found is None or found == topic_id:
            return
        aside = f"{key}.{uuid.uuid4().hex}{_STRAY}"
        logger.warning("%s/%s is of another topic of that name; set aside as %s", disk.directory.path, key, aside)
        disk.directory.rename(str(key), aside)
        disk.recovery_points.pop(key, None)
        disk.log_start_offsets.pop(key, None)
        disk.cleaner_offsets.pop(key, None)

    # --- deleting ----------------------------------------------------------------------------

    async def _delete(self, record: TopicDeleted) -> None:
        for key in [key for key in self._offline if key.topic == record.name]:
            del self._offline[key]
        for key in [key for key in self._by_name if key.topic == record.name]:
            replica = self._by_name.pop(key)
            del self._by_id[(replica.topic_id, key.partition)]
            await replica.release()
            aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
            directory = replica.log_directory
            directory.rename(str(key), aside)
            for disk in self._disks:
                disk.partitions.discard(key)
                disk.recovery_points.pop(key, None)
                disk.log_start_offsets.pop(key, None)
                disk.cleaner_offsets.pop(key, None)
            self._delete_later(replica, functools.partial(directory.delete, aside))
        self._checkpoint_is_stale = True
        try:
            await self.checkpoint()
        except OSError as error:
            logger.error("the checkpoints cannot be written: %s", error)

    async def delete_records(self, replica: Replica, before: Offset) -> None:
        """Hide the records before an offset, durably (DeleteRecords).

        Raises KafkaError (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR).
        """
        if replica.log.advance_log_start(before):
            try:
                await self.checkpoint()
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log start cannot be written: {error}") from error

    def delete_old_segments(self, replica: Replica) -> None:
        """Take out of the log what retention lets go, and delete it when nobody can be reading it any more."""
        gone = replica.log.delete_old_segments(self._clock.now(), replica.high_watermark)
        if gone:
            logger.info("%s: %d files out of retention", replica.topic_partition, len(gone))
            self.delete_files_later(replica, gone)

    def delete_files_later(self, replica: Replica, names: list[str]) -> None:
        """Delete files that were taken out of a log when nobody can be reading them any more."""
        self._delete_later(replica, functools.partial(delete_files, replica.log.directory, names))

    def _delete_later(self, replica: Replica, delete: Callable[[], None]) -> None:
        """After `file.delete.delay.ms`, in a thread. What a stop forgets, the next start finds by its name."""
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._later.discard(handle)
            loop.run_in_executor(None, _delete_quietly, delete)

        handle = loop.call_later(replica.log.config.file_delete_delay_ms / 1000, start)
        self._later.add(handle)

    # --- checkpoints -------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Write down, per log directory, how far each log is durable and where it starts. Raises OSError.

        It goes on when the caller is cancelled; two never run at once.
        """
        await asyncio.shield(self._checkpoint())

    async def _checkpoint(self) -> None:
        async with self._checkpointing:
            for disk in self._disks:
                points, starts = {}, {}
                for key, replica in self._by_name.items():
                    if replica.log_directory is disk.directory:
                        points[key] = replica.log.recovery_point
                        starts[key] = replica.log.log_start_offset
                await asyncio.to_thread(_write_checkpoints, disk.directory, points, starts)
            self._checkpoint_is_stale = False


async def _close(replica: Replica) -> tuple[Replica, OSError | None]:
    replica.log.move_to(FileCache(_FILES_WHILE_OPENING))  # a cache belongs to one thread
    try:
        await replica.close()
    except OSError as error:
        return replica, error
    return replica, None


def _offline_error(key: TopicPartition) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} is offline: its log could not be opened")


def _delete_quietly(delete: Callable[[], None]) -> None:
    try:
        delete()
    except OSError as error:
        logger.error("files that are no longer needed stay: %s", error)


def _write_checkpoints(
    directory: Directory, recovery_points: dict[TopicPartition, int], log_start_offsets: dict[TopicPartition, int]
) -> None:
    layout.write_offsets(directory, layout.RECOVERY_POINTS, recovery_points)
    layout.write_offsets(directory, layout.LOG_START_OFFSETS, log_start_offsets)
