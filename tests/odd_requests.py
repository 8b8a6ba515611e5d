"""Requests that are well formed and mean something odd: made from the declarations, for every API and version.

Names that exist and names that cannot, partitions below zero, nulls, repetitions, empty lists, numbers at their ends.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import Array, Field, Fixed, Nested, Sized, fields

BATCH = encode_batch([(1_700_000_000_000, b"k", b"v" * 20, ())])

LONG = "x" * 32_767
NAMES = ("", "odd", "odd-compacted", "no-such-topic", "odd", "..", "a b", "żółw-🎉", "x" * 249, "x" * 250, LONG)
INTERNAL = ("__consumer_offsets", "__transaction_state")
GROUPS = ("", "odd-group", "odd-group", "odd-other", LONG)
MEMBERS = ("", "", "nobody", LONG)
SETTINGS = ("retention.ms", "cleanup.policy", "segment.bytes", "no.such", "", "flush.messages", LONG)
VALUES = ("1000", "compact,delete", "delete", "-5", "", "never", "9" * 40, LONG)

POOLS: dict[str, tuple[Any, ...]] = {
    "acks": (-1, 0, 1, 2, -32768),
    "max_wait_ms": (0, 1, -1, 20, -(2**31)),
    "min_bytes": (0, 1, -1, 2**31 - 1),
    "timeout_ms": (0, 1, -1, 1000, 2**31 - 1),
    "session_timeout_ms": (6000, 10_000, 0, -1, 2**31 - 1),
    "rebalance_timeout_ms": (0, 10, -1, 1000),
    "num_partitions": (-1, 0, 1, 2, -5, 2**31 - 1),
    "replication_factor": (-1, 1, 0, 2, -7, 32_767),
    "count": (0, -1, 1, 2, 3, 2**31 - 1),
    "replica_id": (-1, -1, -1, -1, 0, 1, -2),
    "resource_type": (2, 2, 4, 0, 8, -128, 127),
    "config_operation": (0, 1, 2, 3, 4, -1),
    "key_type": (0, 0, 1, 2, -1),
    "session_id": (0, 0, 1, -1, 2**31 - 1),
    "session_epoch": (-1, 0, 1, 2**31 - 1, -(2**31)),
    "leader_epoch": (-1, 0, 1, -5, 2**31 - 1),
    "current_leader_epoch": (-1, -1, 0, 1, -5, 2**31 - 1),
    "last_fetched_epoch": (-1, -1, 0, 1, 2**31 - 1),
    "timestamp": (-1, -2, -3, -4, -5, -6, -7, 0, 1_700_000_000_000, 2**63 - 1, -(2**63)),
    "isolation_level": (0, 1, 2, -1),
    "endpoint_type": (1, 1, 2, 0),
    "protocol_type": ("consumer", "consumer", "connect", ""),
    "response_partition_limit": (0, 1, -1, 2000, 2**31 - 1),
}
PARTITIONS = (0, 0, 0, 1, -1, 7, 2**31 - 1, -(2**31))


class Words:
    """The values that requests are made of: odd ones here; `tests/fuzz` has hostile ones."""

    def __init__(self, topic_ids: tuple[bytes, ...] = ()) -> None:
        self.topic_ids = topic_ids

    def count(self, kind: Any, field: Field, chance: Random, depth: int) -> int:
        """How many elements an array has."""
        return chance.choice((0, 1, 1, 2, 3) if depth < 2 else (0, 1, 1, 2))

    def repeated(self, made: list[Any], chance: Random) -> list[Any]:
        """The elements of an array; sometimes the first of them once more."""
        return made + made[:1] if chance.random() < 0.2 else made

    def topic_id(self, chance: Random) -> bytes:
        """Sixteen bytes: an id that exists, or one that does not."""
        return chance.choice((*self.topic_ids, *self.topic_ids, bytes(16), bytes(15) + b"\1", chance.randbytes(16)))

    def records(self, chance: Random) -> bytes:
        """Record batches, or other bytes."""
        return chance.choice((BATCH, BATCH, b"", BATCH * 2, BATCH[:-5], chance.randbytes(70), BATCH[:16] + b"\0"))

    def data(self, kind: Any, name: str, chance: Random) -> bytes:
        """Opaque bytes."""
        return chance.randbytes(chance.choice((0, 1, 30, 300)))

    def number(self, kind: Any, name: str, code: str, chance: Random) -> int | float:
        """A number that fits a field with this code of the `struct` module."""
        if name in POOLS:
            return chance.choice(POOLS[name])
        if "partition" in name and name not in ("partition_max_bytes",) and code == "i":
            return chance.choice(PARTITIONS)
        if code == "H":
            return chance.choice((0, 1, 9092, 2**16 - 1))
        top = 2 ** ({"b": 8, "h": 16, "i": 32, "q": 64, "d": 64}[code] - 1)
        return chance.choice((0, 0, 1, -1, 100, -top, top - 1)) if code != "b" else chance.choice((0, 1, -1, 5))

    def text(self, kind: Any, name: str, chance: Random) -> str:
        """A string for a field of this name."""
        pool: tuple[str, ...] = NAMES
        if name in POOLS:
            pool = POOLS[name]
        elif "group" in name or name in ("key", "coordinator_keys"):
            pool = GROUPS
        elif "member" in name or "instance" in name:
            pool = MEMBERS
        elif name == "value":
            pool = VALUES
        elif name == "configuration_keys" or (name == "name" and "Config" in kind.__name__):
            pool = SETTINGS
        elif name == "resource_name":
            pool = (*NAMES, "1", "-1", "99999999999999999999")
        elif name in ("topic", "name") and chance.random() < 0.05:
            pool = INTERNAL
        return str(chance.choice(pool))


def odd(kind: Any, version: int, chance: Random, words: Words, depth: int = 0) -> Any:
    """A request, or a part of one, that this version can carry."""
    present = [field for field in fields(kind) if version in field.versions]
    return kind(**{field.name: _value(kind, field, version, chance, words, depth) for field in present})


def _value(kind: Any, field: Field, version: int, chance: Random, words: Words, depth: int) -> Any:
    nulls = 0.9 if field.name == "transactional_id" else 0.2
    if version in field.nullable and chance.random() < nulls:
        return None
    if not isinstance(field.wire, Array):
        return _one(kind, field, field.wire, version, chance, words, depth)
    count = words.count(kind, field, chance, depth)
    distinct = min(count, 3)  # of thousands of elements three are made, and then repeated
    made = [_one(kind, field, field.wire.element, version, chance, words, depth) for _ in range(distinct)]
    if distinct < count:
        made = (made * (count // distinct + 1))[:count]
    return words.repeated(made, chance)


def _one(kind: Any, field: Field, wire: Any, version: int, chance: Random, words: Words, depth: int) -> Any:
    match wire:
        case None | Nested():
            return odd(field.struct, version, chance, words, depth + 1)
        case Fixed(code="?"):
            return chance.random() < 0.5
        case Fixed(code="16s"):
            return words.topic_id(chance)
        case Sized(name="records"):
            return words.records(chance)
        case Sized(name="string"):
            return words.text(kind, field.name, chance)
        case Sized():
            return words.data(kind, field.name, chance)
    return words.number(kind, field.name, wire.code, chance)
