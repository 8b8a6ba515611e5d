"""Translate a batch query's filters into limits on what is read: partitions, offsets and start times.

Spark hands over the conditions of `where` on plain columns, joined by AND. Conditions on `topic`, `partition`, `offset`
and `timestamp` that a range of offsets can express narrow the ranges; Spark applies all others. Spark also applies a
filter if the ranges may still hold records that it rejects: always for timestamps, which need not ascend within a
partition. No record that passes a filter is ever left out.

Pure. The filters are Spark's classes, recognized by name, because they exist only from Spark 4.1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kraftpy.spark.offsets import OffsetRange, Offsets
from kraftpy.types import TopicPartition

_MOST = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Whole numbers from `least` to `most`, both included, and only those in `among` if it is given."""

    least: int = 0
    most: int = _MOST
    among: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return self.least <= number <= self.most and (self.among is None or number in self.among)

    def __and__(self, other: Interval) -> Interval:
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        return Interval(least=max(self.least, other.least), most=min(self.most, other.most), among=among)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Interval:
        """Return an interval of exactly these numbers."""
        among = frozenset(numbers)
        return cls(least=min(among, default=1), most=max(among, default=0), among=among)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits on what is read. `None` means no limit; both ends are included."""

    topics: frozenset[str] | None = None
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    from_ms: int | None = None
    """Records older than this are not wanted."""

    def allow(self, where: TopicPartition) -> bool:
        """Return whether a partition may hold any record that is wanted."""
        return (self.topics is None or where.topic in self.topics) and where.partition in self.partitions


def push(filters: Iterable[Any], names: Mapping[str, str]) -> tuple[Limits, list[Any]]:
    """Translate filters into limits; also return those filters that Spark has to apply itself.

    `names` maps lower-cased column names to ours: `{"_offset": "offset"}`.
    """
    limits = Limits()
    left = []
    for each in filters:
        understood = _translate(each, names)
        if understood is None:
            left.append(each)
            continue
        limits = understood.narrow(limits)
        if not understood.is_exact:
            left.append(each)
    return limits, left


def narrow(ranges: Iterable[OffsetRange], limits: Limits, from_offsets: Offsets) -> list[OffsetRange]:
    """Apply the limits to ranges; `from_offsets` are the first offsets at or after `Limits.from_ms`."""
    left = []
    for each in ranges:
        where = TopicPartition(each.topic, each.partition)
        if not limits.allow(where):
            continue
        start = max(each.start, limits.offsets.least, from_offsets.get(where, 0))
        end = min(each.end, limits.offsets.most + 1)
        if start < end:
            left.append(replace(each, start=start, end=end))
    return left


# Translation ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translated:
    narrow: Callable[[Limits], Limits]
    is_exact: bool
    """True if the ranges hold only records that pass the filter."""


def _translate(each: Any, names: Mapping[str, str]) -> _Translated | None:
    attribute = getattr(each, "attribute", None)
    column = names.get(attribute[0].lower()) if attribute is not None and len(attribute) == 1 else None
    if column is None:
        return None
    kind = type(each).__name__
    if kind == "IsNotNull" and column in ("topic", "partition", "offset", "timestamp"):
        return _Translated(narrow=lambda limits: limits, is_exact=True)
    value = getattr(each, "value", None)
    match column:
        case "topic":
            return _topic(kind, value)
        case "partition":
            return _partition(_interval(kind, value))
        case "offset":
            return _offset(_interval(kind, value))
        case "timestamp":
            return _timestamp(kind, value)
        case _:
            return None


def _topic(kind: str, value: Any) -> _Translated | None:
    wanted = frozenset([value]) if kind in ("EqualTo", "EqualNullSafe") else frozenset(value) if kind == "In" else None
    if wanted is None or not all(isinstance(topic, str) for topic in wanted):
        return None

    def narrow_topics(limits: Limits) -> Limits:
        return replace(limits, topics=wanted if limits.topics is None else limits.topics & wanted)

    return _Translated(narrow=narrow_topics, is_exact=True)


def _interval(kind: str, value: Any) -> Interval | None:
    values = value if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        return None
    match kind:
        case "EqualTo" | "EqualNullSafe" | "In":
            return Interval.of(values)
        case "GreaterThan":
            return Interval(least=value + 1)
        case "GreaterThanOrEqual":
            return Interval(least=value)
        case "LessThan":
            return Interval(most=value - 1)
        case "LessThanOrEqual":
            return Interval(most=value)
        case _:
            return None


def _partition(wanted: Interval | None) -> _Translated | None:
    if wanted is None:
        return None
    return _Translated(narrow=lambda limits: replace(limits, partitions=limits.partitions & wanted), is_exact=True)


def _offset(wanted: Interval | None) -> _Translated | None:
    if wanted is None:
        return None
    has_holes = wanted.among is not None and len(wanted.among) != wanted.most - wanted.least + 1
    return _Translated(narrow=lambda limits: replace(limits, offsets=limits.offsets & wanted), is_exact=not has_holes)


def _timestamp(kind: str, value: Any) -> _Translated | None:
    """Limit only where reading begins: at the first record whose time passes, because all earlier ones are older.

    Later records may be older again, so no end can be derived.
    """
    if kind not in ("GreaterThan", "GreaterThanOrEqual", "EqualTo", "EqualNullSafe") or not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    from_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if from_ms <= 0:
        return None

    def later(limits: Limits) -> Limits:
        return replace(limits, from_ms=from_ms if limits.from_ms is None else max(limits.from_ms, from_ms))

    return _Translated(narrow=later, is_exact=False)
