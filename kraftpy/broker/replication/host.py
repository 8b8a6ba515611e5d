"""The means that a broker gives to each of its replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kraftpy.broker.containment import Complaints
from kraftpy.broker.replication.due_work import DueWork
from kraftpy.broker.replication.log_holder import StorageFailed
from kraftpy.broker.storage.group_commit import Syncs
from kraftpy.log.partition_log import PartitionLog
from kraftpy.replication.events import ProposeIsr
from kraftpy.types import BrokerId, Millis

if TYPE_CHECKING:
    from kraftpy.broker.replication.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHost:
    """The means that a broker gives to each of its replicas."""

    broker_id: BrokerId
    lag_time_max_ms: int
    back_off_max_ms: int
    now: Callable[[], Millis]
    """The wall clock."""
    monotonic_ms: Callable[[], Millis]
    """A clock that never goes back."""
    syncs: Syncs
    complaints: Complaints
    due: DueWork
    """The partitions that periodic work has to look at."""
    propose: Callable[[Replica, ProposeIsr], None]
    """Ask the cluster to agree on a new ISR."""
    storage_failed: StorageFailed
    write_log_start: Callable[[PartitionLog, int], Awaitable[None]]
    """Return once a log start of at least this offset is in the checkpoint. Raises OSError."""
