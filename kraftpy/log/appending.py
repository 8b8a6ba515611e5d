"""What batches must be to be let into a log: how many, how large, of what time, with keys. No state."""

from __future__ import annotations

from typing import Final

from kraftpy.config.topic import TopicConfig
from kraftpy.ports import Buffer
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    BatchHeader,
    CorruptBatch,
    check_crc,
    encode_batch,
    iter_records,
    split_batches,
)
from kraftpy.types import Millis

_LOG_APPEND_TIME: Final = "LogAppendTime"


def only_batch(records: Buffer) -> tuple[BatchHeader, memoryview]:
    """The one batch a producer may send per partition (since Produce v3). INVALID_RECORD for none or several."""
    batches = split_batches(records)
    if len(batches) != 1:
        raise CorruptBatch(f"{len(batches)} batches where one is expected", ErrorCode.INVALID_RECORD)
    return batches[0]


def log_append_time(config: TopicConfig, now: Millis) -> int | None:
    """The time to stamp, or None where the topic keeps the producer's."""
    return now if config.message_timestamp_type == _LOG_APPEND_TIME else None


def roll_ms(config: TopicConfig) -> int:
    """Age at which a segment is no longer written to; of a compacted topic also the largest lag (KIP-354)."""
    return min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms


def check_timestamps(header: BatchHeader, config: TopicConfig, now: Millis) -> None:
    """INVALID_TIMESTAMP where the batch's first or largest timestamp is too far from the broker's time (KIP-937)."""
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp < 0:
            continue
        if timestamp - now > config.message_timestamp_after_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is {timestamp - now} ms ahead of the broker"
            )
        if now - timestamp > config.message_timestamp_before_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp} is {now - timestamp} ms behind the broker"
            )


def check_keys(header: BatchHeader, batch: Buffer) -> None:
    """INVALID_RECORD where a record has no key; only asked of compacted topics, as it decodes the batch."""
    for record in iter_records(batch, header):
        if record.key is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {record.offset} of a compacted topic has no key")


def recompressed(header: BatchHeader, batch: memoryview, config: TopicConfig) -> memoryview:
    """The batch in the topic's codec: itself where it has it, or the topic keeps the producer's; else decoded."""
    name = config.compression_type
    if name == "producer":
        return batch
    codec = Compression.NONE if name == "uncompressed" else Compression[name.upper()]
    if codec is header.compression:
        return batch
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    again = encode_batch(
        [(record.timestamp, record.key, record.value, record.headers) for record in iter_records(batch, header)],
        compression=codec,
        level=levels.get(codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
    return memoryview(bytearray(again))


def fitting_copies(
    records: memoryview, log_end_offset: int, last_epoch: int, leader_epoch: int
) -> tuple[list[tuple[BatchHeader, int]], int]:
    """The batches a follower may append of what its leader sent, each with its position, and their size together.

    They must follow a log that ends before `log_end_offset` with a record of `last_epoch`.
    A last batch that is cut short is left out; so is one of a leader epoch above the one that was asked for (-1: any),
    and all after it (KAFKA-18723). CorruptBatch where one does not follow the batch before, or its CRC does not match.
    """
    batches: list[tuple[BatchHeader, int]] = []
    position, expected, epoch = 0, log_end_offset, last_epoch
    for header, batch in split_batches(records, allow_partial=True):
        if header.partition_leader_epoch > leader_epoch >= 0:
            break
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptBatch(
                f"offsets {header.base_offset} to {header.last_offset} behind a log that ends at {expected}"
            )
        if 0 <= header.partition_leader_epoch < epoch:
            raise CorruptBatch(f"leader epoch {header.partition_leader_epoch} after {epoch}")
        if not check_crc(batch):
            raise CorruptBatch("the CRC does not match")
        batches.append((header, position))
        position += len(batch)
        expected, epoch = header.next_offset, header.partition_leader_epoch
    return batches, position
