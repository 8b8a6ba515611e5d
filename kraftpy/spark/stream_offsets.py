"""How far a stream is: its offsets as Spark keeps them, and what the log's state means for them.

Pure. The form is that of Spark's own Kafka source, `{"topic": {"0": 23}}`, the next offset of each partition, with one
key more, which can be no topic's name: `{"#topicIds": {"topic": "<id as Kafka prints it>"}}`. Without it nobody could
tell a topic from another one of its name that was created while the query was down, and records would be left out in
silence. It is absent where brokers give no ids (before Kafka 2.8), and an offset without it is understood.

Invariants: equal offsets are equal text, for Spark compares texts to see whether there is anything new; what is read
between two offsets depends on these two alone, because Spark reads a batch again after a crash without asking what
there is. So a partition that is new in the second one starts at 0, as does one whose topic has another id there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kraftpy.spark.offsets import NO_TOPIC_ID, TOPIC_IDS, OffsetRange, Offsets
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The next offset of each partition, and which topics are meant."""

    offsets: Offsets
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    """Without the topics whose id is not known."""

    @classmethod
    def of(cls, offsets: Offsets, topic_ids: Mapping[str, bytes]) -> StreamOffsets:
        """With only the ids that are known and belong to a partition."""
        topics = {topic for topic, _ in offsets}
        known = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics and any(topic_id)}
        return cls(offsets=offsets, topic_ids=known)

    def is_other_topic(self, topic: str, than: StreamOffsets) -> bool:
        """Whether both know the topic's id, and differ."""
        mine, theirs = self.topic_ids.get(topic), than.topic_ids.get(topic)
        return mine is not None and theirs is not None and mine != theirs


def to_json(at: StreamOffsets) -> dict[str, Any]:
    """For Spark, which makes text of it in this order."""
    result: dict[str, Any] = {}
    for (topic, index), offset in sorted(at.offsets.items()):
        result.setdefault(topic, {})[str(index)] = offset
    if at.topic_ids:
        result[TOPIC_IDS] = {topic: _id_text(topic_id) for topic, topic_id in sorted(at.topic_ids.items())}
    return result


def from_json(found: Mapping[str, Any]) -> StreamOffsets:
    """What `to_json` made, now or before a restart. Raises ValueError for what no source like ours has written."""
    offsets: dict[TopicPartition, int] = {}
    ids: dict[str, bytes] = {}
    try:
        for topic, partitions in found.items():
            if topic == TOPIC_IDS:
                ids = {name: _id_of(text) for name, text in partitions.items()}
            else:
                offsets.update({TopicPartition(topic, int(index)): int(to) for index, to in partitions.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"this is no offset of a kraftpy stream: {found!r} ({error})") from None
    return StreamOffsets(offsets=offsets, topic_ids=ids)


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


# Between two ---------------------------------------------------------------------------------------------------------


def first_offset(start: StreamOffsets, end: StreamOffsets, where: TopicPartition) -> int:
    """Where a partition of `end` begins when the batch before ended at `start`."""
    if start.is_other_topic(where.topic, end):
        return 0
    return start.offsets.get(where, 0)


def ranges_between(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """What a batch from `start` to `end` reads, sorted."""
    ranges = []
    for where, last in sorted(end.offsets.items()):
        first = first_offset(start, end, where)
        if first < last:
            topic_id = end.topic_ids.get(where.topic, NO_TOPIC_ID)
            ranges.append(
                OffsetRange(topic=where.topic, partition=where.partition, start=first, end=last, topic_id=topic_id)
            )
    return ranges


# What the log has become ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What brokers said of the partitions that are read."""

    log_start: Offsets
    log_end: Offsets
    """Of the records a reader of this isolation level may see."""
    topic_ids: Mapping[str, bytes]

    @property
    def end(self) -> StreamOffsets:
        """The offset of a stream that has read everything."""
        return StreamOffsets.of(self.log_end, self.topic_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a stream stands in the log that was seen: what it can go on from, and what it has lost."""

    offsets: Offsets
    """From where there are records to read; of the partitions seen."""
    losses: tuple[str, ...]


def standing(start: StreamOffsets, seen: Seen) -> Standing:
    """Compare; compaction and aborted transactions move neither end of a log, and are no loss."""
    end = seen.end
    offsets: dict[TopicPartition, int] = {}
    losses = _gone(start, end)
    for where, log_end in sorted(seen.log_end.items()):
        first = first_offset(start, end, where)
        log_start = min(seen.log_start[where], log_end)
        if first > log_end:
            losses.append(f"{where}: the stream is at {first}, the log ends at {log_end}: its end was lost")
        elif first < log_start:
            kind = "the stream is" if where in start.offsets else "the partition is new, and the stream would start"
            losses.append(f"{where}: {kind} at {first}, the log starts at {log_start}: records were deleted")
        offsets[where] = min(max(first, log_start), log_end)
    return Standing(offsets=offsets, losses=tuple(losses))


def _gone(start: StreamOffsets, end: StreamOffsets) -> list[str]:
    topics = {topic for topic, _ in end.offsets}
    losses = [
        f"topic {topic!r} was deleted and created again: what was not read of the old one is gone"
        for topic in sorted(start.topic_ids)
        if start.is_other_topic(topic, end)
    ]
    missing = sorted(set(start.offsets) - set(end.offsets))
    if missing:
        losses.append(f"{_listed(missing)}: deleted, or no longer asked for" + _hint(missing, topics))
    return losses


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def _hint(missing: Iterable[TopicPartition], topics: set[str]) -> str:
    smaller = sorted({topic for topic, _ in missing} & topics)
    return f" (of {', '.join(smaller)} there are fewer partitions than before)" if smaller else ""
