"""Small micro-batches, read where the stream is planned: a task in Python costs Spark more than a few thousand rows do.

Spark lets a planner in Python hand over a batch's rows with its plan, which it keeps as a block and reads in one task
without Python. It does this for its "simple" stream readers alone, and knows them by their class
(`pyspark.sql.streaming.python_streaming_source_runner`, PythonMicroBatchStream.scala). A `Handover` therefore passes
for such a reader at that one moment, and for what it is before and after, because a simple reader cannot report its
lag.

Nothing depends on the handover. The plan has the batch's offsets as well, and Spark reads those if the block is gone;
after any error here, tasks read the batch, with their retries and messages. Memory is bounded by `MOST_BYTES`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from kraftpy.client.ranges.reader import RangeReader
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.records import CorruptBatch
from kraftpy.spark.counts import ReaderCounts
from kraftpy.spark.offsets import DataLossError, OffsetRange
from kraftpy.spark.options import ReadOptions
from kraftpy.spark.reading import ToBatches, read_range
from kraftpy.spark.values import Malformed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

    SIMPLE_READER: type | None = _SimpleStreamReaderWrapper
except ImportError:  # a Spark that does this otherwise: tasks read everything
    SIMPLE_READER = None

logger = logging.getLogger("kraftpy.spark")

MOST_BYTES = 16 << 20
"""The most that a batch may take as Arrow columns; a larger one is left to tasks."""
MOST_RANGES = 64
"""They are read one after another; tasks read them at once."""
_FIRST_FETCH_BYTES = 1 << 20
_LEAST_FETCH_BYTES = 64 << 10


class Handover(DataSourceStreamReader):
    """A stream reader that may hand over a batch's rows with its plan: once, to the caller that asks next."""

    _handed_over: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """This class, or Spark's simple reader while rows are to be handed over."""
        return type(self) if self._handed_over is None or SIMPLE_READER is None else SIMPLE_READER

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:  # noqa: N802
        """Return the rows of the batch that was just planned, for Spark; it asks right after `partitions`."""
        rows, self._handed_over = self._handed_over, None
        return iter(rows) if rows is not None else None


class Prefetch:
    """Reads batches of few records. Not thread-safe."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        to_batches: ToBatches,
        *,
        most_records: int,
        counts: ReaderCounts | None = None,
    ) -> None:
        self._options = options
        self._to_batches = to_batches
        self._counts = counts if counts is not None else ReaderCounts()
        self._most_records = most_records if _can_hand_over(options, schema) else 0
        self._bytes_per_record: float | None = None
        """In the last batch, as Arrow columns."""

    def suits(self, ranges: Sequence[OffsetRange]) -> bool:
        """Return whether a batch is small enough, as far as is known before reading."""
        records = sum(each.size for each in ranges)
        if not 0 < records <= self._most_records or len(ranges) > MOST_RANGES:
            return False
        per_task = self._options.max_records_per_partition
        if per_task is not None and records > per_task:
            return False
        return self._bytes_per_record is None or records * self._bytes_per_record <= MOST_BYTES

    def read(self, broker: RangeReader, ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch] | None:
        """Return the batch's rows, or None if tasks have to read it: it is larger than expected, or cannot be read."""
        began_ns = time.monotonic_ns()
        found: list[pa.RecordBatch] = []
        size_bytes = records = 0
        try:
            for each in ranges:
                fetch_bytes = self._fetch_bytes(each.size)
                for batch in read_range(self._options, broker, each, self._to_batches, fetch_bytes=fetch_bytes):
                    found.append(batch)
                    size_bytes += batch.nbytes
                    records += batch.num_rows
                    if size_bytes > MOST_BYTES:
                        self._bytes_per_record = size_bytes / records
                        return None
        except (KafkaError, CorruptBatch, DataLossError, Malformed) as error:
            logger.info("a batch is left to tasks: %s", error)
            return None
        if records:
            self._bytes_per_record = size_bytes / records
        self._counts.prefetched_batches += 1
        self._counts.prefetched_rows += records
        self._counts.prefetched_bytes += size_bytes
        self._counts.prefetch_ms += (time.monotonic_ns() - began_ns) // 1_000_000
        return found

    def _fetch_bytes(self, records: int) -> int:
        """Return how much to ask for: little more than the records will take, because the rest is thrown away."""
        most = self._options.client.max_partition_fetch_bytes
        if self._bytes_per_record is None:
            return min(most, _FIRST_FETCH_BYTES)
        return min(most, max(_LEAST_FETCH_BYTES, int(records * self._bytes_per_record)))


def _can_hand_over(options: ReadOptions, schema: StructType) -> bool:
    """Return whether rows may be read before the tasks run, and Spark will see in them the schema it has asked for.

    With `minPartitions` the user wants tasks. Records that go to a dead-letter topic go there from tasks alone, because
    Spark may plan a batch more often than it runs it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if SIMPLE_READER is None or options.min_partitions is not None:
        return False
    if options.values is not None and options.values.dead_letter_topic is not None:
        return False
    if any(field.metadata for field in schema.fields):  # Arrow carries it in some versions of Spark only
        return False
    return from_arrow_schema(to_arrow_schema(schema, timezone="UTC")) == schema
