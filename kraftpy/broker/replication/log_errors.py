"""Turns storage errors of one log into the answers that clients get, and logs each cause once.

A full disk fails every request until there is room, and a damaged batch fails every read of it: neither may flood the
broker's own log. A failed disk is reported to the broker, which takes the log directory offline (`directory_failures`).
So is any error after a failed sync, because data that the kernel dropped cannot be synced again.
"""

from __future__ import annotations

import logging

from kraftpy.broker.containment import Complaints
from kraftpy.broker.replication.log_holder import LogHolder, StorageFailed
from kraftpy.log.segment import CorruptSegment
from kraftpy.ports import Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class LogErrors:
    """The storage errors of one log."""

    __slots__ = ("_complaints", "_replica", "_storage_failed", "damage", "has_complained")

    def __init__(self, replica: LogHolder, storage_failed: StorageFailed, complaints: Complaints) -> None:
        self._replica = replica
        self._storage_failed = storage_failed
        self._complaints = complaints
        self.damage: set[tuple[str, int]] = set()
        """Segments and positions at which a reader found damage since the start."""
        self.has_complained = False
        """An error was logged, and nothing was appended since."""

    def damaged(self, error: CorruptSegment) -> CorruptSegment:
        """Log damage that a read found, once per place, however often it is read. Returns the error."""
        place = error.name, error.position
        if place not in self.damage:
            self.damage.add(place)
            path = self._replica.log.directory.path
            logger.error("%s: damaged: %s/%s", self._replica.topic_partition, path, error.message)
        return error

    def failed(self, what: str, error: OSError) -> KafkaError:
        """Handle a storage error; `what` is the verb that failed. Returns KAFKA_STORAGE_ERROR as the answer."""
        replica = self._replica
        is_lasting = replica.log.is_failed
        is_reported = self._storage_failed(replica.log_directory, f"{what} a log in", error, is_lasting=is_lasting)
        if not is_reported and failure_of(error) is Failure.RESOURCES:
            text = "%s: cannot %s the log for now: %s"
            self._complaints.write(logger, logging.ERROR, what, "", text, replica.topic_partition, what, error)
            is_reported = True
        if not self.has_complained and not is_reported:
            logger.error("%s: cannot %s the log: %s", replica.topic_partition, what, error)
            self.has_complained = True
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {what} the log: {error.strerror or error}")
