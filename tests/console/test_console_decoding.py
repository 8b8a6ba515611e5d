"""Decoding of keys and values: each form, the guess, and hostile bytes."""

from __future__ import annotations

import io
import json
import random
import struct

import fastavro
import msgpack
import pytest

from kraftpy.console.decoding import FORMS, MOST_DECODED, MOST_SHOWN, Decoder, hex_text

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "data", "type": "bytes"},
    ],
}
ORDER = {"id": 5, "note": "x", "tags": ["a", "b"], "data": b"\xff"}


def _avro(value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), value)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", "null"),
        (b"", "text", ""),
        (b"hello", "text", "hello"),
        ("Größe\n1".encode(), "text", "Größe\n1"),
        (b'{"a": [1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b" [true]", "json", "[\n  true\n]"),
        (b"[not json", "text", "[not json"),
        (b"17", "text", "17"),
        (msgpack.packb({"a": b"\xff\x00", 1: 2}), "msgpack", '{\n  "a": "/wA=",\n  "1": 2\n}'),
        (b"\xff\x00\x01", "hex", "00000000  ff 00 01" + " " * 39 + "  ..."),
    ],
)
def test_the_form_is_guessed(data: bytes | None, form: str, text: str) -> None:
    decoded = Decoder().decode(data)
    assert (decoded.form, decoded.text, decoded.problem) == (form, text, None)


def test_avro_with_and_without_the_header_of_a_registry() -> None:
    decoder = Decoder("avro", json.dumps(SCHEMA))
    for data in (_avro(ORDER), b"\0" + struct.pack(">i", 12) + _avro(ORDER)):
        decoded = decoder.decode(data)
        assert decoded.form == "avro"
        assert decoded.document["tags"] == ["a", "b"]
        assert json.loads(decoded.text)["data"] == "/w=="
    zero = Decoder("avro", '{"type": "record", "name": "z", "fields": [{"name": "a", "type": "string"}]}')
    assert zero.decode(b"\0").document == {"a": ""}


def test_what_is_not_of_the_form_is_shown_as_hex_with_the_reason() -> None:
    for form, schema in (("json", ""), ("msgpack", ""), ("avro", json.dumps(SCHEMA))):
        decoded = Decoder(form, schema).decode(b"\xc1{\xff")
        assert decoded.form == "hex"
        assert decoded.problem is not None
        assert decoded.problem.startswith("not ")
        assert not decoded.has_document


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("", "needs the writer's schema"),
        ("{", "not JSON"),
        ('"nonsense"', "cannot be read"),
        ('{"type": "record"}', "cannot be read"),
        ("[" * 100_000, "not JSON|cannot be read"),
        ('{"type": "array", "items": "null"}', "null outside of a union"),
        ('{"type": "record", "name": "a", "fields": []}', "has no fields"),
        ('{"type": "fixed", "name": "a", "size": 0}', "has no bytes"),
        (
            '{"type": "record", "name": "a.L", "fields": [{"name": "n", "type": ["null", "a.L"]}]}',
            "refers to itself",
        ),
    ],
)
def test_schemas_that_are_refused(schema: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Decoder("avro", schema)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="not a form"):
        Decoder("protobuf")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 100_000,
        b"[" + b"9" * 100_000 + b"]",
        b'"\\ud800"',
        b'["\\ud800"]',
        b"[NaN, Infinity, 1e999]",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\x81\x81\x01\x02\x03",
        b"\xff" * 100,
        b"\x00" * 100,
        b"x" * (MOST_DECODED + 1),
        b"{" + b" " * MOST_DECODED + b"}",
    ],
)
def test_hostile_bytes_are_shown_in_every_form(data: bytes) -> None:
    for form in FORMS:
        decoded = Decoder(form, json.dumps(SCHEMA) if form == "avro" else "").decode(data)
        assert decoded.size == len(data)
        decoded.text.encode()  # no halves of surrogate pairs
        assert len(decoded.shown) <= MOST_SHOWN
        assert "\n" not in decoded.line
        assert len(decoded.line) <= 200


def test_random_bytes_are_shown_in_every_form() -> None:
    chance = random.Random(7)
    decoders = [Decoder(form, json.dumps(SCHEMA) if form == "avro" else "") for form in FORMS]
    for _ in range(500):
        data = bytes(chance.choices(range(256), k=chance.randrange(40)))
        for decoder in decoders:
            decoder.decode(data).text.encode()


def test_hex_is_written_sixteen_bytes_a_line() -> None:
    first, second = hex_text(b"0123456789abcdef\x00").splitlines()
    assert first == "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef"
    assert second.startswith("00000010  00 ")
