"""The cluster's topics as groups see them: ids, names, partition counts, and a version that changes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kraftpy.types import TopicId

NEVER = -1
"""The topics' version recorded in a group that has not been compared with any."""


class TopicInfo(NamedTuple):
    """The facts about a topic that a group needs."""

    topic_id: TopicId
    partition_count: int


class Topics(Protocol):
    """The cluster's topics, as they are now."""

    @property
    def version(self) -> int:
        """A number that changes with every change visible here."""

    def topic(self, name: str) -> TopicInfo | None:
        """Return the topic with this name, or None."""

    def name(self, topic_id: TopicId) -> str | None:
        """Return the name of the topic with this id, or None."""

    def names(self) -> list[str]:
        """Return all topics, in order."""


class NoTopics:
    """A cluster without topics."""

    version = 0

    def topic(self, name: str) -> TopicInfo | None:
        """Return None."""
        return None

    def name(self, topic_id: TopicId) -> str | None:
        """Return None."""
        return None

    def names(self) -> list[str]:
        """Return an empty list."""
        return []


def hash_of_topics(names: Iterable[str], topics: Topics) -> int:
    """Hash which of these topics exist, their ids and their partition counts."""
    known = [(name, info) for name in sorted(names) if (info := topics.topic(name)) is not None]
    if not known:
        return 0
    parts = (info.topic_id + info.partition_count.to_bytes(4, "big") + name.encode() + b"\x00" for name, info in known)
    digest = hashlib.blake2b(b"".join(parts), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
