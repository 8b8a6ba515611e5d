"""The timestamps of a producer's batch: those in its header, checked against those of its records.

Kafka reads every record of a batch on append, and corrects the header's largest timestamp. A broker in Python cannot
afford that for every batch, so the header is trusted, unless it cannot be right, would have the batch refused, comes
from a client whose headers have not been found right yet (`Trust`), or the topic limits how old a record may be. Then
the records decide, as in Kafka: the answer names those whose timestamps are out of range (KIP-467), and if all are in
range, the header is corrected.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from kraftpy.config.topic import TopicConfig
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader
from kraftpy.protocol.records import MOST_NAMED, BadRecords, RecordError, record_times, zigzag
from kraftpy.types import Millis

_LOG_APPEND_TIME: Final = "LogAppendTime"
_CODEC_BITS: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
_ENOUGH: Final = 100
_NEVER: Final = -(1 << 62)
_ANY_AGE: Final = (1 << 63) - 1
"""The default of `message.timestamp.before.max.ms`."""
_PROBLEM: Final = "One or more records have been rejected due to invalid timestamp"


def stamps_append_time(config: TopicConfig) -> bool:
    """Return whether the topic replaces the producer's timestamps by the broker's time."""
    return config.message_timestamp_type == _LOG_APPEND_TIME


def _range(config: TopicConfig, now: Millis) -> tuple[int, int]:
    """Return the oldest and the newest timestamp that the topic accepts now (KIP-937)."""
    return now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms


def check_timestamps(header: BatchHeader, config: TopicConfig, now: Millis) -> None:
    """Raise INVALID_TIMESTAMP if a batch's first or largest timestamp is out of the topic's range."""
    if not _is_in_range(header, config, now):
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, _PROBLEM)


def _is_in_range(header: BatchHeader, config: TopicConfig, now: Millis) -> bool:
    oldest, newest = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
    first, largest = header.base_timestamp, header.max_timestamp
    return (first < 0 or oldest <= first <= newest) and (largest < 0 or oldest <= largest <= newest)


class Trust:
    """The record of one client's headers: a client that sets them right always does.

    A client is trusted after a batch whose largest timestamp was right, and not that of the first record, or after many
    batches with equal timestamps; and never again after a wrong one.
    """

    __slots__ = ("_right_count", "is_enough")

    def __init__(self) -> None:
        self._right_count = 0
        self.is_enough = False
        """True if the client's headers are trusted."""

    def read(self, sent: BatchHeader, max_timestamp: int) -> None:
        """Compare the header of a batch whose records have been read."""
        if sent.max_timestamp != max_timestamp:
            self._right_count = _NEVER
        elif sent.records_count > 1:
            self._right_count += 1 if sent.max_timestamp == sent.base_timestamp else _ENOUGH
        self.is_enough = self._right_count >= _ENOUGH


def are_doubtful(
    header: BatchHeader, batch: Buffer, config: TopicConfig, now: Millis, trust: Trust | None = None
) -> bool:
    """Return whether the records must be read, because the header's timestamps may be wrong or are out of range.

    The header of a single uncompressed record is compared at once. Without `trust`, the client is trusted. The records
    of an untrusted client are read even if the topic replaces timestamps: they may be unreadable for others.
    """
    count, first, largest, attributes = (
        header.records_count, header.base_timestamp, header.max_timestamp, header.attributes,
    )  # fmt: skip
    if count > 1 and trust is not None and not trust.is_enough:
        return True
    if config.message_timestamp_type == _LOG_APPEND_TIME:
        return False
    if count > 1 and config.message_timestamp_before_max_ms < _ANY_AGE:
        return True
    if largest < first or attributes & _APPEND_TIME_BIT:
        return True
    if count == 1 and not attributes & _CODEC_BITS and _has_other_delta(batch, largest - first):
        return True
    newest = now + config.message_timestamp_after_max_ms
    oldest = now - config.message_timestamp_before_max_ms
    if first >= 0:
        return first < oldest or largest > newest
    return largest >= 0 and not oldest <= largest <= newest


def _has_other_delta(batch: Buffer, delta: int) -> bool:
    """Return whether an uncompressed batch's first record has another timestamp delta; False if it is cut short."""
    position = HEADER_BYTES
    try:
        while batch[position] & 0x80:  # its length
            position += 1
        position += 2  # and its attributes
        byte = batch[position]
        if byte < 0x80:
            return delta != (byte >> 1 ^ -(byte & 1))
        value = shift = 0
        while (byte := batch[position]) & 0x80 and shift < 63:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
    except IndexError:
        return False
    return delta != zigzag(value | byte << shift)


def refuse_type(header: BatchHeader, config: TopicConfig) -> None:
    """Refuse a batch that pretends to have the broker's timestamps, if its topic stamps them. Raises BadRecords."""
    if header.attributes & _APPEND_TIME_BIT and stamps_append_time(config):
        message = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
        count = min(header.records_count, MOST_NAMED)
        raise BadRecords(
            _PROBLEM, ErrorCode.INVALID_TIMESTAMP, tuple(RecordError(number, message) for number in range(count))
        )


def check_times(
    payload: bytes, header: BatchHeader, deltas: tuple[int, int], config: TopicConfig, now: Millis
) -> Generator[None, None, None]:
    """Check the records' timestamps against the topic's range; `deltas` are the smallest and the largest.

    Yields after each slice of the work. Raises BadRecords (INVALID_TIMESTAMP).
    """
    oldest, newest = _range(config, now)
    base = header.base_timestamp
    if oldest <= base + deltas[0] and base + deltas[1] <= newest:
        return
    errors: list[RecordError] = []
    number = 0
    for _, found in record_times(payload, header.records_count):
        for delta in found:
            timestamp = base + delta
            if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest and len(errors) < MOST_NAMED:
                text = f"Timestamp {timestamp} of message with offset {number} is out of range. "
                errors.append(RecordError(number, f"{text}The timestamp should be within [{oldest}, {newest}]"))
            number += 1
        yield
    if errors:
        raise BadRecords(_PROBLEM, ErrorCode.INVALID_TIMESTAMP, tuple(errors))
