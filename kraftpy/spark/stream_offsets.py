"""A stream's position: its offsets in the form Spark keeps, and what they mean for the current state of the log.

Pure. The form is that of Spark's own Kafka source, `{"topic": {"0": 23}}`, the next offset of each partition, plus a
key that cannot be a topic's name: `{"#topicIds": {"topic": "<id as Kafka prints it>"}}`. Without it, a topic could not
be distinguished from another one of the same name that was created while the query was down, and records would be
skipped silently. The key is absent if brokers give no ids (before Kafka 2.8), and offsets without it are understood.

The end of a query's first batch says where that batch began, under `#startedAt` in the same form. Spark does not keep
it: if the query ends before that batch is done, Spark asks where a new one would start, which may be later.

Invariants: equal offsets are equal text, because Spark compares texts to see if there is anything new; what is read
between two offsets depends on these two alone, because after a crash Spark reads a batch again without asking. A
partition that is new in the second offset therefore starts at 0, and so does one whose topic has another id there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kraftpy.spark.offsets import NO_TOPIC_ID, STARTED_AT, TOPIC_IDS, OffsetRange, Offsets
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The next offset of each partition, and the ids of the topics."""

    offsets: Offsets
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    """Topics with an unknown id are absent."""
    started_at: StreamOffsets | None = None
    """Where the batch that ends here began, if it is the query's first."""

    @classmethod
    def of(cls, offsets: Offsets, topic_ids: Mapping[str, bytes]) -> StreamOffsets:
        """Keep only ids that are known and belong to a partition."""
        topics = {topic for topic, _ in offsets}
        known = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics and any(topic_id)}
        return cls(offsets=offsets, topic_ids=known)

    def is_other_topic(self, topic: str, than: StreamOffsets) -> bool:
        """Return whether both know the topic's id and the ids differ."""
        mine, theirs = self.topic_ids.get(topic), than.topic_ids.get(topic)
        return mine is not None and theirs is not None and mine != theirs


def to_json(at: StreamOffsets) -> dict[str, Any]:
    """Convert to the object of which Spark makes text, in this order."""
    result: dict[str, Any] = {}
    for (topic, index), offset in sorted(at.offsets.items()):
        result.setdefault(topic, {})[str(index)] = offset
    if at.topic_ids:
        result[TOPIC_IDS] = {topic: _id_text(topic_id) for topic, topic_id in sorted(at.topic_ids.items())}
    if at.started_at is not None:
        result[STARTED_AT] = to_json(at.started_at)
    return result


def from_json(found: Mapping[str, Any]) -> StreamOffsets:
    """Parse the output of `to_json`, from this run or an earlier one. Raises ValueError for anything else."""
    offsets: dict[TopicPartition, int] = {}
    ids: dict[str, bytes] = {}
    started_at: StreamOffsets | None = None
    try:
        for topic, partitions in found.items():
            if topic == TOPIC_IDS:
                ids = {name: _id_of(text) for name, text in partitions.items()}
            elif topic == STARTED_AT:
                started_at = from_json(partitions)
            else:
                offsets.update({TopicPartition(topic, int(index)): int(to) for index, to in partitions.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"not an offset of a kraftpy stream: {found!r} ({error})") from None
    return StreamOffsets(offsets=offsets, topic_ids=ids, started_at=started_at)


def _id_text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _id_of(text: str) -> bytes:
    try:
        topic_id = base64.urlsafe_b64decode(text + "==")
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if len(topic_id) != len(NO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id")
    return topic_id


# Ranges between offsets ----------------------------------------------------------------------------------------------


def first_offset(start: StreamOffsets, end: StreamOffsets, where: TopicPartition) -> int:
    """Return where a partition of `end` begins if the previous batch ended at `start`."""
    if start.is_other_topic(where.topic, end):
        return 0
    return start.offsets.get(where, 0)


def ranges_between(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """Return the ranges of a batch from `start` to `end`, sorted."""
    if end.started_at is not None and start.started_at is None:  # the first batch, not an empty one after it
        start = end.started_at
    ranges = []
    for where, last in sorted(end.offsets.items()):
        first = first_offset(start, end, where)
        if first < last:
            topic_id = end.topic_ids.get(where.topic, NO_TOPIC_ID)
            ranges.append(
                OffsetRange(topic=where.topic, partition=where.partition, start=first, end=last, topic_id=topic_id)
            )
    return ranges


# Comparison with the log ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOffsets:
    """The brokers' answers about the partitions to read."""

    log_start: Offsets
    log_end: Offsets
    """One past the last record that a reader of this isolation level may see."""
    topic_ids: Mapping[str, bytes]

    @property
    def end(self) -> StreamOffsets:
        """The position of a stream that has read everything."""
        return StreamOffsets.of(self.log_end, self.topic_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """A stream's position in the log as seen: where it can continue, and what it has lost."""

    offsets: Offsets
    """For each partition that was seen, where the remaining records begin."""
    losses: tuple[str, ...]


def position_in(start: StreamOffsets, seen: BrokerOffsets) -> StreamPosition:
    """Compare the two. Compaction and aborted transactions move neither end of a log, and are no loss."""
    end = seen.end
    offsets: dict[TopicPartition, int] = {}
    losses = _gone(start, end)
    for where, log_end in sorted(seen.log_end.items()):
        first = first_offset(start, end, where)
        log_start = min(seen.log_start[where], log_end)
        if first > log_end:
            losses.append(f"{where}: the stream is at {first}, the log ends at {log_end}: its last records were lost")
        elif first < log_start:
            kind = "the stream is" if where in start.offsets else "the partition is new, and the stream would start"
            losses.append(f"{where}: {kind} at {first}, the log starts at {log_start}: records were deleted")
        offsets[where] = min(max(first, log_start), log_end)
    return StreamPosition(offsets=offsets, losses=tuple(losses))


def _gone(start: StreamOffsets, end: StreamOffsets) -> list[str]:
    topics = {topic for topic, _ in end.offsets}
    losses = [
        f"topic {topic!r} was deleted and created again: unread records of the old topic are lost"
        for topic in sorted(start.topic_ids)
        if start.is_other_topic(topic, end)
    ]
    missing = sorted(set(start.offsets) - set(end.offsets))
    if missing:
        losses.append(f"{_listed(missing)}: deleted, or no longer selected" + _hint(missing, topics))
    return losses


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def _hint(missing: Iterable[TopicPartition], topics: set[str]) -> str:
    smaller = sorted({topic for topic, _ in missing} & topics)
    return f" (of {', '.join(smaller)} there are fewer partitions than before)" if smaller else ""
