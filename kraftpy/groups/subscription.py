"""The topics that a member of the `consumer` protocol subscribes to: the only part of its metadata a broker needs.

A member's metadata is opaque to the broker and passed on unchanged (KIP-429's owned partitions, user data, racks). Only
offset deletion and expiry need the topics, which are in the same place in ConsumerProtocolSubscription v0-v3: an int16
version, then an array of strings. Later versions only append, so any version from 0 is read the same way.

Left out: everything after the topics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from kraftpy.ports import Buffer

MOST_TOPICS: Final = 100_000
"""Twice the default number of partitions of a cluster. A subscription with more topics counts as one to all topics."""


def topics_of_all(encoded: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all these subscriptions, or None if one is unreadable or they are too many."""
    topics: set[str] = set()
    for each in dict.fromkeys(encoded):
        of_member = subscribed_topics(each)
        if of_member is None:
            return None
        topics |= of_member
        if len(topics) > MOST_TOPICS:
            return None
    return frozenset(topics)


def subscribed_topics(metadata: Buffer) -> frozenset[str] | None:
    """Return the topics in a ConsumerProtocolSubscription, or None if the bytes are not one."""
    view = memoryview(metadata)
    try:
        version, count = struct.unpack_from(">hi", view)
        if version < 0 or count < 0 or count * 2 > len(view):
            return None
        topics = set()
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", view, position)
            end = position + 2 + length
            if length < 0 or end > len(view):
                return None
            topics.add(str(view[position + 2 : end], "utf-8"))
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
