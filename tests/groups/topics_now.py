"""A cluster's topics for tests: made, grown and deleted by saying what there is."""

from __future__ import annotations

from kraftpy.groups.topics import TopicInfo
from kraftpy.types import TopicId


class TopicsNow:
    """An implementation of `Topics`. A topic recreated after deletion has another id."""

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, TopicInfo] = {}
        self._made = 0
        self._last_ids: dict[str, TopicId] = {}

    def become(self, counts: dict[str, int]) -> None:
        """Replace the topics by these, with these numbers of partitions."""
        self.version += 1
        self._topics = {name: TopicInfo(self._id(name), count) for name, count in counts.items()}
        self._last_ids.update({name: info.topic_id for name, info in self._topics.items()})

    def has_been(self, name: str) -> bool:
        """Return True if there ever was a topic of that name."""
        return name in self._last_ids

    def last_id(self, name: str) -> TopicId:
        """The id of the topic of that name, or of the last that had it."""
        return self._last_ids[name]

    def _id(self, name: str) -> TopicId:
        known = self._topics.get(name)
        if known is not None:
            return known.topic_id
        self._made += 1
        return TopicId(name.encode()[:14].ljust(14, b"\x00") + self._made.to_bytes(2, "big"))

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def name(self, topic_id: TopicId) -> str | None:
        return next((name for name, info in self._topics.items() if info.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return sorted(self._topics)

    def counts(self) -> dict[str, int]:
        return {name: info.partition_count for name, info in self._topics.items()}


def once_called(topic_id: bytes) -> str:
    """The name a topic of that id has, or had."""
    return bytes(topic_id)[:14].rstrip(b"\x00").decode()
