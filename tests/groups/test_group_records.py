"""The bytes of `__consumer_offsets`: built here by hand from Kafka's published field lists, version by version."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group,
    read_key,
    read_offset,
    write_group,
    write_key,
    write_offset,
)
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicPartition


def s(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text.encode())) + text.encode()


def compact(data: bytes | None) -> bytes:
    """Compact strings and bytes shorter than 127: the length plus one in one byte."""
    return b"\x00" if data is None else bytes([len(data) + 1]) + data


def b(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_an_offset_key_is_version_1_group_topic_partition() -> None:
    key = OffsetCommitKey(group_id="g", topic="tö", partition=7)
    assert write_key(key) == bytes.fromhex("0001 0001 67 0003 74c3b6 00000007")
    assert read_key(write_key(key)) == key
    assert read_key(b"\x00\x00" + write_key(key)[2:]) == key, "version 0 has the same fields"
    assert key.topic_partition == TopicPartition("tö", 7)


def test_a_group_key_is_version_2_and_the_group() -> None:
    key = GroupMetadataKey(group_id="group")
    assert write_key(key) == bytes.fromhex("0002 0005 67726f7570")
    assert read_key(write_key(key)) == key


@pytest.mark.parametrize("kind", [3, 4, 8, 17, 32767])
def test_kinds_of_other_protocols_are_passed_over(kind: int) -> None:
    assert read_key(struct.pack(">h", kind) + s("g")) is None


def test_an_offset_is_written_as_version_3() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=1000)
    assert write_offset(value) == bytes.fromhex("0003 0000000000000005 00000002 0001 6d 00000000000003e8")


def test_an_offset_with_its_own_expiry_is_written_as_version_1() -> None:
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1000, expire_timestamp=2000)
    expected = bytes.fromhex("0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0")
    assert write_offset(value) == expected
    assert read_offset(expected) == value


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_every_version_are_read(version: int) -> None:
    data = struct.pack(">hq", version, 42)
    data += struct.pack(">i", 6) if version >= 3 else b""
    data += compact(b"meta") if version >= 4 else s("meta")
    data += struct.pack(">q", 1000)
    data += struct.pack(">q", 2000) if version == 1 else b""
    data += b"\x01\x00\x10" + bytes(16) if version >= 4 else b""  # one tagged field of 16 bytes
    assert read_offset(data) == OffsetCommitValue(
        offset=42,
        leader_epoch=6 if version >= 3 else -1,
        metadata="meta",
        commit_timestamp=1000,
        expire_timestamp=2000 if version == 1 else -1,
    )


def test_a_group_is_written_as_version_3() -> None:
    value = group_value(3)
    data = b"".join(
        [
            struct.pack(">h", 3),
            s("consumer"),
            struct.pack(">i", 9),
            s("range"),
            s("m1"),
            struct.pack(">q", 1000),
            struct.pack(">i", 2),
            s("m1") + s("i1") + s("c1") + s("/h1") + struct.pack(">ii", 60_000, 10_000) + b(b"sub") + b(b"as"),
            s("m2") + s(None) + s("c2") + s("/h2") + struct.pack(">ii", 50_000, 20_000) + b(b"") + b(b""),
        ]
    )
    assert write_group(value) == data
    assert read_group(data) == value


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version_are_read(version: int) -> None:
    text = (lambda t: compact(None if t is None else t.encode())) if version >= 4 else s
    blob = compact if version >= 4 else b
    tags = b"\x00" if version >= 4 else b""

    def member(i: int, instance: str | None, rebalance: int, session: int, subscription: bytes, given: bytes) -> bytes:
        return b"".join(
            [
                text(f"m{i}"),
                text(instance) if version >= 3 else b"",
                text(f"c{i}"),
                text(f"/h{i}"),
                struct.pack(">i", rebalance) if version >= 1 else b"",
                struct.pack(">i", session),
                blob(subscription),
                blob(given),
                tags,
            ]
        )

    data = b"".join(
        [
            struct.pack(">h", version),
            text("consumer"),
            struct.pack(">i", 9),
            text("range"),
            text("m1"),
            struct.pack(">q", 1000) if version >= 2 else b"",
            b"\x03" if version >= 4 else struct.pack(">i", 2),
            member(1, "i1", 60_000, 10_000, b"sub", b"as"),
            member(2, None, 50_000, 20_000, b"", b""),
            tags,
        ]
    )
    assert read_group(data) == group_value(version)


def group_value(version: int) -> GroupMetadataValue:
    """Return the group, reduced to the fields that this version has."""
    return GroupMetadataValue(
        protocol_type="consumer",
        generation_id=9,
        protocol="range",
        leader="m1",
        current_state_timestamp=1000 if version >= 2 else -1,
        members=(
            MemberMetadata(
                member_id="m1",
                group_instance_id="i1" if version >= 3 else None,
                client_id="c1",
                client_host="/h1",
                rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
                session_timeout_ms=10_000,
                subscription=b"sub",
                assignment=b"as",
            ),
            MemberMetadata(
                member_id="m2",
                client_id="c2",
                client_host="/h2",
                rebalance_timeout_ms=50_000 if version >= 1 else 20_000,
                session_timeout_ms=20_000,
                subscription=b"",
                assignment=b"",
            ),
        ),
    )


def test_an_empty_group_has_no_protocol_and_no_leader() -> None:
    value = GroupMetadataValue(protocol_type="consumer", generation_id=2, protocol=None, leader=None)
    assert write_group(value).count(b"\xff\xff") >= 2
    assert read_group(write_group(value)) == value


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_unknown_versions_are_an_error(version: int) -> None:
    data = struct.pack(">h", version) + bytes(100)
    with pytest.raises(ProtocolError):
        read_offset(data)
    with pytest.raises(ProtocolError):
        read_group(data)


@given(st.integers(-1, 5), st.binary(max_size=60))
def test_garbage_is_an_error_and_nothing_else(version: int, rest: bytes) -> None:
    data = struct.pack(">h", version) + rest
    for read in (read_key, read_offset, read_group):
        with suppress(ProtocolError):
            read(data)


def test_a_cut_record_is_an_error() -> None:
    whole = write_group(group_value(3))
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            read_group(whole[:end])


def test_a_lying_array_length_costs_nothing() -> None:
    head = struct.pack(">h", 3) + s("consumer") + struct.pack(">i", 1) + s(None) + s(None) + struct.pack(">q", 0)
    for count in (-1, 2**31 - 1):
        with pytest.raises(ProtocolError):
            read_group(head + struct.pack(">i", count))


def test_text_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        read_key(b"\x00\x02\x00\x01\xff")
    with pytest.raises(ProtocolError):
        read_key(b"\x00\x02\xff\xff")
