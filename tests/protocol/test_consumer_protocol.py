from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_generation,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky_user_data,
    encode_subscription,
)
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicPartition

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 99)), max_size=8, unique=True).map(
    lambda items: tuple(sorted(items))
)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=4).map(tuple),
    owned=partitions,
    generation_id=st.integers(-1, 2**31 - 1),
    rack_id=st.none() | names,
    user_data=st.none() | st.binary(max_size=20),
)


def theirs(module: str, kind: str, version: int, data: bytes) -> Any:
    """Return the message as `kio`, an independent implementation, reads it."""
    from importlib import import_module

    from kio.serial import entity_reader

    entity = getattr(import_module(f"kio.schema.{module}.v{version}.data"), kind)
    read = entity_reader(entity)
    try:
        value = read(io.BytesIO(data))
    except (TypeError, AttributeError):
        value, _ = read(data, 0)
    return value


@given(subscriptions)
@settings(max_examples=60, deadline=None)
def test_a_subscription_comes_back_as_it_went_and_kio_reads_the_same(subscription: Subscription) -> None:
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    version = struct.unpack_from(">h", data)[0]
    read = theirs("consumer_protocol_subscription", "ConsumerProtocolSubscription", version, data[2:])
    assert tuple(read.topics) == subscription.topics
    assert read.user_data == subscription.user_data
    assert read.generation_id == subscription.generation_id
    assert read.rack_id == subscription.rack_id
    assert [(part.topic, index) for part in read.owned_partitions for index in part.partitions] == [
        tuple(name) for name in subscription.owned
    ]


@given(partitions, st.none() | st.binary(max_size=9))
@settings(max_examples=60, deadline=None)
def test_an_assignment_comes_back_as_it_went_and_kio_reads_the_same(
    assigned: tuple[TopicPartition, ...], user_data: bytes | None
) -> None:
    data = encode_assignment(assigned, user_data)
    assert decode_assignment(data) == assigned
    version = struct.unpack_from(">h", data)[0]
    read = theirs("consumer_protocol_assignment", "ConsumerProtocolAssignment", version, data[2:])
    assert [(part.topic, index) for part in read.assigned_partitions for index in part.partitions] == [
        tuple(name) for name in assigned
    ]


def test_older_versions_are_read_and_newer_ones_as_far_as_they_are_known() -> None:
    version_0 = struct.pack(">hih2si", 0, 1, 2, b"ab", -1)
    assert decode_subscription(version_0) == Subscription(topics=("ab",))
    newer = struct.pack(">h", 9) + encode_subscription(Subscription(topics=("t",), generation_id=4))[2:] + b"more"
    assert decode_subscription(newer) == Subscription(topics=("t",), generation_id=4)
    assert decode_assignment(b"") == ()


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_protocol_error_and_nothing_worse(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(ProtocolError):
            decode(data)
    decode_sticky_user_data(data)
    decode_generation(data)


def test_a_count_beyond_the_data_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(struct.pack(">hi", 0, 2**31 - 1))


def test_what_sticky_assignors_remember() -> None:
    owned = (TopicPartition("a", 0), TopicPartition("a", 2))
    assert decode_sticky_user_data(encode_sticky_user_data(owned, 7)) == (owned, 7)
    assert decode_sticky_user_data(None) == ((), -1)
    assert decode_generation(encode_generation(7)) == 7
    assert decode_generation(None) == -1
