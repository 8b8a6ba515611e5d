"""The partitions this broker holds, on the disks it has, and the role it has in each.

Only partitions that name this broker among their replicas are open. Roles follow the metadata, many at once: whatever a
change touches is looked at once, in the image as it is then, so that a thousand leaderships that move together cost a
thousand small steps without a pause. A partition that was given to other brokers is closed, and its directory deleted.

Appends and reads run on the event loop: they touch the page cache. What may block for long runs in threads: opening
(recovery), syncing, cutting, deleting, checkpoints.

Invariants: a partition's directory carries its topic's id before any data, so that the log of a topic that was deleted
and created again is never taken for the new one's; a directory that the metadata does not know is never deleted, only
set aside. One thing at a time opens and deletes partitions, for a log opened twice would lose what was written to the
first. Checkpoints are written one at a time, and never say less than what was promised: where one could not be written
after a deletion, no partition is created until it could, lest a new log inherit what was written of an old one.

A partition that cannot be opened (a full or failing disk, a damaged file) is offline, answers KAFKA_STORAGE_ERROR, and
is tried again from time to time. A log directory that fails takes all of its partitions with it, until a restart
(`storage.disk` decides which failures do); the others go on. What of all that the cluster is to know is `offline`.

Left out: deleting the directory of a partition that was reassigned while this broker was down (it is left alone, and
said so).
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
from kraftpy.log import layout
from kraftpy.log.appending import BatchLimits
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog, delete_files
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
"""A thread that opens a log keeps no more files open; the cache that all logs share is the loop's alone."""
_PARTITIONS_BEFORE_A_PAUSE = 20
"""What looks at each of thousands of partitions, on the loop, lets others have it in between."""
_DELETE_AGAIN_SECONDS = 5.0
_SETTLED_AT_ONCE = 500
"""So many changed partitions are handled before other tasks get the event loop."""
_LOOKED_AT_AT_ONCE = 1_000
"""The same where each of them is only read or told a little."""
_CONFIGS_AT_ONCE = 200
_SORTED_AT_ONCE = 10_000
"""So many producers are looked at, or sorted, before other tasks get the event loop."""
_MADE_AT_ONCE = 100
"""So many new partitions are made, and then usable, before the next ones are begun."""
_PRODUCERS_SHARE = 4
_THREADS_FOR_MANY = 3
"""Those that make many partitions compete with the event loop for the interpreter: it waits for each of them."""
_PAUSES_SECONDS = (0.02, 0.1, 0.3)
"""Between attempts to open a log for which there are no descriptors, before it is offline and tried again later."""
_THREADS_THAT_SYNC = 16
"""To make partitions and to close them is to wait for the disk, which syncs many files in the time of one."""


_Failure = tuple[Wanted, Exception]


class Followed(Protocol):
    """What fetches the partitions that other brokers lead."""

    def assign(self, changes: Iterable[tuple[Replica, BrokerId]]) -> None:
        """Fetch these partitions from these brokers from now on; from none where it is `NO_LEADER`."""
        ...

    def wake(self) -> None:
        """Brokers have come or gone: try again now what failed before."""
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
        """`catch_up` returns once all is acted upon here that the quorum decided before (`MetadataLog.catch_up`).
        `directory_failed` is told at once of a log directory that is out of use, why, and what was in it."""
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
        self.wishes: dict[TopicPartition, str] = {}
        """Where partitions that are not here yet shall be, by log directory."""
        self.moving_in: dict[TopicPartition, tuple[Disk, PartitionLog]] = {}
        """Copies about to take the place of logs in other directories: their checkpoints are written before."""
        self.confirmations = Confirmations(catch_up, config.replica_fetch_wait_max_ms)
        """Leaders that make sure that they still are."""
        self.changing = asyncio.Lock()
        """Held by what opens, closes, moves and deletes partitions."""
        self._checkpointing = asyncio.Lock()
        self._deletions = 0
        self._deletions_written = 0
        """How many of the deletions the checkpoints are known to lack no longer."""
        self._without_role: dict[Number, None] = {}
        """Partitions whose change of role met an unexpected error: tried again, as those that are offline."""
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
        """The partition's replica, where this broker leads it.

        Raises KafkaError (NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR).
        """
        replica = self._by_name.get((topic, partition))
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here(topic, partition, replica)

    def leader_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """The same by topic id. Raises KafkaError (NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID, KAFKA_STORAGE_ERROR)."""
        replica = self._by_id.get((topic_id, partition))
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def readable(self, topic: str, partition: int) -> Replica:
        """The partition's replica, where this broker leads or follows it. Raises KafkaError as `leader` does."""
        replica = self._by_name.get((topic, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here(topic, partition, replica)

    def readable_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """The same by topic id. Raises KafkaError as `leader_by_id` does."""
        replica = self._by_id.get((topic_id, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def held_by_id(self, topic_id: TopicId, partition: int) -> Replica | None:
        """The partition's replica in whatever role."""
        return self._by_id.get((topic_id, partition))

    def _not_here(self, topic: str, partition: int, replica: Replica | None) -> KafkaError:
        key = TopicPartition(topic, partition)
        known = self._image.partition(topic, partition)
        leads_elsewhere = known is not None and known.leader not in (NO_LEADER, self.broker_id)
        if key in self.offline and not leads_elsewhere:  # or some clients would go on asking here (aiokafka's consumer)
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
        """The partition's replica in whatever role."""
        return self._by_name.get(key)

    @property
    def directories(self) -> list[str]:
        """The log directories' paths."""
        return self._directories.paths

    @property
    def failures(self) -> Mapping[str, str]:
        """The log directories that are out of use, and why."""
        return self._directories.failures

    def in_directory(self, path: str) -> list[Replica]:
        """The partitions in a log directory, sorted."""
        return [self._by_name[key] for key in sorted(self._by_name) if self._by_name[key].log_directory.path == path]

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, image: Image) -> None:
        """Open every partition the metadata gives this broker; several at once. Raises OSError."""
        self.disks = await asyncio.to_thread(read_disks, self._directories)
        async with self.changing:
            self._image = image
            self._brokers = _eligible(image)
            ours = {TopicPartition(topic.name, number) for topic, number, _ in image.partitions_of(self.broker_id)}
            if self._directories.may_lack:
                self.offline.doubt(ours.difference(*(disk.partitions for disk in self.disks)))
            await self._settle_some([(topic.topic_id, number) for topic, number, _ in image.partitions()])
        known = set(self._by_name) | {each.key for each in self.offline}
        for disk in self.disks:
            for stray in sorted(disk.partitions - known):
                logger.warning("%s/%s is no partition of this broker; left alone", disk.directory.path, stray)

    async def stop(self) -> bool:
        """Make every log durable, close it, and write the checkpoints that let the next start skip the scan.

        Whether all of it could be done; where not, the next start has to scan.
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
            await replica.settle()  # from here on the loop leaves the files to the thread that closes them
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
        """Act on changed metadata; returns when new partitions can be used and deleted ones are gone."""
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
        await self._settle(touched)

    async def reconcile(self, image: Image) -> None:
        """Act on an image of which no records are known: it came as a snapshot."""
        async with self.changing:
            if self._is_stopped:
                return
            self._image = image
            await self._brokers_changed()
            await self._reconfigure({topic.name for topic in image.topics()})
            held = [replica.topic_id for replica in self] + [each.topic.topic_id for each in self.offline]
            await self._delete({topic_id for topic_id in held if image.topic_by_id(topic_id) is None})
            await self._settle([(topic.topic_id, number) for topic, number, _ in image.partitions()])

    async def _brokers_changed(self) -> None:
        self._brokers = _eligible(self._image)
        async for some in in_slices(list(self), _SETTLED_AT_ONCE):
            for replica in some:
                if replica.leading is not None:
                    with self._incidents.contained_in(replica.topic_partition, "brokers changed"):
                        replica.brokers_changed(self._brokers)
        self._fetchers.wake()

    async def _settle(self, touched: Iterable[Number]) -> None:
        """The same as `_settle_some`, for thousands of partitions: others have the loop in between."""
        numbers = list(touched)
        for first in range(0, len(numbers), _SETTLED_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            await self._settle_some(numbers[first : first + _SETTLED_AT_ONCE])

    async def _settle_some(self, touched: Iterable[Number]) -> None:
        """Open what is this broker's now, let go of what no longer is, and take the roles there are."""
        image = self._image
        wanted: list[Wanted] = []
        gone: list[Replica] = []
        known: list[Replica] = []
        configs: dict[str, TopicConfig] = {}
        alike: dict[tuple[tuple[str, str], ...], TopicConfig] = {}  # most topics are set alike
        for number in touched:
            topic = image.topic_by_id(number[0])
            if topic is None:  # deleted by a later record
                continue
            partition = topic.partitions[number[1]]
            is_ours = self.broker_id in partition.replicas
            self.offline.noted(number, partition)
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
        """What the image says each of them is to be: leader, follower, neither."""
        for replica in replicas:
            if replica.is_being_cut:
                replica.stand_by(replica.leader_epoch, replica.partition_epoch)
                await replica.truncated()
        async for some in in_slices(replicas, _SETTLED_AT_ONCE):
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
        """Make the replica a leader or follower; return the assignments that the fetchers are to be given."""
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
        """Open partitions; those that cannot be are offline."""
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
            # A replica that is alone and never was there: nobody else could lead it, and the metadata has better to do.
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
                await self.checkpoint()  # or what is written next could be taken for synced, after the next crash
            except OSError as error:
                self._complain_of_checkpoints(error)
        await self._take_roles(opened)

    def _may_open(self, wanted: Wanted) -> bool:
        """Whether a partition may be opened, and made where it is nowhere; where not, it is offline."""
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
                self.offline.failed(wanted, f"its log directory is: {disk.failure}", may_retry=False)
            return disk.failure is None
        if self.offline.may_begin(wanted):
            return True
        text, state = "what it held is gone with its log directory", ReplicaState.LOST
        if failed := next(iter(self._directories.failures), None):
            text, state = f"it may be in {failed}, which is offline", ReplicaState.OFFLINE
        if self.offline.failed(wanted, text, state, may_retry=False):
            logger.error("%s is offline: %s", wanted.key, text)
        return False

    async def retry_offline(self) -> list[TopicPartition]:
        """Try to open what could not be opened, and to give roles to what got none; the partitions that are there."""
        async with self.changing:  # what is being opened is offline until it is open: never a second time
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
        """Propose to drop followers that lag for too long; to be called every half of `replica.lag.time.max.ms`."""
        async for some in in_slices(list(self), _SETTLED_AT_ONCE):
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
        async for pairs in in_slices(concerned, _SETTLED_AT_ONCE):
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
        """What they acknowledge from now on need not be synced. Where that cannot be written, they go on as before."""
        for replica in replicas:
            try:
                await asyncio.to_thread(replica.log.promise, synced_before_ack=False)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "write to a log in", error):
                    logger.error("%s: keeps its settings until there is room: %s", replica.topic_partition, error)
                    self._not_reconfigured.add(replica.topic_partition.topic)

    async def promise_what_is_synced(self) -> None:
        """Have the logs promise it that have everything synced since `kraftpy.flush.before.ack` was set for them."""
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
        """Open logs, in several threads, but no more jobs; and what stood in the way of those that could not be."""
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
                if number % _SETTLED_AT_ONCE == _SETTLED_AT_ONCE - 1:
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
                    if opened.is_cut:
                        self.offline.cut((opened.topic_id, opened.topic_partition.partition))
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
        """Sync a log directory, however long there are no descriptors for that. Raises OSError."""
        sync = functools.partial(asyncio.to_thread, directory.sync)
        await patiently(sync, f"sync {directory.path}", self.complaints, is_sync=True)

    async def _open_in(
        self, loop: asyncio.AbstractEventLoop, opening: Opening, placed: Sequence[tuple[Disk, Wanted]]
    ) -> dict[TopicPartition, Replica | Exception]:
        """Open logs one after the other; those for which there were no descriptors or threads, again after a pause."""
        found: dict[TopicPartition, Replica | Exception] = {}
        for pause in (0.0, *_PAUSES_SECONDS):
            await asyncio.sleep(pause)
            try:
                found.update(await loop.run_in_executor(opening.pool, self._open_each, placed, opening))
            except OSError as error:  # no thread
                found.update({wanted.key: error for _, wanted in placed})
            placed = [each for each in placed if _is_short(found[each[1].key])]
            if not placed:
                break
        return found

    def _complain(self, what: str, key: TopicPartition, error: Exception) -> None:
        """One line a minute for what hits many partitions at once, and passes."""
        self.complaints.own(logger, what, "%s: cannot %s the log for now: %s", key, what, error)

    def _disk_for(self, key: TopicPartition) -> Disk:
        """Where the partition is, or the log directory with the fewest partitions."""
        for disk in self.disks:
            if key in disk.partitions:
                return disk
        usable = [disk for disk in self.disks if disk.failure is None]
        wish = self.wishes.pop(key, None)
        wished = [disk for disk in usable if disk.directory.path == wish]
        disk = min(wished or usable, key=lambda disk: len(disk.partitions))
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
                except Exception as error:  # of this one alone
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
        log.move_to(self._files)  # closes its files, here: thousands of logs are opened at once
        replica = Replica(key, topic.topic_id, disk.directory, log, self)
        known = disk.high_watermarks.get(key, 0)
        replica.is_cut = log.report.missing_offsets > 0 or log.log_end_offset < known
        replica.high_watermark = Offset(min(max(known, log.log_start_offset), log.log_end_offset))
        replica.clean_until = Offset(disk.cleaner_offsets.get(key, 0))
        return replica

    # --- deleting ----------------------------------------------------------------------------

    async def _delete(self, topics: set[TopicId]) -> None:
        """Topics are gone: their partitions too."""
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
            if self._by_name.pop(key, None) is None:  # its disk failed meanwhile
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
                    logger.error("%s: its files stay: %s", key, error)
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
        """These were given to other brokers, be it for a moment: what is here is not what may come back."""
        await self._let_go([replica for number in numbers if (replica := self._by_id.get(number)) is not None])
        for wanted in [each for each in self.offline if (each.topic.topic_id, each.number) in numbers]:
            await self._discard(wanted)

    async def _discard(self, wanted: Wanted) -> None:
        """Delete what there is of a partition that could not be opened, where its disk is there."""
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
                logger.error("%s: its files stay: %s", key, error)
            return
        disk.partitions.discard(key)
        disk.forget(key)
        logger.info("%s: what could not be opened is deleted", key)
        await asyncio.to_thread(_delete_quietly, functools.partial(disk.directory.delete, aside))
        self._deletions += 1

    async def delete_records(self, replica: Replica, before: Offset) -> None:
        """Hide the records before an offset, durably (DeleteRecords).

        Who asks for what another has asked for already waits for the same checkpoint. Raises KafkaError
        (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR).
        """
        replica.advance_log_start(before)
        if replica.log.written_log_start < before:
            try:
                await _to_the_end(self._checkpoint(unless=lambda: replica.log.written_log_start >= before))
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log start cannot be written: {error}") from error

    async def delete_old_segments(self) -> None:
        """Take out of the logs what retention lets go, and delete it when nobody can be reading it any more.

        Where the logs start then is written down first: else a power loss could leave holes. Raises OSError.
        """
        now = self._clock.now()
        async for replica in self._at_leisure():
            try:
                if replica.log.advance_log_start_by_retention(now, replica.high_watermark):
                    replica.log_start_advanced()
            except KafkaError as error:  # a segment that does not hold what it should
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
                gone = replica.log.remove_before_log_start(now)
            except OSError as error:
                if not self.storage_failed(replica.log_directory, "delete segments in", error):
                    self._complain("shorten", replica.topic_partition, error)
                continue
            except Exception as error:
                self._incidents.note(f"{replica.topic_partition}: retention", error, kind="retention")
                continue
            if gone:
                logger.info("%s: %d files out of retention", replica.topic_partition, len(gone))
                self.delete_files_later(replica, gone)

    async def _is_any_start_unwritten(self) -> bool:
        async for some in in_slices(list(self), _LOOKED_AT_AT_ONCE):
            if any(replica.log.is_start_unwritten for replica in some):
                return True
        return False

    async def forget_producers_beyond(self, limit: int) -> int:
        """Forget those producers that have been silent for longest where there are more than `limit`; how many.

        Counted are producers of partitions: one that writes to three counts three times. No partition keeps more than
        a quarter of them. Those with an open transaction stay. Room for a tenth of `limit` is made at once.
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
        """The partitions whose log may be changed now, with a pause for others after each few of them."""
        for number, replica in enumerate(self):
            if number % _PARTITIONS_BEFORE_A_PAUSE == 0:
                await asyncio.sleep(0)
            if not (replica.is_being_cut or replica.log.is_closed):
                yield replica

    def delete_files_later(self, replica: Replica, names: list[str]) -> None:
        """Delete files that were taken out of a log when nobody can be reading them any more."""
        self._delete_later(replica, functools.partial(delete_files, replica.log.directory, names))

    def delete_later(self, replica: Replica, disk: Disk, name: str) -> None:
        """Delete what was taken out of a log directory when nobody can be reading it any more."""
        self._delete_later(replica, functools.partial(disk.directory.delete, name))

    def _delete_later(self, replica: Replica, delete: Callable[[], None]) -> None:
        """After `file.delete.delay.ms`, in a thread. What a stop forgets, the next start finds by its name."""
        self._call_later(replica.log.config.file_delete_delay_ms / 1000, delete)

    def _call_later(self, seconds: float, delete: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._later.discard(handle)
            if self._is_stopped:
                return
            try:
                deleting = loop.run_in_executor(self._deleters, _delete_quietly, delete)
            except OSError:  # no thread
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
        """Write down, per log directory, how far each log is durable and where it starts. Raises OSError.

        It goes on when the caller is cancelled; two never run at once.
        """
        await _to_the_end(self._checkpoint())

    async def _checkpoint(self, unless: Callable[[], bool] = lambda: False) -> None:
        """`unless` is asked when its turn comes: one that was written for another may have been enough."""
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
        """Write down, per log directory, what is committed: a hint for the next start (rule 10). Raises OSError."""
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
        """Something could not be done in a log directory; whether that costs the directory, not only what was asked.

        `is_lasting`: it does, whatever the error says: nobody knows what is on the disk after a failed sync.
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
                self.offline.failed(wanted, f"its log directory is: {disk.failure}", may_retry=False)
            replica.go_offline()
            self._release_later(replica)
        self._fetchers.assign([(replica, NO_LEADER) for replica in lost])
        self._directory_failed(directory.path, disk.failure, [replica.topic_partition for replica in lost])
        return True

    def _failure_of(self, directory: Directory) -> str | None:
        return next((disk.failure for disk in self.disks if disk.directory is directory), None)

    def _release_later(self, replica: Replica) -> None:
        """Close its files when nothing uses them any more."""
        task = asyncio.get_running_loop().create_task(_release_quietly(replica))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def look_after_directories(self) -> None:
        """Notice a log directory that vanished or became read-only, though nobody asks for anything in it."""
        for disk in [disk for disk in self.disks if disk.failure is None]:
            try:
                await asyncio.to_thread(self._directories.check, disk.directory)
            except OSError as error:
                self.storage_failed(disk.directory, "use", error)

    def reports(self) -> dict[Number, ReplicaState]:
        """What the metadata is to be told of this broker's replicas (`offline`)."""
        return self.offline.reports(self._image, lambda number: number in self._by_id)


def _is_short(opened: Replica | Exception) -> bool:
    """Whether resources of the process were missing, rather than anything of the log."""
    return isinstance(opened, OSError) and failure_of(opened) is Failure.RESOURCES


async def _forget_oldest(replicas: Sequence[Replica], count: int) -> int:
    """Forget about `count` producers of these partitions, those that wrote longest ago; how many."""
    runs: list[list[int]] = []  # times of the last writes, each list sorted
    run: list[int] = []
    for replica in replicas:
        if replica.log.is_closed or replica.is_being_cut:
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
        if until is None or replica.log.is_closed or replica.is_being_cut:
            continue
        looked_at += len(replica.log.producers)
        gone += len(replica.log.forget_producers(until))
        if looked_at >= _SORTED_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
    return gone


def _eligible(image: Image) -> dict[BrokerId, int]:
    """The brokers that may be in sync, with the epochs of their registrations (rule 13)."""
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
    """Wait for it; it goes on when the caller is cancelled, and how it ends then is nobody's concern."""
    task = asyncio.ensure_future(writing)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.shield(task)


def _delete_quietly(delete: Callable[[], None]) -> bool:
    """Whether it is over: done, or not to be tried again."""
    try:
        delete()
    except OSError as error:
        if failure_of(error) is Failure.RESOURCES:
            return False
        logger.error("files that are no longer needed stay: %s", error)
    return True
