"""How much of a backlog the next batch takes: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxBytesPerTrigger`.

Pure; the time is an argument. Limits are split over the partitions in proportion to their backlogs, rounded down, but
at least one offset for each that has any: so Spark's own Kafka source splits them. Hence a batch may exceed a limit
by less than one offset a partition.

Bytes are those of the log, as it is compressed there, and are estimated from how large an offset is where each
partition is read next: nobody knows without reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kraftpy.spark.offsets import Offsets
from kraftpy.types import TopicPartition


def backlogs(position: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """The offsets still to be read of each partition that has any."""
    return {where: last - position[where] for where, last in sorted(end.items()) if last > position[where]}


def share_rows(backlog: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """How many offsets of each partition, about `limit` in all."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {where: max(1, size * limit // total) for where, size in backlog.items()}


def share_bytes(
    backlog: Mapping[TopicPartition, int], limit: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """How many offsets of each partition, about `limit` bytes in all."""
    sizes = {where: count * bytes_per_offset[where] for where, count in backlog.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(backlog)
    return {where: max(1, int(count * limit / total)) for where, count in backlog.items()}


@dataclass(slots=True, kw_only=True)
class Delay:
    """`minOffsetsPerTrigger`: holds a batch back until it is large enough, or `max_delay_ms` after the one before.

    The first batch of a run is not held back.
    """

    min_offsets: int
    max_delay_ms: int
    last_batch_ms: int | None = None

    def holds(self, backlog: Mapping[TopicPartition, int], now_ms: int) -> bool:
        """Whether to wait; where not, a batch is taken to begin now."""
        if not backlog:
            return True
        is_late = self.last_batch_ms is None or now_ms - self.last_batch_ms >= self.max_delay_ms
        if not is_late and sum(backlog.values()) < self.min_offsets:
            return True
        self.last_batch_ms = now_ms
        return False
