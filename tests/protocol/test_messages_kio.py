"""Every message, in every version that `kio` knows, byte for byte and in both directions."""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioError
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import OutOfBoundValue
from kio.static.primitive import i32Timedelta, i64Timedelta
from wire_samples import every_message, is_of_kafka_4_4, samples, versions_of

from kraftpy.protocol.schema import REQUIRED, decode, encode, fields

RENAMED = {"acceptable_recovery_lag_legacy": "acceptable_recovery_lag"}
"""Fields that Kafka 4.4 calls by another name."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_class(kind: Any, version: int) -> Any:
    load = load_request_schema if kind.__name__.endswith("Request") else load_response_schema
    return load(kind.api_key, version)


def is_kio_version(kind: Any, version: int) -> bool:
    """kio begins where Kafka 4 begins, and ends with 4.3; Produce 0-2 are advertised and refused."""
    return not (kind.api_key == 0 and version < 3) and not is_of_kafka_4_4(kind, version)


def to_kio(value: Any, theirs: Any, version: int) -> Any:
    """Return the message as an object of kio; fields are matched by place and checked by name."""
    ours = [field for field in fields(type(value)) if version in field.versions]
    others = dataclasses.fields(theirs)
    hints = get_type_hints(theirs)
    names = [RENAMED.get(field.name, field.name).removesuffix("_ms") for field in ours]
    assert names == [field.name.removesuffix("_ms") for field in others]
    made = {}
    for field, other in zip(ours, others, strict=True):
        assert field.tag == other.metadata.get("tag"), field.name
        made[other.name] = convert(getattr(value, field.name), other, hints[other.name], version)
    return theirs(**made)


def convert(value: Any, other: Any, hint: Any, version: int) -> Any:
    structs = [each for each in flat(hint) if dataclasses.is_dataclass(each)]
    if isinstance(value, list):
        return tuple(convert(each, other, hint, version) for each in value)
    if structs:
        return None if value is None else to_kio(value, structs[0], version)
    match other.metadata["kafka_type"]:
        case "error_code":
            return KioError(value)
        case "timedelta_i32":
            return i32Timedelta.parse(datetime.timedelta(milliseconds=value))
        case "timedelta_i64":
            return i64Timedelta.parse(datetime.timedelta(milliseconds=value))
        case "datetime_i64":
            is_absent = value == -1 and type(None) in flat(hint)
            return None if is_absent else EPOCH + datetime.timedelta(milliseconds=value)
        case "uuid":
            return None if value == bytes(16) else uuid.UUID(bytes=value)
        case _:
            return value


WITH_TIMES = {"DescribeTransactionsResponse"} | {
    f"{verb}DelegationTokenResponse" for verb in ("Create", "Renew", "Expire")
}


def flat(hint: Any) -> list[Any]:
    return [hint, *(leaf for each in get_args(hint) for leaf in flat(each))]


@pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)
def test_the_bytes_are_those_of_kio(kind: Any) -> None:
    for version in filter(lambda version: is_kio_version(kind, version), versions_of(kind)):
        theirs = kio_class(kind, version)
        read, write = entity_reader(theirs), entity_writer(theirs)
        for message in samples(kind, version, 10):
            expected = io.BytesIO()
            write(expected, to_kio(message, theirs, version))
            data = encode(message, version)
            assert data == expected.getvalue(), (version, message)
            assert decode(kind, expected.getvalue(), version) == message
            try:
                again, size = read(data, 0)
            except OutOfBoundValue:  # kio writes a time of -1 and cannot read it
                assert kind.__name__ in WITH_TIMES
                continue
            assert size == len(data)
            assert again == to_kio(message, theirs, version)


@pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)
def test_the_defaults_are_those_of_kio(kind: Any) -> None:
    """They are what an older version means, and what a tagged field means when it is not there."""
    for version in filter(lambda version: is_kio_version(kind, version), versions_of(kind)):
        check_defaults(kind, kio_class(kind, version), version)


def check_defaults(kind: Any, theirs: Any, version: int) -> None:
    ours = [field for field in fields(kind) if version in field.versions]
    hints = get_type_hints(theirs)
    for field, other in zip(ours, dataclasses.fields(theirs), strict=True):
        structs = [each for each in flat(hints[other.name]) if dataclasses.is_dataclass(each)]
        if field.struct:
            check_defaults(field.struct, structs[0], version)
        if other.default is not dataclasses.MISSING and field.default is not REQUIRED:
            assert convert(field.default, other, hints[other.name], version) == other.default, (kind, field.name)
