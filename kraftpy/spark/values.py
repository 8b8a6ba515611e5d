"""Parse values into columns: JSON, MessagePack and Avro to Arrow structs, a batch at a time, naming malformed values.

A batch of JSON is parsed once for all columns, in C++. Its values are joined, each as `{"v":<value>}`, so that any
value either begins a row or fails the parse; if there are as many rows as values, every row belongs to its value. Only
if that fails, or if a column has a type that the parser does not know, is each value parsed separately.

Invariant: the result for a value, columns or an error, does not depend on its neighbours: what the fast parser
accepts, the slow one accepts too, with the same result. (Exceptions: `Inf` without its `inity`, integers of over 4300
digits, and JSON nested some thousand levels deep; these are malformed only beside a malformed neighbour.)

A null (a tombstone) and the JSON text `null` are not malformed: all columns are null. Fields that the schema does not
name are ignored, missing ones are null. Times are ISO 8601 text, in UTC if they name no zone, or the native times of
MessagePack and Avro. A number is not a time, because its unit would be a guess.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kraftpy.spark.offsets import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

Converter = Callable[[Any], Any]

_ONE_BY_ONE = 512
"""About how many JSON values are parsed one by one around a malformed one."""


class Decoded(NamedTuple):
    """A struct for each value, null if the value is null or malformed, and an error for each malformed one."""

    rows: pa.StructArray
    errors: dict[int, str]


class Malformed(ValueError):
    """A value does not match the schema."""


def decoder(kind: str, row: pa.StructType, avro_schema: str | None = None) -> Callable[[pa.Array], Decoded]:
    """Return a function from binary values of a format to rows of a type. Raises OptionError for unreadable types."""
    for field in row:
        _check_type(field.name, field.type)
    match kind:
        case "json":
            return _JsonDecoder(row)
        case "msgpack":
            return _OneByOne(row, _msgpack_parser(), _converter(row))
        case "avro":
            assert avro_schema is not None
            return _OneByOne(row, _avro_parser(avro_schema), _converter(row))
        case _:
            raise AssertionError(kind)


def _check_type(name: str, kind: pa.DataType) -> None:
    from pyarrow import types

    if types.is_map(kind):
        _check_type(name, kind.key_type)
        _check_part(name, kind.item_field)
    elif types.is_struct(kind) or types.is_list(kind):
        for index in range(kind.num_fields):
            _check_part(name, kind.field(index))
    elif not any(
        is_one(kind)
        for is_one in (
            types.is_boolean,
            types.is_signed_integer,
            types.is_floating,
            types.is_string,
            types.is_binary,
            types.is_date32,
            types.is_timestamp,
            types.is_decimal,
        )
    ):
        raise OptionError(f"schema: column {name!r} has a type that values cannot be read as: {kind}")


def _check_part(name: str, part: pa.Field) -> None:
    if not part.nullable:
        raise OptionError(f"schema: a part of column {name!r} is NOT NULL, which no value can guarantee")
    _check_type(name, part.type)


# One by one ----------------------------------------------------------------------------------------------------------


class _OneByOne:
    """Parses each value into Python objects, and has Arrow build columns from them."""

    def __init__(self, row: pa.StructType, parse: Callable[[bytes], Any], convert: Converter | None) -> None:
        self._row = row
        self._parse = parse
        self._convert = convert

    def __call__(self, values: pa.Array) -> Decoded:
        rows: list[Any] = []
        errors: dict[int, str] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._one(value))
            except Malformed as error:
                errors[index] = str(error)
                rows.append(None)
        return Decoded(_to_array(rows, self._row, 0, errors), errors)

    def _one(self, value: bytes | None) -> Any:
        if value is None:
            return None
        row = self._parse(value)
        if row is None:
            return None
        if not isinstance(row, dict):
            raise Malformed(f"the value has no fields: it is of Python type {type(row).__name__}")
        return self._convert(row) if self._convert is not None else row


def _to_array(rows: Sequence[Any], kind: pa.StructType, first: int, errors: dict[int, str]) -> pa.StructArray:
    """Convert rows to an array; if Arrow refuses, halve them until the rows that it refuses are found."""
    import pyarrow as pa

    try:
        array = pa.array(rows, kind)
        array.validate(full=True)
        return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if len(rows) == 1:
            errors[first] = str(error)
            return pa.nulls(1, kind)
    half = len(rows) // 2
    return pa.concat_arrays(
        [_to_array(rows[:half], kind, first, errors), _to_array(rows[half:], kind, first + half, errors)]
    )


def _msgpack_parser() -> Callable[[bytes], Any]:
    import msgpack

    def parse(value: bytes) -> Any:
        try:
            return msgpack.unpackb(value, timestamp=3, strict_map_key=False)
        except (ValueError, msgpack.UnpackException) as error:  # StackError and ExtraData are ValueErrors
            raise Malformed(f"not MessagePack: {str(error) or type(error).__name__}") from None

    return parse


def _avro_parser(text: str) -> Callable[[bytes], Any]:
    try:
        import fastavro
    except ImportError:
        raise OptionError("value.format: avro needs the package fastavro (pip install 'kraftpy[avro]')") from None
    try:
        schema = fastavro.parse_schema(json.loads(text))
    except Exception as error:  # fastavro raises many kinds
        raise OptionError(f"value.schema: {error}") from None

    def parse(value: bytes) -> Any:
        stream = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # bytes that are not Avro can lead to any of them
            raise Malformed(f"not Avro of this schema: {str(error) or type(error).__name__}") from None
        left = len(value) - stream.tell()
        if left:
            raise Malformed(f"not Avro of this schema: {left} bytes are left over")
        return row

    return parse


def _json_parser(decimals: bool) -> Callable[[bytes], Any]:
    parse_float = Decimal if decimals else float

    def parse(value: bytes) -> Any:
        try:
            return json.loads(value, parse_float=parse_float)
        except RecursionError:
            raise Malformed("not JSON that can be read: it is nested too deeply") from None
        except ValueError as error:  # UnicodeDecodeError is one
            raise Malformed(f"not JSON: {error}") from None

    return parse


# Conversions that Arrow lacks ----------------------------------------------------------------------------------------


def _converter(kind: pa.DataType, *, base64_text: bool = False) -> Converter | None:
    """Return a function that prepares Python objects for Arrow's conversion to this type; None if none is needed."""
    from pyarrow import types

    def of(part: pa.DataType) -> Converter | None:
        return _converter(part, base64_text=base64_text)

    if types.is_struct(kind):
        return _struct_converter({field.name: each for field in kind if (each := of(field.type)) is not None})
    if types.is_list(kind):
        return _list_converter(of(kind.value_type))
    if types.is_map(kind):
        return _map_converter(of(kind.key_type), of(kind.item_type))
    if types.is_timestamp(kind):
        return _to_timestamp if kind.tz is not None else _to_local_timestamp
    if types.is_date(kind):
        return _to_date
    if types.is_decimal(kind):
        return _to_decimal
    if types.is_binary(kind):
        return _from_base64 if base64_text else None
    if types.is_floating(kind):
        return _to_float
    if types.is_string(kind):
        return _to_text
    return _to_int if types.is_integer(kind) else None


def _struct_converter(parts: dict[str, Converter]) -> Converter | None:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value  # None, or something that Arrow refuses
        value = dict(value)
        for name, part in parts.items():
            if value.get(name) is not None:
                try:
                    value[name] = part(value[name])
                except Malformed as error:
                    raise Malformed(f"{name}: {error}") from None
        return value

    return convert if parts else None


def _list_converter(part: Converter | None) -> Converter | None:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise Malformed(f"{value!r:.50} is not a list")
        return value if part is None else [None if each is None else part(each) for each in value]

    return convert


def _map_converter(key: Converter | None, item: Converter | None) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Malformed(f"{value!r:.50} is not a map")
        return [
            (key(name) if key is not None else name, item(each) if item is not None and each is not None else each)
            for name, each in value.items()
        ]

    return convert


def _to_timestamp(value: Any) -> datetime:
    moment = _moment(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _to_local_timestamp(value: Any) -> datetime:
    moment = _moment(value)
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise Malformed(f"{value!r:.50} is not a time in ISO 8601")


def _to_date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Malformed(f"{value!r:.50} is not a date in ISO 8601")


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, (str, int, float, Decimal)) and not isinstance(value, bool):
        try:
            return value if isinstance(value, Decimal) else Decimal(str(value))
        except InvalidOperation:
            pass
    raise Malformed(f"{value!r:.50} is not a decimal number")


def _to_float(value: Any) -> float:
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)  # like 1e999
    raise Malformed(f"{value!r:.50} is not a number")


def _to_text(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value  # Arrow refuses anything that is not text


def _to_int(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Malformed(f"{value!r:.50} is not a whole number")


def _from_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise Malformed(f"{value!r:.50} is not base64, the form of binary data in JSON") from None


# JSON ----------------------------------------------------------------------------------------------------------------


class _JsonDecoder:
    """Parses all values at once if possible, otherwise one by one."""

    def __init__(self, row: pa.StructType) -> None:
        from pyarrow import types

        self._row = row
        decimals = _has(row, types.is_decimal)
        self._slow = _OneByOne(row, _json_parser(decimals), _converter(row, base64_text=True))
        self._is_quick = not any(
            _has(row, is_one) for is_one in (types.is_date, types.is_decimal, types.is_binary, types.is_map)
        )

    def __call__(self, values: pa.Array) -> Decoded:
        import pyarrow as pa

        if not self._is_quick:
            return self._slow(values)
        try:
            return Decoded(self._all_at_once(values), {})
        except pa.ArrowException:  # something is malformed: narrow it down
            half = len(values) // 2
            if half < _ONE_BY_ONE:
                return self._slow(values)
        first, second = self(values.slice(0, half)), self(values.slice(half))
        rows = pa.concat_arrays([first.rows, second.rows])
        return Decoded(rows, {**first.errors, **{half + index: why for index, why in second.errors.items()}})

    def _all_at_once(self, values: pa.Array) -> pa.StructArray:
        """Parse all values together. Raises ArrowException if any is malformed."""
        import pyarrow as pa
        from pyarrow import compute, json

        present = values.drop_null() if values.null_count else values
        if not len(present):
            return pa.nulls(len(values), self._row)
        prefix, suffix, nothing = (pa.scalar(text, pa.binary()) for text in (b'{"v":', b"}\n", b""))
        joined = compute.binary_join_element_wise(prefix, present, suffix, nothing).buffers()[2]
        table = json.read_json(
            pa.BufferReader(joined),
            read_options=json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 64)),
            parse_options=json.ParseOptions(
                explicit_schema=pa.schema([("v", self._row)]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        rows = table.column("v").combine_chunks()
        if len(rows) != len(present):
            raise pa.ArrowInvalid("one value made several rows")
        rows.validate(full=True)  # the parser does not check UTF-8
        rows = rows.cast(self._row)
        if not values.null_count:
            return rows
        places = compute.subtract(compute.cumulative_sum(values.is_valid().cast(pa.int64())), 1)
        return rows.take(compute.if_else(values.is_valid(), places, pa.scalar(None, pa.int64())))


def _has(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    from pyarrow import types

    if types.is_map(kind):
        return is_one(kind) or _has(kind.key_type, is_one) or _has(kind.item_type, is_one)
    return is_one(kind) or any(_has(kind.field(index).type, is_one) for index in range(kind.num_fields))
