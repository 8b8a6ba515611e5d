"""The stream reader behind `readStream.format("kraftpy")`: choose the offsets of each micro-batch.

Spark asks one long-lived process how far to go (`latestOffset`), writes the answer into its checkpoint, and has tasks
read what lies between two answers. After a crash, it has the last batch read again from the checkpoint, without asking.

The `start` that Spark passes is the end of the last finished batch. It is committed to `commitGroupId`, so that the
query's lag shows like any consumer's. A failed commit is logged; the checkpoint alone decides what is read.

A trigger that is always ready would ask about 85 times a second. An answer of "nothing new" therefore takes
`kafka.fetch.max.wait.ms` (half a second); during that time a Fetch waits at each broker for the next record. With more
than `MOST_WATCHED` partitions, or if a batch waits for `minOffsetsPerTrigger`, brokers are asked for their end offsets
instead, every `POLL_INTERVAL_MS`.

A batch of few records is read here, and handed over with its plan (`prefetch`); a larger one in few tasks, as long as
that is quick (`pace`).

The stream waits for unreachable brokers and moving leaders: `1 + fetchOffset.numRetries` times
`kafka.default.api.timeout.ms` here, and `kafkaConsumer.pollTimeoutMs` without a record in tasks.

Left out: features that Spark lacks for Python sources (continuous mode, several limits as one object; the limits are
all applied here; metrics of a source, instead of which `counts` has a way).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kraftpy.client.ranges.reader import RangeReader, UnknownTopic
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.record_batch import split_batches
from kraftpy.spark.admission import Delay, backlogs, share_bytes, share_rows
from kraftpy.spark.counts import READER, ReaderCounts
from kraftpy.spark.lookup import Lookup, connect
from kraftpy.spark.offsets import (
    DataLossError,
    Offsets,
    SubscribePattern,
    UnknownTopicError,
    present_partitions,
    resolve,
    wanted_partitions,
    wanted_topics,
)
from kraftpy.spark.options import parse_stream_options
from kraftpy.spark.pace import Pace, few_tasks
from kraftpy.spark.prefetch import Handover, Prefetch
from kraftpy.spark.reading import RangesPartition, read_partition
from kraftpy.spark.source import batches_of, to_partitions
from kraftpy.spark.stream_offsets import (
    BrokerOffsets,
    StreamOffsets,
    StreamPosition,
    from_json,
    position_in,
    ranges_between,
    to_json,
)
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kraftpy.spark.progress import GroupProgress

logger = logging.getLogger("kraftpy.spark")

POLL_INTERVAL_MS = 100
MOST_WATCHED = 1_000
"""How many partitions the Fetches that wait for records may name."""
SAMPLE_BYTES = 64 << 10
"""How many bytes of a partition are read to estimate the size of its offsets."""


class StreamReader(Handover, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process; others read them. Pickled as a whole for the tasks, before use."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check both, without asking the broker. Raises OptionError."""
        self._options = parse_stream_options(options)
        self._to_batches = batches_of(self._options.read, schema)
        self._counts = ReaderCounts()
        self._prefetch = Prefetch(
            self._options.read,
            schema,
            self._to_batches,
            most_records=self._options.prefetch_records,
            counts=self._counts,
        )
        self._pace = Pace()
        self._delay: Delay | None = None
        if self._options.min_offsets is not None:
            self._delay = Delay(min_offsets=self._options.min_offsets, max_delay_ms=self._options.max_delay_ms)
        self._started_at: StreamOffsets | None = None
        """The offset that this reader gave as the start of a new query."""
        self._target: BrokerOffsets | None = None
        self._last_seen: BrokerOffsets | None = None
        self._broker: RangeReader | None = None
        self._group: GroupProgress | None = None
        self._reported_losses: tuple[str, ...] = ()

    # --- called by Spark ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts, always the same. Raises UnknownTopicError, OptionError, ConnectionError.

        Until the first batch is done, Spark asks for each trigger, and once more when it plans that batch.
        """
        if self._started_at is not None:
            return to_json(self._started_at)
        options = self._options.read
        for warning in options.warnings:
            logger.warning("%s", warning)
        lookup = Lookup(options, self._connected(), counts=self._counts)
        found = lookup.found_partitions()
        if not isinstance(options.subscription, SubscribePattern):
            wanted_partitions(options.subscription, found)  # named topics must exist; a pattern may match later
        partitions = present_partitions(options.subscription, found)
        self._started_at = StreamOffsets.of(resolve(options.starting, partitions, lookup), lookup.topic_ids)
        return to_json(self._started_at)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits, because Spark passes on only one; `latestOffset` obeys all of them."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.min_offsets) if options.min_offsets is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the current ends: the run stops there."""
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or `start` if there is nothing to read. Raises DataLossError."""
        self._pace.asked(_monotonic_ms())
        at = from_json(start)
        self._commit(at)
        deadline_ms = _monotonic_ms() + self._options.read.client.fetch_max_wait_ms
        while True:
            seen, position = self._compare(at)
            end = self._end_of_batch(at, seen, position, limit)
            if to_json(end) != to_json(replace(at, started_at=None)):
                return to_json(replace(end, started_at=self._started_at) if at == self._started_at else end)
            if self._target is not None or not self._wait_for_records(seen, deadline_ms):
                return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch between two offsets: of a small one, a single task and its rows."""
        self._handed_over = None
        ranges = ranges_between(from_json(start), from_json(end))
        if not self._pace.planned(ranges, _monotonic_ms()):
            return to_partitions(self._options.read, ranges)
        if self._prefetch.suits(ranges):
            self._handed_over = self._prefetch.read(self._connected(), ranges)
        if self._handed_over is not None:
            return [RangesPartition(tuple(ranges))]
        return to_partitions(self._options.read, ranges, at_most=few_tasks(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task. Raises DataLossError, KafkaError, CorruptBatch."""
        return read_partition(self._options.read, partition, self._to_batches)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known ends of the logs, and counts, for the query's progress report; no topic ids."""
        if self._last_seen is None:
            return None
        return {**to_json(StreamOffsets(offsets=self._last_seen.log_end)), READER: self._counts.to_json()}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this a batch late, and never for the last batch. `latestOffset` knows sooner."""

    def stop(self) -> None:
        """Close the connections. Spark does not always call this."""
        if self._broker is not None:
            self._broker.close()
        if self._group is not None:
            self._group.close()

    # --- internals ------------------------------------------------------------------------------------------------

    def _connected(self) -> RangeReader:
        if self._broker is None:
            client = self._options.read.client
            self._broker = connect(client, timeout_ms=client.default_api_timeout_ms)
        return self._broker

    def _look(self) -> BrokerOffsets:
        """Ask for topics and for both ends of their logs."""
        lookup = Lookup(self._options.read, self._connected(), patient=True, counts=self._counts)
        try:
            return self._look_once(lookup)
        except UnknownTopic:  # deleted between two questions
            return self._look_once(lookup)

    def _look_once(self, lookup: Lookup) -> BrokerOffsets:
        partitions = present_partitions(self._options.read.subscription, lookup.found_partitions())
        log_start, log_end = lookup.earliest(partitions), lookup.latest(partitions)
        return BrokerOffsets(log_start=log_start, log_end=log_end, topic_ids=lookup.topic_ids)

    def _compare(self, at: StreamOffsets) -> tuple[BrokerOffsets, StreamPosition]:
        """Compare the stream with the logs. Raises DataLossError, UnknownTopicError, ConnectionError."""
        options = self._options.read
        for left in range(options.offset_retries, -1, -1):
            seen = self._target or self._look()
            position = position_in(at, seen)
            if not position.losses or self._target is not None:
                break
            if left:  # perhaps the broker that answered is not up to date yet
                self._counts.retries += 1
                time.sleep(options.offset_retry_interval_ms / 1000)
        self._last_seen = seen
        if options.fail_on_data_loss:
            self._require_topics(at, seen)
            if position.losses:
                raise DataLossError(
                    f"{'; '.join(position.losses)}. Set failOnDataLoss=false to read the remaining records"
                )
        if position.losses != self._reported_losses:
            self._reported_losses = position.losses
            for loss in position.losses:
                logger.warning("%s", loss)
        return seen, position

    def _require_topics(self, at: StreamOffsets, seen: BrokerOffsets) -> None:
        """Report named topics that neither the checkpoint nor a broker knows: they are misspelt."""
        known = {topic for topic, _ in (*at.offsets, *seen.log_end)}
        unknown = [topic for topic in wanted_topics(self._options.read.subscription, ()) if topic not in known]
        if unknown:
            raise UnknownTopicError(f"unknown topics: {', '.join(unknown)}")

    def _end_of_batch(
        self, at: StreamOffsets, seen: BrokerOffsets, position: StreamPosition, limit: ReadLimit
    ) -> StreamOffsets:
        """Return the end of the next batch, within the limits."""
        take = backlog = backlogs(position.offsets, seen.log_end)
        if not isinstance(limit, ReadAllAvailable):
            if self._delay is not None and self._target is None and self._delay.holds(backlog, _monotonic_ms()):
                return at
            if self._options.max_offsets is not None:
                take = share_rows(backlog, self._options.max_offsets)
            if self._options.max_bytes is not None and backlog:
                of_bytes = share_bytes(
                    backlog, self._options.max_bytes, self._bytes_per_offset(position.offsets, backlog)
                )
                take = {where: min(count, of_bytes[where]) for where, count in take.items()}
        ends = {where: first + take.get(where, 0) for where, first in position.offsets.items()}
        return StreamOffsets.of(ends, seen.topic_ids)

    def _bytes_per_offset(self, position: Offsets, backlog: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """Estimate the size of an offset at the start of the next batch, from a few batches of each partition."""
        client = self._options.read.client
        sizes = {}
        with connect(client, timeout_ms=client.default_api_timeout_ms, fetch_bytes=SAMPLE_BYTES) as broker:
            lookup = Lookup(self._options.read, broker, patient=True, counts=self._counts)
            for where in backlog:
                sizes[where] = lookup.ask(partial(size_of_offset, broker, where, position[where]))
        return sizes

    def _wait_for_records(self, seen: BrokerOffsets, deadline_ms: int) -> bool:
        """Wait until the ends of the logs have moved, or may have; return False if time is up first."""
        while (left_ms := deadline_ms - _monotonic_ms()) > 0:
            pause_ms = min(POLL_INTERVAL_MS, left_ms)
            try:
                if self._delay is None and 0 < len(seen.log_end) <= MOST_WATCHED:
                    asked_ms = _monotonic_ms()
                    if self._connected().wait_beyond(seen.log_end, left_ms):
                        return True
                    time.sleep(max(0, asked_ms + pause_ms - _monotonic_ms()) / 1000)  # if it was answered too soon
                else:
                    time.sleep(pause_ms / 1000)
                    if seen.log_end and self._connected().latest(seen.log_end) != seen.log_end:
                        return True
            except KafkaError:
                self._counts.retries += 1
                time.sleep(pause_ms / 1000)
                return True  # the next call finds out, and is patient
        return False

    def _commit(self, at: StreamOffsets) -> None:
        """Commit to the group that everything before `at` has been processed."""
        if self._options.commit_group is None:
            return
        if self._group is None:
            from kraftpy.spark.progress import GroupProgress  # here: it imports the whole client

            self._group = GroupProgress(self._options.read.client, self._options.commit_group)
        self._group.commit(at.offsets)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def size_of_offset(broker: RangeReader, where: TopicPartition, position: int) -> float:
    """Return the bytes per offset of the batches from `position` on, as stored in the log."""
    for chunk in broker.read(where, position, position + 1):
        batches = split_batches(chunk.records, allow_partial=True)
        if batches:
            offsets = batches[-1][0].next_offset - batches[0][0].base_offset
            return sum(len(batch) for _, batch in batches) / max(offsets, 1)
    return 1.0
