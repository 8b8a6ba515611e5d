"""Assign rows of a data frame to topic partitions: Kafka's sink columns, and the partition of each row.

The columns are those of Spark's own Kafka sink: `key` (optional), `value`, `headers` (optional), `topic` (unless the
option `topic` names one for all rows), `partition` (optional; if null, the partitioner decides). Keys and values are
strings or binary. Any other column is ignored, with one line in the log, so that the reader's output can be written as
it is.

A row with a key goes to the partition that every Kafka client picks for that key; rows without a key stick to one
partition for a batch's worth of bytes (KIP-480). Invariant: a task's rows for one partition keep their order.
Left out: `timestamp`, which Spark's own sink does not write either; records get the time of writing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kraftpy.spark.offsets import OptionError
from kraftpy.spark.sink_options import WriteOptions, find_partitioner
from kraftpy.spark.sink_records import Int64s, Rows, as_binary, encoded_headers, lengths, murmur2_of
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT_OR_BINARY = ("string", "binary")
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": _TEXT_OR_BINARY,
    "value": _TEXT_OR_BINARY,
    "headers": (HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int",),
}
"""The sink's columns with their allowed types, in Spark's words."""


class RowError(ValueError):
    """A row cannot be written; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """The position of each sink column in the data frame; None for a missing one."""

    key: int | None
    value: int
    headers: int | None
    topic: int | None
    partition: int | None
    ignored: tuple[str, ...]


def check_columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    """Find the sink's columns in a data frame. Raises OptionError if one is missing or has another type."""
    found: dict[str, int] = {}
    ignored = []
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _TYPES:
            ignored.append(field.name)
            continue
        if name in found:
            raise OptionError(f"column {name!r} occurs twice")
        kind = field.dataType.simpleString()
        if kind.startswith(("char(", "varchar(")):
            kind = "string"
        if kind not in _TYPES[name]:
            raise OptionError(f"column {name!r} must be {' or '.join(_TYPES[name])}, not {kind}")
        found[name] = index
    if "value" not in found:
        raise OptionError("column 'value' is required: string or binary")
    if options.topic is None and "topic" not in found:
        raise OptionError("a topic is required: option topic, or a column 'topic'")
    if options.include_headers and "headers" not in found:
        raise OptionError(f"includeHeaders is true, but there is no column 'headers': {HEADERS_TYPE}")
    if options.include_headers is False:
        found.pop("headers", None)
    return SinkColumns(
        key=found.get("key"),
        value=found["value"],
        headers=found.get("headers"),
        topic=None if options.topic is not None else found.get("topic"),
        partition=found.get("partition"),
        ignored=tuple(ignored),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionRows:
    """Rows for one partition, in order."""

    partition: TopicPartition
    rows: Rows


class RowPartitioner:
    """Splits rows by partition. `partitions_of` returns a topic's number of partitions, or raises if it is missing."""

    def __init__(self, columns: SinkColumns, options: WriteOptions, partitions_of: Callable[[str], int]) -> None:
        self._columns = columns
        self._topic = options.topic
        self._partitions_of = partitions_of
        self._custom = find_partitioner(options.partitioner) if options.partitioner is not None else None
        self._round_robin = options.round_robin
        self._ignore_keys = options.ignore_keys
        self._sticky_bytes = options.producer.batch_size
        self._sticky: dict[str, tuple[int, int]] = {}  # the partition for rows without a key, and the bytes it has had

    def split(self, batch: pa.RecordBatch | pa.Table) -> Iterator[PartitionRows]:
        """Yield the rows of each partition. Raises RowError, and KafkaError for a topic that does not exist."""
        if not batch.num_rows:
            return
        columns = self._columns
        rows = self._rows(batch)
        wanted = None if columns.partition is None else _column(batch, columns.partition)
        targets: list[TopicPartition] = []
        choice = np.empty(len(rows), np.int64)
        for topic, where in self._by_topic(batch):
            part = rows if where is None else rows.take(where)
            given = wanted if wanted is None or where is None else wanted.take(pa.array(where))
            partitions = self._partitions_of(topic)
            chosen = self._choose(topic, part, given, partitions)
            choice[slice(None) if where is None else where] = chosen + len(targets)
            targets += [TopicPartition(topic, index) for index in range(partitions)]
        counts = np.bincount(choice, minlength=len(targets))
        ends = np.cumsum(counts)
        ordered = rows if np.count_nonzero(counts) == 1 else rows.take(np.argsort(choice, kind="stable"))
        for index in np.flatnonzero(counts).tolist():
            yield PartitionRows(
                partition=targets[index], rows=ordered.slice(int(ends[index] - counts[index]), int(ends[index]))
            )

    def _rows(self, batch: pa.RecordBatch | pa.Table) -> Rows:
        columns = self._columns
        headers = None
        if columns.headers is not None:
            try:
                headers = encoded_headers(_column(batch, columns.headers))
            except ValueError as error:
                raise RowError(f"column 'headers': {error}") from None
        return Rows(
            keys=None if columns.key is None else as_binary(_column(batch, columns.key)),
            values=as_binary(_column(batch, columns.value)),
            headers=headers,
        )

    def _by_topic(self, batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, Int64s | None]]:
        """Yield each topic with the indexes of its rows; None stands for all rows."""
        if self._columns.topic is None:
            assert self._topic is not None, "check_columns made sure of that"
            yield self._topic, None
            return
        column = _column(batch, self._columns.topic)
        if column.null_count:
            raise RowError("column 'topic' is null in a row; option topic names one for all rows")
        encoded = pc.dictionary_encode(column)
        names: Sequence[str] = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        for index, name in enumerate(names):
            yield name, np.flatnonzero(indices == index)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _choose(self, topic: str, rows: Rows, given: pa.Array | None, partitions: int) -> Int64s:
        """Return the partition of each row of one topic. Raises RowError if a row names one that does not exist."""
        if given is None or given.null_count == len(rows):
            return self._partitioned(topic, rows, partitions)
        named: Int64s = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        if given.null_count:
            free = np.flatnonzero(given.is_null().to_numpy(zero_copy_only=False))
            named[free] = self._partitioned(topic, rows.take(free), partitions)
        outside = np.flatnonzero((named < 0) | (named >= partitions))
        if len(outside):
            raise RowError(f"topic {topic!r} has partitions 0 to {partitions - 1}, not {named[outside[0]]}")
        return named

    def _partitioned(self, topic: str, rows: Rows, partitions: int) -> Int64s:
        if self._custom is not None:
            return self._by_function(topic, rows, partitions)
        if self._round_robin:
            return self._in_turn(topic, np.ones(len(rows), np.int64), 1, partitions)
        if rows.keys is None or self._ignore_keys or rows.keys.null_count == len(rows):
            return self._in_turn(topic, rows.size_bounds(), self._sticky_bytes, partitions)
        chosen: Int64s = (murmur2_of(rows.keys) & 0x7FFFFFFF) % partitions
        if rows.keys.null_count:
            free = np.flatnonzero(lengths(rows.keys) < 0)
            chosen[free] = self._in_turn(topic, rows.size_bounds()[free], self._sticky_bytes, partitions)
        return chosen

    def _in_turn(self, topic: str, sizes: Int64s, per_turn: int, partitions: int) -> Int64s:
        """Fill one partition after another with `per_turn` of `sizes` each, starting at a random one."""
        first, had = self._sticky.get(topic, (random.randrange(partitions), 0))
        before = np.cumsum(sizes) - sizes + had
        turns = before // per_turn
        total = int(sizes.sum()) + had
        self._sticky[topic] = ((first + total // per_turn) % partitions, total % per_turn)
        chosen: Int64s = (first + turns) % partitions
        return chosen

    def _by_function(self, topic: str, rows: Rows, partitions: int) -> Int64s:
        assert self._custom is not None
        keys = [None] * len(rows) if rows.keys is None else rows.keys.to_pylist()
        chosen = [
            self._custom(topic, key, value, partitions)
            for key, value in zip(keys, rows.values.to_pylist(), strict=True)
        ]
        for partition in chosen:
            if not 0 <= partition < partitions:
                raise RowError(
                    f"the partitioner chose {partition!r}; topic {topic!r} has partitions 0 to {partitions - 1}"
                )
        return np.array(chosen, np.int64)


def _column(batch: pa.RecordBatch | pa.Table, index: int) -> pa.Array:
    column = batch.column(index)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
