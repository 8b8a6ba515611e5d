"""Bytes of records as people read them: JSON, MessagePack, Avro, text or hex, or whatever fits.

A value is decoded to a `Decoded`: the text to show, and the document that a JSONPath filter sees, if it is one. Bytes
that are not of the wanted form are shown as hex, with the reason. Nothing that a record says raises anything.

Avro needs the writer's schema as JSON; bytes with the five-byte header of schema registries lose it first. A schema
that refers to itself, or has a type of no bytes outside of a union, is refused: a few bytes could claim endless data.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack

FORMS: Final = ("auto", "json", "text", "msgpack", "avro", "hex")
MOST_SHOWN: Final = 16_384
"""Characters that are shown of one key or value; a page of its own shows more."""
MOST_SCHEMA: Final = 100_000
MOST_DECODED: Final = 4 << 20
"""Bytes: larger values are shown as text or hex only."""
_HEADER_BYTES: Final = 5
_NO_DOCUMENT: Final = object()


class NotOfThisForm(ValueError):
    """Bytes are not what they were said to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A key or value, decoded."""

    text: str
    form: str
    """How it was decoded; "null" for none."""
    size: int
    document: Any = _NO_DOCUMENT
    problem: str | None = None
    """Why it is not shown in the form that was asked for."""

    @property
    def has_document(self) -> bool:
        """True if it is a document that a JSONPath can look into."""
        return self.document is not _NO_DOCUMENT

    @property
    def is_cut(self) -> bool:
        """True if the text is longer than what a list shows."""
        return len(self.text) > MOST_SHOWN

    def cut(self) -> Decoded:
        """Return what a list shows, without the document."""
        return replace(self, text=self.text[: MOST_SHOWN + 1], document=_NO_DOCUMENT)

    @property
    def shown(self) -> str:
        """The text, cut to what a list shows."""
        return self.text[:MOST_SHOWN]

    @property
    def line(self) -> str:
        """The beginning of the text, as one line."""
        return " ".join(self.text[:400].split())[:200]


class Decoder:
    """Decodes bytes in one form. Raises ValueError for an unknown form, and for a schema that cannot be used."""

    def __init__(self, form: str = "auto", schema: str = "") -> None:
        if form not in FORMS:
            raise ValueError(f"{form!r} is not a form: expected one of {', '.join(FORMS)}")
        self.form = form
        self._avro = _avro_reader(schema) if form == "avro" else None

    def decode(self, data: bytes | None) -> Decoded:
        """Return the bytes, decoded."""
        if data is None:
            return Decoded(text="null", form="null", size=0)
        try:
            return self._decoded(data)
        except NotOfThisForm as error:
            return Decoded(text=hex_text(data), form="hex", size=len(data), problem=str(error))

    def _decoded(self, data: bytes) -> Decoded:
        size = len(data)
        match self.form:
            case "hex":
                return Decoded(text=hex_text(data), form="hex", size=size)
            case "text":
                return Decoded(text=data.decode("utf-8", "backslashreplace"), form="text", size=size)
            case "json":
                return _document(_json(data), "json", size)
            case "msgpack":
                return _document(_msgpack(data), "msgpack", size)
            case "avro":
                assert self._avro is not None
                return _document(self._avro(data), "avro", size)
        return _guessed(data)


def _guessed(data: bytes) -> Decoded:
    """Return JSON objects and arrays, readable text, MessagePack's maps and arrays, and everything else as hex."""
    size = len(data)
    if data[:1].strip() in (b"{", b"[", b"") or data[:1].isspace():
        try:
            return _document(_json(data), "json", size)
        except NotOfThisForm:
            pass
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and all(each.isprintable() or each.isspace() for each in text[:MOST_SHOWN]):
        return Decoded(text=text, form="text", size=size)
    try:
        document = _msgpack(data)
    except NotOfThisForm:
        pass
    else:
        if isinstance(document, dict | list) and document:
            return _document(document, "msgpack", size)
    return Decoded(text=hex_text(data), form="hex", size=size)


def hex_text(data: bytes) -> str:
    """Return lines of sixteen bytes: the offset, the bytes in hex, and those that are ASCII."""
    lines = []
    for at in range(0, min(len(data), MOST_DECODED // 4), 16):
        part = data[at : at + 16]
        ascii_part = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {ascii_part}")
    return "\n".join(lines)


def _document(document: Any, form: str, size: int) -> Decoded:
    try:
        text = json.dumps(document, ensure_ascii=False, indent=2, default=_other)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotOfThisForm(f"cannot be shown as JSON: {error}") from None
    text = text.encode("utf-8", "backslashreplace").decode()  # JSON may name halves of surrogate pairs
    return Decoded(text=text, form=form, size=size, document=document)


def _other(value: Any) -> str:
    """Return what JSON lacks as text: bytes as base64, times and numbers as they are written."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _json(data: bytes) -> Any:
    _check_size(data)
    try:
        return json.loads(data)
    except RecursionError:
        raise NotOfThisForm("not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise NotOfThisForm(f"not JSON: {error}") from None


def _msgpack(data: bytes) -> Any:
    _check_size(data)
    try:
        return _with_text_keys(msgpack.unpackb(data, timestamp=3, strict_map_key=False), 0)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise NotOfThisForm(f"not MessagePack: {str(error) or type(error).__name__}") from None


def _with_text_keys(value: Any, depth: int) -> Any:
    """Return a document whose maps have texts as keys, as in JSON."""
    if depth > 100:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_text_keys(each, depth + 1) for each in value]
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _other(key)


def _check_size(data: bytes) -> None:
    if len(data) > MOST_DECODED:
        raise NotOfThisForm(f"{len(data):,} bytes are too many to be decoded here")


# Avro ----------------------------------------------------------------------------------------------------------------


def _avro_reader(text: str) -> Callable[[bytes], Any]:
    """Return a function that reads values of a schema. Raises ValueError."""
    try:
        import fastavro
    except ImportError:
        raise ValueError("Avro needs the package fastavro (pip install 'kraftpy[avro]')") from None
    if not text.strip():
        raise ValueError("Avro needs the writer's schema, as JSON")
    if len(text) > MOST_SCHEMA:
        raise ValueError(f"the schema is longer than {MOST_SCHEMA:,} characters")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    try:
        _check_schema(given, ())
        schema = fastavro.parse_schema(given)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the schema cannot be read: {error!r:.200}") from None
    except Exception as error:  # fastavro raises many kinds
        raise ValueError(f"the schema cannot be read: {error}") from None

    def read(data: bytes) -> Any:
        _check_size(data)
        body = data[_HEADER_BYTES:] if data[:1] == b"\0" and len(data) > _HEADER_BYTES else data
        problem = ""
        for candidate in dict.fromkeys((body, data)):  # a value of its own may begin with a zero, too
            stream = io.BytesIO(candidate)
            try:
                found = fastavro.schemaless_reader(stream, schema, None)
            except Exception as error:  # bytes that are not Avro can lead to any of them
                problem = str(error) or type(error).__name__
                continue
            if stream.tell() == len(candidate):
                return found
            problem = f"{len(candidate) - stream.tell()} bytes are left over"
        raise NotOfThisForm(f"not Avro of this schema: {problem}")

    return read


def _check_schema(schema: Any, within: tuple[str, ...] = (), *, is_branch: bool = False) -> None:
    """Raise ValueError for a schema by which a few bytes would be read for ever, or too deep for the reader."""
    if isinstance(schema, str):
        if schema.rpartition(".")[2] in within:
            raise ValueError(f"{schema} refers to itself: such schemas are not read here")
        if schema == "null" and not is_branch:
            raise ValueError("null outside of a union is not read here")
        return
    if isinstance(schema, list):
        for each in schema:
            _check_schema(each, within, is_branch=True)
        return
    kind = schema["type"]
    if kind in ("record", "error"):
        if not schema["fields"]:
            raise ValueError(f"{schema['name']} has no fields: such schemas are not read here")
        for field in schema["fields"]:
            _check_schema(field["type"], (*within, schema["name"].rpartition(".")[2]))
    elif kind in ("array", "map"):
        _check_schema(schema["items" if kind == "array" else "values"], within)
    elif kind == "fixed":
        if schema["size"] < 1:
            raise ValueError(f"{schema['name']} has no bytes: such schemas are not read here")
    elif kind != "enum":
        _check_schema(kind, within, is_branch=is_branch)
