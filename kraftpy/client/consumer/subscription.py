"""The choice of what a consumer reads: topics by name, by pattern, or partitions that the application assigned itself.

Invariant: it is never two of these at once. To change from `assign` to `subscribe` or back, unsubscribe first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kraftpy.client.model import TopicInfo


class Subscription:
    """The topics or the pattern that a consumer subscribes to, or the fact that its partitions are assigned by hand."""

    def __init__(self, *, exclude_internal_topics: bool) -> None:
        """With `exclude_internal_topics`, a pattern does not match Kafka's internal topics."""
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self._is_assigned = False
        self._exclude_internal_topics = exclude_internal_topics

    @property
    def is_to_topics(self) -> bool:
        """True if the consumer subscribes to topics, by name or by a pattern."""
        return bool(self.topics) or self.pattern is not None

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Replace the subscription by these topics, or by a pattern. Raises RuntimeError after `assign`."""
        if self._is_assigned:
            raise RuntimeError("assign() was used: unsubscribe() first")
        names = frozenset((topics,) if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise ValueError("topics: give names of topics or a pattern")
        self.topics = names
        self.pattern = re.compile(pattern) if pattern is not None else None

    def assign(self) -> None:
        """Note that the application assigns partitions itself. Raises RuntimeError after `subscribe`."""
        if self.is_to_topics:
            raise RuntimeError("subscribe() was used: unsubscribe() first")
        self._is_assigned = True

    def clear(self) -> None:
        """Drop the subscription or the assignment."""
        self.topics, self.pattern, self._is_assigned = frozenset(), None, False

    def matching(self, known: Iterable[TopicInfo]) -> list[str]:
        """Return the subscribed topics in order: the names, or those of the `known` topics that match the pattern."""
        pattern = self.pattern
        if pattern is None:
            return sorted(self.topics)
        return sorted(
            info.name
            for info in known
            if pattern.fullmatch(info.name) and not (info.is_internal and self._exclude_internal_topics)
        )
