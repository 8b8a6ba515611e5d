"""Opens, closes and deletes the partitions of this broker as the metadata says, and gives each its role.

Only partitions that name this broker among their replicas are open. Roles follow the metadata, many at once: each
partition that a change touches is looked at once, in the current image, so that a thousand leaderships that move
together cost a thousand small steps without a pause. A partition that was given to other brokers is closed, and its
directory deleted.

Appends and reads run on the event loop: they touch the page cache. Work that may block for long runs in threads:
opening (recovery), syncing, truncating, deleting, checkpoints.

Invariants: a partition's directory carries its topic's id before any data, so that the log of a topic that was deleted
and created again is never taken for the new one's; a directory that the metadata does not know is never deleted, only
set aside. One task at a time opens, closes and deletes partitions (`changing`).

The parts each have a module: the table of replicas (`replicas`), opening (`replica_opener`), settings
(`topic_configs`), checkpoints (`checkpoints`), failed log directories (`directory_failures`), deletion of files
(`storage.deferred_deletion`), and reports to the cluster about unusable partitions (`storage.offline`).

Left out: deleting the directory of a partition that was reassigned while this broker was down (it is left alone, and
logged).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kraftpy.broker.containment import Incidents
from kraftpy.broker.descriptors import Descriptors, share_out
from kraftpy.broker.replication.checkpoints import Checkpoints
from kraftpy.broker.replication.directory_failures import DirectoryFailed, DirectoryFailures, PartitionFetchers
from kraftpy.broker.replication.host import ReplicaHost
from kraftpy.broker.replication.leadership_check import Confirmations
from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.replication.replica_opener import FILES_WHILE_OPENING, THREADS_THAT_SYNC, ReplicaOpener
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.replication.topic_configs import TopicConfigs
from kraftpy.broker.runtime import open_files_limit
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.storage.deferred_deletion import DeferredDeletions, delete_quietly
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.broker.storage.disk import Disks
from kraftpy.broker.storage.group_commit import Syncs
from kraftpy.broker.storage.offline import Number, Offline, Wanted
from kraftpy.broker.threads import Threads
from kraftpy.config import BrokerConfig, TopicConfig
from kraftpy.log import layout
from kraftpy.log.files import FileCache
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
from kraftpy.ports import Clock
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import PartitionState
from kraftpy.types import BrokerId, LeaderEpoch, TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.metrics.traffic import Traffic

logger = logging.getLogger(__name__)

_CLOSED_BEFORE_A_PAUSE = 20
"""Partitions that are closed before others get the event loop."""
_APPLIED_AT_ONCE = 500
"""Changed partitions handled before other tasks get the event loop."""


class ReplicaManager:
    """The partitions of one broker, as they follow the metadata."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        directories: LogDirectories,
        propose: Callable[[Replica, ProposeIsr], None],
        fetchers: PartitionFetchers,
        catch_up: Callable[[], Awaitable[None]],
        incidents: Incidents,
        directory_failed: DirectoryFailed = lambda path, reason, partitions: None,
        *,
        descriptors: Descriptors | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """`catch_up` returns once everything the quorum decided before is applied here (`MetadataLog.catch_up`)."""
        self.broker_id = BrokerId(config.node_id)
        self._incidents = incidents
        self._complaints = incidents.complaints
        self.directories = directories
        self._fetchers = fetchers
        self._descriptors = share_out(open_files_limit()) if descriptors is None else descriptors
        self._brokers: Mapping[BrokerId, int] = {}
        """The brokers that may be in sync, with the epochs of their registrations."""
        self._without_role: dict[Number, None] = {}
        """Partitions whose change of role met an unexpected error: retried with the offline ones."""
        self._is_stopped = False
        self.changing = asyncio.Lock()
        """Held by operations that open, close, move and delete partitions."""
        self.offline = Offline(self.broker_id)
        self.replicas = Replicas(self.offline, Confirmations(catch_up, config.replica_fetch_wait_max_ms), traffic)
        self.disks = Disks()
        self.failures = DirectoryFailures(directories, self.disks, self.replicas, fetchers, directory_failed)
        self.checkpoints = Checkpoints(self.replicas, self.disks, self.failures)
        self.deletions = DeferredDeletions()
        self.topic_configs = TopicConfigs(config, self.replicas, fetchers, self.failures, incidents, self.changing)
        self.syncs = Syncs(incidents, self._descriptors.work_files)
        if traffic is not None:
            self.syncs.durations = traffic.sync_times
        host = ReplicaHost(
            broker_id=self.broker_id,
            lag_time_max_ms=config.replica_lag_time_max_ms,
            back_off_max_ms=config.replica_fetch_backoff_ms,
            now=clock.now,
            monotonic_ms=clock.monotonic_ms,
            syncs=self.syncs,
            complaints=incidents.complaints,
            due=self.replicas.due,
            propose=propose,
            storage_failed=self.failures.storage_failed,
            write_log_start=self.checkpoints.write_log_start,
        )
        self.opener = ReplicaOpener(
            config,
            host,
            self.replicas,
            directories,
            self.disks,
            self.failures,
            self.checkpoints,
            incidents,
            self._descriptors,
        )

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, image: Image) -> None:
        """Open every partition that the metadata assigns to this broker, several at once. Raises OSError."""
        await asyncio.to_thread(self.disks.read, self.directories)
        async with self.changing:
            self.replicas.image = image
            self._brokers = _eligible(image)
            if self.directories.may_lack:
                ours = {TopicPartition(topic.name, number) for topic, number, _ in image.partitions_of(self.broker_id)}
                self.offline.doubt(ours.difference(*(disk.partitions for disk in self.disks)))
            await self._apply_to_some([(topic.topic_id, number) for topic, number, _ in image.partitions()])
        known = {replica.topic_partition for replica in self.replicas} | {each.key for each in self.offline}
        for disk in self.disks:
            for stray in sorted(disk.partitions - known):
                logger.warning("%s/%s is not a partition of this broker; left alone", disk.directory.path, stray)

    async def stop(self) -> bool:
        """Make every log durable, close it, and write the checkpoints that let the next start skip the scan.

        Returns whether all of that succeeded; if not, the next start has to scan.
        """
        self.deletions.stop()
        async with self.changing:
            self._is_stopped = True
        await self.failures.stop()
        is_clean = True
        async for some in in_slices(list(self.replicas), _APPLIED_AT_ONCE):
            for replica in some:
                await replica.operations.truncation_ended()
                await replica.operations.end()  # from here on only the closing thread uses the files
        threads = max(1, min(THREADS_THAT_SYNC, self._descriptors.work_files // (FILES_WHILE_OPENING + 4)))
        with Threads(threads, thread_name_prefix="close-log") as pool:
            closed: list[tuple[Replica, Exception | None]] = []
            async for some in in_slices(list(self.replicas), _APPLIED_AT_ONCE):
                closed += await asyncio.gather(*(_close(replica, pool) for replica in some))
        for replica, failure in closed:
            if failure is not None:
                logger.critical("%s: cannot be closed cleanly: %s", replica.topic_partition, failure)
                is_clean = False
        try:
            await self.checkpoints.write()
            await self.checkpoints.write_high_watermarks()
        except OSError as error:
            logger.critical("the checkpoints cannot be written: %s", error)
            is_clean = False
        self.syncs.stop()
        self.opener.close()
        self.deletions.close()
        return is_clean

    # --- following the metadata --------------------------------------------------------------

    async def apply(self, records: Sequence[Record], image: Image) -> None:
        """Apply changed metadata; returns when new partitions can be used and deleted ones are gone."""
        async with self.changing:
            if not self._is_stopped:
                await self._apply(records, image)

    async def _apply(self, records: Sequence[Record], image: Image) -> None:
        self.replicas.image = image
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
                case ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name=name) if self._is_mine(name):
                    reconfigured.update(replica.topic_partition.topic for replica in self.replicas)
                case TopicDeleted():
                    deleted.add(record.topic_id)
                case BrokerRegistered() | BrokerChanged() | BrokerUnregistered():
                    brokers_changed = True
                case _:
                    pass
        if brokers_changed:
            await self._brokers_changed()
        if reconfigured:
            await self.topic_configs.apply(reconfigured)
        await self._delete_topics(deleted)
        await self._leave_partitions(left)
        await self._apply_to(touched)

    def _is_mine(self, broker: str) -> bool:
        """Return whether settings of the broker with this name apply here; "" stands for all brokers."""
        return broker in ("", str(self.broker_id))

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that changed while the broker runs; `apply` then applies them to open logs."""
        self.topic_configs.config = config
        self.opener.config = config

    async def reconcile(self, image: Image) -> None:
        """Apply an image that came as a snapshot, without its records."""
        async with self.changing:
            if self._is_stopped:
                return
            self.replicas.image = image
            await self._brokers_changed()
            await self.topic_configs.apply({topic.name for topic in image.topics()})
            held = [replica.topic_id for replica in self.replicas] + [each.topic.topic_id for each in self.offline]
            await self._delete_topics({topic_id for topic_id in held if image.topic_by_id(topic_id) is None})
            await self._apply_to([(topic.topic_id, number) for topic, number, _ in image.partitions()])

    async def _brokers_changed(self) -> None:
        self._brokers = _eligible(self.replicas.image)
        async for some in in_slices(list(self.replicas), _APPLIED_AT_ONCE):
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
        image = self.replicas.image
        wanted: list[Wanted] = []
        gone: list[Replica] = []
        known: list[Replica] = []
        configs: dict[str, TopicConfig] = {}
        alike: dict[tuple[tuple[str, str], ...], TopicConfig] = {}  # most topics have the same settings
        async for some in in_slices(list(touched), _APPLIED_AT_ONCE):
            for number in some:
                topic = image.topic_by_id(number[0])
                if topic is None:  # deleted by a later record
                    continue
                partition = topic.partitions[number[1]]
                is_ours = self.broker_id in partition.replicas
                self.offline.follow_metadata(number, partition)
                replica = self.replicas.held_by_id(*number)
                if replica is not None:
                    (known if is_ours else gone).append(replica)
                elif is_ours:
                    if topic.name not in configs:
                        overrides = tuple(image.topic_configs(topic.name).items())
                        if overrides not in alike:
                            alike[overrides] = self.topic_configs.of(topic.name)
                        configs[topic.name] = alike[overrides]
                    wanted.append(Wanted(topic, number[1], configs[topic.name]))
                else:
                    self.offline.gone(TopicPartition(topic.name, number[1]))
        await self._take_roles(known)
        await self._close_and_delete(gone)
        await self._open(wanted)

    async def _open(self, wanted: Sequence[Wanted]) -> None:
        """Open or create partitions, and give them their roles."""
        async for opened in self.opener.open(wanted):
            await self._take_roles(opened)

    async def retry_offline(self) -> list[TopicPartition]:
        """Retry partitions that could not be opened or got no role; return those that are now available."""
        async with self.changing:  # partitions being opened count as offline until they are open: never open them twice
            wanted = self.offline.to_retry()
            without_role, self._without_role = self._without_role, {}
            if self._is_stopped:
                return []
            if wanted:
                await self._open(wanted)
            found = [self.replicas.held_by_id(*number) for number in without_role]
            replicas = [replica for replica in found if replica is not None]
            await self._take_roles(replicas)
            keys = [each.key for each in wanted] + [replica.topic_partition for replica in replicas]
            return [key for key in keys if self.replicas.held(key) is not None]

    def reports(self) -> dict[Number, ReplicaState]:
        """Return the states of this broker's replicas that must be reported to the metadata (`offline`)."""
        return self.offline.reports(self.replicas.image, lambda number: self.replicas.held_by_id(*number) is not None)

    # --- roles -------------------------------------------------------------------------------

    async def _take_roles(self, replicas: Sequence[Replica]) -> None:
        """Give each replica its role in the image: leader, follower or neither."""
        for replica in replicas:
            if replica.operations.is_truncating:
                replica.stand_by(replica.leader_epoch, replica.partition_epoch)
                await replica.operations.truncation_ended()
        async for some in in_slices(replicas, _APPLIED_AT_ONCE):
            assigned: list[tuple[Replica, BrokerId]] = []
            for replica in some:
                topic = self.replicas.image.topic_by_id(replica.topic_id)
                if topic is None or self.replicas.held(replica.topic_partition) is not replica:  # its disk failed
                    continue
                partition = topic.partitions[replica.topic_partition.partition]
                try:
                    assigned += self._take_role(replica, partition)
                except Exception as error:
                    self._role_failed(replica, partition, error)
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

    def _role_failed(self, replica: Replica, partition: Partition, error: Exception) -> None:
        """Handle an error in a change of role: the replica neither leads nor follows until the next attempt."""
        number = (replica.topic_id, replica.topic_partition.partition)
        self._incidents.note(f"{replica.topic_partition}: change of its role", error, kind="change of a role")
        self._without_role[number] = None
        with self._incidents.contained_in(replica.topic_partition, "standing by"):
            replica.stand_by(LeaderEpoch(partition.leader_epoch), partition.partition_epoch)
        self._fetchers.assign([(replica, NO_LEADER)])

    async def check_lagging_followers(self) -> None:
        """Propose to drop followers that lag for too long; must be called every half of `replica.lag.time.max.ms`."""
        async for some in in_slices(list(self.replicas), _APPLIED_AT_ONCE):
            for replica in some:
                if replica.leading is not None and not replica.leading.is_settled:
                    with self._incidents.contained_in(replica.topic_partition, "followers"):
                        replica.check_lagging_followers()

    # --- closing and deleting ----------------------------------------------------------------

    async def _delete_topics(self, topics: set[TopicId]) -> None:
        """Delete the partitions of topics that are gone."""
        if not topics:
            return
        for wanted in self.offline:
            if wanted.topic.topic_id in topics:
                self.offline.gone(wanted.key)
        found = [replica for topic_id in sorted(topics) for replica in self.replicas.of_topic(topic_id)]
        await self._close_and_delete(found)

    async def _close_and_delete(self, replicas: Sequence[Replica]) -> None:
        """Close partitions that are no longer this broker's; their files are deleted a little later."""
        if not replicas:
            return
        self._fetchers.assign([(replica, NO_LEADER) for replica in replicas])
        for number, replica in enumerate(replicas):
            if number % _CLOSED_BEFORE_A_PAUSE == _CLOSED_BEFORE_A_PAUSE - 1:
                await asyncio.sleep(0)
            key = replica.topic_partition
            if not self.replicas.remove(replica):  # its disk has failed
                self.offline.gone(key)
                continue
            with self._incidents.contained_in(replica.topic_partition, "closing"):
                await replica.release()
            aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
            directory = replica.log_directory
            try:
                directory.rename(str(key), aside)
            except OSError as error:
                if not self.failures.storage_failed(directory, "rename in", error):
                    logger.error("%s: cannot delete its files: %s", key, error)
                continue
            self.disks.forget(key)
            self.deletions.delete_directory(replica.log, directory, aside)
        self.checkpoints.deleted()
        try:
            await self.checkpoints.write()
        except OSError as error:
            text = "the checkpoints cannot be written: %s"
            self._complaints.write(logger, logging.ERROR, "checkpoint", "", text, error)

    async def _leave_partitions(self, numbers: Mapping[Number, None]) -> None:
        """Close partitions that were given to other brokers, even for a moment: their data must not come back."""
        found = [self.replicas.held_by_id(*number) for number in numbers]
        await self._close_and_delete([replica for replica in found if replica is not None])
        for topic_id, number in numbers:
            wanted = self.offline.held_by_id(topic_id, number, self.replicas.image)
            if wanted is not None and wanted.topic.topic_id == topic_id:
                await self._discard(wanted)

    async def _discard(self, wanted: Wanted) -> None:
        """Delete the directory of a partition that could not be opened, if its disk works."""
        key = wanted.key
        self.offline.gone(key)
        disk = next((disk for disk in self.disks.usable if key in disk.partitions), None)
        if disk is None or not disk.directory.exists(str(key)):
            return
        aside = layout.deleted_partition_name(key, uuid.uuid4().hex)
        try:
            disk.directory.rename(str(key), aside)
        except OSError as error:
            if not self.failures.storage_failed(disk.directory, "rename in", error):
                logger.error("%s: cannot delete its files: %s", key, error)
            return
        disk.partitions.discard(key)
        disk.forget(key)
        logger.info("%s: deleted its directory, which could not be opened", key)
        await asyncio.to_thread(delete_quietly, functools.partial(disk.directory.delete, aside))
        self.checkpoints.deleted()


def _eligible(image: Image) -> dict[BrokerId, int]:
    """Return the brokers that may be in sync, with the epochs of their registrations (rule 13)."""
    return {broker.broker_id: broker.broker_epoch for broker in image.brokers() if broker.is_active}


async def _close(replica: Replica, pool: Threads) -> tuple[Replica, OSError | None]:
    replica.log.move_to(FileCache(FILES_WHILE_OPENING))  # a cache belongs to one thread
    try:
        await replica.operations.close(pool)
    except OSError as error:
        return replica, error
    return replica, None
