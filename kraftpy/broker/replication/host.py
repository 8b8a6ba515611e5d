"""The interface of the broker towards the replicas it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.containment import Complaints
from kraftpy.broker.storage.group_commit import Syncs
from kraftpy.ports import Directory
from kraftpy.replication.events import ProposeIsr
from kraftpy.types import BrokerId, Millis

if TYPE_CHECKING:
    from kraftpy.broker.replication.replica import Replica


class ReplicaHost(Protocol):
    """The interface of the broker towards the replicas it holds."""

    broker_id: BrokerId
    lag_time_max_ms: int
    back_off_max_ms: int
    now: Callable[[], Millis]
    """The wall clock."""
    monotonic_ms: Callable[[], Millis]
    """A clock that never goes back."""
    syncs: Syncs
    complaints: Complaints
    propose: Callable[[Replica, ProposeIsr], None]
    """Ask the cluster to agree on a new ISR."""

    def storage_failed(self, directory: Directory, what: str, error: OSError, *, is_lasting: bool = False) -> bool:
        """Handle a storage error in a log directory; return whether it takes the directory offline (`storage.disk`)."""
        ...
