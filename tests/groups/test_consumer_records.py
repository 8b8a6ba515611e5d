"""The records of groups of the consumer protocol, byte for byte as Kafka's schemas say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.consumer.records import (
    ClassicMember,
    ConsumerKey,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberState,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    consumer_record,
    read_key,
    read_value,
)
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicId

T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)
SOME = frozenset({TopicIdPartition(U, 0), TopicIdPartition(T, 2), TopicIdPartition(T, 1)})
SOME_BYTES = b"\x03" + b"t" * 16 + b"\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00" + b"u" * 16 + b"\x02\x00\x00\x00\x00\x00"

LITERAL: list[tuple[ConsumerKey, ConsumerValue, bytes, bytes]] = [
    (GroupKey("g"), GroupValue(epoch=5), b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00\x00\x05\x00"),
    (
        GroupKey("g"),
        GroupValue(epoch=5, metadata_hash=-2),
        b"\x00\x03\x00\x01g",
        b"\x00\x00\x00\x00\x00\x05\x01\x00\x08\xff\xff\xff\xff\xff\xff\xff\xfe",
    ),
    (
        MemberKey("g", "m"),
        MemberValue(
            instance_id="i",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("t", "u"),
            rebalance_timeout_ms=7,
            server_assignor="range",
        ),
        b"\x00\x05\x00\x01g\x00\x01m",
        b"\x00\x00\x02i\x00\x02c\x03/h\x03\x02t\x02u\x00\x00\x00\x00\x07\x06range\x00",
    ),
    (  # as Kafka 4.3's own class writes it
        MemberKey("g", "m"),
        MemberValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("t",),
            rebalance_timeout_ms=7,
            classic=ClassicMember(session_timeout_ms=300, protocols=(("range", b"\x01\x02\x03"),)),
        ),
        b"\x00\x05\x00\x01g\x00\x01m",
        bytes.fromhex("000000000263032f68020274000000000700010012010000012c020672616e6765040102030000"),
    ),
    (
        TargetMetadataKey("g"),
        TargetMetadataValue(assignment_epoch=9),
        b"\x00\x06\x00\x01g",
        b"\x00\x00\x00\x00\x00\x09\x00",
    ),
    (
        TargetMetadataKey("g"),
        TargetMetadataValue(assignment_epoch=9, assigned_at=0x0102),
        b"\x00\x06\x00\x01g",
        b"\x00\x00\x00\x00\x00\x09\x01\x00\x08" + bytes(6) + b"\x01\x02",
    ),
    (
        TargetMemberKey("g", "m"),
        TargetMemberValue(partitions=SOME),
        b"\x00\x07\x00\x01g\x00\x01m",
        b"\x00\x00" + SOME_BYTES + b"\x00",
    ),
    (
        CurrentKey("g", "m"),
        CurrentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=MemberState.UNREVOKED_PARTITIONS,
            pending_revocation=SOME,
        ),
        b"\x00\x08\x00\x01g\x00\x01m",
        b"\x00\x00\x00\x00\x00\x03\x00\x00\x00\x02\x01\x01" + SOME_BYTES + b"\x00",
    ),
    (
        RegexKey("g", "t.*"),
        RegexValue(topics=("t1",), version=4, timestamp=6),
        b"\x00\x10\x00\x01g\x00\x03t.*",
        b"\x00\x00\x02\x03t1\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x06\x00",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), LITERAL)
def test_bytes(key: ConsumerKey, value: ConsumerValue, key_bytes: bytes, value_bytes: bytes) -> None:
    assert consumer_record(key, value) == (key_bytes, value_bytes)
    assert consumer_record(key, None) == (key_bytes, None)
    assert read_key(key_bytes) == key
    assert read_value(key, value_bytes) == value


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), LITERAL)
def test_what_is_cut_off_is_refused(key: ConsumerKey, value: object, key_bytes: bytes, value_bytes: bytes) -> None:
    for end in range(len(value_bytes)):
        with pytest.raises(ProtocolError):
            read_value(key, value_bytes[:end])
    with pytest.raises(ProtocolError):
        read_key(key_bytes[:-1])


def test_tags_of_newer_brokers_are_passed_over() -> None:
    assert read_value(GroupKey("g"), b"\x00\x00\x00\x00\x00\x05\x01\x01\x08" + bytes(8)) == GroupValue(epoch=5)
    assert read_value(
        TargetMetadataKey("g"), b"\x00\x00\x00\x00\x00\x09\x01\x01\x08" + bytes(8)
    ) == TargetMetadataValue(assignment_epoch=9)


def test_a_state_that_is_not_known_is_unknown() -> None:
    read = read_value(CurrentKey("g", "m"), b"\x00\x00\x00\x00\x00\x03\x00\x00\x00\x02\x09\x01\x01\x00")
    assert isinstance(read, CurrentValue)
    assert read.state is MemberState.UNKNOWN


def test_other_kinds_and_versions() -> None:
    assert read_key(b"\x00\x04\x00\x01g") is None
    assert read_key(b"\x00\x02\x00\x01g") is None
    with pytest.raises(ProtocolError):
        read_value(GroupKey("g"), b"\x00\x01\x00\x00\x00\x05\x00")


partitions = st.frozensets(st.builds(TopicIdPartition, st.sampled_from([T, U]), st.integers(0, 2**31 - 1)))


@given(st.builds(CurrentValue, assigned=partitions, pending_revocation=partitions, state=st.sampled_from(MemberState)))
def test_current_assignments_come_back(value: CurrentValue) -> None:
    _, written = consumer_record(CurrentKey("g", "m"), value)
    assert written is not None
    assert read_value(CurrentKey("g", "m"), written) == value
