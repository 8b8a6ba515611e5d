"""The log directories of one broker: locked, identified, and marked when the broker stops cleanly.

Each holds `.lock` (held while the broker runs), `meta.properties` (cluster, node and directory) and Kafka's
checkpoints; the first also holds the metadata journal. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import base64
import fcntl
import os
import uuid
from pathlib import Path

from kraftpy.broker.runtime import OsDirectory
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.ports import Clock

METADATA_DIRECTORY = "metadata"
_LOCK = ".lock"


class DirectoryError(Exception):
    """A log directory that cannot be used; the message is one line for the person who can mend it."""


class LogDirectories:
    """`log.dirs`, opened by one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._locks: list[int] = []
        self.paths: list[str] = []
        self.opened: list[OsDirectory] = []
        self.clean: list[bool] = []
        self.cluster_id = ""

    @property
    def metadata_directory(self) -> OsDirectory:
        """Where the metadata journal is."""
        return self.opened[0].child(METADATA_DIRECTORY)

    def open(self) -> None:
        """Lock and identify every directory. Raises DirectoryError."""
        for name in self._config.log_dirs:
            path = Path(name)
            try:
                directory = OsDirectory(path)
                self._lock(path)
            except OSError as error:
                raise DirectoryError(f"log.dirs: cannot use {path}: {error.strerror}") from error
            self.paths.append(str(path))
            self.opened.append(directory)
        try:
            self._identify()
            self.clean = [layout.take_clean_shutdown(directory) is not None for directory in self.opened]
        except OSError as error:
            raise DirectoryError(f"log.dirs: cannot use {error.filename}: {error.strerror}") from error

    def _lock(self, path: Path) -> None:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DirectoryError(f"log.dirs: {path} is in use by another broker") from error
        self._locks.append(descriptor)

    def _identify(self) -> None:
        node_id = str(self._config.node_id)
        known = []
        for directory in self.opened:
            try:
                properties = layout.read_meta_properties(directory)
            except layout.CorruptFile as error:
                raise DirectoryError(f"log.dirs: {error}") from error
            if properties is not None and properties.get("node.id", node_id) != node_id:
                raise DirectoryError(
                    f"log.dirs: {directory.path} belongs to node {properties['node.id']}, this is node {node_id}"
                )
            known.append(properties)
        for directory, properties in zip(self.opened, known, strict=True):
            if properties is not None and not properties.get("cluster.id"):
                raise DirectoryError(f"log.dirs: {directory.path}/{layout.META_PROPERTIES} names no cluster.id")
        cluster_ids = sorted({properties["cluster.id"] for properties in known if properties is not None})
        if len(cluster_ids) > 1:
            raise DirectoryError(f"log.dirs: the directories belong to different clusters: {', '.join(cluster_ids)}")
        self.cluster_id = cluster_ids[0] if cluster_ids else _random_id()
        for directory, properties in zip(self.opened, known, strict=True):
            if properties is None:
                layout.write_meta_properties(
                    directory,
                    {
                        "version": "1",
                        "cluster.id": self.cluster_id,
                        "node.id": node_id,
                        "directory.id": _random_id(),
                    },
                )

    def close(self, broker_epoch: int, *, is_clean: bool) -> None:
        """Mark a clean stop, if it is one, and let go of the locks. The last thing a broker does."""
        if is_clean:
            for directory in self.opened:
                layout.mark_clean_shutdown(directory, broker_epoch)
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()


def _random_id() -> str:
    """A random id in Kafka's form: 16 bytes, base64 for URLs, without padding, not starting with '-'."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
