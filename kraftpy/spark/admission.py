"""How much of a backlog the next batch reads: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxBytesPerTrigger`.

Pure; the time is an argument. Limits are split over partitions in proportion to their backlogs and rounded down, with
at least one offset for each partition that has any, as Spark's own Kafka source splits them. A batch may therefore
exceed a limit by less than one offset per partition.

Bytes are counted as in the log, that is compressed. They are estimated from the size of an offset at each partition's
next position, because the exact number is unknown before reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kraftpy.spark.offsets import Offsets
from kraftpy.types import TopicPartition


def backlogs(position: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Count the unread offsets of each partition that has any."""
    return {where: last - position[where] for where, last in sorted(end.items()) if last > position[where]}


def share_rows(backlog: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Return how many offsets to read of each partition, about `limit` in total."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {where: max(1, size * limit // total) for where, size in backlog.items()}


def share_bytes(
    backlog: Mapping[TopicPartition, int], limit: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Return how many offsets to read of each partition, about `limit` bytes in total."""
    sizes = {where: count * bytes_per_offset[where] for where, count in backlog.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(backlog)
    return {where: max(1, int(count * limit / total)) for where, count in backlog.items()}


@dataclass(slots=True, kw_only=True)
class Delay:
    """`minOffsetsPerTrigger`: delay a batch until it is large enough, or `max_delay_ms` after the previous one.

    The first batch of a run is not delayed.
    """

    min_offsets: int
    max_delay_ms: int
    last_batch_ms: int | None = None

    def holds(self, backlog: Mapping[TopicPartition, int], now_ms: int) -> bool:
        """Return whether to wait. If not, a batch is assumed to begin now."""
        if not backlog:
            return True
        is_late = self.last_batch_ms is None or now_ms - self.last_batch_ms >= self.max_delay_ms
        if not is_late and sum(backlog.values()) < self.min_offsets:
            return True
        self.last_batch_ms = now_ms
        return False
