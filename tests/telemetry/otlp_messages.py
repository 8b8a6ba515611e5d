"""Metrics in OpenTelemetry's encoding, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

GAUGE, SUM, HISTOGRAM = 5, 7, 9
DELTA, CUMULATIVE = 1, 2


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def part(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value % (1 << 64))


def attribute(name: str, value: str | int | bool | float) -> bytes:
    if isinstance(value, bool):
        shown = number(2, value)
    elif isinstance(value, int):
        shown = number(3, value)
    elif isinstance(value, float):
        shown = varint(4 << 3 | 1) + struct.pack("<d", value)
    else:
        shown = part(1, value)
    return part(1, name) + part(2, shown)


def point(value: float, attributes: Mapping[str, str | int | bool | float] | None = None) -> bytes:
    shown = (
        varint(6 << 3 | 1) + struct.pack("<q", value)
        if isinstance(value, int)
        else varint(4 << 3 | 1) + struct.pack("<d", value)
    )
    times = varint(3 << 3 | 1) + struct.pack("<q", 1_700_000_000_000_000_000)
    return times + shown + b"".join(part(7, attribute(*each)) for each in (attributes or {}).items())


def gauge(name: str, *points: bytes, description: str = "") -> bytes:
    return part(1, name) + part(2, description) + part(GAUGE, b"".join(part(1, each) for each in points))


def counter(name: str, *points: bytes, temporality: int = DELTA, is_monotonic: bool = True) -> bytes:
    content = b"".join(part(1, each) for each in points) + number(2, temporality) + number(3, is_monotonic)
    return part(1, name) + part(SUM, content)


def message(metrics: Sequence[bytes], resource: Mapping[str, str | int | bool | float] | None = None) -> bytes:
    attributes = b"".join(part(1, attribute(*each)) for each in (resource or {}).items())
    scope = b"".join(part(2, each) for each in metrics)
    return part(1, part(1, attributes) + part(2, scope))
