"""Random requests that know the names and numbers that matter here; the same seed makes the same ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from both import Both
from differ import Differ
from good_and_bad_batches import CRC, patched, rows

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import REQUIRED, ZERO_UUID, Array, Field, Fixed, Nested, Sized, Wire, fields

ESSENTIAL = frozenset(
    [
        *("name", "topic", "topic_name", "topic_id", "partition", "partition_index", "index", "group_id"),
        *("resource_type", "resource_name", "transactional_id", "member_id", "producer_id", "feature", "path"),
        "first_offset",
    ]
)
"""Fields that are never left out, and whose values an element of a list has to itself: of the same thing twice the
scenarios written by hand have enough.
"""
FIRST_WITHOUT_CREATION = 4
"""The first version of Metadata that can ask without creating."""
ONLY_VALIDATED = (
    *(ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The resources that random requests name."""

    ids: list[Both | bytes]
    topics: list[str]
    groups: list[str]
    transactional_ids: list[str]
    """For these requests only: unlike topics and groups, they cannot be deleted."""
    batches: list[bytes]


def make_pool(differ: Differ, name: str) -> Pool:
    """Create two topics, and return their names and ids among others."""
    a, b = f"rnd.{name}.a", f"rnd.{name}.b"
    own: list[Both | bytes] = [differ.create(a, 2), differ.create(b, 1)]
    good = encode_batch(rows(differ.now(), 2))
    return Pool(
        ids=[*own, *own, ZERO_UUID, b"\x22" * 16],
        topics=[a, b, a, "no.such.topic", "sp ace", "", "__consumer_offsets", ".", "x" * 260],
        groups=[f"g.{name}", f"h.{name}", f"nobody.{name}", "", f"g.{name}"],
        transactional_ids=[f"t.{name}", f"u.{name}", f"t.{name}", ""],
        batches=[good, good, b"", patched(good, *CRC, 1, seal=False), good[:-3], good + good],
    )


def random_request(key: ApiKey, kind: type, version: int, rng: Random, pool: Pool) -> dict[str, Any]:
    """Return a request that changes nothing for good and is answered."""
    if key == ApiKey.FETCH:  # Kafka fails on several partitions without a topic's id; coordinators write otherwise
        ids = [topic_id for topic_id in pool.ids if topic_id != ZERO_UUID]
        pool = replace(pool, ids=ids, topics=[name for name in pool.topics if not name.startswith("__")])
    body = _sample(kind, version, rng, pool, 0)
    if key in ONLY_VALIDATED:
        body["validate_only"] = True
    if key == ApiKey.PRODUCE:
        body["acks"] = rng.choice((-1, 1, 1, 5))
    if key == ApiKey.DELETE_TOPICS:
        body = _without_internal(body)
    if key == ApiKey.METADATA and version < FIRST_WITHOUT_CREATION:
        body["topics"] = [topic for topic in body["topics"] or () if topic["name"] in pool.topics[:2]]
    return body


def _without_internal(body: dict[str, Any]) -> dict[str, Any]:
    if "topic_names" in body:
        body["topic_names"] = [name for name in body["topic_names"] if not name.startswith("__")]
    if "topics" in body:
        body["topics"] = [topic for topic in body["topics"] if not str(topic.get("name")).startswith("__")]
    return body


def _sample(kind: Any, version: int, rng: Random, pool: Pool, depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for field in fields(kind):
        if version not in field.versions:
            continue
        needed = (
            field.default is REQUIRED or field.name in ESSENTIAL or field.name in CHOICES or field.name == "records"
        )
        if needed or isinstance(field.wire, Array) or rng.random() >= 0.15:
            body[field.name] = _value(field, version, rng, pool, depth)
    return body


def _value(field: Field, version: int, rng: Random, pool: Pool, depth: int) -> Any:
    if version in field.nullable and rng.random() < 0.2 and field.name != "records":  # Kafka never answers null records
        return None
    match field.wire:
        case Array(element):
            count = rng.choice((1, 1, 1, 2, 3) if depth else (0, 1, 1, 1, 2, 3))
            made = [
                _sample(field.struct, version, rng, pool, depth + 1)
                if element is None
                else _single(field.name, element, rng, pool)
                for _ in range(count)
            ]
            return list({str(_identity(each)): each for each in made}.values())
        case Nested():
            return _sample(field.struct, version, rng, pool, depth + 1)
        case wire:
            return _single(field.name, wire, rng, pool)


def _identity(element: Any) -> Any:
    if isinstance(element, dict):
        return [element[name] for name in sorted(ESSENTIAL) if name in element]
    return element


CHOICES: dict[str, tuple[Any, ...]] = {
    "max_wait_ms": (0, 100, 500),
    "timeout_ms": (3000,),
    "isolation_level": (0, 1),
    **dict.fromkeys(("max_bytes", "partition_max_bytes"), (0, 1, 5, 100, 2**20, 2**31 - 1)),
    "allow_auto_topic_creation": (False,),
    "session_timeout_ms": (6000, 10000, 10000, 0, -1),
    "rebalance_timeout_ms": (6000, 10000),
    "session_id": (0, 0, 1, 5, 100, -1),
    "resource_type": (2, 4, 8, 16, 32),
    "replica_id": (-1,),
    "producer_id": (10**12, 10**12, 10**12 + 1, -1, -1, -2, 2**63 - 1, -(2**63)),
    "replica_epoch": (-1,),
    "num_partitions": (-1, 0, 1, 2, 3, 5),
    "count": (-1, 0, 1, 2, 3, 5),
    "replication_factor": (-1, 0, 1, 2),
    **dict.fromkeys(
        ("partitions", "partition", "partition_index", "index", "partition_indexes"), (0, 0, 0, 1, 2, 7, -1)
    ),
    **dict.fromkeys(("broker_ids", "replicas"), (1, 1, 1, 2, -1)),
}
TOPIC_FIELDS = (
    *("topic", "topic_name", "topic_names", "subscribed_topic_names", "source_topics", "source_topic_regex", "name"),
)
GROUP_FIELDS = ("group_id", "groups_names", "group_ids", "groups", "key", "coordinator_keys")
WORDS = ("", "a", "consumer", "range", "uniform", "retention.ms", "cleanup.policy", "1000", "compact", "x" * 300, "ü b")


def _single(name: str, wire: Wire, rng: Random, pool: Pool) -> Any:
    if name in CHOICES:
        return rng.choice(CHOICES[name])
    if "topic" in name and name.endswith("_id"):
        return rng.choice(pool.ids)
    if name in TOPIC_FIELDS:
        return rng.choice(pool.topics) if isinstance(wire, Sized) else rng.choice((0, 1, 9))
    if name in GROUP_FIELDS:
        return rng.choice(pool.groups)
    if name.endswith("transactional_id") or name == "transactional_ids":
        return rng.choice(pool.transactional_ids)
    if name == "resource_name":
        return rng.choice(("1", "", "2", *pool.topics))
    match wire:
        case Fixed(code="?"):
            return rng.random() < 0.5
        case Fixed(code="16s"):
            return rng.choice((ZERO_UUID, b"\x22" * 16))
        case Fixed(code="H"):
            return rng.choice((0, 1, 65535))
        case Fixed(code="d"):
            return 0.5
        case Fixed(code):
            top = 2 ** ({"b": 8, "h": 16, "i": 32, "q": 64}[code] - 1)
            return rng.choice((0, 0, 1, 1, 2, -1, -1, -2, 5, 100, top - 1, -top))
        case Sized(name="string"):
            return rng.choice((*WORDS, *pool.topics[:2]))
        case Sized(name="records"):
            return rng.choice(pool.batches)
        case _:
            return rng.choice((b"", b"abc", bytes(10)))
