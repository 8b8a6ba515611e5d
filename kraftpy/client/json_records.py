"""Records as lines: JSON for programs, text for people, and JSON parsed back to a record.

Bytes that are UTF-8 are shown as text, others as base64 under the name with a `_base64` suffix, so that `consume
--format json | produce --format json` loses nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Headers = Sequence[tuple[str, bytes | None]]


class RecordLike(Protocol):
    """The fields of a record that are shown; the log's and the client's records both have them."""

    @property
    def offset(self) -> int:
        """The record's offset."""
        ...

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        ...

    @property
    def value(self) -> bytes | None:
        """The record's value."""
        ...

    @property
    def headers(self) -> Headers:
        """The record's headers, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to send. None as partition or timestamp leaves the choice to the producer."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def encode_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return one JSON member for some bytes: text if they are UTF-8, base64 if not, null for None."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def record_row(record: RecordLike) -> dict[str, Any]:
    """Return a record as JSON members, with topic and partition if it has them. Times are milliseconds."""
    row: dict[str, Any] = {}
    for name in ("topic", "partition"):
        if hasattr(record, name):
            row[name] = getattr(record, name)
    row["offset"] = record.offset
    row["timestamp"] = getattr(record, "timestamp_ms", getattr(record, "timestamp", -1))
    row |= encode_bytes("key", record.key) | encode_bytes("value", record.value)
    if record.headers:
        row["headers"] = [{"name": name, **encode_bytes("value", value)} for name, value in record.headers]
    return row


def parse_json_record(line: bytes) -> NewRecord:
    """Parse a JSON line as `record_row` writes it; offset, topic and unknown members are ignored.

    `headers` may also be an object of strings. Raises ValueError with the reason.
    """
    try:
        members = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ValueError("expected a JSON object")
    if not members.keys() & {"value", "value_base64", "key", "key_base64"}:
        raise ValueError("neither key nor value is given")
    return NewRecord(
        key=_bytes_of(members, "key"),
        value=_bytes_of(members, "value"),
        headers=_headers_of(members.get("headers") or ()),
        partition=_integer_of(members, "partition"),
        timestamp_ms=_integer_of(members, "timestamp"),
    )


def shown(data: bytes | None) -> str:
    """Format bytes for a person: text, with anything that is not UTF-8 escaped; null for None."""
    return "null" if data is None else data.decode(errors="backslashreplace")


def _bytes_of(members: dict[str, Any], name: str) -> bytes | None:
    encoded = members.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise ValueError(f"{name}_base64 is not base64") from None
    value = members.get(name)
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers_of(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    if isinstance(headers, dict):
        return tuple((str(name), None if value is None else str(value).encode()) for name, value in headers.items())
    if not isinstance(headers, list | tuple):
        raise ValueError("headers must be a list or an object")
    found = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError("each header must be an object with a name")
        found.append((header["name"], _bytes_of(header, "value")))
    return tuple(found)


def _integer_of(members: dict[str, Any], name: str) -> int | None:
    value = members.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise ValueError(f"{name} must be a whole number")
    return None if value == -1 else value
