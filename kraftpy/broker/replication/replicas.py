"""Every partition that this broker holds, on its disks, with its role in each.

Only partitions that name this broker among their replicas are open. Roles follow the metadata, many at once: each
partition that a change touches is looked at once, in the current image, so that a thousand leaderships that move
together cost a thousand small steps without a pause. A partition that was given to other brokers is closed, and its
directory deleted.

Appends and reads run on the event loop: they touch the page cache. Work that may block for long runs in threads:
opening (recovery), syncing, truncating, deleting, checkpoints.

Invariants: a partition's directory carries its topic's id before any data, so that the log of a topic that was deleted
and created again is never taken for the new one's; a directory that the metadata does not know is never deleted, only
set aside. One task at a time opens and deletes partitions, because a log opened twice would lose what was written to
the first. Checkpoints are written one at a time, and never say less than what was promised: if one could not be written
after a deletion, no partition is created until it could, so that a new log does not inherit an old one's entries.

A partition that cannot be opened (a full or failing disk, a damaged file) is offline, answers KAFKA_STORAGE_ERROR, and
is retried from time to time. A log directory that fails takes all of its partitions with it, until a restart
(`storage.disk` decides which failures do); the others continue. `offline` holds what the cluster must know about that.

Left out: deleting the directory of a partition that was reassigned while this broker was down (it is left alone, and
logged).
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from kraftpy.broker.containment import Incidents
from kraftpy.broker.descriptors import Descriptors, share_out
from kraftpy.broker.patience import patiently
from kraftpy.broker.replication.leadership_check import Confirmations
from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.runtime import open_files_limit
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.broker.storage.disk import Disk, costs_the_directory, read_disks
from kraftpy.broker.storage.group_commit import Syncs
from kraftpy.broker.storage.offline import Number, Offline, Wanted
from kraftpy.broker.storage.opening import Opening
from kraftpy.broker.storage.record_inspection import Decoding
from kraftpy.broker.threads import Threads
from kraftpy.config import BrokerConfig, ConfigError, TopicConfig
from kraftpy.config.broker import CLUSTER_SETTINGS
from kraftpy.config.topic import topic_config, usable_topic_overrides
from kraftpy.log import deletion, layout
from kraftpy.log.appending import BatchLimits
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.metadata.commands import ConfigResourceType, ReplicaState
from kraftpy.metadata.image import Image, Partition
from kraftpy.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ConfigChanged,
    PartitionChanged,
    PartitionCreated,
    Record,
    TopicDeleted,
)
from kraftpy.ports import Clock, Directory, Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import PartitionState
from kraftpy.types import BrokerId, LeaderEpoch, Millis, Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)

_FILES_WHILE_OPENING = 8
"""A thread that opens a log keeps no more files open; the cache shared by all logs belongs to the loop alone."""
_PARTITIONS_BEFORE_A_PAUSE = 20
"""Loops over thousands of partitions give others the event loop after this many."""
_DELETE_AGAIN_SECONDS = 5.0
_APPLIED_AT_ONCE = 500
"""Changed partitions handled before other tasks get the event loop."""
_LOOKED_AT_AT_ONCE = 1_000
"""The same for loops that only read each partition, or tell it a little."""
_CONFIGS_AT_ONCE = 200
_SORTED_AT_ONCE = 10_000
"""Producers looked at, or sorted, before other tasks get the event loop."""
_MADE_AT_ONCE = 100
"""New partitions created, and then usable, before the next ones are begun."""
_PRODUCERS_SHARE = 4
_THREADS_FOR_MANY = 3
"""Threads that create many partitions compete with the event loop for the interpreter, which delays the loop."""
_PAUSES_SECONDS = (0.02, 0.1, 0.3)
"""Pauses between attempts to open a log while descriptors are short; after them it is offline and retried later."""
_THREADS_THAT_SYNC = 16
"""Creating and closing partitions waits for the disk, which syncs many files in the time of one."""


_Failure = tuple[Wanted, Exception]


class Followed(Protocol):
    """The interface of the fetchers for partitions that other brokers lead."""

    def assign(self, changes: Iterable[tuple[Replica, BrokerId]]) -> None:
        """Fetch these partitions from these leaders from now on; `NO_LEADER` means not to fetch it."""
        ...

    def wake(self) -> None:
        """Retry failed leaders and partitions now, because brokers have come or gone."""
        ...


class Replicas:
    """Every partition of this broker, by topic name and by topic id."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        directories: LogDirectories,
        propose: Callable[[Replica, ProposeIsr], None],
        fetchers: Followed,
        catch_up: Callable[[], Awaitable[None]],
        incidents: Incidents,
        directory_failed: Callable[[str, str, Sequence[TopicPartition]], None] = lambda path, reason, partitions: None,
        *,
        descriptors: Descriptors | None = None,
    ) -> None:
        """`catch_up` returns once everything the quorum decided before is applied here (`MetadataLog.catch_up`).

        `directory_failed` is called immediately with a log directory that is out of use, the reason, and its
        partitions.
        """
        self.broker_id = BrokerId(config.node_id)
        self.lag_time_max_ms = config.replica_lag_time_max_ms
        self.back_off_max_ms = config.replica_fetch_backoff_ms
        self.now = clock.now
        self.monotonic_ms = clock.monotonic_ms
        self.propose = propose
        self.complaints = incidents.complaints
        self._incidents = incidents
        self.decoding = Decoding()
        self._limits = BatchLimits(
            config.kraftpy_batch_max_records,
            config.kraftpy_batch_max_headers,
            config.kraftpy_batch_max_expanded_bytes,
        )
        self._config = config
        self._clock = clock
        self._directories = directories
        self._fetchers = fetchers
        self._directory_failed = directory_failed
        self._image = Image()
        self._brokers: Mapping[BrokerId, int] = {}
        self.disks: list[Disk] = []
        """The log directories that could be used at start."""
        self._descriptors = share_out(open_files_limit()) if descriptors is None else descriptors
        self._files = FileCache(self._descriptors.cached_files, self._descriptors.pinned_files)
        self.syncs = Syncs(incidents, self._descriptors.work_files)
        self._by_name: dict[tuple[str, int], Replica] = {}
        self._by_id: dict[Number, Replica] = {}
        self.offline = Offline(self.broker_id)
        self._releasing: set[asyncio.Task[None]] = set()
        self.requested_directories: dict[TopicPartition, str] = {}
        """Requested log directories of partitions that are not here yet."""
        self.moving_in: dict[TopicPartition, tuple[Disk, PartitionLog]] = {}
        """Copies about to replace logs in other directories: their checkpoints are written first."""
        self.confirmations = Confirmations(catch_up, config.replica_fetch_wait_max_ms)
        """Checks that this broker still leads."""
        self.changing = asyncio.Lock()
        """Held by operations that open, close, move and delete partitions."""
        self._checkpointing = asyncio.Lock()
        self._deletions = 0
        self._deletions_written = 0
        """How many of the deletions are known to be reflected in the checkpoints."""
        self._without_role: dict[Number, None] = {}
        """Partitions whose change of role met an unexpected error: retried with the offline ones."""
        self._not_reconfigured: set[str] = set()
        self._is_stopped = False
        makers = max(1, min(_THREADS_THAT_SYNC, self._descriptors.work_files // (_FILES_WHILE_OPENING + 2)))
        self._makers = Threads(makers, thread_name_prefix="make-log")
        self._deleters = Threads(1, thread_name_prefix="delete-log")
        self._later: set[asyncio.TimerHandle] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_name.values()))

    # --- lookups -----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> Replica:
        """Return the partition's replica if this broker leads it.

        Raises KafkaError (NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR).
        """
        replica = self._by_name.get((topic, partition))
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here(topic, partition, replica)

    def leader_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """Like `leader`, by topic id. Raises KafkaError (UNKNOWN_TOPIC_ID instead of UNKNOWN_TOPIC_OR_PARTITION)."""
        replica = self._by_id.get((topic_id, partition))
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def readable(self, topic: str, partition: int) -> Replica:
        """Return the partition's replica if this broker leads or follows it. Raises KafkaError as `leader` does."""
        replica = self._by_name.get((topic, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here(topic, partition, replica)

    def readable_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """Like `readable`, by topic id. Raises KafkaError as `leader_by_id` does."""
        replica = self._by_id.get((topic_id, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def held_by_id(self, topic_id: TopicId, partition: int) -> Replica | None:
        """Return the partition's replica in any role."""
        return self._by_id.get((topic_id, partition))

    def _not_here(self, topic: str, partition: int, replica: Replica | None) -> KafkaError:
        key = TopicPartition(topic, partition)
        known = self._image.partition(topic, partition)
        leads_elsewhere = known is not None and known.leader not in (NO_LEADER, self.broker_id)
        if key in self.offline and not leads_elsewhere:  # else aiokafka would keep asking here
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} is offline: {self.offline.why(key)}")
        if replica is None and self._image.partition(topic, partition) is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {key}")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {key}")

    def _not_here_by_id(self, topic_id: TopicId, partition: int, replica: Replica | None) -> KafkaError:
        topic = self._image.topic_by_id(topic_id)
        if topic is None and replica is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no partition {partition} of topic {topic_id.hex()}")
        name = topic.name if topic is not None else replica.topic_partition.topic if replica is not None else ""
        error = self._not_here(name, partition, replica)
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, error.message)
        return error

    def held(self, key: TopicPartition) -> Replica | None:
        """Return the partition's replica in any role."""
        return self._by_name.get(key)

    @property
    def directories(self) -> list[str]:
        """The paths of the log directories."""
        return self._directories.paths

    @property
    def failures(self) -> Mapping[str, str]:
        """The log directories that are out of use, and why."""
        return self._directories.failures

    def in_directory(self, path: str) -> list[Replica]:
        """Return the partitions in a log directory, sorted."""
        return [self._by_name[key] for key in sorted(self._by_name) if self._by_name[key].log_directory.path == path]

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, image: Image) -> None:
        """Open every partition that the metadata assigns to this broker, several at once. Raises OSError."""
        self.disks = await asyncio.to_thread(read_disks, self._directories)
        async with self.changing:
            self._image = image
            self._brokers = _eligible(image)
            ours = {TopicPartition(topic.name, number) for topic, number, _ in image.partitions_of(self.broker_id)}
            if self._directories.may_lack:
                self.offline.doubt(ours.difference(*(disk.partitions for disk in self.disks)))
            await self._apply_to_some([(topic.topic_id, number) for topic, number, _ in image.partitions()])
        known = set(self._by_name) | {each.key for each in self.offline}
        for disk in self.disks:
            for stray in sorted(disk.partitions - known):
                logger.warning("%s/%s is not a partition of this broker; left alone", disk.directory.path, stray)

    async def stop(self) -> bool:
        """Make every log durable, close it, and write the checkpoints that let the next start skip the scan.

        Returns whether all of that succeeded; if not, the next start has to scan.
        """
        for handle in self._later:
            handle.cancel()
        async with self.changing:
            self._is_stopped = True
        if self._releasing:
            await asyncio.wait(self._releasing)
        is_clean = True
        for replica in self:
            await replica.truncated()
            await replica.end_background_work()  # from here on only the thread that closes the files uses them
        threads = max(1, min(_THREADS_THAT_SYNC, self._descriptors.work_files // (_FILES_WHILE_OPENING + 4)))
        with Threads(threads, thread_name_prefix="close-log") as pool:
            closed = await asyncio.gather(*(_close(replica, pool) for replica in self))
        for replica, failure in closed:
            if failure is not None:
                logger.critical("%s: cannot be closed cleanly: %s", replica.topic_partition, failure)
                is_clean = False
        try:
            await self.checkpoint()
            await self.checkpoint_high_watermarks()
        except OSError as error:
            logger.critical("the checkpoints cannot be written: %s", error)
            is_clean = False
        self.syncs.stop()
        self._makers.shutdown()
        self._deleters.shutdown(cancel_futures=True)
        return is_clean

    async def apply(self, records: Sequence[Record], image: Image) -> None:
        """Apply changed metadata; returns when new partitions can be used and deleted ones are gone."""
        async with self.changing:
            if not self._is_stopped:
                await self._apply(records, image)

    async def _apply(self, records: Sequence[Record], image: Image) -> None:
        self._image = image
        touched: dict[Number, None] = {}
        left: dict[Number, None] = {}
        deleted: set[TopicId] = set()
        reconfigured: set[str] = set()
        brokers_changed = False
        for record in records:
            match record:
                case PartitionCreated() | PartitionChanged():
                    touched[record.topic_id, record.partition] = None
                    if self.broker_id not in record.replicas:
                        left[record.topic_id, record.partition] = None
                case ConfigChanged(resource_type=ConfigResourceType.TOPIC):
                    reconfigured.add(record.resource_name)
                case ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name=""):
                    reconfigured.update(replica.topic_partition.topic for replica in self)
                case TopicDeleted():
                    deleted.add(record.topic_id)
                case BrokerRegistered() | BrokerChanged() | BrokerUnregistered():
                    brokers_changed = True
                case _:
                    pass
        if brokers_changed:
            await self._brokers_changed()
        if reconfigured:
            await self._reconfigure(reconfigured)
        await self._delete(deleted)
        await self._leave(left)
        await self._apply_to(touched)

    async def reconcile(self, image: Image) -> None:
        """Apply an image that came as a snapshot, without its records."""
        async with self.changing:
            if self._is_stopped:
                return
            self._image = image
            await self._brokers_changed()
            await self._reconfigure({topic.name for topic in image.topics()})
            held = [replica.topic_id for replica in self] + [each.topic.topic_id for each in self.offline]
            await self._delete({topic_id for topic_id in held if image.topic_by_id(topic_id) is None})
            await self._apply_to([(topic.topic_id, number) for topic, number, _ in image.partitions()])

    async def _brokers_changed(self) -> None:
        self._brokers = _eligible(self._image)
        async for some in in_slices(list(self), _APPLIED_AT_ONCE):
            for replica in some:
                if replica.leading is not None:
                    with self._incidents.contained_in(replica.topic_partition, "brokers changed"):
                        replica.brokers_changed(self._brokers)
        self._fetchers.wake()

    async def _apply_to(self, touched: Iterable[Number]) -> None:
        """Do what `_apply_to_some` does for thousands of partitions; others get the loop in between."""
        numbers = list(touched)
        for first in range(0, len(numbers), _APPLIED_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            await self._apply_to_some(numbers[first : first + _APPLIED_AT_ONCE])

    async def _apply_to_some(self, touched: Iterable[Number]) -> None:
        """Open partitions that are now this broker's, close those that no longer are, and update roles."""
        image = self._image
        wanted: list[Wanted] = []
        gone: list[Replica] = []
        known: list[Replica] = []
        configs: dict[str, TopicConfig] = {}
        alike: dict[tuple[tuple[str, str], ...], TopicConfig] = {}  # most topics have the same settings
        for number in touched:
            topic = image.topic_by_id(number[0])
            if topic is None:  # deleted by a later record
                continue
            partition = topic.partitions[number[1]]
            is_ours = self.broker_id in partition.replicas
            self.offline.follow_metadata(number, partition)
            replica = self._by_id.get(number)
            if replica is not None:
                (known if is_ours else gone).append(replica)
            elif is_ours:
                if topic.name not in configs:
                    overrides = tuple(image.topic_configs(topic.name).items())
                    if overrides not in alike:
                        alike[overrides] = self._topic_config(topic.name)
                    configs[topic.name] = alike[overrides]
                wanted.append(Wanted(topic, number[1], configs[topic.name]))
            else:
                self.offline.gone(TopicPartition(topic.name, number[1]))
        await self._take_roles(known)
        await self._let_go(gone)
        await self._create(wanted)

    async def _take_roles(self, replicas: Sequence[Replica]) -> None:
        """Give each replica its role in the image: leader, follower or neither."""
        for replica in replicas:
            if replica.is_being_truncated:
                replica.stand_by(replica.leader_epoch, replica.partition_epoch)
                await replica.truncated()
        async for some in in_slices(replicas, _APPLIED_AT_ONCE):
            assigned: list[tuple[Replica, BrokerId]] = []
            for replica in some:
                topic = self._image.topic_by_id(replica.topic_id)
                if topic is None or self._by_name.get(replica.topic_partition) is not replica:  # its disk failed
                    continue
                partition = topic.partitions[replica.topic_partition.partition]
                try:
                    assigned += self._take_role(replica, partition)
                except Exception as error:
                    self._fail(replica, partition, error)
            self._fetchers.assign(assigned)

    def _take_role(self, replica: Replica, partition: Partition) -> list[tuple[Replica, BrokerId]]:
        """Make the replica a leader or follower; return the assignments for the fetchers."""
        if partition.leader == self.broker_id:
            state = PartitionState(
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                is_recovering=partition.is_recovering,
            )
            replica.lead(state, self._brokers, replica.log.config.min_insync_replicas)
            return [(replica, NO_LEADER)]
        if partition.leader == NO_LEADER:
            replica.stand_by(partition.leader_epoch, partition.partition_epoch)
            return [(replica, NO_LEADER)]
        if replica.follow(partition.leader, partition.leader_epoch, partition.partition_epoch):
            return [(replica, partition.leader)]
        return []

    def _fail(self, replica: Replica, partition: Partition, error: Exception) -> None:
        """Handle an error in a change of role: the replica neither leads nor follows until the next attempt."""
        number = (replica.topic_id, replica.topic_partition.partition)
        self._incidents.note(f"{replica.topic_partition}: change of its role", error, kind="change of a role")
        self._without_role[number] = None
        with self._incidents.contained_in(replica.topic_partition, "standing by"):
            replica.stand_by(LeaderEpoch(partition.leader_epoch), partition.partition_epoch)
        self._fetchers.assign([(replica, NO_LEADER)])

    async def _create(self, touched: Sequence[Wanted]) -> None:
        """Open partitions; those that cannot be opened are offline."""
        wanted = [each for each in touched if self._may_open(each)]
        if wanted and self._deletions != self._deletions_written:
            try:
                await self.checkpoint()
            except OSError as error:
                text = "no partitions are created: the checkpoints cannot be written: %s"
                self.complaints.write(logger, logging.ERROR, "create", "", text, error)
                self.offline.opening(wanted)
                return
        self.offline.opening(wanted)
        new = [each for each in wanted if not any(each.key in disk.partitions for disk in self.disks)]
        made = {each.key for each in new}
        await self._open_some([each for each in wanted if each.key not in made], len(wanted))
        threads = _THREADS_FOR_MANY if len(new) > _MADE_AT_ONCE else len(new)
        for first in range(0, len(new), _MADE_AT_ONCE):
            await self._open_some(new[first : first + _MADE_AT_ONCE], threads)

    async def _open_some(self, wanted: Sequence[Wanted], jobs_at_most: int) -> None:
        opened, failures = await self._open_all(wanted, jobs_at_most)
        for each, failure in failures:
            # A replica that is alone and is new here: no other broker could lead it, and the metadata has better to do.
            is_told = len(each.partition.replicas) > 1 or not any(each.key in disk.new for disk in self.disks)
            is_short = _is_short(failure)
            state = ReplicaState.OFFLINE if is_told and not is_short else None
            is_news = self.offline.failed(each, str(failure), state, may_retry=True)
            if is_short:
                self._complain("open", each.key, failure)
            elif is_news:
                logger.error("%s is offline: %s", each.key, failure)
        if any(replica.log.report.missing_offsets for replica in opened):
            try:
                await self.checkpoint()  # otherwise later writes could be mistaken for synced after the next crash
            except OSError as error:
                self._complain_of_checkpoints(error)
        await self._take_roles(opened)

    def _may_open(self, wanted: Wanted) -> bool:
        """Whether a partition may be opened, or created if it is nowhere; if not, mark it offline."""
        disk = next((disk for disk in self.disks if wanted.key in disk.partitions), None)
        if disk is not None:
            others = [
                other.directory.path for other in self.disks if other is not disk and wanted.key in other.partitions
            ]
            if others:
                text = f"it is in {disk.directory.path} and in {others[0]}: one of them has to go"
                if self.offline.failed(wanted, text, may_retry=False):
                    logger.error("%s is offline: %s", wanted.key, text)
                return False
            if disk.failure is not None:
                self.offline.failed(wanted, f"its log directory is offline: {disk.failure}", may_retry=False)
            return disk.failure is None
        if self.offline.may_begin(wanted):
            return True
        text, state = "its records are gone with its log directory", ReplicaState.LOST
        if failed := next(iter(self._directories.failures), None):
            text, state = f"it may be in {failed}, which is offline", ReplicaState.OFFLINE
        if self.offline.failed(wanted, text, state, may_retry=False):
            logger.error("%s is offline: %s", wanted.key, text)
        return False

    async def retry_offline(self) -> list[TopicPartition]:
        """Retry partitions that could not be opened or got no role; return those that are now available."""
        async with self.changing:  # partitions being opened count as offline until they are open: never open them twice
            wanted = self.offline.to_retry()
            without_role, self._without_role = self._without_role, {}
            if self._is_stopped:
                return []
            if wanted:
                await self._create(wanted)
            replicas = [replica for number in without_role if (replica := self._by_id.get(number)) is not None]
            await self._take_roles(replicas)
            keys = [each.key for each in wanted] + [replica.topic_partition for replica in replicas]
            return [key for key in keys if key in self._by_name]

    async def look_after_followers(self) -> None:
        """Propose to drop followers that lag for too long; must be called every half of `replica.lag.time.max.ms`."""
        async for some in in_slices(list(self), _APPLIED_AT_ONCE):
            for replica in some:
                with self._incidents.contained_in(replica.topic_partition, "followers"):
                    replica.look_after_followers()

    def _topic_config(self, topic: str) -> TopicConfig:
        cluster = self._image.cluster_configs()
        inherited = {name: value for name, value in cluster.items() if name in CLUSTER_SETTINGS}
        overrides = {**inherited, **self._image.topic_configs(topic)}
        try:
            return topic_config(overrides, self._config)
        except ConfigError:
            pass
        usable, problems = usable_topic_overrides(overrides, self._config)
        message = "topic %s: stored settings are not used, the defaults are: %s"
        what = "; ".join(problems)
        self._incidents.complaints.write(logger, logging.ERROR, "setting of a topic", topic, message, topic, what)
        return topic_config(usable, self._config)

    async def _reconfigure(self, topics: set[str]) -> None:
        configs: dict[str, TopicConfig] = {}
        async for names in in_slices(sorted(topics), _CONFIGS_AT_ONCE):
            configs.update((topic, self._topic_config(topic)) for topic in names)
        concerned: list[tuple[Replica, TopicConfig]] = []
        promising: list[Replica] = []
        async for some in in_slices(list(self), _LOOKED_AT_AT_ONCE):
            for replica in some:
                config = configs.get(replica.topic_partition.topic)
                if config is not None:
                    concerned.append((replica, config))
                    if replica.log.promises_synced and not config.kraftpy_flush_before_ack:
                        promising.append(replica)
        await self._take_back_promises(promising)
        async for pairs in in_slices(concerned, _APPLIED_AT_ONCE):
            for replica, config in pairs:
                if config.kraftpy_flush_before_ack or not replica.log.promises_synced:
                    with self._incidents.contained_in(replica.topic_partition, "settings"):
                        self._configure(replica, config)

    def _configure(self, replica: Replica, config: TopicConfig) -> None:
        is_synced_otherwise = config.kraftpy_flush_before_ack != replica.syncs.comes_before_ack
        replica.log.config = config
        replica.min_isr_changed(config.min_insync_replicas)
        if is_synced_otherwise:
            replica.flush_before_ack_changed()
            if replica.following is not None:
                self._fetchers.assign([(replica, replica.leader_id)])

    async def _take_back_promises(self, replicas: Sequence[Replica]) -> None:
        """Withdraw promises to sync before acknowledging; a log whose note cannot be written keeps its settings."""
        for replica in replicas:
            try:
                await asyncio.to_thread(replica.log.promise, synced_before_ack=False)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "write to a log in", error):
                    logger.error("%s: keeps its settings until there is room: %s", replica.topic_partition, error)
                    self._not_reconfigured.add(replica.topic_partition.topic)

    async def promise_what_is_synced(self) -> None:
        """Record the promise in logs that have synced everything since `kraftpy.flush.before.ack` was set for them."""
        if self._not_reconfigured:
            async with self.changing:
                topics, self._not_reconfigured = self._not_reconfigured, set()
                await self._reconfigure({topic for topic in topics if self._image.topic(topic) is not None})
        for replica in [replica async for replica in self._at_leisure() if replica.lacks_promise]:
            config = replica.log.config
            try:
                await replica.flush(replica.log_end_offset)
                async with self.changing:  # no setting changes meanwhile
                    is_as_before = (
                        self._by_name.get(replica.topic_partition) is replica and replica.log.config is config
                    )
                    if is_as_before and replica.lacks_promise:
                        await asyncio.to_thread(replica.log.promise, synced_before_ack=True)
            except KafkaError as error:
                logger.debug("%s: %s", replica.topic_partition, error)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "write to a log in", error):
                    logger.debug("%s: cannot promise anything yet: %s", replica.topic_partition, error)

    # --- opening -----------------------------------------------------------------------------

    async def _open_all(self, wanted: Sequence[Wanted], jobs_at_most: int) -> tuple[list[Replica], list[_Failure]]:
        """Open logs in several threads, at most `jobs_at_most` jobs; return the replicas, and the failures."""
        if not wanted:
            return [], []
        loop = asyncio.get_running_loop()
        makes_new = not all(any(each.key in disk.partitions for disk in self.disks) for each in wanted)
        recovery_threads = self._config.num_recovery_threads_per_data_dir * len(self.disks)
        threads = max(1, min(recovery_threads, self._descriptors.work_files // (_FILES_WHILE_OPENING + 2)))
        replicas: list[Replica] = []
        failures: list[_Failure] = []
        with Opening(len(wanted), threads, recovery_threads, self._makers if makes_new else None) as opening:
            placed = [(self._disk_for(each.key), each) for each in wanted]
            jobs = [
                asyncio.ensure_future(self._open_in(loop, opening, placed[first::jobs_at_most]))
                for first in range(min(jobs_at_most, len(placed)))
            ]
            telling = asyncio.create_task(opening.tell())
            try:
                done = await asyncio.gather(*jobs, return_exceptions=True)
            finally:
                telling.cancel()
            results: dict[TopicPartition, Replica | Exception] = {}
            for some in done:
                if isinstance(some, BaseException):
                    raise some
                results.update(some)
            for number, each in enumerate(wanted):
                if number % _APPLIED_AT_ONCE == _APPLIED_AT_ONCE - 1:
                    await asyncio.sleep(0)
                opened = results[each.key]
                if isinstance(opened, (OSError, layout.CorruptFile)):
                    failures.append((each, opened))
                elif isinstance(opened, Exception):
                    self._incidents.note(f"{each.key}: opening", opened, kind="opening")
                    failures.append((each, opened))
                elif (failure := self._failure_of(opened.log_directory)) is not None:
                    failures.append((each, OSError(failure)))
                    self._release_later(opened)
                else:
                    self._by_name[opened.topic_partition] = opened
                    self._by_id[(opened.topic_id, opened.topic_partition.partition)] = opened
                    if opened.lacks_records:
                        self.offline.mark_shortened((opened.topic_id, opened.topic_partition.partition))
                    self.offline.gone(opened.topic_partition)
                    for disk in self.disks:
                        disk.new.discard(opened.topic_partition)
                    replicas.append(opened)
            if makes_new:
                for disk in [disk for disk in self.disks if disk.failure is None]:
                    try:
                        await self.sync_names(disk.directory)
                    except OSError as error:
                        self.storage_failed(disk.directory, "sync", error, is_lasting=True)
        return replicas, failures

    async def sync_names(self, directory: Directory) -> None:
        """Sync a log directory, waiting for descriptors if there are none. Raises OSError."""
        sync = functools.partial(asyncio.to_thread, directory.sync)
        await patiently(sync, f"sync {directory.path}", self.complaints, is_sync=True)

    async def _open_in(
        self, loop: asyncio.AbstractEventLoop, opening: Opening, placed: Sequence[tuple[Disk, Wanted]]
    ) -> dict[TopicPartition, Replica | Exception]:
        """Open logs one after another; retry those that lacked descriptors or threads after a pause."""
        found: dict[TopicPartition, Replica | Exception] = {}
        for pause in (0.0, *_PAUSES_SECONDS):
            await asyncio.sleep(pause)
            try:
                found.update(await loop.run_in_executor(opening.pool, self._open_each, placed, opening))
            except OSError as error:  # no thread can be started
                found.update({wanted.key: error for _, wanted in placed})
            placed = [each for each in placed if _is_short(found[each[1].key])]
            if not placed:
                break
        return found

    def _complain(self, what: str, key: TopicPartition, error: Exception) -> None:
        """Log a temporary failure that hits many partitions at once, at most once a minute."""
        self.complaints.own(logger, what, "%s: cannot %s the log for now: %s", key, what, error)

    def _disk_for(self, key: TopicPartition) -> Disk:
        """Return the partition's log directory, or for a new one the requested directory or the one with the fewest."""
        for disk in self.disks:
            if key in disk.partitions:
                return disk
        usable = [disk for disk in self.disks if disk.failure is None]
        requested = self.requested_directories.pop(key, None)
        chosen = [disk for disk in usable if disk.directory.path == requested]
        disk = min(chosen or usable, key=lambda disk: len(disk.partitions))
        disk.partitions.add(key)
        disk.new.add(key)
        return disk

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
            now=self._clock.now(),
            topic_id=topic.topic_id,
            clean=disk.clean,
            recovery_point=disk.recovery_points.get(key, 0),
            log_start_offset=disk.log_start_offsets.get(key, 0),
            files=FileCache(_FILES_WHILE_OPENING),
            expiration_ms=self._config.producer_id_expiration_ms,
            progress=opening.progress(),
            side_by_side=opening.side_by_side,
        )
        opening.opened += 1
        if not log.report.clean:
            logger.info("%s: recovered: %s", key, log.report)
        log.checks_reads = self._config.kraftpy_fetch_check_crcs
        log.limits = self._limits
        log.move_to(self._files)  # closes its files in this thread: thousands of logs are opened at once
        replica = Replica(key, topic.topic_id, disk.directory, log, self)
        known = disk.high_watermarks.get(key, 0)
        replica.lacks_records = log.report.missing_offsets > 0 or log.log_end_offset < known
        replica.high_watermark = Offset(min(max(known, log.log_start_offset), log.log_end_offset))
        replica.clean_until = Offset(disk.cleaner_offsets.get(key, 0))
        return replica

    # --- deleting ----------------------------------------------------------------------------

    async def _delete(self, topics: set[TopicId]) -> None:
        """Delete the partitions of topics that are gone."""
        if not topics:
            return
        for wanted in self.offline:
            if wanted.topic.topic_id in topics:
                self.offline.gone(wanted.key)
        await self._let_go([replica for replica in self if replica.topic_id in topics])

    async def _let_go(self, replicas: Sequence[Replica]) -> None:
        """Close partitions that are no longer this broker's; their files are deleted a little later."""
        if not replicas:
            return
        self._fetchers.assign([(replica, NO_LEADER) for replica in replicas])
        for number, replica in enumerate(replicas):
            if number % _PARTITIONS_BEFORE_A_PAUSE == _PARTITIONS_BEFORE_A_PAUSE - 1:
                await asyncio.sleep(0)
            key = replica.topic_partition
            if self._by_name.pop(key, None) is None:  # its disk has failed
                self.offline.gone(key)
                continue
            del self._by_id[(replica.topic_id, key.partition)]
            with self._incidents.contained_in(replica.topic_partition, "closing"):
                await replica.release()
            aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
            directory = replica.log_directory
            try:
                directory.rename(str(key), aside)
            except OSError as error:
                if not self.storage_failed(directory, "rename in", error):
                    logger.error("%s: cannot delete its files: %s", key, error)
                continue
            for disk in self.disks:
                disk.partitions.discard(key)
                disk.forget(key)
            self._delete_later(replica, functools.partial(directory.delete, aside))
        self._deletions += 1
        try:
            await self.checkpoint()
        except OSError as error:
            self._complain_of_checkpoints(error)

    async def _leave(self, numbers: Mapping[Number, None]) -> None:
        """Close partitions that were given to other brokers, even for a moment: their data must not come back."""
        await self._let_go([replica for number in numbers if (replica := self._by_id.get(number)) is not None])
        for wanted in [each for each in self.offline if (each.topic.topic_id, each.number) in numbers]:
            await self._discard(wanted)

    async def _discard(self, wanted: Wanted) -> None:
        """Delete the directory of a partition that could not be opened, if its disk works."""
        key = wanted.key
        self.offline.gone(key)
        disk = next((disk for disk in self.disks if key in disk.partitions and disk.failure is None), None)
        if disk is None or not disk.directory.exists(str(key)):
            return
        aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
        try:
            disk.directory.rename(str(key), aside)
        except OSError as error:
            if not self.storage_failed(disk.directory, "rename in", error):
                logger.error("%s: cannot delete its files: %s", key, error)
            return
        disk.partitions.discard(key)
        disk.forget(key)
        logger.info("%s: deleted its directory, which could not be opened", key)
        await asyncio.to_thread(_delete_quietly, functools.partial(disk.directory.delete, aside))
        self._deletions += 1

    async def delete_records(self, replica: Replica, before: Offset) -> None:
        """Hide the records before an offset, durably (DeleteRecords).

        Concurrent requests for the same offset share a checkpoint. Raises KafkaError (OFFSET_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR).
        """
        replica.advance_log_start(before)
        if replica.log.written_log_start < before:
            try:
                await _to_the_end(self._checkpoint(unless=lambda: replica.log.written_log_start >= before))
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log start cannot be written: {error}") from error

    async def delete_old_segments(self) -> None:
        """Remove segments beyond retention from the logs, and delete them once no reader can be using them.

        The new log start is checkpointed first: otherwise a power loss could leave holes. Raises OSError.
        """
        now = self._clock.now()
        async for replica in self._at_leisure():
            try:
                if deletion.advance_log_start(replica.log, now, replica.high_watermark):
                    replica.log_start_advanced()
            except KafkaError as error:  # a segment that is damaged
                logger.error("%s: retention: %s", replica.topic_partition, error)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "read", error):
                    self._complain("shorten", replica.topic_partition, error)
            except Exception as error:
                self._incidents.note(f"{replica.topic_partition}: retention", error, kind="retention")
        if await self._is_any_start_unwritten():
            await self.checkpoint()
        async for replica in self._at_leisure():
            try:
                gone = deletion.remove_before_log_start(replica.log, now)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "delete segments in", error):
                    self._complain("shorten", replica.topic_partition, error)
                continue
            except Exception as error:
                self._incidents.note(f"{replica.topic_partition}: retention", error, kind="retention")
                continue
            if gone:
                logger.info("%s: %d files deleted by retention", replica.topic_partition, len(gone))
                self.delete_files_later(replica, gone)

    async def _is_any_start_unwritten(self) -> bool:
        async for some in in_slices(list(self), _LOOKED_AT_AT_ONCE):
            if any(deletion.is_start_unwritten(replica.log) for replica in some):
                return True
        return False

    async def forget_producers_beyond(self, limit: int) -> int:
        """Forget the producers that have been silent longest while there are more than `limit`; return how many.

        A producer counts once per partition that it writes to. No partition keeps more than a quarter of the limit.
        Producers with an open transaction stay. Room for a tenth of `limit` is made at once.
        """
        gone = total = 0
        most = max(1, limit // _PRODUCERS_SHARE)
        writing: list[Replica] = []
        async for replica in self._at_leisure():
            count = len(replica.log.producers)
            if count > most:
                gone += await _forget_oldest([replica], count - most + most // 10)
                count = len(replica.log.producers)
            if count:
                writing.append(replica)
                total += count
        if total > limit:
            gone += await _forget_oldest(writing, total - limit + limit // 10)
        return gone

    async def _at_leisure(self) -> AsyncIterator[Replica]:
        """Yield the partitions whose log may be changed now, with a pause for others after every few of them."""
        for number, replica in enumerate(self):
            if number % _PARTITIONS_BEFORE_A_PAUSE == 0:
                await asyncio.sleep(0)
            if not (replica.is_being_truncated or replica.log.is_closed):
                yield replica

    def delete_files_later(self, replica: Replica, names: list[str]) -> None:
        """Delete files that were removed from a log, once no reader can be using them."""
        self._delete_later(replica, functools.partial(deletion.delete_files, replica.log.directory, names))

    def delete_later(self, replica: Replica, disk: Disk, name: str) -> None:
        """Delete a directory that was removed from a log directory, once no reader can be using it."""
        self._delete_later(replica, functools.partial(disk.directory.delete, name))

    def _delete_later(self, replica: Replica, delete: Callable[[], None]) -> None:
        """Delete after `file.delete.delay.ms`, in a thread. If a stop prevents it, the next start finds it by name."""
        self._call_later(replica.log.config.file_delete_delay_ms / 1000, delete)

    def _call_later(self, seconds: float, delete: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._later.discard(handle)
            if self._is_stopped:
                return
            try:
                deleting = loop.run_in_executor(self._deleters, _delete_quietly, delete)
            except OSError:  # no thread can be started
                self._call_later(_DELETE_AGAIN_SECONDS, delete)
            else:
                deleting.add_done_callback(again)

        def again(deleting: asyncio.Future[bool]) -> None:
            if not (deleting.cancelled() or deleting.exception() or deleting.result() or self._is_stopped):
                self._call_later(_DELETE_AGAIN_SECONDS, delete)

        handle = loop.call_later(seconds, start)
        self._later.add(handle)

    # --- checkpoints -------------------------------------------------------------------------

    def _complain_of_checkpoints(self, error: OSError) -> None:
        text = "the checkpoints cannot be written: %s"
        self.complaints.write(logger, logging.ERROR, "checkpoint", "", text, error)

    async def checkpoint(self) -> None:
        """Write, per log directory, how far each log is durable and where it starts. Raises OSError.

        Continues if the caller is cancelled; two never run at once.
        """
        await _to_the_end(self._checkpoint())

    async def _checkpoint(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Write the checkpoints, `unless` another caller's write has made it unnecessary meanwhile."""
        async with self._checkpointing:
            if unless():
                return
            deletions = self._deletions
            failure: OSError | None = None
            for disk in [disk for disk in self.disks if disk.failure is None]:
                logs = {key: log for key, (into, log) in self.moving_in.items() if into is disk}
                points = {key: log.recovery_point for key, log in logs.items()}
                starts = {key: log.log_start_offset for key, log in logs.items()}
                async for some in in_slices(list(self._by_name.values()), _LOOKED_AT_AT_ONCE):
                    for replica in some:
                        if replica.log_directory is disk.directory:
                            key, log = replica.topic_partition, replica.log
                            logs[key], points[key], starts[key] = log, log.recovery_point, log.log_start_offset
                try:
                    await asyncio.to_thread(disk.write_checkpoints, points, starts)
                except OSError as error:
                    if not self.storage_failed(disk.directory, "write the checkpoints in", error):
                        failure = error
                    continue
                async for keys in in_slices(list(logs), _LOOKED_AT_AT_ONCE):
                    for key in keys:
                        logs[key].written_log_start = starts[key]
            if failure is not None:
                raise failure
            self._deletions_written = deletions

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks, per log directory: a hint for the next start (rule 10). Raises OSError."""
        await _to_the_end(self._checkpoint_high_watermarks())

    async def _checkpoint_high_watermarks(self) -> None:
        async with self._checkpointing:
            for disk in [disk for disk in self.disks if disk.failure is None]:
                marks: dict[TopicPartition, int] = {}
                async for some in in_slices(list(self._by_name.values()), _LOOKED_AT_AT_ONCE):
                    for replica in some:
                        if replica.log_directory is disk.directory:
                            marks[replica.topic_partition] = int(replica.high_watermark)
                if marks != disk.high_watermarks:
                    try:
                        await asyncio.to_thread(layout.write_offsets, disk.directory, layout.HIGH_WATERMARKS, marks)
                    except OSError as error:
                        if not self.storage_failed(disk.directory, "write the high watermarks in", error):
                            raise
                        continue
                    disk.high_watermarks = marks

    # --- log directories that fail -----------------------------------------------------------

    def storage_failed(self, directory: Directory, what: str, error: OSError, *, is_lasting: bool = False) -> bool:
        """Handle a storage error in a log directory; return whether it takes the directory offline.

        `is_lasting`: it does, whatever the error: after a failed sync the contents of the disk are unknown.
        """
        if not is_lasting and not costs_the_directory(error):
            return False
        disk = next((disk for disk in self.disks if disk.directory.path == directory.path), None)
        if disk is None or disk.failure is not None or self._is_stopped:
            return True
        disk.failure = self._directories.failures[directory.path] = f"cannot {what} it: {error.strerror or error}"
        lost = self.in_directory(directory.path)
        for replica in lost:
            key = replica.topic_partition
            topic = self._image.topic_by_id(replica.topic_id)
            del self._by_name[key]
            del self._by_id[(replica.topic_id, key.partition)]
            if topic is not None:
                wanted = Wanted(topic, key.partition, replica.log.config)
                self.offline.failed(wanted, f"its log directory is offline: {disk.failure}", may_retry=False)
            replica.go_offline()
            self._release_later(replica)
        self._fetchers.assign([(replica, NO_LEADER) for replica in lost])
        self._directory_failed(directory.path, disk.failure, [replica.topic_partition for replica in lost])
        return True

    def _failure_of(self, directory: Directory) -> str | None:
        return next((disk.failure for disk in self.disks if disk.directory is directory), None)

    def _release_later(self, replica: Replica) -> None:
        """Close a replica's files once nothing uses them."""
        task = asyncio.get_running_loop().create_task(_release_quietly(replica))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def look_after_directories(self) -> None:
        """Notice a log directory that vanished or became read-only, even if it is not in use."""
        for disk in [disk for disk in self.disks if disk.failure is None]:
            try:
                await asyncio.to_thread(self._directories.check, disk.directory)
            except OSError as error:
                self.storage_failed(disk.directory, "use", error)

    def reports(self) -> dict[Number, ReplicaState]:
        """Return the states of this broker's replicas that the metadata must be told (`offline`)."""
        return self.offline.reports(self._image, lambda number: number in self._by_id)


def _is_short(opened: Replica | Exception) -> bool:
    """Whether the process lacked resources, and the log is not at fault."""
    return isinstance(opened, OSError) and failure_of(opened) is Failure.RESOURCES


async def _forget_oldest(replicas: Sequence[Replica], count: int) -> int:
    """Forget about `count` producers of these partitions, those that wrote longest ago; return how many."""
    runs: list[list[int]] = []  # times of the last writes, each list sorted
    run: list[int] = []
    for replica in replicas:
        if replica.log.is_closed or replica.is_being_truncated:
            continue
        run.extend(replica.log.producers.written_at())
        if len(run) >= _SORTED_AT_ONCE:
            run.sort()
            runs.append(run)
            run = []
            await asyncio.sleep(0)
    runs.append(sorted(run))
    until = None
    for number, written_at in enumerate(itertools.islice(heapq.merge(*runs), max(count, 1))):
        until = Millis(written_at)
        if number % _SORTED_AT_ONCE == _SORTED_AT_ONCE - 1:
            await asyncio.sleep(0)
    gone = looked_at = 0
    for replica in replicas:
        if until is None or replica.log.is_closed or replica.is_being_truncated:
            continue
        looked_at += len(replica.log.producers)
        gone += len(replica.log.producers.expire(until, 0))
        if looked_at >= _SORTED_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
    return gone


def _eligible(image: Image) -> dict[BrokerId, int]:
    """Return the brokers that may be in sync, with the epochs of their registrations (rule 13)."""
    return {broker.broker_id: broker.broker_epoch for broker in image.brokers() if broker.is_active}


async def _close(replica: Replica, pool: Threads) -> tuple[Replica, OSError | None]:
    replica.log.move_to(FileCache(_FILES_WHILE_OPENING))  # a cache belongs to one thread
    try:
        await replica.close(pool)
    except OSError as error:
        return replica, error
    return replica, None


async def _release_quietly(replica: Replica) -> None:
    try:
        await replica.release()
    except OSError as error:
        logger.debug("%s: its files cannot be closed: %s", replica.topic_partition, error)


async def _to_the_end(writing: Coroutine[None, None, None]) -> None:
    """Wait for a write that continues if the caller is cancelled; then its outcome is ignored."""
    task = asyncio.ensure_future(writing)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.shield(task)


def _delete_quietly(delete: Callable[[], None]) -> bool:
    """Delete; return False if it should be retried."""
    try:
        delete()
    except OSError as error:
        if failure_of(error) is Failure.RESOURCES:
            return False
        logger.error("cannot delete files that are no longer needed: %s", error)
    return True
