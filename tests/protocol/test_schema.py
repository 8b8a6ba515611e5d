"""The meaning of a declaration: versions, nulls, defaults, tags, and values that a version cannot carry."""

from __future__ import annotations

import copy
import pickle
import struct as structs
from typing import Annotated, Any

import pytest
from wire_samples import every_message, samples, versions_of

from kraftpy.protocol.codegen import source
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages.fetch import EpochEndOffset, FetchResponse, PartitionData
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.primitives import read_string
from kraftpy.protocol.schema import (
    array,
    boolean,
    bytestring,
    decode,
    encode,
    encode_into,
    ignorable,
    int8,
    int16,
    int32,
    message,
    nested,
    nullable,
    records,
    string,
    struct,
    tag,
)


@struct
class Part:
    """A struct within."""

    number: Annotated[int, int32]
    extra: Annotated[int, int16, "2+"] = 7


@message(api_key=1000, versions="0-4", flexible="3+")
class Example:
    """One of everything."""

    name: Annotated[str, string]
    title: Annotated[str | None, string, nullable("1+")]
    gone: Annotated[int, int32, "0-1"] = -1
    hint: Annotated[str, string, "2+", ignorable] = "none"
    parts: Annotated[list[Part], array] = []  # noqa: RUF012
    ids: Annotated[list[int] | None, array(int32), "1+"] = None
    data: Annotated[bytes | None, bytestring] = None
    flag: Annotated[bool, boolean] = False
    inner: Annotated[Part | None, nested, "4+"] = None
    rest: Annotated[memoryview | bytes | None, records] = None
    note: Annotated[str | None, string, "3+", tag(2), ignorable] = None
    best: Annotated[Part, nested, "3+", tag(0)] = Part(number=-1)
    low: Annotated[int, int8, "3+", tag(1)] = 5


def example(**changes: Any) -> Example:
    return Example(**{"name": "n", "title": "t", **changes})


@pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)
def test_every_message_survives_every_version(kind: Any) -> None:
    for version in versions_of(kind):
        for each in samples(kind, version, 25):
            data = encode(each, version)
            assert decode(kind, data, version) == each
            assert decode(kind, memoryview(b"\xff" + data)[1:], version) == each
            assert encode(decode(kind, bytearray(data), version), version) == data


def test_bytes_of_an_old_version() -> None:
    data = encode(example(gone=3, parts=[Part(number=1)], data=b"d", flag=True, rest=b"r"), 0)
    assert data == bytes.fromhex("0001 6e 0001 74 00000003 00000001 00000001 00000001 64 01 00000001 72")


def test_bytes_of_a_flexible_version() -> None:
    message = example(title=None, parts=[Part(number=1)], ids=[], data=b"", inner=Part(number=2), note="x", low=6)
    expected = "02 6e 00 05 6e6f6e65 02 00000001 0007 00 01 01 00 01 00000002 0007 00 00 02 01 01 06 02 02 02 78"
    assert encode(message, 4) == bytes.fromhex(expected)
    assert decode(Example, bytes.fromhex(expected), 4) == message


def test_fields_that_a_version_does_not_have_get_their_defaults() -> None:
    decoded = decode(Example, encode(example(), 0), 0)
    assert decoded == example()
    assert decoded.best == Part(number=-1)
    assert decoded.hint == "none"


def test_what_is_ignorable_is_dropped() -> None:
    assert encode(example(hint="other", note="x"), 0) == encode(example(), 0)


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        (2, {"gone": 3}),
        (0, {"ids": []}),
        (3, {"inner": Part(number=1)}),
        (2, {"best": Part(number=1)}),
        (2, {"low": 6}),
        (1, {"parts": [Part(number=1, extra=8)]}),
    ],
)
def test_what_is_not_ignorable_is_refused(version: int, changes: dict[str, Any]) -> None:
    with pytest.raises(KafkaError) as caught:
        encode(example(**changes), version)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_null_is_refused_where_the_version_cannot_carry_it() -> None:
    assert decode(Example, encode(example(title=None), 1), 1).title is None
    with pytest.raises(KafkaError) as caught:
        encode(example(title=None), 0)
    assert "title" in str(caught.value)
    with pytest.raises(ProtocolError):
        decode(Example, b"\x00\x01n\xff\xff", 0)


@pytest.mark.parametrize("version", [-1, 5])
def test_a_version_that_does_not_exist(version: int) -> None:
    for attempt in (lambda: encode(example(), version), lambda: decode(Example, b"", version)):
        with pytest.raises(KafkaError) as caught:
            attempt()
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"name": 3},
        {"name": "x" * 32768},
        {"gone": 2**31},
        {"parts": [3]},
        {"name": "\ud800"},
    ],
)
def test_values_that_do_not_fit_are_value_errors(changes: dict[str, Any]) -> None:
    for version in (1, 4):
        if version == 4 and "gone" in changes:
            continue
        with pytest.raises(ValueError, match="Example"):
            encode(example(**changes), version)


def test_a_missing_or_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="title"):
        Example(name="n")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Example.__init__.*colour"):
        example(colour="red")
    with pytest.raises(TypeError):
        Example("n", "t")  # type: ignore[call-arg, misc]


def test_lists_are_not_shared() -> None:
    example().parts.append(Part(number=1))
    assert example().parts == []
    first, second = (decode(Example, encode(example(), 1), 1) for _ in range(2))
    first.parts.append(Part(number=1))
    assert second.parts == []


def test_the_classes_behave_as_data() -> None:
    assert example() == example()
    assert example() != example(name="other")
    assert example() != "n"
    assert repr(Part(number=1)) == "Part(number=1, extra=7)"
    assert not hasattr(example(), "__dict__")
    assert copy.copy(example(name="c")) == example(name="c")
    fetched = FetchResponse(throttle_time_ms=3)
    assert pickle.loads(pickle.dumps(fetched)) == fetched
    with pytest.raises(TypeError):
        hash(example())


def test_records_are_neither_copied_in_nor_out() -> None:
    data = encode(example(rest=b"batch"), 4)
    rest = decode(Example, data, 4).rest
    assert isinstance(rest, memoryview)
    assert rest.obj is data
    parts: list[Any] = []
    encode_into(parts, example(rest=rest), 4)
    assert any(part is rest for part in parts)


def test_tagged_structs_are_written_when_they_differ_from_their_default() -> None:
    plain, told = (
        PartitionData(partition_index=0),
        PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=-1, end_offset=-1)),
    )
    assert plain == told

    def size(partition: PartitionData) -> int:
        from kraftpy.protocol.messages.fetch import FetchableTopicResponse

        return len(encode(FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])]), 16))

    assert size(plain) == size(told)
    assert (
        size(PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=2)))
        == size(plain) + 15
    )


def test_null_and_no_topics_differ() -> None:
    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
    assert encode(MetadataRequest(topics=[]), 1) == b"\x00\x00\x00\x00"
    with pytest.raises(KafkaError):
        encode(MetadataRequest(topics=[MetadataRequestTopic()]), 9)


TAGS = encode(example(), 4)[:-1]


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ("01 09 00", None),
        ("02 08 01 ff 09 00", None),
        ("02 09 00 08 00", None),
        ("02 09 00 09 00", None),
        ("01 01 02 06 00", "announced 2 bytes"),
        ("01 02 01 03 61 62", "announced 1 bytes"),
        ("01 09 05 00", "5 bytes where 1 are left"),
        ("05 09 00", "5 elements"),
        ("ffffffff0f", "4294967295 tagged fields"),
        ("ffffffffff00", "more than 32 bits"),
        ("80", "ends early"),
    ],
)
def test_tagged_fields(tags: str, why: str | None) -> None:
    data = TAGS + bytes.fromhex(tags)
    if why is None:
        assert decode(Example, data, 4) == example()
    else:
        with pytest.raises(ProtocolError, match=why):
            decode(Example, data, 4)


@pytest.mark.parametrize(
    ("tags", "low", "number"),
    [
        ("02 01 01 06 01 01 07", 7, -1),  # of a field that comes twice, the last counts
        ("02 01 01 06 00 07 00000009 0000 00", 6, 9),
        ("03 09 00 01 01 06 08 00", 6, -1),
    ],
)
def test_tagged_fields_in_any_order(tags: str, low: int, number: int) -> None:
    """Kafka reads them so, though it writes them in order."""
    decoded = decode(Example, TAGS + bytes.fromhex(tags), 4)
    assert (decoded.low, decoded.best.number) == (low, number)


@pytest.mark.parametrize(
    ("name", "text"), [("0001 ff", "\ufffd"), ("0004 61 ff fe 62", "a\ufffd\ufffdb"), ("0003 e2 82 61", "\ufffda")]
)
def test_bytes_that_are_not_utf_8_are_replaced(name: str, text: str) -> None:
    data = bytes.fromhex(name + "0000 00000000 00000000 ffffffff 00 ffffffff")
    assert decode(Example, data, 0).name == text


def test_a_string_that_is_too_long_once_it_is_mended() -> None:
    """It could not be written anywhere, neither into an answer nor into a record."""
    for count, fits in ((10_922, True), (10_923, False), (32_767, False)):
        data = structs.pack(">h", count) + b"\xff" * count
        if fits:
            assert len(read_string(data, 0)[0].encode()) == 3 * count
        else:
            with pytest.raises(ProtocolError, match="not UTF-8"):
                read_string(data, 0)


@pytest.mark.parametrize("length", ["ffffffff", "fffffffe", "80000000"])
def test_any_negative_length_is_null(length: str) -> None:
    decoded = decode(Example, bytes.fromhex(f"0000 0000 00000000 00000000 {length} 00 {length}"), 0)
    assert (decoded.data, decoded.rest) == (None, None)


@pytest.mark.parametrize(
    ("version", "data", "why"),
    [
        (0, "", "ends early"),
        (0, "0005 6e", "a string of 5 bytes where 1 are left"),
        (0, "fffe", "a string of -2 bytes"),
        (0, "ffff", "a string of -1 bytes"),
        (0, "0000 0000 00000000 7fffffff", "2147483647 elements"),
        (0, "0000 0000 00000000 80000000", "-2147483648 elements"),
        (0, "0000 0000 00000000 00000000 7fffffff", "bytes of 2147483647"),
        (0, "0000 0000 00000000 00000000 ffffffff 00 ffffffff 00", "1 bytes too many"),
        (1, "0000 0000 00000000 00000000 40000000", "1073741824 elements"),
        (3, "00", "a string of -1 bytes"),
        (3, "ffffffff0f", "a string of 4294967294 bytes"),
        (3, "81808001" + "61" * 9, "a string of 2097152 bytes"),
    ],
)
def test_malformed_bytes(version: int, data: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode(Example, bytes.fromhex(data), version)


def test_many_small_arrays_share_one_budget() -> None:
    message = example(parts=[Part(number=1)] * 60, ids=[1] * 50)
    assert decode(Example, encode(message, 4), 4, max_elements=110) == message
    with pytest.raises(ProtocolError, match="more elements"):
        decode(Example, encode(message, 4), 4, max_elements=109)


@pytest.mark.parametrize(
    "hint",
    [
        "int",
        "Annotated[int, 'no wire type']",
        "Annotated[list[bytes], array(bytestring)]",
        "Annotated[int, int32, 3.5]",
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(hint: str) -> None:
    made = type("Made", (), {"__annotations__": {"field": hint}, "__module__": __name__})
    kind = message(api_key=1001, versions="0", flexible="none")(made)
    with pytest.raises((TypeError, ValueError)):
        encode(kind(field=1), 0)


def test_neighbours_of_fixed_width_are_one_call() -> None:
    text = source(PartitionData, 16, True)
    assert "self.partition_index, self.error_code, self.high_watermark, self.last_stable_offset, self.log_start" in text
    assert "position += 30" in text
