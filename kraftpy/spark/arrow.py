"""Convert Kafka records to Arrow batches with exactly the columns that Spark asked for.

Since 4.2, Spark accepts a batch only if its schema equals, to the letter, the one it derives from the query's schema;
the arrays are built to that schema, in its order. Apart from headers, no Python object is created per record.

Invariant: a column that was not asked for costs nothing. A user's schema thus provides the column pruning that Spark's
Python sources lack.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kraftpy.spark.offsets import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kraftpy.client.ranges.columns import Columns
    from kraftpy.types import TopicPartition

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""All columns with their types in Spark's words, in the order of Spark's own Kafka source."""

ROWS_PER_BATCH = 16_384
BYTES_PER_BATCH = 8 << 20
"""A batch ends beyond this many bytes of keys and values, give or take a record: Spark holds several in memory."""
HEADER_BYTES_PER_BATCH = 1 << 20
"""A batch also ends beyond this many bytes of headers: each header, however small, becomes a Python object."""

MAY_BE_NULL = frozenset({"key", "value", "headers"})
_BY_LOWERED_NAME = {name.lower(): name for name in TYPES}


def default_schema_ddl(*, include_headers: bool) -> str:
    """Return the columns of a query that names none."""
    return ", ".join(f"{name} {kind}" for name, kind in TYPES.items() if include_headers or name != "headers")


def check_schema(schema: StructType) -> tuple[str, ...]:
    """Return our column for each field of the schema, in order; names match without regard to case, as in Spark.

    Raises OptionError for a name, a type or a NOT NULL that cannot be served.
    """
    columns = []
    for field in schema.fields:
        column = _BY_LOWERED_NAME.get(field.name.lower())
        if column is None:
            close = difflib.get_close_matches(field.name.lower(), sorted(_BY_LOWERED_NAME), n=1)
            guess = f"; did you mean {_BY_LOWERED_NAME[close[0]]!r}?" if close else "."
            raise OptionError(f"schema: there is no column {field.name!r}{guess} There are {', '.join(TYPES)}")
        if field.dataType.simpleString() != TYPES[column]:
            raise OptionError(f"schema: column {column!r} is {TYPES[column]}, not {field.dataType.simpleString()}")
        if column in MAY_BE_NULL and not field.nullable:
            raise OptionError(f"schema: column {column!r} may be null in Kafka, so it cannot be NOT NULL")
        columns.append(column)
    if not columns:
        raise OptionError(f"schema: it has no columns; there are {', '.join(TYPES)}")
    return tuple(columns)


class Batches:
    """Builds Arrow batches of one schema from records. It is pickled and sent to the tasks."""

    def __init__(self, schema: StructType) -> None:
        """Check the schema. Raises OptionError."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._columns = check_schema(schema)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def __call__(self, records: Columns, where: TopicPartition) -> Iterator[pa.RecordBatch]:
        """Convert the records of one topic partition. Raises CorruptBatch for malformed headers."""
        import pyarrow as pa

        builders = [
            column_builder(column, field.type, where) for column, field in zip(self._columns, self._schema, strict=True)
        ]
        for start, stop in cuts(records):
            rows = records.slice(start, stop)
            yield pa.RecordBatch.from_arrays([build(rows) for build in builders], schema=self._schema)


def cuts(records: Columns) -> Iterator[tuple[int, int]]:
    """Yield where to split: every ROWS_PER_BATCH rows, or sooner if the rows or their headers are large."""
    count = len(records)
    start = 0
    while start < count:
        stop = min(start + ROWS_PER_BATCH, count)
        limit = records.key_starts[start] + BYTES_PER_BATCH
        if records.value_ends[stop - 1] > limit:
            fitting = int(records.value_ends[start:stop].searchsorted(limit, side="right"))
            stop = start + max(fitting, 1)
        header_bytes = (records.header_ends[start:stop] - records.header_starts[start:stop]).cumsum()
        if header_bytes[-1] > HEADER_BYTES_PER_BATCH:
            fitting = int(header_bytes.searchsorted(HEADER_BYTES_PER_BATCH, side="right"))
            stop = start + max(fitting, 1)
        yield start, stop
        start = stop


def column_builder(column: str, kind: pa.DataType, where: TopicPartition) -> Callable[[Columns], Any]:
    """Return a function that builds one column's array from records."""
    import pyarrow as pa

    from kraftpy.client.ranges import columns as arrays

    match column:
        case "key":
            return arrays.key_array
        case "value":
            return arrays.value_array
        case "topic":
            return lambda rows: pa.repeat(where.topic, len(rows))
        case "partition":
            return lambda rows: pa.repeat(pa.scalar(where.partition, pa.int32()), len(rows))
        case "offset":
            return lambda rows: pa.array(rows.offsets)
        case "timestamp":
            return arrays.timestamp_array
        case "timestampType":
            return lambda rows: pa.array(rows.timestamp_types)
        case "headers":
            # If a record has no headers, the value is null, not empty, as in Spark's own source.
            return lambda rows: arrays.headers_array(rows, kind, empty_is_null=True)
        case _:
            raise AssertionError(column)
