"""Every message, in every version that `kafka-python` knows, byte for byte and in both directions.

Twice: against its present codecs, and against the older hand-written schemas it still carries, which know Produce 0-2.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import uuid
import warnings
from typing import Any

import pytest
from wire_samples import every_message, is_of_kafka_4_4, samples, versions_of

from kraftpy.protocol.schema import Struct, decode, encode, fields

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.old
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.old.types import BitField, Schema

PRESENT = {
    name: value for package in (admin, consumer, metadata, producer, sasl) for name, value in vars(package).items()
}
OLD = {
    name: value
    for found in pkgutil.iter_modules(kafka.protocol.old.__path__, "kafka.protocol.old.")
    for name, value in vars(importlib.import_module(found.name)).items()
    if "_v" in name and not name.startswith("CreatePartitionsRequest")  # nested there in structs the wire does not have
}


UNKNOWN = {"UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
UNKNOWN |= {"ShareGroupHeartbeat", "ShareGroupDescribe", "StreamsGroupHeartbeat", "StreamsGroupDescribe"}
UNKNOWN |= {"ShareFetch", "ShareAcknowledge", "InitializeShareGroupState", "ReadShareGroupState"}
UNKNOWN |= {"WriteShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary"}
UNKNOWN |= {"DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"}
UNKNOWN |= {"StreamsGroupTopologyDescriptionUpdate", "UnregisterController"}
UNKNOWN |= {"GetTelemetrySubscriptions", "PushTelemetry"}
UNKNOWN |= {f"{verb}DelegationToken" for verb in ("Create", "Renew", "Expire", "Describe")}
"""APIs that kafka-python does not have; kio does."""

OTHER_NAMES = {
    "EntryResult": "EntryData",
    "QuorumTopic": "TopicData",
    "QuorumTopicState": "TopicData",
    "QuorumPartition": "PartitionData",
    "QuorumPartitionState": "PartitionData",
}
"""Structs of a request and of its response that have one name there."""


def name_of(kind: Any) -> str:
    return OTHER_NAMES.get(kind.__name__, kind.__name__)


def known_messages() -> list[Any]:
    return [
        kind
        for kind in every_message()
        if kind.__name__.removesuffix("Request").removesuffix("Response") not in UNKNOWN
    ]


def to_theirs(value: Any, theirs: Any, version: int) -> Any:
    """Return the message as an object of kafka-python; fields are matched by place and checked by name."""
    assert name_of(type(value)) == theirs.__name__
    ours = [field for field in fields(type(value)) if version in field.versions]
    others = [field for field in theirs._struct.fields.values() if field.for_version_q(version)]
    made: dict[str, Any] = {}
    for field, other in zip(ours, others, strict=True):
        assert field.name.endswith(other.name) or field.name == "fetch_offset", (field.name, other.name)
        assert field.tag == other.tag
        given = getattr(value, field.name)
        if field.tag is None or given != field.default:
            made[other.name] = convert(given, other, getattr(theirs, other.type_str, None), version)
    return theirs(version=version, **made)


def convert(value: Any, other: Any, struct: Any, version: int) -> Any:
    if isinstance(value, list):
        return [convert(each, getattr(other, "array_of", other), struct, version) for each in value]
    if isinstance(value, Struct):
        return to_theirs(value, struct, version)
    if other.type_str == "uuid":
        return uuid.UUID(bytes=value)
    if other.type_str == "bitfield":
        return bits(value)
    return value


@pytest.mark.parametrize("kind", known_messages(), ids=lambda kind: kind.__name__)
def test_the_bytes_are_those_of_kafka_python(kind: Any) -> None:
    theirs = PRESENT[kind.__name__]
    for version in versions_of(kind):
        if is_of_kafka_4_4(kind, version):
            continue
        for message in samples(kind, version, 10):
            expected = bytes(to_theirs(message, theirs, version).encode(version=version))
            assert encode(message, version) == expected, (version, message)
            assert decode(kind, expected, version) == message
            if kind.__name__ == "ApiVersionsResponse" and message.error_code:
                continue  # it reads every one with an error as version 0
            again = theirs.decode(expected, version=version)
            again._header = None
            assert bytes(again.encode(version=version)) == expected


def row(value: Any, theirs: Any, version: int) -> Any:
    """A message as the nested lists of the older schemas, which write a struct of one field without the struct."""
    if isinstance(value, list):
        return [row(each, theirs.array_of, version) for each in value]
    if isinstance(value, Struct):
        parts = [getattr(value, field.name) for field in fields(type(value)) if version in field.versions]
        if not isinstance(theirs, Schema):
            (part,) = parts
            return row(part, theirs, version)
        return [row(part, field, version) for part, field in zip(parts, theirs.fields, strict=True)]
    return bits(value) if theirs is BitField else value


def bits(value: int) -> set[int]:
    return {bit for bit in range(32) if value & 1 << bit}


KNOWN = [
    (kind, version)
    for kind in every_message()
    for version in versions_of(kind)
    if not is_of_kafka_4_4(kind, version)
    if f"{kind.__name__}_v{version}" in OLD and version not in kind.flexible
]


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in KNOWN), ids=lambda kind: kind.__name__)
def test_the_bytes_are_those_of_its_older_schemas(kind: Any) -> None:
    for version in [version for known, version in KNOWN if known is kind]:
        schema = OLD[f"{kind.__name__}_v{version}"].SCHEMA
        for message in samples(kind, version, 10):
            assert encode(message, version) == schema.encode(row(message, schema, version)), (version, message)
            data = io.BytesIO(encode(message, version))
            schema.decode(data)
            assert not data.read()
