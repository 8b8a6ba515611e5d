"""Data frames for sinks, without Spark: Arrow batches, the schema Spark would give, and what a topic holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from kraftpy.client.ranges.columns import Columns, decode_columns
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.spark.sink_options import parse_write_options
from kraftpy.spark.sink_rows import SinkColumns, check_columns
from kraftpy.types import TopicPartition

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def frame(**columns: Any) -> pa.RecordBatch:
    """Columns as Arrow arrays; lists are of strings or numbers, as Arrow takes them."""
    return pa.RecordBatch.from_pydict(columns)


def columns_of(batch: pa.RecordBatch, **options: str) -> SinkColumns:
    return check_columns(from_arrow_schema(batch.schema), parse_write_options(with_servers(options)))


def with_servers(options: dict[str, str], bootstrap: str = "127.0.0.1:9092") -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, **{name.replace("__", "."): text for name, text in options.items()}}


def records_in(
    bootstrap: str, topic: str, *, isolation_level: str = "read_uncommitted"
) -> list[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]:
    """The records of all partitions: (partition, key, value, headers), by partition and offset."""
    found = []
    with RangeReader(bootstrap, isolation_level=isolation_level) as reader:
        partitions = [TopicPartition(topic, p.partition) for p in reader.topics([topic])[topic].partitions]
        ends = reader.latest(partitions)
        for where in partitions:
            for chunk in reader.read(where, 0, ends[where]):
                rows: Columns = decode_columns(
                    chunk.records, start_offset=chunk.start_offset, end_offset=chunk.end_offset, aborted=chunk.aborted
                )
                found += [(where.partition, rows.key(n), rows.value(n), rows.headers(n)) for n in range(len(rows))]
    return found
