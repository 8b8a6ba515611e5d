"""Assignments: sets of partitions, identified by topic id, and their encoding in records.

The consumer and share protocols share them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kraftpy.groups.records import RecordReader
from kraftpy.protocol.primitives import compact_string, uvarint
from kraftpy.types import TopicId

_NO_TAGS = b"\x00"


class TopicIdPartition(NamedTuple):
    """A partition, identified by its topic's id and its index from 0."""

    topic_id: TopicId
    partition: int


Assignment = frozenset[TopicIdPartition]
"""Partitions of any topics. Sort before iterating."""

NOTHING: Assignment = frozenset()


def by_topic(assignment: Assignment) -> list[tuple[TopicId, list[int]]]:
    """Group partitions by topic, all in order."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        found.setdefault(topic_id, []).append(partition)
    return list(found.items())


def write_strings(values: Iterable[str]) -> bytes:
    """Encode strings as a compact array."""
    items = [compact_string(value) for value in values]
    return uvarint(len(items) + 1) + b"".join(items)


def write_partitions(assignment: Assignment) -> bytes:
    """Encode partitions as a compact array of topics."""
    topics = [
        topic_id + uvarint(len(partitions) + 1) + struct.pack(f">{len(partitions)}i", *partitions) + _NO_TAGS
        for topic_id, partitions in by_topic(assignment)
    ]
    return uvarint(len(topics) + 1) + b"".join(topics)


def read_strings(reader: RecordReader) -> tuple[str, ...]:
    """Parse what `write_strings` wrote."""
    return tuple(reader.string() for _ in range(reader.array_length()))


def read_partitions(reader: RecordReader) -> Assignment:
    """Parse what `write_partitions` wrote."""
    found = []
    for _ in range(reader.array_length()):
        topic_id = TopicId(reader.raw(16))
        found += [TopicIdPartition(topic_id, reader.int32()) for _ in range(reader.array_length())]
        reader.tagged_fields()
    return frozenset(found)
