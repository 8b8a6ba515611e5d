"""The records of share groups, byte for byte as Kafka's schemas say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.consumer.records import read_key as read_consumer_key
from kraftpy.groups.share.records import (
    ShareCurrentKey,
    ShareCurrentValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareKey,
    ShareMemberKey,
    ShareMemberValue,
    ShareStateKey,
    ShareStateValue,
    ShareTargetMemberKey,
    ShareTargetMemberValue,
    ShareTargetMetadataKey,
    ShareTargetMetadataValue,
    ShareValue,
    TopicState,
    read_key,
    read_value,
    share_record,
)
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicId

T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)
SOME = frozenset({TopicIdPartition(U, 0), TopicIdPartition(T, 2), TopicIdPartition(T, 1)})
SOME_BYTES = b"\x03" + b"t" * 16 + b"\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00" + b"u" * 16 + b"\x02\x00\x00\x00\x00\x00"

LITERAL: list[tuple[ShareKey, ShareValue, bytes, bytes]] = [
    (
        ShareMemberKey("g", "m"),
        ShareMemberValue(rack_id="r", client_id="c", client_host="/h", subscribed_topic_names=("t", "u")),
        b"\x00\x0a\x00\x01g\x00\x01m",
        b"\x00\x00\x02r\x02c\x03/h\x03\x02t\x02u\x00",
    ),
    (
        ShareMemberKey("g", "m"),
        ShareMemberValue(),
        b"\x00\x0a\x00\x01g\x00\x01m",
        b"\x00\x00\x00\x01\x01\x01\x00",
    ),
    (
        ShareGroupKey("g"),
        ShareGroupValue(epoch=5, metadata_hash=-2),
        b"\x00\x0b\x00\x01g",
        b"\x00\x00\x00\x00\x00\x05\xff\xff\xff\xff\xff\xff\xff\xfe\x00",
    ),
    (
        ShareTargetMetadataKey("g"),
        ShareTargetMetadataValue(assignment_epoch=9),
        b"\x00\x0c\x00\x01g",
        b"\x00\x00\x00\x00\x00\x09\x00",
    ),
    (
        ShareTargetMetadataKey("g"),
        ShareTargetMetadataValue(assignment_epoch=9, assigned_at=0x0102),
        b"\x00\x0c\x00\x01g",
        b"\x00\x00\x00\x00\x00\x09\x01\x00\x08" + bytes(6) + b"\x01\x02",
    ),
    (
        ShareTargetMemberKey("g", "m"),
        ShareTargetMemberValue(partitions=SOME),
        b"\x00\x0d\x00\x01g\x00\x01m",
        b"\x00\x00" + SOME_BYTES + b"\x00",
    ),
    (
        ShareCurrentKey("g", "m"),
        ShareCurrentValue(member_epoch=3, previous_member_epoch=2, assigned=SOME),
        b"\x00\x0e\x00\x01g\x00\x01m",
        b"\x00\x00\x00\x00\x00\x03\x00\x00\x00\x02\x00" + SOME_BYTES + b"\x00",
    ),
    (
        ShareStateKey("g"),
        ShareStateValue(
            initializing={T: TopicState("t", frozenset({3, 1}), 7)},
            initialized={U: TopicState("u", frozenset({0}), 8)},
            deleting={T: "old"},
        ),
        b"\x00\x0f\x00\x01g",
        b"\x00\x00\x02" + b"t" * 16 + b"\x02t\x03\x00\x00\x00\x01\x00\x00\x00\x03" + bytes(7) + b"\x07\x00"
        b"\x02" + b"u" * 16 + b"\x02u\x02\x00\x00\x00\x00" + bytes(7) + b"\x08\x00"
        b"\x02" + b"t" * 16 + b"\x04old\x00\x00",
    ),
    (ShareStateKey("g"), ShareStateValue(), b"\x00\x0f\x00\x01g", b"\x00\x00\x01\x01\x01\x00"),
]


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), LITERAL)
def test_bytes(key: ShareKey, value: ShareValue, key_bytes: bytes, value_bytes: bytes) -> None:
    assert share_record(key, value) == (key_bytes, value_bytes)
    assert share_record(key, None) == (key_bytes, None)
    assert read_key(key_bytes) == key
    assert read_value(key, value_bytes) == value
    assert read_consumer_key(key_bytes) is None


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), LITERAL)
def test_what_is_cut_off_is_refused(key: ShareKey, value: object, key_bytes: bytes, value_bytes: bytes) -> None:
    for end in range(len(value_bytes)):
        with pytest.raises(ProtocolError):
            read_value(key, value_bytes[:end])
    with pytest.raises(ProtocolError):
        read_key(key_bytes[:-1])


def test_tags_of_newer_brokers_are_passed_over() -> None:
    written = b"\x00\x00\x00\x00\x00\x09\x01\x01\x08" + bytes(8)
    assert read_value(ShareTargetMetadataKey("g"), written) == ShareTargetMetadataValue(assignment_epoch=9)


def test_other_kinds_and_versions() -> None:
    for number in (2, 9, 16, 17):
        assert read_key(number.to_bytes(2, "big") + b"\x00\x01g") is None
    with pytest.raises(ProtocolError):
        read_value(ShareGroupKey("g"), b"\x00\x01\x00\x00\x00\x05" + bytes(8) + b"\x00")


states = st.dictionaries(
    st.sampled_from([T, U]),
    st.builds(
        TopicState, st.text(max_size=9), st.frozensets(st.integers(0, 2**31 - 1)), st.integers(-(2**63), 2**63 - 1)
    ),
)


@given(
    st.builds(
        ShareStateValue,
        initializing=states,
        initialized=states,
        deleting=st.dictionaries(st.sampled_from([T, U]), st.text(max_size=9)),
    )
)
def test_what_is_known_of_partitions_comes_back(value: ShareStateValue) -> None:
    _, written = share_record(ShareStateKey("g"), value)
    assert written is not None
    assert read_value(ShareStateKey("g"), written) == value
