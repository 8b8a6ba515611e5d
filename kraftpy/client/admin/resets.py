"""The arithmetic of resetting a group's offsets: where they would go, without a broker.

The targets are those of Kafka's own tool (KIP-122). An offset outside the log is moved to its nearer end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kraftpy.types import TopicPartition


class Target(Enum):
    """The target of a reset; the value is the option's name on the command line."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    TIME = "--to-datetime"
    SHIFT = "--shift-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A target and its number: the offset, the milliseconds since 1970, or the records to shift by."""

    target: Target
    number: int = 0


class Ends(NamedTuple):
    """A partition's first offset and the one past its last."""

    earliest: int
    latest: int


class Move(NamedTuple):
    """One partition's reset. `committed` is None without one; `clamped` means that the log lacks the exact offset."""

    partition: TopicPartition
    committed: int | None
    offset: int
    clamped: bool


def plan(
    reset: Reset,
    ends: Mapping[TopicPartition, Ends],
    committed: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int],
) -> list[Move]:
    """Plan the move of every partition of `ends`, sorted.

    `at_time` has the first offset at or after the time for those partitions that have one; the others go to their end.
    Raises ValueError if a shift has no committed offset to start from.
    """
    return [_move(reset, partition, ends[partition], committed, at_time) for partition in sorted(ends)]


def _move(
    reset: Reset,
    partition: TopicPartition,
    ends: Ends,
    committed: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int],
) -> Move:
    now = committed.get(partition)
    match reset.target:
        case Target.EARLIEST:
            wanted = ends.earliest
        case Target.LATEST:
            wanted = ends.latest
        case Target.CURRENT:
            wanted = ends.latest if now is None else now
        case Target.OFFSET:
            wanted = reset.number
        case Target.TIME:
            wanted = at_time.get(partition, ends.latest)
        case Target.SHIFT:
            if now is None:
                raise ValueError(f"{partition} has no committed offset to shift")
            wanted = now + reset.number
    offset = min(max(wanted, ends.earliest), ends.latest)
    return Move(partition, now, offset, offset != wanted)
