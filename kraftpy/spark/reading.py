"""The work of Spark's tasks: read ranges of offsets, and nothing but the offsets, into Arrow batches.

A task that is run again reads the same records, because only the ranges and the options determine them. Gaps left by
compaction, aborted transactions and their markers are no loss. Deleted records are, and so is a topic that was deleted,
or deleted and created again under the same name: each fails the query, or is logged and skipped if `failOnDataLoss` is
false.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kraftpy.client.ranges.columns import Columns, decode_columns
from kraftpy.client.ranges.reader import Chunk, OffsetOutOfRange, RangeReader, UnknownTopic
from kraftpy.protocol.records import CorruptBatch
from kraftpy.spark.lookup import connect
from kraftpy.spark.offsets import DataLossError, OffsetRange
from kraftpy.spark.options import ReadOptions
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("kraftpy.spark")

ToBatches = Callable[[Columns, TopicPartition], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True)
class RangesPartition(InputPartition):
    """One Spark partition: ranges to read one after another."""

    ranges: tuple[OffsetRange, ...]


def read_partition(options: ReadOptions, partition: InputPartition, to_batches: ToBatches) -> Iterator[pa.RecordBatch]:
    """Read the records of one Spark partition. Raises DataLossError, KafkaError, CorruptBatch."""
    assert isinstance(partition, RangesPartition)
    if not partition.ranges:
        return
    with connect(options.client, timeout_ms=options.poll_timeout_ms) as broker:
        for each in partition.ranges:
            yield from read_range(options, broker, each, to_batches)


def read_range(
    options: ReadOptions,
    broker: RangeReader,
    wanted: OffsetRange,
    to_batches: ToBatches,
    *,
    fetch_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of one range, about `fetch_bytes` at a time. Raises DataLossError, KafkaError, CorruptBatch."""
    where = TopicPartition(wanted.topic, wanted.partition)
    position = wanted.start
    retries = options.offset_retries
    while position < wanted.end:
        try:
            for chunk in broker.read(where, position, wanted.end, topic_id=wanted.topic_id, fetch_bytes=fetch_bytes):
                for records in _decode(chunk, position, wanted.end):
                    yield from to_batches(records, where)
                    position = records.next_offset
            return
        except CorruptBatch as error:
            raise CorruptBatch(f"{where}: {error.message}", error.code) from error
        except OffsetOutOfRange as error:
            position = _after_loss(options, broker, where, position, wanted.end, error)
        except UnknownTopic as error:
            if retries:  # a broker that has only just learned of the topic may answer this too
                retries -= 1
                time.sleep(options.offset_retry_interval_ms / 1000)
                continue
            lost = f"{where}: offsets from {position} cannot be read: {error.message}"
            if options.fail_on_data_loss:
                raise DataLossError(f"{lost}. Set failOnDataLoss=false to continue without them") from error
            logger.warning("%s", lost)
            return


def _after_loss(
    options: ReadOptions, broker: RangeReader, where: TopicPartition, position: int, end: int, error: OffsetOutOfRange
) -> int:
    """Return where to continue if `position` is no longer in the log. Raises DataLossError if that is not allowed."""
    log_start, log_end = broker.earliest([where])[where], broker.latest([where])[where]
    lost = f"{where}: offsets from {position} have been deleted; the log holds [{log_start}, {log_end})"
    if options.fail_on_data_loss:
        raise DataLossError(f"{lost}. Set failOnDataLoss=false to read the remaining records") from error
    logger.warning("%s", lost)
    return log_start if position < log_start else end


def _decode(chunk: Chunk, start: int, end: int) -> Iterator[Columns]:
    """Yield a chunk's records within [start, end), in several parts if they expand to many bytes."""
    position = start
    while position < min(chunk.end_offset, end):
        records = decode_columns(chunk.records, start_offset=position, end_offset=end, aborted=chunk.aborted)
        if records.next_offset <= position:
            return  # only a gap up to the end of the chunk
        yield records
        position = records.next_offset
