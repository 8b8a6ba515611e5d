"""The batch reader behind `format("kraftpy")`: planned in one process, read in others.

Planning asks the broker for partitions and offsets and divides them into ranges; each Spark partition then opens its
own connection and reads its ranges from offsets alone (`reading`). It joins no consumer group and commits no offsets.

Data loss is checked twice: during planning, against the log's start and end; and during reading, because retention may
delete records in between.

Left out: locality (the preferred host of a partition).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kraftpy.client.ranges.reader import RangeReader
from kraftpy.spark import arrow, typed
from kraftpy.spark.filters import Limits, narrow, push
from kraftpy.spark.lookup import Lookup, connect
from kraftpy.spark.offsets import AtTimestamps, OffsetRange, divide, plan_ranges, resolve, wanted_partitions
from kraftpy.spark.option_values import flag
from kraftpy.spark.options import ReadOptions, parse_any_options, parse_read_options
from kraftpy.spark.reading import RangesPartition, ToBatches, read_partition
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("kraftpy.spark")


class BatchReader(DataSourceReader):
    """Reads what the options name, into the columns of the schema. Pickled as a whole and sent to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check both, without asking the broker. Raises OptionError."""
        self._options = parse_read_options(options)
        self._to_batches = batches_of(self._options, schema)
        self._limits = Limits()

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the broker and divide the ranges. Raises UnknownTopicError, OptionError, DataLossError."""
        options = self._options
        for warning in options.warnings:
            logger.warning("%s", warning)
        with connect(options.client, timeout_ms=options.client.default_api_timeout_ms) as broker:
            ranges = plan(options, broker, self._limits)
        # Given no partition at all, Spark would make one that means nothing.
        return to_partitions(options, ranges) or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one Spark partition. Raises DataLossError, KafkaError, CorruptBatch."""
        return read_partition(self._options, partition, self._to_batches)


class FilteringBatchReader(BatchReader):
    """Reads only records that pass the query's filters, if ranges of offsets can express these.

    It is a class of its own because, with `spark.sql.python.filterPushdown.enabled` off, Spark refuses any reader that
    has this method.

    It is used only on request: Spark (4.3.0 and before) keeps the plan with the filters it pushed last in the data
    frame, and uses it for the next query on that frame, even if its filters differ. A frame with pushed filters is
    therefore good for one query with one `where`.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Use the filters that ranges can express; return those that Spark has to apply."""
        prefix = "" if self._options.values is None else "_"
        names = {f"{prefix}{name}".lower(): name for name in arrow.TYPES}
        self._limits, left = push(filters, names)
        return left


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    """Create the reader of a batch query. Raises OptionError."""
    lowered = {name.lower(): value for name, value in options.items()}
    kind = FilteringBatchReader if flag(lowered, "pushdown", default=False) else BatchReader
    return kind(options, schema)


def to_partitions(
    options: ReadOptions, ranges: Sequence[OffsetRange], *, at_most: int | None = None
) -> list[RangesPartition]:
    """Divide ranges into as many Spark partitions as the options ask for, or else into `at_most` if that is less."""
    if options.min_partitions is None and options.max_partitions is None and at_most is not None:
        options = replace(options, max_partitions=at_most)
    groups = divide(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        max_partitions=options.max_partitions,
    )
    return [RangesPartition(group) for group in groups]


def default_schema(options: Mapping[str, str]) -> str:
    """Return the columns of a query that names none, after checking its options. Raises OptionError."""
    checked = parse_any_options(options)
    if checked.values is not None:
        return typed.default_typed_ddl(checked.values, include_headers=checked.include_headers)
    return arrow.default_schema_ddl(include_headers=checked.include_headers)


def batches_of(options: ReadOptions, schema: StructType) -> ToBatches:
    """Return what makes Arrow batches: of Kafka's columns, or of the value's fields. Raises OptionError."""
    if options.values is None:
        return arrow.Batches(schema)
    return typed.TypedBatches(options, options.values, schema)


def plan(options: ReadOptions, broker: RangeReader, limits: Limits) -> list[OffsetRange]:
    """Return the ranges to read. Raises UnknownTopicError, OptionError, DataLossError, ConnectionError."""
    lookup = Lookup(options, broker)
    partitions = wanted_partitions(options.subscription, lookup.found_partitions())
    start = resolve(options.starting, partitions, lookup)
    end = resolve(options.ending, partitions, lookup)
    made = plan_ranges(
        start=start,
        end=end,
        log_start=lookup.earliest(partitions),
        log_end=lookup.latest(partitions),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    for loss in made.losses:
        logger.warning("%s", loss)
    left = [each for each in partitions if limits.allow(each)]
    from_offsets: dict[TopicPartition, int] = {}
    if limits.from_ms is not None and left:
        since = AtTimestamps(option="timestamp", timestamps=limits.from_ms, latest_if_none=True)
        from_offsets = resolve(since, left, lookup)
    return narrow(made.ranges, limits, from_offsets)
