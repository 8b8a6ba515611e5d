"""Find the records a query reads: parse offsets as users write them, resolve them to ranges, divide these for Spark.

Pure: the broker's knowledge comes through `OffsetLookup`. A range is [start, end) of one topic partition, as in Spark's
own Kafka source. The JSON forms are that source's too: `{"topic": {"0": 23, "1": -2}}`, where -2 is the earliest and -1
the latest offset, and `{"topic": {"0": 1700000000000}}` for timestamps in milliseconds.

Invariants: ranges are never empty, never overlap, and together cover exactly what was asked for; within a Spark
partition, the pieces of one topic partition are in ascending order.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kraftpy.types import TopicPartition

EARLIEST = -2
LATEST = -1

NO_TOPIC_ID = bytes(16)
"""The topic id sent by a broker that does not know topic ids (before Kafka 2.8)."""

TOPIC_IDS = "#topicIds"
"""The key, beside the topics, under which a stream's offsets keep topic ids; no topic can have this name."""
STARTED_AT = "#startedAt"
"""The key under which the end of a stream's first batch keeps where that batch began."""

Offsets = Mapping[TopicPartition, int]


class OptionError(ValueError):
    """An option is missing, malformed, unknown or contradicts another; the message names it."""


class UnknownTopicError(ValueError):
    """A requested topic, partition or pattern matches nothing on the broker."""


class DataLossError(RuntimeError):
    """Requested offsets are not in the log, and `failOnDataLoss` is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets of one partition, from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = NO_TOPIC_ID
    """The id of the topic meant, since another may have the same name later; `NO_TOPIC_ID` stands for any."""

    @property
    def size(self) -> int:
        """The number of offsets it spans; compaction and transactions may leave fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


# Topics --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Read exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Read every partition of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """Read every partition of every topic whose whole name matches a regular expression."""

    pattern: str


Subscription = Assign | Subscribe | SubscribePattern


def wanted_topics(subscription: Subscription, existing: Iterable[str]) -> list[str]:
    """Return the topics to ask the broker about, sorted; a pattern is matched against `existing` topics."""
    match subscription:
        case Assign():
            return sorted({topic for topic, _ in subscription.partitions})
        case Subscribe():
            return sorted(set(subscription.topics))
        case SubscribePattern():
            return sorted(topic for topic in existing if re.fullmatch(subscription.pattern, topic))


def wanted_partitions(subscription: Subscription, found: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    """Return the partitions to read, sorted, given the topics `found` on the broker.

    Raises UnknownTopicError if a named topic or partition is missing, or a pattern matches nothing.
    """
    missing = [topic for topic in wanted_topics(subscription, found) if topic not in found]
    if missing:
        raise UnknownTopicError(f"unknown topic{'s' * (len(missing) > 1)}: {', '.join(missing)}")
    if isinstance(subscription, Assign):
        absent = [f"{topic}-{index}" for topic, index in subscription.partitions if index not in found[topic]]
        if absent:
            raise UnknownTopicError(f"unknown partition{'s' * (len(absent) > 1)}: {', '.join(absent)}")
        return sorted(set(subscription.partitions))
    topics = wanted_topics(subscription, found)
    if not topics and isinstance(subscription, SubscribePattern):
        raise UnknownTopicError(f"no topic matches subscribePattern {subscription.pattern!r}")
    return [TopicPartition(topic, index) for topic in topics for index in sorted(found[topic])]


def present_partitions(subscription: Subscription, found: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    """Return those partitions to read that exist, sorted; a stream reads these while topics come and go."""
    partitions = [
        TopicPartition(topic, index) for topic in wanted_topics(subscription, found) for index in found.get(topic, ())
    ]
    if isinstance(subscription, Assign):
        partitions = [where for where in partitions if where in subscription.partitions]
    return sorted(partitions)


# Positions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Earliest:
    """Start at the first offset still in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """Start or end one past the last offset that a reader may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """One offset for each partition; `EARLIEST` and `LATEST` keep their special meaning."""

    option: str
    offsets: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamps:
    """The first record at or after a time, in milliseconds, for each partition; an int is one time for all."""

    option: str
    timestamps: Offsets | int
    latest_if_none: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDuration:
    """The first record of the last this many milliseconds, or the end if there is none that recent."""

    option: str
    milliseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The offset that a consumer group has committed; the earliest offset if it has committed none."""

    group_id: str


Position = Earliest | Latest | AtOffsets | AtTimestamps | ByDuration | Committed


class OffsetLookup(Protocol):
    """The questions to the broker. Each raises KafkaError if the broker answers with one."""

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the log start offsets."""
        ...

    def latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the log end offsets that a reader of this isolation level may reach."""
        ...

    def at_timestamps(self, timestamps: Offsets) -> Mapping[TopicPartition, int | None]:
        """Return the offset of the first record at or after each time (ms), or None."""
        ...

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the offsets a group has committed, without partitions that have none."""
        ...

    def now_ms(self) -> int:
        """Return the time, in milliseconds since 1970."""
        ...


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse `{"topic": [0, 1]}`. Raises OptionError."""
    example = '{"topic": [0, 1]}'
    result = []
    for topic, indexes in _json_object(option, text, example).items():
        if not isinstance(indexes, list) or not indexes or not all(_is_int(index) and index >= 0 for index in indexes):
            raise OptionError(f"{option}: topic {topic!r} needs a list of partition numbers, like {example}")
        result += [TopicPartition(topic, index) for index in indexes]
    if not result:
        raise OptionError(f"{option}: it names no topics; expected something like {example}")
    return tuple(sorted(set(result)))


def parse_partition_numbers(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 23}}`, offsets or timestamps of at least `least`. Raises OptionError."""
    example = '{"topic": {"0": 23, "1": 345}}'
    result = {}
    for topic, numbers in _json_object(option, text, example).items():
        if topic in (TOPIC_IDS, STARTED_AT):  # the user copied it from a stream's progress
            continue
        if not isinstance(numbers, dict):
            raise OptionError(f"{option}: topic {topic!r} needs an object of partitions, like {example}")
        for index, number in numbers.items():
            if not index.isdecimal():
                raise OptionError(f"{option}: {index!r} of topic {topic!r} is not a partition number")
            if not _is_int(number) or number < least:
                raise OptionError(f"{option}: {topic}-{index} has {number!r}, not a whole number of at least {least}")
            result[TopicPartition(topic, int(index))] = number
    if not result:
        raise OptionError(f"{option}: it names no topics; expected something like {example}")
    return result


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text!r} is not JSON ({error}); expected something like {example}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"{option}: {text!r} is not a JSON object; expected something like {example}")
    return parsed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def resolve(
    position: Position, partitions: Sequence[TopicPartition], lookup: OffsetLookup
) -> dict[TopicPartition, int]:
    """Return the offset at which each partition starts or ends. Raises OptionError if the option does not fit them."""
    match position:
        case Earliest():
            return dict(lookup.earliest(partitions))
        case Latest():
            return dict(lookup.latest(partitions))
        case AtOffsets():
            _same_partitions(position.option, position.offsets, partitions)
            offsets = dict(position.offsets)
            for sign, ask in ((EARLIEST, lookup.earliest), (LATEST, lookup.latest)):
                symbolic = sorted(where for where, offset in offsets.items() if offset == sign)
                if symbolic:
                    offsets.update(ask(symbolic))
            return offsets
        case AtTimestamps():
            timestamps = position.timestamps
            if isinstance(timestamps, int):
                timestamps = dict.fromkeys(partitions, timestamps)
            _same_partitions(position.option, timestamps, partitions)
            return _resolve_timestamps(position, timestamps, lookup)
        case ByDuration():
            since = AtTimestamps(option=position.option, timestamps=0, latest_if_none=True)
            moment = max(0, lookup.now_ms() - position.milliseconds)
            return _resolve_timestamps(since, dict.fromkeys(partitions, moment), lookup)
        case Committed():
            offsets = dict(lookup.committed(position.group_id, partitions))
            without = sorted(set(partitions) - set(offsets))
            return {**offsets, **lookup.earliest(without)} if without else offsets


def _resolve_timestamps(position: AtTimestamps, timestamps: Offsets, lookup: OffsetLookup) -> dict[TopicPartition, int]:
    answers = lookup.at_timestamps(timestamps)
    offsets = {where: offset for where, offset in answers.items() if offset is not None}
    without = sorted(set(timestamps) - set(offsets))
    if without and not position.latest_if_none:
        listed = ", ".join(f"{where} (at {timestamps[where]})" for where in without)
        raise OptionError(
            f"{position.option}: no record at or after the timestamp in {listed}; "
            "startingOffsetsByTimestampStrategy=latest starts at the end there"
        )
    if without:
        offsets.update(lookup.latest(without))
    return offsets


def _same_partitions(option: str, given: Iterable[TopicPartition], partitions: Sequence[TopicPartition]) -> None:
    """Check that exactly the partitions to read are named, as Spark's own source requires."""
    missing = sorted(set(partitions) - set(given))
    unexpected = sorted(set(given) - set(partitions))
    if missing:
        raise OptionError(f"{option}: every partition must be named; missing: {', '.join(map(str, missing))}")
    if unexpected:
        raise OptionError(f"{option}: names partitions that are not read: {', '.join(map(str, unexpected))}")


# Ranges --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ranges to read, and which requested offsets are lost (only if `failOnDataLoss` is false)."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_ranges(*, start: Offsets, end: Offsets, log_start: Offsets, log_end: Offsets, fail_on_data_loss: bool) -> Plan:
    """Return the non-empty ranges, sorted and clamped to the log. Raises DataLossError if clamping is not allowed."""
    ranges, losses = [], []
    for where in sorted(start):
        first, last = start[where], end[where]
        low, high = log_start[where], log_end[where]
        if first > high or (first < last and (first < low or last > high)):
            losses.append(f"{where}: asked for [{first}, {last}), the log holds [{low}, {high})")
            first, last = max(first, low), min(last, high)
        if first < last:
            ranges.append(OffsetRange(topic=where.topic, partition=where.partition, start=first, end=last))
    if losses and fail_on_data_loss:
        raise DataLossError(
            "some offsets are not in the log (deleted by retention, or not written yet): "
            f"{'; '.join(losses)}. Set failOnDataLoss=false to read the remaining records"
        )
    return Plan(ranges=tuple(ranges), losses=tuple(losses))


def divide(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    max_partitions: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Divide ranges into Spark partitions: one each, unless a limit requires more (split) or fewer (merge).

    `max_records` always holds, `min_partitions` if there are as many records, and `max_partitions` as far as
    `max_records` allows.
    """
    pieces = [piece for whole in ranges for piece in _split(whole, _parts_for(whole, max_records))]
    if min_partitions is not None and len(pieces) < min_partitions:
        pieces = _split_to(pieces, min_partitions)
    if max_partitions is None or len(pieces) <= max_partitions:
        return [(piece,) for piece in pieces]
    return _merge(pieces, max_partitions, max_records)


def _parts_for(whole: OffsetRange, max_records: int | None) -> int:
    return 1 if max_records is None else -(-whole.size // max_records)


def _split(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split into `parts` pieces whose sizes differ by at most one."""
    cuts = [whole.start + whole.size * index // parts for index in range(parts + 1)]
    return [replace(whole, start=first, end=last) for first, last in itertools.pairwise(cuts)]


def _split_to(pieces: Sequence[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Repeatedly split the range with the largest pieces, until there are `wanted` or nothing is left to split."""
    parts = [1] * len(pieces)
    for _ in range(min(wanted, sum(piece.size for piece in pieces)) - len(pieces)):
        largest = max(range(len(pieces)), key=lambda i: (pieces[i].size / parts[i], -i))
        parts[largest] += 1
    return [cut for piece, count in zip(pieces, parts, strict=True) for cut in _split(piece, count)]


def _merge(pieces: Sequence[OffsetRange], wanted: int, max_records: int | None) -> list[tuple[OffsetRange, ...]]:
    """Merge neighbours into groups of similar size; no merged group exceeds `max_records`."""
    total = sum(piece.size for piece in pieces)
    groups: list[list[OffsetRange]] = []
    held, before = 0, 0  # records in the last group; records before the piece at hand
    for piece in pieces:
        # A piece goes to the group that contains its midpoint when the whole is divided into `wanted` equal parts.
        place = (2 * before + piece.size) * wanted // (2 * total)
        full = max_records is not None and held + piece.size > max_records
        if not groups or full or (place >= len(groups) and len(groups) < wanted):
            groups.append([])
            held = 0
        groups[-1].append(piece)
        held += piece.size
        before += piece.size
    return [tuple(group) for group in groups]
