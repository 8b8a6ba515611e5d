"""Values as columns: JSON, MessagePack and Avro, and what is malformed of them."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kraftpy.spark.avro_types import to_ddl
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.values import Decoded, decoder

UTC_TIME = pa.timestamp("us", tz="UTC")
FLIGHT = pa.struct(
    [
        ("flight", pa.int64()),
        ("carrier", pa.string()),
        ("delay", pa.float64()),
        ("cancelled", pa.bool_()),
        ("time", UTC_TIME),
        ("stops", pa.list_(pa.field("element", pa.struct([("airport", pa.string()), ("minutes", pa.int32())])))),
    ]
)
EXOTIC = pa.struct(
    [
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("local", pa.timestamp("us")),
        ("delay", pa.float64()),
    ]
)
NOON = datetime(2013, 7, 4, 12, tzinfo=UTC)


def decode(kind: str, row: pa.StructType, *values: bytes | None, schema: str | None = None) -> Decoded:
    decoded = decoder(kind, row, schema)(pa.array(values, pa.binary()))
    decoded.rows.validate(full=True)
    assert decoded.rows.type == row
    assert len(decoded.rows) == len(values)
    return decoded


def rows(kind: str, row: pa.StructType, *values: bytes | None, schema: str | None = None) -> list[Any]:
    decoded = decode(kind, row, *values, schema=schema)
    assert decoded.errors == {}
    return [
        each and {name: part for name, part in each.items() if part is not None} for each in decoded.rows.to_pylist()
    ]


# JSON ----------------------------------------------------------------------------------------------------------------


def test_json_becomes_columns() -> None:
    text = (
        '{"flight": 7, "carrier": "é", "delay": 2, "cancelled": false, "time": "2013-07-04T14:00:00+02:00", '
        '"stops": [{"airport": "JFK", "minutes": 5, "gate": 1}, null], "unknown": {"flight": "x"}}'
    )
    expected = {
        "flight": 7,
        "carrier": "é",
        "delay": 2.0,
        "cancelled": False,
        "time": NOON,
        "stops": [{"airport": "JFK", "minutes": 5}, None],
    }
    assert rows("json", FLIGHT, text.encode(), None, b"null", b'{\n "flight": null }') == [expected, None, None, {}]


def test_json_of_types_that_are_parsed_one_by_one() -> None:
    text = (
        '{"day": "2013-07-04", "price": 12345678.90, "raw": "AP8=", "tags": {"a": 1, "b": null}, '
        '"local": "2013-07-04 12:00", "delay": 0.5}'
    )
    expected = {
        "day": date(2013, 7, 4),
        "price": Decimal("12345678.90"),
        "raw": b"\x00\xff",
        "tags": [("a", 1), ("b", None)],
        "local": datetime(2013, 7, 4, 12),
        "delay": 0.5,
    }
    assert rows("json", EXOTIC, text.encode(), None, b'{"price": "0.1"}') == [
        expected,
        None,
        {"price": Decimal("0.10")},
    ]


MALFORMED = [
    b"",
    b" ",
    b"nul",
    b"5",
    b'"text"',
    b"[]",
    b'{"flight": 1',
    b'{"flight": 1}{"flight": 2}',
    b'{"flight": 1}\n{"flight": 2}',
    b'{"flight": 1}}\n{"v": {"flight": 2}',
    b'{"flight": "1"}',
    b'{"flight": 1.5}',
    b'{"flight": 9223372036854775808}',
    b'{"flight": true}',
    b'{"carrier": 5}',
    b'{"carrier": "\xff"}',
    b'{"carrier": "\\ud800"}',
    b'{"delay": "late"}',
    b'{"cancelled": 1}',
    b'{"time": 1372939200000}',
    b'{"time": "noon"}',
    b'{"stops": {}}',
    b'{"stops": [{"minutes": 99999999999}]}',
]


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_json_is_named_and_its_neighbours_are_not_touched(value: bytes) -> None:
    decoded = decode("json", FLIGHT, b'{"flight": 1}', value, None, b'{"flight": 3}')
    assert list(decoded.errors) == [1]
    assert len(decoded.errors[1]) > 5
    assert [row and row["flight"] for row in decoded.rows.to_pylist()] == [1, None, None, 3]


def test_nothing_but_malformed_json() -> None:
    decoded = decode("json", FLIGHT, *MALFORMED)
    assert sorted(decoded.errors) == list(range(len(MALFORMED)))
    assert decoded.rows.null_count == len(MALFORMED)


def test_malformed_json_among_many() -> None:
    bad = {0: b"", 1700: b"{", 4999: b'{"flight": "x"}'}
    values = [bad.get(n, b'{"flight": %d}' % n) for n in range(5000)]
    decoded = decode("json", FLIGHT, *values)
    assert sorted(decoded.errors) == sorted(bad)
    found = [row and row["flight"] for row in decoded.rows.to_pylist()]
    assert found == [None if n in bad else n for n in range(5000)]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["airport", "minutes", "x"]), inner),
    max_leaves=5,
)
NEARLY_RIGHT = st.fixed_dictionaries(
    {},
    optional={
        "flight": st.integers(-(2**63), 2**63 - 1) | JSON_VALUES,
        "carrier": st.text(max_size=5) | JSON_VALUES,
        "delay": st.floats(allow_nan=False) | st.integers() | JSON_VALUES,
        "cancelled": st.booleans() | JSON_VALUES,
        "time": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat) | JSON_VALUES,
        "stops": st.lists(st.fixed_dictionaries({"minutes": st.integers(0, 9)}), max_size=3) | JSON_VALUES,
    },
)


@given(st.lists((NEARLY_RIGHT | JSON_VALUES).map(json.dumps), min_size=1, max_size=6))
@example(["[]", '{"delay": 1152921504606846977}'])
@settings(deadline=None)
def test_what_a_value_is_read_as_does_not_depend_on_its_neighbours(texts: list[str]) -> None:
    values = [text.encode() for text in texts]
    together = decode("json", FLIGHT, *values)
    for index, value in enumerate(values):
        alone = decode("json", FLIGHT, value)
        assert (index in together.errors) == (0 in alone.errors)
        assert together.rows[index].as_py() == alone.rows[0].as_py()
    with_a_bad_one = decode("json", FLIGHT, *values, b"{")
    assert with_a_bad_one.rows.to_pylist()[:-1] == together.rows.to_pylist()


@pytest.mark.parametrize(
    "text",
    ["2013-07-04", "2013-07-04T12", "2013-07-04 12:00", "2013-07-04T12:00:00.123456Z", "2013-07-04T12:00:00-05:30"],
)
def test_times_mean_the_same_to_both_parsers(text: str) -> None:
    value = json.dumps({"time": text}).encode()
    assert decode("json", FLIGHT, value).rows[0] == decode("json", FLIGHT, value, b"{").rows[0]


def test_a_value_that_is_nested_deeply_ends_nothing() -> None:
    deep = b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    decoded = decode("json", FLIGHT, deep, b"{")
    assert 1 in decoded.errors
    assert decode("json", EXOTIC, deep).errors.keys() == {0}


# MessagePack ---------------------------------------------------------------------------------------------------------


def test_messagepack_becomes_columns() -> None:
    flight = {
        "flight": 7,
        "carrier": "é",
        "delay": 2,
        "time": NOON,
        "stops": [{"airport": "JFK", "minutes": 5, "gate": 1}],
        "unknown": [1],
    }
    expected = {**flight, "delay": 2.0, "stops": [{"airport": "JFK", "minutes": 5}]}
    del expected["unknown"]
    packed = msgpack.packb(flight, datetime=True)
    assert rows("msgpack", FLIGHT, packed, None, msgpack.packb(None), b"\x80") == [expected, None, None, {}]
    exotic = {"raw": b"\x00\xff", "tags": {"a": 1}, "price": "1.5", "day": "2013-07-04", "local": NOON}
    [row] = rows("msgpack", EXOTIC, msgpack.packb(exotic, datetime=True))
    assert row["raw"] == b"\x00\xff"
    assert row["tags"] == [("a", 1)]
    assert row["local"] == datetime(2013, 7, 4, 12)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x80\x80",
        b"\x91" * 5000,
        msgpack.packb([1]),
        msgpack.packb({"flight": "1"}),
        msgpack.packb({"flight": 2**63}),
        msgpack.packb({"flight": True}),
        msgpack.packb({"time": 1372939200}),
        msgpack.packb({"stops": "JFK"}),
    ],
)
def test_malformed_messagepack(value: bytes) -> None:
    good = msgpack.packb({"flight": 1})
    decoded = decode("msgpack", FLIGHT, good, value, good)
    assert list(decoded.errors) == [1]
    assert [row and row["flight"] for row in decoded.rows.to_pylist()] == [1, None, 1]


# Avro ----------------------------------------------------------------------------------------------------------------

AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "flight", "type": "long"},
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "from", "type": {"type": "record", "name": "Place", "fields": [{"name": "code", "type": "string"}]}},
        {"name": "via", "type": {"type": "array", "items": "Place"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "ticket", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
    ],
}
AVRO_ROW = pa.struct(
    [
        ("flight", pa.int64()),
        ("carrier", pa.string()),
        ("time", UTC_TIME),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("kind", pa.string()),
        ("from", pa.struct([("code", pa.string())])),
        ("via", pa.list_(pa.field("element", pa.struct([("code", pa.string())])))),
        ("raw", pa.binary()),
        ("ticket", pa.string()),
    ]
)
RECORD = {
    "flight": 7,
    "carrier": None,
    "time": NOON,
    "day": date(2013, 7, 4),
    "price": Decimal("12.50"),
    "tags": {"a": 1},
    "kind": "B",
    "from": {"code": "JFK"},
    "via": [{"code": "BOS"}],
    "raw": b"\x00\xff",
    "ticket": UUID("7d444840-9dc0-11d1-b245-5ffdce74fad2"),
}


def packed_avro(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO, record)
    return stream.getvalue()


def test_avro_becomes_columns() -> None:
    value = packed_avro(RECORD)
    expected = {**RECORD, "tags": [("a", 1)], "ticket": str(RECORD["ticket"])}
    del expected["carrier"]
    assert rows("avro", AVRO_ROW, value, None, schema=json.dumps(AVRO)) == [expected, None]
    only = pa.struct([("kind", pa.string()), ("flight", pa.int64())])
    assert rows("avro", only, value, schema=json.dumps(AVRO)) == [{"kind": "B", "flight": 7}]


@pytest.mark.parametrize("value", [b"", b"\xff" * 3, b"garbage", packed_avro(RECORD)[:-1], packed_avro(RECORD) + b"\0"])
def test_malformed_avro(value: bytes) -> None:
    good = packed_avro(RECORD)
    decoded = decode("avro", AVRO_ROW, good, value, good, schema=json.dumps(AVRO))
    assert list(decoded.errors) == [1]
    assert "not Avro of this schema" in decoded.errors[1]


def test_an_avro_schema_in_spark_s_words() -> None:
    assert to_ddl(json.dumps(AVRO)) == (
        "`flight` bigint, `carrier` string, `time` timestamp, `day` date, `price` decimal(10,2), "
        "`tags` map<string, int>, `kind` string, `from` struct<`code`: string>, `via` array<struct<`code`: string>>, "
        "`raw` binary, `ticket` string"
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("not json", "not an Avro schema"),
        ('"string"', "an Avro schema of a record is required"),
        ('{"type": "record", "name": "R", "fields": []}', "record 'R' has no fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a"}]}', "is not a field"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Q"}]}', "no column: 'Q'"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}', "union of several"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}', "no column: 'R'"),
    ],
)
def test_avro_schemas_that_are_no_columns(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"^value\\.schema: .*{message}"):
        to_ddl(schema)


def test_names_in_avro_have_namespaces() -> None:
    def place(namespace: str, part: str) -> dict[str, Any]:
        fields = [{"name": part, "type": "int"}]
        return {"type": "record", "name": "Place", "namespace": namespace, "fields": fields}

    fields = [
        {"name": "a", "type": place("one", "x")},
        {"name": "b", "type": place("two", "y")},
        {"name": "c", "type": "one.Place"},
        {"name": "d", "type": {"type": "array", "items": "two.Place"}},
        {"name": "e", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "f", "type": "Code"},
    ]
    schema = {"type": "record", "name": "three.Trip", "fields": fields}
    assert to_ddl(json.dumps(schema)) == (
        "`a` struct<`x`: int>, `b` struct<`y`: int>, `c` struct<`x`: int>, `d` array<struct<`y`: int>>, "
        "`e` binary, `f` binary"
    )
    fastavro.parse_schema(schema)


@pytest.mark.parametrize("logical", ["time-millis", "duration"])
def test_times_of_day_have_no_column(logical: str) -> None:
    fields = [{"name": "at", "type": {"type": "int", "logicalType": logical}}]
    with pytest.raises(OptionError, match="field 'at' is of a type that has no column"):
        to_ddl(json.dumps({"type": "record", "name": "R", "fields": fields}))


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.list_(pa.null()), pa.month_day_nano_interval()])
def test_types_that_no_value_is_read_as(kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match="column 'a' has a type that values cannot be read as"):
        decoder("json", pa.struct([("a", kind)]))


def test_parts_that_cannot_be_null() -> None:
    with pytest.raises(OptionError, match="a part of column 'a' is NOT NULL"):
        decoder("json", pa.struct([("a", pa.struct([pa.field("b", pa.int64(), nullable=False)]))]))


def test_a_time_a_moment_before_the_epoch() -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
    assert rows("json", FLIGHT, json.dumps({"time": moment.isoformat()}).encode()) == [{"time": moment}]
