"""The records of streams groups, byte for byte as the classes of Kafka 4.3 write them."""

from __future__ import annotations

import pytest

from kraftpy.groups.streams.records import (
    StreamsCurrentKey,
    StreamsCurrentValue,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsKey,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsState,
    StreamsTargetKey,
    StreamsTargetMetadataKey,
    StreamsTargetMetadataValue,
    StreamsTargetValue,
    StreamsTopologyKey,
    StreamsValue,
    Task,
    Tasks,
    read_key,
    read_value,
    streams_record,
    write_key,
)
from kraftpy.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology
from kraftpy.protocol.errors import ProtocolError

TOPOLOGY = Topology(
    epoch=1,
    subtopologies=(
        Subtopology(
            subtopology_id="0",
            source_topics=("t",),
            source_topic_regex=("x.*",),
            state_changelog_topics=(InternalTopic(name="s", replication_factor=1, configs=(("k", "v"),)),),
            repartition_sink_topics=("r",),
            repartition_source_topics=(InternalTopic(name="q", partitions=4),),
            copartition_groups=(
                CopartitionGroup(source_topics=(0,), source_topic_regex=(0,), repartition_source_topics=(0,)),
            ),
        ),
    ),
)

LITERAL: list[tuple[StreamsKey, StreamsValue, str]] = [
    (StreamsGroupKey("g"), StreamsGroupValue(epoch=5), "000000000005000000000000000000"),
    (
        StreamsGroupKey("g"),
        StreamsGroupValue(epoch=5, metadata_hash=-2, validated_topology_epoch=3),
        "000000000005fffffffffffffffe01000400000003",
    ),
    (
        StreamsGroupKey("g"),
        StreamsGroupValue(epoch=5, validated_topology_epoch=3, assignment_configs=(("num.standby.replicas", "1"),)),
        "0000000000050000000000000000020004000000030119" + "0215" + b"num.standby.replicas".hex() + "023100",
    ),
    (
        StreamsMemberKey("g", "m"),
        StreamsMemberValue(
            rack_id="r",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=7,
            topology_epoch=2,
            process_id="p",
            user_endpoint=("e", 50_000),
            client_tags=(("k", "v"),),
        ),
        "00000002720263032f6800000007000000020270010265c3500002026b02760000",
    ),
    (
        StreamsMemberKey("g", "m"),
        StreamsMemberValue(client_id="c", client_host="/h", rebalance_timeout_ms=7, topology_epoch=2, process_id="p"),
        "000000000263032f6800000007000000020270ff0100",
    ),
    (StreamsTargetMetadataKey("g"), StreamsTargetMetadataValue(assignment_epoch=9), "00000000000900"),
    (
        StreamsTargetMetadataKey("g"),
        StreamsTargetMetadataValue(assignment_epoch=9, assigned_at=0x0102),
        "0000000000090100080000000000000102",
    ),
    (
        StreamsTargetKey("g", "m"),
        StreamsTargetValue(
            tasks=Tasks(active=frozenset({Task("0", 2), Task("0", 1)}), standby=frozenset({Task("1", 0)}))
        ),
        "0000020230030000000100000002000202310200000000000100",
    ),
    (
        StreamsCurrentKey("g", "m"),
        StreamsCurrentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=StreamsState.UNREVOKED_TASKS,
            assigned=Tasks(active=frozenset({Task("0", 1)})),
            pending_revocation=Tasks(active=frozenset({Task("0", 2)})),
        ),
        "00000000000300000002010202300200000001000101020230020000000200010100",
    ),
    (
        StreamsTopologyKey("g"),
        TOPOLOGY,
        "0000000000010202300202740204782e2a02027300000000000102026b02760000020272020271000000040000010002020000020000"
        "020000000000",
    ),
]


@pytest.mark.parametrize(("key", "value", "bytes_"), LITERAL)
def test_a_value_is_written_and_read_as_kafka_has_it(key: StreamsKey, value: StreamsValue, bytes_: str) -> None:
    written = streams_record(key, value)
    assert written[1] is not None
    assert written[1].hex() == bytes_
    assert read_value(key, written[1]) == value
    assert read_key(written[0]) == key
    assert streams_record(key, None) == (written[0], None)


def test_keys_are_kafkas() -> None:
    assert write_key(StreamsCurrentKey("g", "m")).hex() == "001600016700016d"
    kinds = [int.from_bytes(write_key(key)[:2], "big") for key, _, _ in LITERAL]
    assert kinds == [17, 17, 17, 19, 19, 20, 20, 21, 22, 23]
    assert read_key(b"\x00\x12\x00\x01g") is None


def test_fields_of_tags_that_are_not_known_are_passed_over() -> None:
    more = bytes.fromhex("00000000000902000800000000000000010102aabb")
    assert read_value(StreamsTargetMetadataKey("g"), more) == StreamsTargetMetadataValue(
        assignment_epoch=9, assigned_at=1
    )


def test_what_is_not_in_the_format_is_refused() -> None:
    with pytest.raises(ProtocolError, match="version 1"):
        read_value(StreamsTargetMetadataKey("g"), bytes.fromhex("00010000000900"))
    for _, value, bytes_ in LITERAL:
        key = next(key for key, each, _ in LITERAL if each is value)
        with pytest.raises(ProtocolError):
            read_value(key, bytes.fromhex(bytes_)[:-3])
