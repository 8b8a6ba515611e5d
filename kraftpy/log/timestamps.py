"""The timestamps of a producer's batch: what its header says of them, and what its records say.

Kafka reads every record of a batch on append, and sets the header's largest timestamp right. Here the header is
believed, because reading the records is what a broker in Python cannot afford for every batch; unless it cannot be
right, or would have the batch refused. Then the records decide, as they do with Kafka: those whose timestamps are out
of range are named in the answer (KIP-467), and if there are none, the header is corrected.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from kraftpy.config.topic import TopicConfig
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, TimestampType
from kraftpy.protocol.records import MOST_NAMED, BadRecords, RecordError, record_times, zigzag
from kraftpy.types import Millis

_LOG_APPEND_TIME: Final = "LogAppendTime"
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
    oldest, newest = _range(config, now)
    return all(each < 0 or oldest <= each <= newest for each in (header.base_timestamp, header.max_timestamp))


def are_doubtful(header: BatchHeader, batch: memoryview, config: TopicConfig, now: Millis) -> bool:
    """Return whether the records must be read, because the header's timestamps cannot be right or are out of range.

    That of a single record is compared at once, if it is not compressed.
    """
    if stamps_append_time(config):
        return False
    if header.max_timestamp < header.base_timestamp or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return True
    if header.records_count == 1 and header.compression is Compression.NONE:
        delta = _first_delta(batch)
        if delta is not None and header.base_timestamp + delta != header.max_timestamp:
            return True
    return not _is_in_range(header, config, now)


def _first_delta(batch: memoryview) -> int | None:
    """Return the timestamp delta of the first record, which is not compressed; None if it is cut short."""
    position = HEADER_BYTES
    try:
        while batch[position] & 0x80:  # its length
            position += 1
        position += 2  # and its attributes
        value = shift = 0
        while (byte := batch[position]) & 0x80 and shift < 63:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
    except IndexError:
        return None
    return zigzag(value | byte << shift)


def refuse_type(header: BatchHeader, config: TopicConfig) -> None:
    """Refuse a batch that pretends to have the broker's timestamps, if its topic stamps them. Raises BadRecords."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME and stamps_append_time(config):
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
