"""A bounded reader of OpenTelemetry's `MetricsData`, the protobuf message that clients push (KIP-714).

`read` returns the number data points of gauges and sums, the only kinds that clients push today. Histograms and
summaries are counted, not read. `with_resource` adds attributes to each resource of a message without decoding the
rest, for a collector that receives it as an `ExportMetricsServiceRequest`, which is the same on the wire.

This is a reader of our own because generated classes have no bounds: a megabyte may hold half a million empty messages,
which they would all create, with the interpreter's lock held. Here a message may have `MAX_POINTS` data points and
`MAX_FIELDS` fields. Texts are cut at `MAX_TEXT` characters. Any bytes yield points or `Malformed`.

The format: opentelemetry-proto, `opentelemetry/proto/metrics/v1/metrics.proto`, and protobuf's encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kraftpy.ports import Buffer

MAX_POINTS: Final = 10_000
MAX_FIELDS: Final = 200_000
MAX_ATTRIBUTES: Final = 32
"""Attributes of a data point, with those of its resource; further ones are left out."""
MAX_TEXT: Final = 256

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RESOURCE_METRICS = 1
_RESOURCE, _SCOPE_METRICS = 1, 2
_METRICS = 2
_NAME, _DESCRIPTION, _UNIT, _GAUGE, _SUM = 1, 2, 3, 5, 7
_OTHER_KINDS: Final = {9: "histogram", 10: "exponential histogram", 11: "summary"}
_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_AS_DOUBLE, _AS_INT, _POINT_ATTRIBUTES = 4, 6, 7
_DELTA = 1
_DOUBLE = struct.Struct("<d")
_INT = struct.Struct("<q")


class Malformed(Exception):
    """The bytes are not such a message, or have too many parts."""


class Point(NamedTuple):
    """The value of a metric, for a set of attributes."""

    name: str
    description: str
    unit: str
    attributes: tuple[tuple[str, str], ...]
    """Those of the resource and of the point, sorted; the point's take precedence."""
    value: float
    is_monotonic: bool
    """A counter: it only grows."""
    is_delta: bool
    """The value is the growth since the last push, not the total."""


class Read(NamedTuple):
    """The content of a message."""

    points: list[Point]
    left_out: int
    """Metrics of kinds that are not read."""


def read(data: Buffer) -> Read:
    """Read a message. Raises Malformed."""
    return _Reader(data).read()


def with_resource(data: Buffer, attributes: Mapping[str, str]) -> bytes:
    """Return the message with attributes added to each of its resources. Raises Malformed.

    A field that occurs twice is merged when it is decoded, so a second `Resource` adds to the attributes of the first.
    """
    resource = b"".join(
        _delimited(1, _delimited(1, name.encode()) + _delimited(2, _delimited(1, value.encode("utf-8", "replace"))))
        for name, value in attributes.items()
    )
    added = _delimited(_RESOURCE, resource)
    reader = _Reader(data)
    parts = []
    for field, value in reader.fields(0, len(reader.data)):
        if field == _RESOURCE_METRICS and isinstance(value, tuple):
            parts.append(_delimited(_RESOURCE_METRICS, bytes(reader.data[value[0] : value[1]]) + added))
    return b"".join(parts)


Value = int | bytes | tuple[int, int]
"""A number, the eight bytes of a fixed one, or the range of a text, bytes or message."""


class _Reader:
    """One message that is being read."""

    def __init__(self, data: Buffer) -> None:
        self.data = bytes(data)
        self._fields_left = MAX_FIELDS
        self._points: list[Point] = []
        self._left_out = 0

    def read(self) -> Read:
        for resource_metrics in self._messages(0, len(self.data), _RESOURCE_METRICS):
            resource: dict[str, str] = {}
            for start, end in self._messages(*resource_metrics, _RESOURCE):
                self._attributes(start, end, 1, resource)
            for scope_metrics in self._messages(*resource_metrics, _SCOPE_METRICS):
                for start, end in self._messages(*scope_metrics, _METRICS):
                    self._metric(start, end, resource)
        return Read(self._points, self._left_out)

    def _metric(self, start: int, end: int, resource: Mapping[str, str]) -> None:
        texts = {_NAME: "", _DESCRIPTION: "", _UNIT: ""}
        kind, content = 0, (0, 0)
        for field, value in self.fields(start, end):
            if not isinstance(value, tuple):
                continue
            if field in texts:
                texts[field] = self._text(*value)
            elif field in (_GAUGE, _SUM):
                kind, content = field, value
            elif field in _OTHER_KINDS:
                self._left_out += 1
        if not kind or not texts[_NAME]:
            return
        is_monotonic = is_delta = False
        points = []
        for field, value in self.fields(*content):
            if field == _POINTS and isinstance(value, tuple):
                points.append(value)
            elif kind == _SUM and field == _TEMPORALITY:
                is_delta = value == _DELTA
            elif kind == _SUM and field == _MONOTONIC:
                is_monotonic = value != 0
        for point in points:
            if len(self._points) >= MAX_POINTS:
                raise Malformed(f"more than {MAX_POINTS} data points")
            attributes = dict(resource)
            number: float | None = None
            for field, value in self.fields(*point):
                if field == _AS_DOUBLE and isinstance(value, bytes):
                    (number,) = _DOUBLE.unpack(value)
                elif field == _AS_INT and isinstance(value, bytes):
                    (number,) = _INT.unpack(value)
                elif field == _POINT_ATTRIBUTES and isinstance(value, tuple):
                    self._attribute(*value, attributes)
            if number is not None:
                sorted_ = tuple(sorted(attributes.items()))
                self._points.append(
                    Point(texts[_NAME], texts[_DESCRIPTION], texts[_UNIT], sorted_, number, is_monotonic, is_delta)
                )

    def _attributes(self, start: int, end: int, wanted: int, into: dict[str, str]) -> None:
        for field, value in self.fields(start, end):
            if field == wanted and isinstance(value, tuple):
                self._attribute(*value, into)

    def _attribute(self, start: int, end: int, into: dict[str, str]) -> None:
        """Read a KeyValue; its value is shown as text. Lists and maps are left out."""
        name, shown = "", None
        for field, value in self.fields(start, end):
            if not isinstance(value, tuple):
                continue
            if field == 1:
                name = self._text(*value)
            elif field == 2:
                shown = self._any_value(*value)
        if name and shown is not None and (name in into or len(into) < MAX_ATTRIBUTES):
            into[name] = shown

    def _any_value(self, start: int, end: int) -> str | None:
        shown: str | None = None
        for field, value in self.fields(start, end):
            if field == 1 and isinstance(value, tuple):
                shown = self._text(*value)
            elif field == 2 and isinstance(value, int):
                shown = "true" if value else "false"
            elif field == 3 and isinstance(value, int):
                shown = str(value - (1 << 64) if value >= 1 << 63 else value)
            elif field == 4 and isinstance(value, bytes):
                shown = repr(_DOUBLE.unpack(value)[0])
        return shown

    def _text(self, start: int, end: int) -> str:
        return self.data[start : min(end, start + 4 * MAX_TEXT)].decode("utf-8", "replace")[:MAX_TEXT]

    def _messages(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        for field, value in self.fields(start, end):
            if field == wanted and isinstance(value, tuple):
                yield value

    def fields(self, start: int, end: int) -> Iterator[tuple[int, Value]]:
        """Yield the fields of the message in this range. Raises Malformed."""
        data, position = self.data, start
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise Malformed(f"more than {MAX_FIELDS} fields")
            tag, position = self._varint(position, end)
            kind = tag & 7
            value: Value
            if kind == _VARINT:
                value, position = self._varint(position, end)
            elif kind == _FIXED64:
                if position + 8 > end:
                    raise Malformed("a number is cut off")
                value = data[position : position + 8]
                position += 8
            elif kind == _BYTES:
                size, position = self._varint(position, end)
                if size > end - position:
                    raise Malformed("a field is longer than its message")
                value = (position, position + size)
                position += size
            elif kind == _FIXED32:
                if position + 4 > end:
                    raise Malformed("a number is cut off")
                value = int.from_bytes(data[position : position + 4], "little")
                position += 4
            else:
                raise Malformed(f"wire type {kind}")
            if not tag >> 3:
                raise Malformed("field number 0")
            yield tag >> 3, value

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        data, shift, value = self.data, 0, 0
        while position < end and shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
        raise Malformed("a number is cut off or too long")


def _delimited(field: int, content: bytes) -> bytes:
    return _encoded_varint(field << 3 | _BYTES) + _encoded_varint(len(content)) + content


def _encoded_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
