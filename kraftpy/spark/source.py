"""The batch reader behind `format("kraftpy")`: planned in one process, read in others.

Planning asks the broker for partitions and offsets and cuts the ranges; each Spark partition then opens its own
connection and reads its ranges from offsets alone, so a task that is run again reads the same records. No consumer
group is joined and no offset is committed.

Data loss is checked twice: when planning, against the log's start and end; and when reading, because retention may
delete records in between. Gaps that compaction and transaction markers leave are no loss.

Left out: streaming (`readStream`), writing, filter pushdown, locality (the preferred host of a partition).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kraftpy.client.columns import Columns, decode_columns
from kraftpy.client.ranges import Chunk, OffsetOutOfRange, RangeReader, UnknownTopic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark import arrow
from kraftpy.spark.offsets import (
    DataLossError,
    OffsetRange,
    Offsets,
    SubscribePattern,
    divide,
    plan_ranges,
    resolve,
    wanted_partitions,
    wanted_topics,
)
from kraftpy.spark.options import ReadOptions, parse_read_options
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")
logger = logging.getLogger("kraftpy.spark")

_NO_ANSWER = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})


@dataclass(frozen=True, slots=True)
class RangesPartition(InputPartition):
    """One Spark partition: ranges to read one after the other."""

    ranges: tuple[OffsetRange, ...]


class BatchReader(DataSourceReader):
    """Reads what the options say into the columns the schema names. Pickled as a whole to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check both; ask nothing of the broker yet. Raises OptionError."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._options = parse_read_options(options)
        self._columns = arrow.check_schema(schema)
        self._arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the broker what there is, and cut it. Raises UnknownTopicError, OptionError, DataLossError."""
        options = self._options
        for warning in options.warnings:
            logger.warning("%s", warning)
        with connect(options, timeout_ms=options.client.default_api_timeout_ms) as broker:
            ranges = plan(options, broker)
        groups = divide(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            max_partitions=options.max_partitions,
        )
        # Spark would make a partition of nothing into one that means nothing.
        return [RangesPartition(group) for group in groups] or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one Spark partition. Raises DataLossError, KafkaError, CorruptBatch."""
        assert isinstance(partition, RangesPartition)
        if not partition.ranges:
            return
        with connect(self._options, timeout_ms=self._options.poll_timeout_ms) as broker:
            for each in partition.ranges:
                yield from self._read_range(broker, each)

    def _read_range(self, broker: RangeReader, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        where = TopicPartition(wanted.topic, wanted.partition)
        position = wanted.start
        while position < wanted.end:
            try:
                for chunk in broker.read(where, position, wanted.end):
                    for records in _decode(chunk, position, wanted.end):
                        yield from arrow.to_batches(
                            records, self._columns, self._arrow_schema, topic=where.topic, partition=where.partition
                        )
                        position = records.next_offset
                return
            except OffsetOutOfRange as error:
                position = self._after_loss(broker, where, position, wanted.end, error)

    def _after_loss(
        self, broker: RangeReader, where: TopicPartition, position: int, end: int, error: OffsetOutOfRange
    ) -> int:
        """Where to go on when the log no longer holds `position`. Raises DataLossError where it must not go on."""
        log_start, log_end = broker.earliest([where])[where], broker.latest([where])[where]
        lost = f"{where}: offsets from {position} were deleted meanwhile; the log holds [{log_start}, {log_end})"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{lost}. Set failOnDataLoss=false to read what there is") from error
        logger.warning("%s", lost)
        return log_start if position < log_start else end


def _decode(chunk: Chunk, start: int, end: int) -> Iterator[Columns]:
    """A chunk's records within [start, end), in as many goes as their expanded size asks for."""
    position = start
    while position < min(chunk.end_offset, end):
        records = decode_columns(chunk.records, start_offset=position, end_offset=end, aborted=chunk.aborted)
        if records.next_offset <= position:
            return  # nothing but a gap up to the chunk's end
        yield records
        position = records.next_offset


# The broker ----------------------------------------------------------------------------------------------------


def connect(options: ReadOptions, *, timeout_ms: int) -> RangeReader:
    """A reader for the options' broker; closed by its `with` block. It gives up after `timeout_ms` without progress."""
    client = options.client
    return RangeReader(
        client.bootstrap_servers,
        client_id=client.client_id,
        isolation_level=client.isolation_level,
        request_timeout_ms=min(client.request_timeout_ms, timeout_ms),
        socket_connection_setup_timeout_ms=min(10_000, timeout_ms),
        default_api_timeout_ms=timeout_ms,
        max_partition_fetch_bytes=client.max_partition_fetch_bytes,
        fetch_max_wait_ms=client.fetch_max_wait_ms,
    )


def default_schema(options: Mapping[str, str]) -> str:
    """The columns of a query that names none, once its options have been checked. Raises OptionError."""
    return arrow.default_schema_ddl(include_headers=parse_read_options(options).include_headers)


def plan(options: ReadOptions, broker: RangeReader) -> tuple[OffsetRange, ...]:
    """The ranges to read. Raises UnknownTopicError, OptionError, DataLossError, ConnectionError."""
    lookup = _Lookup(options, broker)
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
    return made.ranges


class _Lookup:
    """Questions to the broker, asked again as `fetchOffset.numRetries` says. Each answer is asked for once."""

    def __init__(self, options: ReadOptions, broker: RangeReader) -> None:
        self._options = options
        self._broker = broker
        self._known: dict[tuple[str, TopicPartition], int] = {}

    def found_partitions(self) -> dict[str, list[int]]:
        """The partitions of the topics the options name, without those that do not exist."""
        subscription = self._options.subscription
        if isinstance(subscription, SubscribePattern):
            return self._describe(None)
        names = wanted_topics(subscription, ())
        try:
            return self._describe(names)
        except UnknownTopic:  # it names one only; people want to hear of all that are missing
            return {name: found for each in names for name, found in self._describe_if_there(each).items()}

    def _describe(self, names: list[str] | None) -> dict[str, list[int]]:
        topics = self._ask(lambda: self._broker.topics(names))
        return {name: [each.partition for each in topic.partitions] for name, topic in topics.items()}

    def _describe_if_there(self, name: str) -> dict[str, list[int]]:
        try:
            return self._describe([name])
        except UnknownTopic:
            return {}

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """The log start offsets."""
        return self._once("earliest", partitions, self._broker.earliest)

    def latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """The ends, of this isolation level."""
        return self._once("latest", partitions, self._broker.latest)

    def at_timestamps(self, timestamps: Offsets) -> Mapping[TopicPartition, int | None]:
        """The offsets of the first records at or after these times (ms); None where there is none."""
        answers = self._ask(lambda: self._broker.offsets(timestamps))
        return {where: None if answer is None else answer.offset for where, answer in answers.items()}

    def _once(
        self,
        which: str,
        partitions: Sequence[TopicPartition],
        question: Callable[[Sequence[TopicPartition]], dict[TopicPartition, int]],
    ) -> Offsets:
        """Ask only for what is not known yet: start and end of one plan must come from the same answer."""
        missing = [where for where in partitions if (which, where) not in self._known]
        if missing:
            answers = self._ask(lambda: question(missing))
            self._known.update({(which, where): offset for where, offset in answers.items()})
        return {where: self._known[which, where] for where in partitions}

    def _ask(self, question: Callable[[], T]) -> T:
        for left in range(self._options.offset_retries, -1, -1):
            try:
                return question()
            except UnknownTopic:
                raise
            except KafkaError as error:
                if error.code in _NO_ANSWER:  # the client itself has asked again until its time was up
                    servers = self._options.client.bootstrap_servers
                    raise ConnectionError(f"no broker answered at {servers}: {error}") from None
                if not error.code.retriable or not left:
                    raise
            time.sleep(self._options.offset_retry_interval_ms / 1000)
        raise AssertionError("unreachable")
