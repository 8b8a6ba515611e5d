"""The words every layer shares: identifiers and units as distinct types.

A `NewType` costs nothing at run time and lets the type checker catch a swapped pair of integers. Ids that
go over the wire keep the wire's own form (a topic id is its 16 bytes).
"""

from __future__ import annotations

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's place in its partition, or one past it where the name ends in `_end_offset`."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""How many times a partition's leadership has changed; -1 means unknown."""

BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)

Millis = NewType("Millis", int)
"""Milliseconds since the Unix epoch, or a span of them where the name ends in `_ms`."""

TopicId = NewType("TopicId", bytes)
"""A topic's identity, 16 bytes: a topic deleted and created again gets a new one (KIP-516)."""

ZERO_TOPIC_ID = TopicId(bytes(16))
NO_PRODUCER_ID = ProducerId(-1)


class TopicPartition(NamedTuple):
    """A partition, by its topic's name and its index from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
