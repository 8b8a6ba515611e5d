"""Counts, for each broker, the partitions of each topic that concern it.

A broker's change is decided in parts, each of which begins with the first topic. These counts let it pass the topics
in which nothing is left to do, without a look at their partitions. They are no part of the image's contents: they are
computed from the partitions, and nothing depends on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kraftpy.types import BrokerId

_NONE: Mapping[str, int] = MappingProxyType({})


class TopicCounts:
    """How many partitions of each topic concern each broker. A topic without any has no entry."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[BrokerId, dict[str, int]] = {}

    def of(self, broker_id: BrokerId) -> Mapping[str, int]:
        """Return the counts of one broker, by topic."""
        return self._counts.get(broker_id, _NONE)

    def brokers(self) -> list[BrokerId]:
        """Return the brokers that any partition concerns, in order."""
        return sorted(self._counts)

    def change(self, topic: str, before: Iterable[BrokerId], after: Iterable[BrokerId]) -> None:
        """Count a partition of the topic for the brokers in `after`, and no more for those in `before`."""
        for broker_id in before:
            counts = self._counts[broker_id]
            counts[topic] -= 1
            if not counts[topic]:
                del counts[topic]
                if not counts:
                    del self._counts[broker_id]
        for broker_id in after:
            counts = self._counts.setdefault(broker_id, {})
            counts[topic] = counts.get(topic, 0) + 1
