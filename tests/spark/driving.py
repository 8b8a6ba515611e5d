"""Driving a stream reader as Spark does, without Spark: offsets as text, partitions and readers through pickle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kraftpy.spark.stream import StreamReader

PLAIN = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)


class Query:
    """A query with its checkpoint, of which runs are made: each has one planner, as with Spark."""

    def __init__(self, options: Mapping[str, str], schema: StructType = PLAIN) -> None:
        self.options = dict(options)
        self.is_compacted = False
        """Records may disappear between two reads of the same offsets."""
        self.schema = schema
        self.checkpoint: list[str] = []
        """Offsets: the first is the query's start, and each of the others the end of a batch."""
        self.batches: list[list[dict[str, Any]]] = []
        self.handed_over: list[bool] = []
        """For each batch, whether the planner read it."""

    def run(self, *, available_now: bool = True, once: bool = False, most: int = 1_000) -> list[list[dict[str, Any]]]:
        """The batches of one run, until there is nothing new."""
        done = len(self.batches)
        planner = StreamReader(self.options, self.schema)
        try:
            for _ in self._batches(planner, available_now=available_now, once=once):
                if len(self.batches) - done >= most:
                    break
        finally:
            planner.stop()
        return self.batches[done:]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all batches up to now."""
        return [row for batch in self.batches for row in batch]

    def _batches(self, planner: StreamReader, *, available_now: bool, once: bool) -> Iterator[None]:
        if available_now:
            planner.prepareForTriggerAvailableNow()
        limit = ReadAllAvailable() if once else planner.getDefaultReadLimit()
        if not self.checkpoint:
            self.checkpoint.append(json.dumps(planner.initialOffset()))
        elif len(self.checkpoint) - 1 > len(self.batches):  # crashed within a batch
            if len(self.checkpoint) == 2:  # Spark has not kept where the first batch began
                self.checkpoint[0] = json.dumps(planner.initialOffset())
            self.read(planner, self.checkpoint[-2], self.checkpoint[-1])
            yield
        while True:
            start = self.checkpoint[-1]
            end = json.dumps(planner.latestOffset(json.loads(start), limit))
            if end == start:
                return
            self.checkpoint.append(end)
            self.read(planner, start, end)
            yield

    def read(self, planner: StreamReader, start: str, end: str) -> None:
        """One batch: planned here, read by a reader that has gone through pickle.

        Spark takes a small batch's rows from the planner, or has them read if it has lost them: they must be the same.
        """
        tasks = pickle.loads(pickle.dumps(StreamReader(self.options, self.schema)))
        partitions = pickle.loads(pickle.dumps(planner.partitions(json.loads(start), json.loads(end))))
        handed_over = planner.getCache(json.loads(start), json.loads(end)) if is_simple(planner) else None
        rows = [row for partition in partitions for row in rows_of(tasks.read(partition))]
        self.handed_over.append(handed_over is not None)
        if handed_over is not None:
            assert len(partitions) == 1
            handed_rows = rows_of(handed_over)
            assert handed_rows == rows or (self.is_compacted and all(row in handed_rows for row in rows))
        assert not is_simple(planner)
        self.batches.append(rows)


def is_simple(planner: StreamReader) -> bool:
    """Whether Spark's runner takes it for a simple reader, whose rows come with the plan."""
    return isinstance(planner, _SimpleStreamReaderWrapper)


def rows_of(batches: Iterator[Any]) -> list[dict[str, Any]]:
    """The rows of Arrow batches that are whole."""
    rows = []
    for batch in batches:
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows
