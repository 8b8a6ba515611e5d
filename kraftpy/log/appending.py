"""Checks a batch before it is appended to a log: record count, size, timestamps, keys. No state.

A topic that keeps the producer's codec and is not compacted demands nothing of the records in a batch (`demand_of`).
Otherwise they are checked without creating an object per record, and if the topic has another codec, their bytes, which
are the same in every codec, are recompressed (`prepared`).
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

import xxhash

from kraftpy.config.topic import TopicConfig
from kraftpy.log.segment import Segment
from kraftpy.log.timestamps import Trust, are_doubtful, check_times, check_timestamps, refuse_type, stamps_append_time
from kraftpy.log.work import INLINE_BYTES, Work, expanded, finish
from kraftpy.ports import Buffer, Directory
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    MAX_BATCH_RECORDS,
    MAX_DECOMPRESSED_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    check_crc,
    encode_payload,
    read_header,
    split_batches,
    validate_batch,
    with_max_timestamp,
)
from kraftpy.protocol.records import ExpandedTooFar, check_records
from kraftpy.types import Millis

_MAX_TIMESTAMP: Final = (1 << 63) - 1


class BatchLimits(NamedTuple):
    """The most that one produced batch may hold: more than any ordinary producer sends."""

    max_records: int = MAX_BATCH_RECORDS
    """From `kraftpy.batch.max.records`."""
    max_headers: int = 1 << 22
    """From `kraftpy.batch.max.headers`; counted over all records of the batch."""
    max_expanded_bytes: int = MAX_DECOMPRESSED_BYTES
    """From `kraftpy.batch.max.expanded.bytes`."""


class Demand(NamedTuple):
    """A topic's demands on the records in a batch."""

    needs_keys: bool
    codec: Compression | None
    """None to keep the producer's codec."""
    level: int | None


KEYS: Final = Demand(needs_keys=True, codec=None, level=None)
"""The demand of a compacted topic that keeps the producer's codec."""
TIMES: Final = Demand(needs_keys=False, codec=None, level=None)
"""The demand on a batch whose header is not trusted, if the topic has no demands."""


class Prepared:
    """A batch in its stored form, and the demand that its records were checked against."""

    __slots__ = ("batch", "demand", "header")

    def __init__(self, demand: Demand, header: BatchHeader, batch: memoryview) -> None:
        self.demand = demand
        self.header = header
        self.batch = batch


def only_batch(records: Buffer, header: BatchHeader | None = None) -> tuple[BatchHeader, memoryview]:
    """Return the one batch a producer may send per partition (since Produce v3). INVALID_RECORD for none or several.

    `header` is that of the first batch, if the caller has read it.
    """
    if header is None and len(records) >= HEADER_BYTES:
        header = read_header(records)
    if header is not None and header.magic == MAGIC and header.size_bytes == len(records):
        return header, memoryview(records)
    batches = split_batches(records)
    if len(batches) != 1:
        raise CorruptBatch(
            f"{len(batches)} batches, but a partition of a request must have exactly one record batch",
            ErrorCode.INVALID_RECORD,
        )
    return batches[0]


def log_append_time(config: TopicConfig, now: Millis) -> int | None:
    """Return the time to stamp on a batch, or None if the topic keeps the producer's timestamps."""
    return now if stamps_append_time(config) else None


def roll_after_ms(config: TopicConfig, directory: Directory, segment: Segment) -> int:
    """Return the age (ms) at which a segment is rolled; a compacted topic's largest lag bounds it too (KIP-354).

    It is up to `segment.jitter.ms` less, constant for each segment, so that partitions do not all roll at once.
    """
    age_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
    jitter_ms = config.segment_jitter_ms
    if jitter_ms <= 0:
        return age_ms
    return age_ms - int(xxhash.xxh64_intdigest(f"{directory.path}/{segment.log.name}".encode()) % jitter_ms)


def demand_of(config: TopicConfig) -> Demand | None:
    """Return a topic's demands on the records in a batch; None if only the header needs to be inspected."""
    name = config.compression_type
    if name == "producer":
        return KEYS if config.is_compacted else None
    codec = Compression.NONE if name == "uncompressed" else Compression[name.upper()]
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    return Demand(config.is_compacted, codec, levels.get(codec))


class Demands:
    """A topic's demands, computed once for each version of its settings."""

    __slots__ = ("_config", "_demand")

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self._demand = demand_of(config)

    def of(self, config: TopicConfig) -> Demand | None:
        """Return the topic's demands on every batch; None if only the header needs to be inspected."""
        if self._config is not config:
            self._demand, self._config = demand_of(config), config
        return self._demand


def checked(
    records: Buffer, config: TopicConfig, limits: BatchLimits, header: BatchHeader | None = None
) -> tuple[BatchHeader, memoryview]:
    """Return the one batch that a producer sent, after checking size and header. Raises as `validate_batch` does.

    `header` is that of the batch, if the caller has read it.
    """
    header, batch = only_batch(records, header)
    _check_size(batch, config)
    validate_batch(header, batch, limits.max_records)
    refuse_type(header, config)
    return header, batch


def refuse_size(size: int, config: TopicConfig) -> NoReturn:
    """Raise RECORD_LIST_TOO_LARGE for a batch of `size` bytes that fits into no segment."""
    raise KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"Message batch size is {size} bytes in append, which exceeds the maximum configured segment size of "
        f"{config.segment_bytes}.",
    )


def _check_size(batch: memoryview, config: TopicConfig) -> None:
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append is {len(batch)} bytes which exceeds the maximum configured value of "
            f"{config.max_message_bytes}.",
        )


def prepared(
    header: BatchHeader,
    batch: memoryview,
    demand: Demand,
    config: TopicConfig,
    limits: BatchLimits,
    now: Millis,
    trust: Trust | None = None,
) -> Work[Prepared]:
    """Check the records of a `checked` batch, correct its largest timestamp, and recompress them if the topic has
    another codec.

    Raises BadRecords if a record in a compacted topic has no key or timestamps are out of range, INVALID_RECORD if
    there are too many headers, MESSAGE_TOO_LARGE if the expanded records or the new batch exceed a limit, and
    CorruptBatch if the records are malformed.
    """
    is_recompressed = demand.codec is not None and demand.codec is not header.compression
    if not (is_recompressed or demand.needs_keys or are_doubtful(header, batch, config, now, trust)):
        return Prepared(demand, header, batch)
    try:
        payload = yield from expanded(header, batch, limits.max_expanded_bytes)
    except ExpandedTooFar as error:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the records expand beyond kraftpy.batch.max.expanded.bytes={limits.max_expanded_bytes}",
        ) from error
    deltas = yield from check_records(
        payload, header.records_count, needs_keys=demand.needs_keys, max_headers=limits.max_headers
    )
    max_timestamp = header.base_timestamp + deltas[1]
    if trust is not None:
        trust.read(header, max_timestamp)
    if not stamps_append_time(config):
        yield from check_times(payload, header, deltas, config, now)
    if not NO_TIMESTAMP <= max_timestamp <= _MAX_TIMESTAMP:
        raise CorruptBatch(f"timestamp {max_timestamp}", ErrorCode.INVALID_TIMESTAMP)
    if not is_recompressed:
        return Prepared(demand, *with_max_timestamp(header, batch, max_timestamp))

    def recompressed() -> memoryview:
        again = encode_payload(
            payload,
            records_count=header.records_count,
            base_timestamp=header.base_timestamp,
            max_timestamp=max_timestamp,
            compression=demand.codec or Compression.NONE,
            level=demand.level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )
        return memoryview(bytearray(again))

    if demand.codec is Compression.NONE and len(payload) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The uncompressed records take {len(payload)} bytes which exceeds the maximum configured value of "
            f"{config.max_message_bytes}.",
        )
    made: memoryview
    if len(payload) <= INLINE_BYTES:
        made = recompressed()
    else:
        made = yield recompressed
    _check_size(made, config)
    return Prepared(demand, read_header(made), made)


def stored_form(
    records: Buffer,
    batch: Prepared | None,
    demands: Demands,
    config: TopicConfig,
    limits: BatchLimits,
    now: Millis,
    header: BatchHeader | None = None,
) -> tuple[BatchHeader, memoryview]:
    """Return a producer's batch in its stored form; only `stamp` still has to fill in its fields.

    `batch` is the result of `prepared`, which is repeated here if the topic's demands have changed since. `header` is
    that of the batch in `records`, if the caller has read it; without `batch`, its timestamps have been checked.
    """
    demand = demands.of(config)
    if batch is not None and batch.demand == (demand or TIMES):
        return batch.header, batch.batch
    is_judged = batch is None and header is not None
    header, data = checked(records, config, limits, header)
    if demand is None and not is_judged and are_doubtful(header, data, config, now):
        demand = TIMES
    if demand is None:
        return header, data
    batch = finish(prepared(header, data, demand, config, limits, now))
    return batch.header, batch.batch


def from_coordinator(
    records: Buffer, config: TopicConfig, limits: BatchLimits, now: Millis
) -> tuple[BatchHeader, memoryview]:
    """Return the one batch that a coordinator wrote, after checking it. Raises KafkaError as for a producer's."""
    header, batch = only_batch(records)
    if header.producer_id < 0:  # a coordinator's own batches have no sequence numbers
        validate_batch(header, batch)
    elif not check_crc(batch):
        raise CorruptBatch("the CRC does not match")
    if not stamps_append_time(config):
        check_timestamps(header, config, now)
    if config.is_compacted and not header.is_control:
        finish(prepared(header, batch, KEYS, config, limits, now))
    return header, batch


def batches_to_append(
    records: memoryview, log_end_offset: int, last_epoch: int, leader_epoch: int
) -> tuple[list[tuple[BatchHeader, int]], int]:
    """Return the leader's batches that a follower may append, each with its position, and their total size.

    They must continue a log that ends before `log_end_offset` with a record of `last_epoch`. A truncated last batch is
    left out; so is the first batch whose leader epoch is above `leader_epoch` (-1: any), and all after it
    (KAFKA-18723). Raises CorruptBatch if one does not follow the batch before it, or its CRC does not match.
    """
    batches: list[tuple[BatchHeader, int]] = []
    position, expected, epoch = 0, log_end_offset, last_epoch
    for header, batch in split_batches(records, allow_partial=True):
        if header.partition_leader_epoch > leader_epoch >= 0:
            break
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptBatch(
                f"offsets {header.base_offset} to {header.last_offset} do not continue a log that ends at {expected}"
            )
        if 0 <= header.partition_leader_epoch < epoch:
            raise CorruptBatch(f"leader epoch {header.partition_leader_epoch} after {epoch}")
        if not check_crc(batch):
            raise CorruptBatch("the CRC does not match")
        batches.append((header, position))
        position += len(batch)
        expected, epoch = header.next_offset, header.partition_leader_epoch
    return batches, position
