"""Records with typed values: a column for each field of the value, and Kafka's own columns behind an underscore.

`_key`, `_topic`, `_partition`, `_offset`, `_timestamp`, `_timestampType`, `_headers` and `_value` mean the same as
without the underscore (`arrow`); all other names belong to the value's fields. `_bad` is null, or describes a malformed
value: its bytes, and what is wrong with it; the value's columns are then null.

With `mode=dropmalformed`, rows with malformed values are dropped; with `failfast`, the first one ends the query. If
`deadLetterTopic` is given, they also go there unchanged, with headers that say where from and why. They are sent before
Spark gets the rows, and again if Spark repeats a task: at least once.

Left out: typed keys; schema registries.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kraftpy.spark.arrow import MAY_BE_NULL, TYPES, column_builder, cuts
from kraftpy.spark.lookup import admin_options
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.options import ReadOptions
from kraftpy.spark.value_options import ValueOptions
from kraftpy.spark.values import Decoded, Malformed, decoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kraftpy.client.ranges.columns import Columns
    from kraftpy.types import TopicPartition

logger = logging.getLogger("kraftpy.spark")

BAD = "_bad"
BAD_TYPE = "struct<value:binary,error:string>"
OWN_TYPES = {**{f"_{name}": kind for name, kind in TYPES.items()}, BAD: BAD_TYPE}
"""The columns that are not fields of a value, with their types in Spark's words."""

_NOT_BY_DEFAULT = frozenset({"_value", "_headers"})
_BY_LOWERED_NAME = {name.lower(): name for name in OWN_TYPES}


def default_typed_ddl(values: ValueOptions, *, include_headers: bool) -> str:
    """Return the columns of a query that names none. Raises OptionError if the fields are unknown."""
    if values.ddl is None:
        raise OptionError("value.schema: the value's fields are not known; give them here, or with .schema(...)")
    own = [
        f"{name} {kind}"
        for name, kind in OWN_TYPES.items()
        if name not in _NOT_BY_DEFAULT or (include_headers and name == "_headers")
    ]
    return ", ".join([values.ddl.strip().rstrip(","), *own])


class TypedBatches:
    """Builds Arrow batches of one schema from records with typed values. It is pickled and sent to the tasks."""

    def __init__(self, options: ReadOptions, values: ValueOptions, schema: StructType) -> None:
        """Check the schema. Raises OptionError."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._options = options
        self._values = values
        self._own = check_typed_schema(schema)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._decode: Any = None
        self._decoder()  # raises if the types cannot be read

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decode": None}

    def _decoder(self) -> Any:
        import pyarrow as pa

        if self._decode is None:
            fields = [field for field, own in zip(self._schema, self._own, strict=True) if own is None]
            self._decode = decoder(self._values.format, pa.struct(fields), self._values.avro_schema)
        return self._decode

    def __call__(self, records: Columns, where: TopicPartition) -> Iterator[pa.RecordBatch]:
        """Convert records of one topic partition. Raises CorruptBatch, and MalformedValue with mode=failfast."""
        import pyarrow as pa

        from kraftpy.client.ranges.columns import value_array

        for start, stop in cuts(records):
            rows = records.slice(start, stop)
            values = value_array(rows)
            decoded: Decoded = self._decoder()(values)
            if decoded.errors:
                self._report_malformed(decoded.errors, rows, where)
            batch = pa.RecordBatch.from_arrays(self._columns(rows, values, decoded, where), schema=self._schema)
            if decoded.errors and self._values.mode == "dropmalformed":
                batch = batch.filter(pa.array([row not in decoded.errors for row in range(len(rows))]))
            if batch.num_rows:
                yield batch

    def _columns(self, rows: Columns, values: pa.Array, decoded: Decoded, where: TopicPartition) -> list[pa.Array]:
        # The struct's nulls must reach its fields: `flatten` puts them there.
        fields = iter(decoded.rows.flatten())
        columns = []
        for own, field in zip(self._own, self._schema, strict=True):
            if own is None:
                columns.append(next(fields))
            elif own == BAD:
                columns.append(_bad_column(values, decoded.errors, field.type))
            else:
                columns.append(column_builder(own.removeprefix("_"), field.type, where)(rows))
        return columns

    def _report_malformed(self, errors: dict[int, str], rows: Columns, where: TopicPartition) -> None:
        first = min(errors)
        example = f"{where}, offset {rows.offsets[first]}: {errors[first]}"
        if self._values.mode == "failfast":
            raise MalformedValue(f"malformed value in {example}")
        if self._values.dead_letter_topic is not None:
            asyncio.run(_send(self._options, self._values.dead_letter_topic, rows, errors, where))
        if self._values.mode == "dropmalformed" or BAD not in self._own:  # no row shows it
            logger.warning("%d malformed values; the first is in %s", len(errors), example)


class MalformedValue(Malformed):
    """With mode=failfast: a value does not match the schema."""


def check_typed_schema(schema: StructType) -> tuple[str | None, ...]:
    """Return, for each field of the schema, our own column of that name, or None. Raises OptionError."""
    found: list[str | None] = []
    for field in schema.fields:
        own = _BY_LOWERED_NAME.get(field.name.lower())
        if own is None and field.name.startswith("_"):
            close = difflib.get_close_matches(field.name, sorted(OWN_TYPES), n=1, cutoff=0.75)
            if close:
                raise OptionError(f"schema: there is no column {field.name!r}; did you mean {close[0]!r}?")
        kind = field.dataType.simpleString()
        if own is not None and kind != OWN_TYPES[own]:
            raise OptionError(f"schema: column {own!r} is {OWN_TYPES[own]}, not {kind}")
        if not field.nullable and (own is None or own == BAD or own.removeprefix("_") in MAY_BE_NULL):
            raise OptionError(f"schema: column {field.name!r} is null for a malformed record, so it cannot be NOT NULL")
        found.append(own)
    names = [field.name.lower() for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"schema: there are two columns {twice[0]!r}; name a value's field otherwise")
    if None not in found:
        raise OptionError(
            "schema: none of its columns is a field of the value; leave value.format out to read the rest"
        )
    return tuple(found)


def _bad_column(values: pa.Array, errors: dict[int, str], kind: pa.StructType) -> pa.Array:
    import pyarrow as pa

    if not errors:
        return pa.nulls(len(values), kind)
    rows: list[dict[str, Any] | None] = [None] * len(values)
    for row, error in errors.items():
        rows[row] = {"value": values[row].as_py(), "error": error}
    return pa.array(rows, kind)


async def _send(options: ReadOptions, topic: str, rows: Columns, errors: dict[int, str], where: TopicPartition) -> None:
    """Produce malformed records to the topic, and wait until they are written. Raises KafkaError."""
    from kraftpy.client.producer.producer import Producer

    async with Producer(**admin_options(options.client)) as producer:
        for row, error in errors.items():
            details = {"topic": where.topic, "partition": where.partition, "offset": rows.offsets[row], "error": error}
            headers = [*rows.headers(row), *((f"kraftpy.{name}", str(what).encode()) for name, what in details.items())]
            timestamp_ms = int(rows.timestamps[row])
            await producer.send(
                topic,
                rows.value(row),
                rows.key(row),
                timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None,
                headers=headers,
            )
        await producer.flush()
