"""The partitions that periodic work has to look at, so that the others cost it nothing.

Most partitions of a node are idle. A loop that looks at all of them every second takes a core from a node that has a
hundred thousand. So every change of a log that may be work for such a loop is noted here, and the loop takes it up.

Invariants: a log whose records wait for a sync that nobody requests, or which lacks a promise, is in `syncs`; one that
got more producers since the last look is in `grown`; `producers` counts those of all logs, except for producers that
have expired since. A partition that is noted may need nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.log.results import AppendResult


class DueWork:
    """The partitions of one broker that periodic work has to look at."""

    __slots__ = ("grown", "producers", "syncs")

    def __init__(self) -> None:
        self.syncs: dict[Replica, None] = {}
        """Partitions whose logs may have to be synced, or to promise that they are."""
        self.grown: dict[Replica, None] = {}
        """Partitions whose logs got more producers."""
        self.producers = 0
        """The number of producers in all logs."""

    def changed(self, replica: Replica) -> None:
        """Note a log that was opened, replaced or truncated, or has other settings."""
        self.syncs[replica] = None
        self.count_producers(replica)

    def appended(self, replica: Replica, appended: AppendResult, now: Millis) -> None:
        """Note an append, if it is work for anyone."""
        log = replica.log
        if (appended.rolled or replica.syncs.come_by_themselves) and replica not in self.syncs:
            if log.recovery_point >= appended.base_offset:
                replica.flushed_at_ms = now  # `flush.ms` counts from the first record that is not synced
            self.syncs[replica] = None
        if len(log.producers) != replica.counted_producers:
            self.count_producers(replica)

    def count_producers(self, replica: Replica) -> None:
        """Count the producers of a log again."""
        count = 0 if replica.log.is_closed else len(replica.log.producers)
        if count > replica.counted_producers:
            self.grown[replica] = None
        self.producers += count - replica.counted_producers
        replica.counted_producers = count

    def closed(self, replica: Replica) -> None:
        """Forget a partition that is closed, or about to be."""
        self.syncs.pop(replica, None)
        self.grown.pop(replica, None)
        self.producers -= replica.counted_producers
        replica.counted_producers = 0

    def settle(self) -> None:
        """Forget the partitions whose logs need no sync and no promise now."""
        for replica in [*self.syncs]:
            if replica.log.is_closed:  # it was noted once more while it was being closed
                self.closed(replica)
            elif not (replica.syncs.is_pending or replica.syncs.lacks_promise):
                del self.syncs[replica]

    def take_grown(self) -> list[Replica]:
        """Return and forget the partitions whose logs got more producers."""
        taken, self.grown = [*self.grown], {}
        return taken
