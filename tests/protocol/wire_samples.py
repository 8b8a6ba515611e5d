"""Made-up messages: our own declarations, filled in from a seed with nulls, empty values and extremes."""

from __future__ import annotations

from random import Random
from typing import Any

from kraftpy.protocol.apis import APIS
from kraftpy.protocol.schema import REQUIRED, Array, Field, Fixed, Nested, Sized, fields, parse_versions

INTEGERS = {"b": 8, "h": 16, "i": 32, "q": 64}
STRINGS = ("", "a", "orders", "żółw-🎉", "x" * 126, "x" * 127, "x" * 128, "é" * 300, "long" * 8000)
TIMES_MS = (-1, 0, 1, 1_700_000_000_000, 2**41)  # another implementation's datetime can hold these

OF_KAFKA_4_4 = {
    ("ApiVersions", 5),
    ("DeleteGroups", 3),
    ("StreamsGroupHeartbeat", 1),
    ("StreamsGroupDescribe", 1),
    ("StreamsGroupTopologyDescriptionUpdate", 0),
    ("UnregisterController", 0),
}
"""Messages new in Kafka 4.4: other implementations do not have them yet (`test_messages_of_kafka_4_4`)."""


def is_of_kafka_4_4(kind: Any, version: int) -> bool:
    return (kind.__name__.removesuffix("Request").removesuffix("Response"), version) in OF_KAFKA_4_4


def every_message() -> list[Any]:
    """Every request and response class in the API table."""
    return [kind for api in APIS.values() for kind in (api.request, api.response)]


def versions_of(kind: Any) -> range:
    return range(kind.versions.first, kind.versions.last + 1)


def sample(kind: Any, version: int, random: Random, depth: int = 0) -> Any:
    """A message that this version can carry whole."""
    present = [field for field in fields(kind) if version in field.versions]
    if random.random() < 0.2:  # leave out what may be left out
        present = [field for field in present if not _has_default(field, version)]
    return kind(**{field.name: _value(field, version, random, depth) for field in present})


def _has_default(field: Field, version: int) -> bool:
    return field.default is not REQUIRED and (field.default is not None or version in field.nullable)


def _value(field: Field, version: int, random: Random, depth: int) -> Any:
    if version in field.nullable and random.random() < 0.25:
        return None
    match field.wire:
        case Array(element):
            count = random.choice((0, 1, 2, 3) if depth < 2 else (0, 1, 2))
            return [_one(field, element, version, random, depth) for _ in range(count)]
        case wire:
            return _one(field, wire, version, random, depth)


def _one(field: Field, wire: Any, version: int, random: Random, depth: int) -> Any:
    match wire:
        case None | Nested():
            return sample(field.struct, version, random, depth + 1)
        case Fixed(code="?"):
            return random.random() < 0.5
        case Fixed(code="16s"):
            return random.choice((bytes(16), random.randbytes(16)))
        case Fixed(code="h") if field.name.endswith("error_code"):
            return random.randint(-1, 133)
        case Fixed(code="q") if field.name.endswith("_ms"):
            return random.choice(TIMES_MS)
        case Fixed(code="d"):
            return random.choice((0.0, 1.0, -0.5, 1048576.0, 5e-324, 1.7976931348623157e308, random.uniform(-1e9, 1e9)))
        case Fixed(code="H"):
            return random.choice((0, 1, 2**15, 2**16 - 1))
        case Fixed(code):
            top = 2 ** (INTEGERS[code] - 1)
            return random.choice((0, 1, -1, -top, top - 1, random.randint(-top, top - 1)))
        case Sized(name="string"):
            return random.choice(STRINGS if random.random() < 0.2 else STRINGS[:4])
        case Sized():
            size = random.choice((0, 1, 126, 127, 128, 300, 20_000) if random.random() < 0.2 else (0, 1, 30))
            return random.randbytes(size)
    raise AssertionError(wire)


def samples(kind: Any, version: int, count: int) -> list[Any]:
    """Return messages, the same every time."""
    random = Random(f"{kind.__name__} {version}")
    return [sample(kind, version, random) for _ in range(count)]


def range_of(text: str) -> range:
    first, last = parse_versions(text)
    return range(first, last + 1)
