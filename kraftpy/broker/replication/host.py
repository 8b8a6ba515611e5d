"""What a partition's replica is told of the broker that holds it."""

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


class Home(Protocol):
    """What a partition's replica is told of the broker that holds it."""

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
    """Have the cluster agree on other in-sync replicas."""

    def storage_failed(self, directory: Directory, what: str, error: OSError, *, is_lasting: bool = False) -> bool:
        """Something could not be done in a log directory; whether that costs the directory (`storage.disk`)."""
        ...
