"""The counts of one tier of a pipeline: records by topic and window of their own time.

A window is `[start_ms, start_ms + window_ms)` of the records' timestamps, so every tier puts a record into the same
window, whenever it arrives. A `Tally` is cumulative: a source's later tally of a topic and window replaces its earlier
one. It may therefore be published twice, and an audit topic can be compacted by key.

A source is anything that counts independently: a producer's process, a partition of a log, a batch of a loader. A
tier's count is the sum over its sources.

Left out: the contents of records. Two mistakes in one window that cancel out (one record lost, one duplicated) leave
the count unchanged; smaller windows make that less likely.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

DEFAULT_WINDOW_MS = 600_000
"""Ten minutes, as in the deployment the Kafka paper describes."""

_VERSION = 1


class BadTally(ValueError):
    """A record of the audit topic is not a tally."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Tally:
    """How many records of a topic and window one source of a tier had seen by `counted_at_ms`."""

    tier: str
    source: str
    topic: str
    window_ms: int
    start_ms: int
    count: int
    counted_at_ms: int

    def key(self) -> bytes:
        """The key of its record; a later tally with the same key replaces this one."""
        return json.dumps([self.tier, self.source, self.topic, self.window_ms, self.start_ms]).encode()

    def value(self) -> bytes:
        """The value of its record."""
        return json.dumps({"version": _VERSION, "count": self.count, "counted_at_ms": self.counted_at_ms}).encode()


def parse_tally(key: bytes | None, value: bytes | None) -> Tally:
    """Parse a record. Raises BadTally."""
    try:
        tier, source, topic, window_ms, start_ms = json.loads(key or b"")
        fields = json.loads(value or b"")
        count, counted_at_ms, version = fields["count"], fields["counted_at_ms"], fields["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise BadTally(f"not a tally: key {key!r}, value {value!r}") from error
    numbers = (window_ms, start_ms, count, counted_at_ms)
    is_sound = all(isinstance(text, str) for text in (tier, source, topic)) and all(type(n) is int for n in numbers)
    if version != _VERSION or not is_sound or window_ms <= 0 or count < 0:
        raise BadTally(f"not a tally of version {_VERSION}: key {key!r}, value {value!r}")
    return Tally(
        tier=tier,
        source=source,
        topic=topic,
        window_ms=window_ms,
        start_ms=start_ms,
        count=count,
        counted_at_ms=counted_at_ms,
    )


class Counter:
    """Counts the records of one source as they pass. Records without a time (-1) are counted at window -1."""

    def __init__(self, *, tier: str, source: str, window_ms: int = DEFAULT_WINDOW_MS) -> None:
        if window_ms <= 0:
            raise ValueError(f"window_ms must be above 0, not {window_ms}")
        self.tier, self.source, self.window_ms = tier, source, window_ms
        self._counts: dict[tuple[str, int], int] = {}
        self._changed: dict[tuple[str, int], None] = {}

    def add(self, topic: str, timestamp_ms: int, count: int = 1) -> None:
        """Count `count` more records of that topic and time."""
        window = timestamp_ms - timestamp_ms % self.window_ms if timestamp_ms >= 0 else -1
        self.add_window(topic, window, count)

    def add_window(self, topic: str, start_ms: int, count: int) -> None:
        """Count `count` more records of that topic and window."""
        key = (topic, start_ms)
        self._counts[key] = self._counts.get(key, 0) + count
        self._changed[key] = None

    def changed(self, now_ms: int) -> list[Tally]:
        """Return the tallies that changed since the last call, oldest window first."""
        changed, self._changed = self._changed, {}
        return sorted(self._tally(topic, start, now_ms) for topic, start in changed)

    def __len__(self) -> int:
        """The number of windows being counted, over all topics."""
        return len(self._counts)

    def _tally(self, topic: str, start_ms: int, now_ms: int) -> Tally:
        return Tally(
            tier=self.tier,
            source=self.source,
            topic=topic,
            window_ms=self.window_ms,
            start_ms=start_ms,
            count=self._counts[topic, start_ms],
            counted_at_ms=now_ms,
        )


def latest(tallies: Iterable[Tally]) -> list[Tally]:
    """Return the last tally of each source, topic and window, in the order of the audit topic's offsets."""
    last: dict[bytes, Tally] = {}
    for tally in tallies:
        last[tally.key()] = tally
    return list(last.values())


def tallies_of(
    counts: Mapping[tuple[str, int], int], *, tier: str, source: str, window_ms: int, now_ms: int
) -> list[Tally]:
    """Convert counts by (topic, start of the window) to the tallies of a source."""
    empty = Tally(tier=tier, source=source, topic="", window_ms=window_ms, start_ms=0, count=0, counted_at_ms=now_ms)
    return [replace(empty, topic=topic, start_ms=start, count=n) for (topic, start), n in sorted(counts.items())]
