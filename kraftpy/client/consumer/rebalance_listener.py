"""The callbacks of an application that wants to know which partitions its consumer is given and loses."""

from __future__ import annotations

from collections.abc import Awaitable

from kraftpy.types import TopicPartition


class RebalanceListener:
    """Callbacks for partitions that are assigned or taken away.

    Override what matters; each may be a coroutine function. They are called while the application waits for records,
    so none of its other code runs meanwhile.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called after these partitions were added to the assignment."""
        return None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called before these partitions go to other members; their offsets may still be committed."""
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called after these partitions went to other members. Calls `on_partitions_revoked` by default."""
        return self.on_partitions_revoked(partitions)
