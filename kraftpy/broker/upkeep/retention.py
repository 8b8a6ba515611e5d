"""Deletes old segments: those beyond `retention.ms` and `retention.bytes`, and those before the log start.

Invariant: no segment leaves a log before the checkpoint has a log start behind it; otherwise a power loss could leave
holes. The files are deleted once no reader can be using them (`storage.deferred_deletion`).

A failed disk costs the partitions on it their turn, and an unexpected error the partition that it came from.
"""

from __future__ import annotations

import logging

from kraftpy.broker.containment import Incidents
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.upkeep.usable_logs import with_usable_log
from kraftpy.log import deletion
from kraftpy.ports import Clock
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

_LOOKED_AT_AT_ONCE = 1_000
"""Partitions that are only looked at before other tasks get the event loop."""


class Retention:
    """The retention of one broker's logs."""

    def __init__(self, manager: ReplicaManager, clock: Clock, incidents: Incidents) -> None:
        self._manager = manager
        self._clock = clock
        self._incidents = incidents

    async def delete_old_segments(self) -> None:
        """Remove segments beyond retention from the logs, and have their files deleted. Raises OSError.

        An error of a checkpoint is raised; no segment is removed then.
        """
        now = self._clock.now()
        replicas = self._manager.replicas
        async for replica in with_usable_log(replicas):
            try:
                if deletion.advance_log_start(replica.log, now, replica.high_watermark):
                    replica.log_start_advanced()
            except KafkaError as error:  # a segment that is damaged
                logger.error("%s: retention: %s", replica.topic_partition, error)
            except OSError as error:
                self._storage_failed(replica, "read", error)
            except Exception as error:
                self._incidents.note(f"{replica.topic_partition}: retention", error, kind="retention")
        if await self._is_any_start_unwritten():
            await self._manager.checkpoints.write()
        async for replica in with_usable_log(replicas):
            try:
                gone = deletion.remove_before_log_start(replica.log, now)
            except OSError as error:
                replicas.due.changed(replica)
                self._storage_failed(replica, "delete segments in", error)
                continue
            except Exception as error:
                self._incidents.note(f"{replica.topic_partition}: retention", error, kind="retention")
                continue
            if gone:
                replicas.due.changed(replica)  # the active segment may have been sealed
                logger.info("%s: %d files deleted by retention", replica.topic_partition, len(gone))
                self._manager.deletions.delete_files(replica.log, gone)

    async def _is_any_start_unwritten(self) -> bool:
        async for some in in_slices(list(self._manager.replicas), _LOOKED_AT_AT_ONCE):
            if any(deletion.is_start_unwritten(replica.log) for replica in some):
                return True
        return False

    def _storage_failed(self, replica: Replica, what: str, error: OSError) -> None:
        if not self._manager.failures.storage_failed(replica.log_directory, what, error):
            message = "%s: cannot shorten the log for now: %s"
            self._incidents.complaints.own(logger, "shorten", message, replica.topic_partition, error)
