"""The log directories of one broker: locked, identified, monitored, and marked when the broker stops cleanly.

Each holds `.lock` (held while the broker runs), `meta.properties` (cluster, node and directory) and Kafka's
checkpoints; the first also holds the metadata journal. Everything here blocks: call it from a thread.

If a directory cannot be used at start, its partitions are offline, unless it is the first or the only one, without
which the broker does not start. The remaining disks do not show whether a partition without a directory never had one,
or is on a disk that was taken away. So the first directory keeps the ids of all of them, once partitions that were not
found are reported to the cluster: if a directory is missing or new, or nothing was accounted for yet, partitions that
are not found may be lost (`may_lack`). Kafka keeps the ids of KIP-858 in the metadata for that, directory by directory.

It also keeps the incarnations that ran with these disks. A broker that starts after an unclean stop names them when it
registers, and the replicas whose records are synced before they are acknowledged: those have lost nothing, if the disks
are still those of the incarnation that the cluster knows.

Left out: a disk that neither answers nor fails.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import logging
import os
import uuid
from pathlib import Path

from kraftpy.broker.runtime import FILE_MODE, OsDirectory
from kraftpy.broker.storage.cordoned_directories import absolute, check_cordoned, cordoned_paths
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.log import layout
from kraftpy.metadata.commands import SyncedReplicas
from kraftpy.ports import Clock, Directory, Failure, failure_of
from kraftpy.types import TopicId, TopicPartition

logger = logging.getLogger(__name__)

METADATA_DIRECTORY = "metadata"
_LOCK = ".lock"
_CHECKS_PER_WRITE = 10
_ALL_IDS = "kraftpy.directory.ids"
"""In the first directory's `meta.properties`: the ids of all, as of the last start that accounted for all."""
_INCARNATIONS = "kraftpy.incarnation.ids"
"""In the same file: the last processes that may have registered while the disks were these."""
_MOST_INCARNATIONS = 64
_ID_BYTES = 16


class DirectoryError(Exception):
    """A log directory cannot be used; the message is one line for the person who can fix it."""


class LogDirectories:
    """The directories of `log.dirs`, opened by one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._locks: dict[str, int] = {}
        self._handles: dict[str, int] = {}
        self._checks: dict[str, int] = {}
        self.paths: list[str] = absolute(config.log_dirs)
        """The absolute path of every directory, in order, usable or not: clients see and use these paths."""
        self.cordoned = cordoned_paths(config)
        """The paths of the directories that get no new replicas."""
        self.failures: dict[str, str] = {}
        """Unusable directories, and why."""
        self.opened: list[OsDirectory] = []
        """The directories that could be used at start."""
        self.clean: list[bool] = []
        self.may_lack = False
        """Partitions that are not found may be on a directory that is not here, or was replaced."""
        self.previous_broker_epoch = -1
        """This broker's epoch when it last stopped, if that was a clean stop of every directory."""
        self.previous_incarnation_ids: tuple[bytes, ...] = ()
        """Earlier processes of this broker that ran with these disks; an old disk that is put back has older ones."""
        self.cluster_id: str | None = None
        """The cluster that the directories belong to; None if they are new."""
        self._ids: dict[str, str] = {}
        self._first: dict[str, str] = {}
        """The first directory's properties."""
        self._new: list[OsDirectory] = []

    @property
    def metadata_directory(self) -> OsDirectory:
        """The directory of the metadata journal."""
        return self.opened[0].child(METADATA_DIRECTORY)

    @property
    def metadata_directory_id(self) -> bytes:
        """The id of the directory of the metadata journal; zeros if Kafka could not read it."""
        text = self._ids.get(self.paths[0], "")
        try:
            found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            found = b""
        return found if len(found) == _ID_BYTES else bytes(_ID_BYTES)

    def is_needed(self, path: str) -> bool:
        """Return whether the node cannot run without this directory: it has the metadata, or there is no other."""
        return path == self.paths[0] or all(other == path or other in self.failures for other in self.paths)

    @property
    def are_all_cordoned(self) -> bool:
        """True if no usable directory may get a new replica."""
        return all(path in self.cordoned for path in self.paths if path not in self.failures)

    def configure(self, config: BrokerConfig) -> None:
        """Take over which directories are cordoned."""
        self.cordoned = cordoned_paths(config)

    # --- start -------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock and identify the directories. Raises DirectoryError; one that fails alone is put into `failures`."""
        if self._config.is_broker:
            try:
                check_cordoned(self._config.cordoned_log_dirs, self._config.log_dirs)
            except ConfigError as error:
                raise DirectoryError(str(error)) from None
        found: dict[str, tuple[OsDirectory, dict[str, str] | None]] = {}
        for path in self.paths:
            try:
                directory = self._take(path)
                found[path] = (directory, layout.read_meta_properties(directory))
            except layout.CorruptFile as damage:
                raise DirectoryError(f"log.dirs: {damage}") from damage
            except OSError as error:
                self._cannot_use(path, error)
        self._identify(list(found.values()))
        epochs = []
        for path, (directory, _) in found.items():
            try:
                epochs.append(layout.take_clean_shutdown(directory))
            except OSError as error:
                self._cannot_use(path, error)
                continue
            self.opened.append(directory)
        if not self.opened[0].exists(METADATA_DIRECTORY):
            self.opened[0].child(METADATA_DIRECTORY)
            self.opened[0].sync()
        self.clean = [epoch is not None for epoch in epochs]
        self._new = [directory for directory in self._new if directory in self.opened]
        if not self.failures and len({*epochs}) == 1 and epochs[0] is not None:
            self.previous_broker_epoch = epochs[0]
        self.may_lack = self._lacks_any()

    def _cannot_use(self, path: str, error: OSError) -> None:
        """Go on without a directory, if possible."""
        reason = error.strerror or str(error)
        if failure_of(error) is Failure.RESOURCES:  # starting without it would treat its contents as lost
            raise DirectoryError(f"log.dirs: cannot use {path}: {reason}") from error
        self.failures[path] = reason
        if self.is_needed(path):
            raise DirectoryError(f"log.dirs: cannot use {path}: {reason}") from error
        logger.critical("log directory %s is offline: %s; the node starts without it", path, reason)

    def _take(self, path: str) -> OsDirectory:
        """Lock a directory for this broker alone and make its name durable. Raises OSError, DirectoryError."""
        missing = [parent for parent in (Path(path), *Path(path).parents) if not parent.exists()]
        directory = OsDirectory(path)
        self._lock(path)
        for created in missing:
            OsDirectory(created.parent).sync()
        return directory

    def _lock(self, path: str) -> None:
        descriptor = os.open(Path(path) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DirectoryError(f"log.dirs: {path} is in use by another broker") from error
        self._locks[path] = descriptor
        self._handles[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _identify(self, found: list[tuple[OsDirectory, dict[str, str] | None]]) -> None:
        node_id = str(self._config.node_id)
        for directory, properties in found:
            if properties is None:
                continue
            if properties.get("node.id", node_id) != node_id:
                raise DirectoryError(
                    f"log.dirs: {directory.path} belongs to node {properties['node.id']}, this is node {node_id}"
                )
            if not properties.get("cluster.id"):
                raise DirectoryError(f"log.dirs: {directory.path}/{layout.META_PROPERTIES} names no cluster.id")
            self._ids[directory.path] = properties.get("directory.id", "")
        known = [properties for _, properties in found if properties is not None]
        cluster_ids = sorted({properties["cluster.id"] for properties in known})
        if len(cluster_ids) > 1:
            raise DirectoryError(f"log.dirs: the directories belong to different clusters: {', '.join(cluster_ids)}")
        self.cluster_id = cluster_ids[0] if cluster_ids else None
        self._new = [directory for directory, properties in found if properties is None]
        self._ids |= {directory.path: random_id() for directory in self._new}
        first = found[0][1]
        if first is not None:
            self._first = first
            self.previous_incarnation_ids = self._incarnations(first.get(_INCARNATIONS, ""))
        elif known and self._config.is_alone:
            other = next(directory.path for directory, properties in found if properties is not None)
            raise DirectoryError(
                f"log.dirs: {self.paths[0]} is empty, {other} belongs to cluster {self.cluster_id}: "
                "the first directory holds the metadata, without which the others mean nothing"
            )

    def _incarnations(self, text: str) -> tuple[bytes, ...]:
        try:
            return tuple(bytes.fromhex(each) for each in text.split(",") if each)
        except ValueError as error:
            place = f"{self.paths[0]}/{layout.META_PROPERTIES}"
            raise DirectoryError(f"log.dirs: {place}: {_INCARNATIONS}: {error}") from error

    def _lacks_any(self) -> bool:
        """Return whether a directory that is not here may hold partitions that are not found."""
        ids = self._first.get(_ALL_IDS)
        return bool(self.failures or self._new) or ids is None or not {*ids.split(",")} <= {*self._ids.values()}

    def adopt(self, cluster_id: str) -> None:
        """Assign new directories to this cluster. Raises DirectoryError, OSError."""
        if self.cluster_id not in (None, cluster_id):
            raise DirectoryError(
                f"log.dirs: {self.paths[0]} belongs to cluster {self.cluster_id}, its metadata to cluster {cluster_id}"
            )
        self.cluster_id = cluster_id
        for directory in self._new:
            properties = {
                "version": "1",
                "cluster.id": cluster_id,
                "node.id": str(self._config.node_id),
                "directory.id": self._ids[directory.path],
            }
            if directory is self.opened[0]:
                self._first = properties
            layout.write_meta_properties(directory, properties)
        self._new.clear()

    def account(self) -> None:
        """Record the present directories as complete: the cluster knows about everything that was not found.

        Nothing is written while one of them has failed, or if it is recorded already. Raises OSError.
        """
        ids = ",".join(sorted(self._ids.values()))
        if self.failures or self._first.get(_ALL_IDS) == ids:
            return
        self._write_first(_ALL_IDS, ids)

    def _write_first(self, key: str, value: str) -> None:
        properties = {**self._first, key: value}
        layout.write_meta_properties(self.opened[0], properties)
        self._first = properties

    # --- after an unclean stop ---------------------------------------------------------------

    def begin(self, incarnation_id: bytes) -> None:
        """Record durably, before this process registers, that it had these disks. Raises OSError."""
        ids = [*self.previous_incarnation_ids, incarnation_id][-_MOST_INCARNATIONS:]
        self._write_first(_INCARNATIONS, ",".join(each.hex() for each in ids))

    def synced_replicas(self) -> tuple[SyncedReplicas, ...]:
        """Return the replicas that have all they ever acknowledged (`PartitionMetadata`), even after a crash.

        Returns none if a directory is missing, new or failed. Raises OSError.
        """
        if self.may_lack:
            return ()
        found: dict[TopicPartition, TopicId | None] = {}
        for directory in self.opened:
            for key in layout.partitions(directory):
                try:
                    metadata = layout.read_partition_metadata(directory.child(str(key)))
                except layout.CorruptFile:  # it will not be opened either
                    continue
                is_synced = metadata is not None and metadata.synced_before_ack and key not in found
                found[key] = metadata.topic_id if is_synced and metadata is not None else None
        numbers: dict[TopicId, list[int]] = {}
        for key, topic_id in sorted(found.items()):
            if topic_id is not None:
                numbers.setdefault(topic_id, []).append(key.partition)
        return tuple(SyncedReplicas(topic_id=each, partitions=tuple(parts)) for each, parts in numbers.items())

    # --- while it runs -----------------------------------------------------------------------

    def check(self, directory: Directory) -> None:
        """Check that a directory is the one that was opened, and is writable. Raises OSError.

        Looking is cheap and notices an unmount. A file system that turned read-only often tells only writers, so every
        tenth check also sets the lock file's time of change, which works on a full disk too.
        """
        path = directory.path
        before, now = os.fstat(self._handles[path]), os.stat(path)
        if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
            raise OSError(errno.ENOENT, "it is not the directory that was opened: unmounted, moved or replaced", path)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        self._checks[path] = self._checks.get(path, 0) + 1
        if self._checks[path] % _CHECKS_PER_WRITE == 0:
            os.utime(self._locks[path])

    # --- stop --------------------------------------------------------------------------------

    def close(self, broker_epoch: int, *, is_clean: bool) -> None:
        """Mark a clean stop, if it is one, and release the locks. This is the last thing a broker does."""
        if is_clean:
            for directory in self.opened:
                if directory.path not in self.failures:
                    layout.mark_clean_shutdown(directory, broker_epoch)
        for descriptor in (*self._locks.values(), *self._handles.values()):
            os.close(descriptor)
        self._locks.clear()
        self._handles.clear()


def random_id() -> str:
    """Return a random id in Kafka's form: 16 bytes, URL-safe base64, without padding, not starting with '-'."""
    while True:
        text = id_text(uuid.uuid4().bytes)
        if not text.startswith("-"):
            return text


def id_text(id_bytes: bytes) -> str:
    """Return an id as `meta.properties` has it."""
    return base64.urlsafe_b64encode(id_bytes).decode().rstrip("=")
