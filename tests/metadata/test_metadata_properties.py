"""Properties for any commands: nodes agree, snapshots are whole, bytes decode to what they were or to an error."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kraftpy.metadata import codec, controller
from kraftpy.metadata.codec import CodecError, pack, unpack, unpack_in_parts
from kraftpy.metadata.commands import (
    SCHEMA,
    AllocateProducerIds,
    ChangeBroker,
    ChangePartitions,
    Command,
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigValue,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Endpoint,
    FormatCluster,
    IsrChange,
    IsrMember,
    NewerSchemaError,
    NewPartitions,
    NewTopic,
    RegisterBroker,
    ReplicaAssignment,
    SetConfigs,
    TopicReference,
    decode_command,
    encode_command,
)
from kraftpy.metadata.controller import Decision, MetadataStateMachine
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import NO_LEADER
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId

# Few names, so that commands meet each other.
names = st.sampled_from(["a", "b", "c.d", "c_d", "bad name", ""])
topic_ids = st.integers(0, 6).map(lambda number: TopicId(number.to_bytes(16, "big")))
broker_ids = st.integers(-1, 4).map(BrokerId)
broker_epochs = st.integers(-1, 8)
times = st.integers(0, 9).map(Millis)
replicas = st.lists(broker_ids, max_size=3).map(tuple)
texts = st.sampled_from(["1", "5000", "compact", "delete", "compact,delete", "x", ""])
setting_names = st.sampled_from(
    ["retention.ms", "cleanup.policy", "log.retention.ms", "min.compaction.lag.ms", "no.such"]
)
bools = st.booleans()


def some(items: st.SearchStrategy[object], size: int = 3) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, max_size=size).map(tuple)


new_topics = st.builds(
    NewTopic,
    name=names,
    topic_id=topic_ids,
    partitions=st.integers(-2, 5),
    replication_factor=st.integers(-2, 4),
    assignments=some(st.builds(ReplicaAssignment, partition=st.integers(-1, 3), replicas=replicas), 2),
    configs=some(st.builds(ConfigValue, name=setting_names, value=st.none() | texts), 2),
)
config_changes = st.builds(
    ConfigChange,
    resource_type=st.sampled_from([2, 4, 8, -1]),
    resource_name=names | st.sampled_from(["1", "2", "01"]),
    operations=some(
        st.builds(
            ConfigOperation,
            name=setting_names,
            value=st.none() | texts,
            operation=st.sampled_from(ConfigOperationType),
            inherited=st.none() | texts,
        )
    ),
    replace=bools,
)
isr_changes = st.builds(
    IsrChange,
    topic_id=topic_ids,
    partition=st.integers(-1, 3),
    leader_epoch=st.integers(0, 2).map(LeaderEpoch),
    partition_epoch=st.integers(0, 2),
    isr=some(st.builds(IsrMember, broker_id=broker_ids, broker_epoch=broker_epochs)),
)
registrations = st.builds(
    RegisterBroker,
    broker_id=broker_ids,
    incarnation_id=st.sampled_from([b"a" * 16, b"b" * 16, b"short"]),
    endpoints=some(st.builds(Endpoint, listener=names, host=names, port=st.integers(0, 65535)), 2),
    time_ms=times,
    rack=st.none() | st.sampled_from(["east", "west"]),
    host=st.none() | st.sampled_from(["first", "second"]),
    fenced=bools,
    previous_session_expired=bools,
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(FormatCluster, cluster_id=st.sampled_from(["x", "y", ""]), time_ms=times),
    registrations,
    st.builds(ChangeBroker, broker_id=broker_ids, broker_epoch=broker_epochs, fenced=bools, time_ms=times),
    st.builds(
        CreateTopics,
        topics=some(new_topics),
        time_ms=times,
        default_partitions=st.integers(-1, 3),
        default_replication_factor=st.integers(-1, 2),
        validate_only=bools,
    ),
    st.builds(
        DeleteTopics,
        topics=some(st.builds(TopicReference, name=st.none() | names, topic_id=topic_ids)),
        time_ms=times,
    ),
    st.builds(
        CreatePartitions,
        topics=some(
            st.builds(NewPartitions, name=names, count=st.integers(-1, 6), assignments=st.none() | some(replicas))
        ),
        time_ms=times,
        validate_only=bools,
    ),
    st.builds(SetConfigs, changes=some(config_changes), time_ms=times, validate_only=bools),
    st.builds(AllocateProducerIds, broker_id=broker_ids, broker_epoch=broker_epochs, time_ms=times),
    st.builds(
        ChangePartitions,
        broker_id=broker_ids,
        broker_epoch=broker_epochs,
        changes=some(isr_changes, 2),
        time_ms=times,
    ),
)
three_brokers = [
    RegisterBroker(broker_id=BrokerId(number), incarnation_id=b"a" * 16, endpoints=(), time_ms=Millis(0), fenced=False)
    for number in (1, 2, 3)
]


def check(image: Image) -> None:
    """Check the invariants that an election or a proposal might break."""
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics())
    for _, _, partition in image.partitions():
        assert partition.isr
        assert set(partition.isr) <= set(partition.replicas)
        led_by_active = partition.leader in partition.isr and image.is_active(partition.leader)
        assert led_by_active or (
            partition.leader == NO_LEADER and not any(image.is_active(member) for member in partition.isr)
        )


@settings(max_examples=300, deadline=None)
@given(st.lists(commands, max_size=12), st.integers(0, 12))
def test_nodes_that_apply_the_same_commands_agree(asked: list[Command], restored_at: int) -> None:
    first, second = MetadataStateMachine(), MetadataStateMachine()
    version, epochs = 0, dict[object, int]()
    captured, encoded = None, b""
    for number, command in enumerate(three_brokers + asked):
        data = encode_command(command)
        assert decode_command(data) == command
        decision = first.apply(number, 1, data).decision
        assert decision.error is not ErrorCode.UNKNOWN_SERVER_ERROR, decision.message
        if number == restored_at:
            second.restore(second.snapshot())
            captured, encoded = first.capture(), first.snapshot()
        assert second.apply(number, 1, data).decision == decision
        check(first.image)
        assert first.image.version == version + len(decision.records)
        version = first.image.version
        for topic, index, partition in first.image.partitions():
            key = (topic.topic_id, index)
            assert partition.leader_epoch >= epochs.get(key, 0)
            epochs[key] = partition.leader_epoch
    assert captured is None or captured() == encoded, "it is of the time when it was captured"
    assert first.snapshot() == second.snapshot()
    assert Image.from_bytes(first.snapshot()).to_bytes() == first.snapshot()


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, max_size=6), commands)
def test_deciding_changes_nothing_and_replaying_the_records_is_all_that_applying_does(
    before: list[Command], command: Command
) -> None:
    machine, other = MetadataStateMachine(), MetadataStateMachine()
    for earlier in three_brokers + before:
        machine.apply(1, 1, encode_command(earlier))
        other.apply(1, 1, encode_command(earlier))
    bytes_before = machine.snapshot()
    decision = controller.decide(command, machine.image)
    assert machine.snapshot() == bytes_before
    for record in decision.records:
        machine.image.replay(record, 1)
    other.apply(1, 1, encode_command(command))
    assert machine.snapshot() == other.snapshot()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
@example(bytes([0x93, SCHEMA + 1, 0, 0]))
def test_any_bytes_are_a_refused_command_and_no_snapshot(data: bytes) -> None:
    """Bytes that happen to be a command of a later schema are no exception: they stop the node, by their own error."""
    machine = MetadataStateMachine()
    try:
        decision = machine.apply(1, 1, data).decision
    except NewerSchemaError:
        assert msgpack.unpackb(data)[0] > SCHEMA
    else:
        assert decision.error is ErrorCode.INVALID_REQUEST
        assert decision.message
    with pytest.raises(CodecError):
        machine.restore(data)
    assert machine.snapshot() == Image().to_bytes()


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(commands, st.data())
def test_a_command_with_any_part_replaced_decodes_to_its_types_or_is_refused(
    command: Command, data: st.DataObject
) -> None:
    schema, number, fields = msgpack.unpackb(encode_command(command))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(plain)
    spoilt = msgpack.packb([schema, number, fields])
    with contextlib.suppress(CodecError):
        decoded = decode_command(spoilt)
        assert decode_command(encode_command(decoded)) == decoded
    machine = MetadataStateMachine()
    for earlier in three_brokers:
        machine.apply(1, 1, encode_command(earlier))
    assert machine.apply(1, 1, spoilt).decision.error is not ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("plain_command", "told"),
    [
        ([1, 99, {}], "unknown metadata command 99"),
        ([0, 1, {}], "schema"),
        ([True, 1, {}], "schema"),
        ([1, 1], "not a metadata command"),
        ([1, 1, []], "expected a map"),
        ([1, 1, {"cluster_id": "x"}], "time_ms is missing"),
        ([1, 1, {"cluster_id": "x", "time_ms": 1, "more": 2}], "unknown fields more"),
        ([1, 1, {"cluster_id": b"x", "time_ms": 1}], r"cluster_id: expected str, got bytes"),
        ([1, 1, {"cluster_id": "x", "time_ms": True}], r"time_ms: expected int, got bool"),
    ],
)
def test_a_malformed_command_says_what_is_wrong(plain_command: object, told: str) -> None:
    with pytest.raises(CodecError, match=told):
        decode_command(msgpack.packb(plain_command))


def test_what_a_newer_version_wrote_stops_the_node_instead_of_being_skipped() -> None:
    newer = msgpack.packb([SCHEMA + 1, 1, {}])
    with pytest.raises(NewerSchemaError, match="upgrade this node"):
        MetadataStateMachine().apply(1, 1, newer)
    with pytest.raises(NewerSchemaError, match="upgrade this node"):
        Image.from_bytes(msgpack.packb([SCHEMA + 1, {}]))


def test_a_failure_within_decide_is_a_refusal_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Command, image: Image) -> Decision[None]:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(controller, "decide", fail)
    machine = MetadataStateMachine()
    decision = machine.apply(1, 1, encode_command(FormatCluster(cluster_id="x", time_ms=Millis(0)))).decision
    assert decision.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "ZeroDivisionError: ours" in (decision.message or "")
    assert machine.image.version == 0


def test_the_bytes_of_a_command_are_fixed() -> None:
    """The journal of an older version must be readable: a change here needs a new schema."""
    command = CreateTopics(topics=(NewTopic(name="t", topic_id=TopicId(b"i" * 16), partitions=2),), time_ms=Millis(7))
    assert msgpack.unpackb(encode_command(command)) == [
        4,
        4,
        {"topics": [{"name": "t", "topic_id": b"i" * 16, "partitions": 2}], "time_ms": 7},
    ]


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_plain, st.integers(0, 4), st.binary(min_size=1, max_size=3))
def test_what_is_unpacked_in_parts_is_what_is_unpacked_at_once(plain: Any, depth: int, more: bytes) -> None:
    data = pack(plain)
    assert unpack_in_parts(data, depth) == unpack_in_parts(memoryview(data), depth) == unpack(data)
    for bad in (data[:-1], data + more):
        with pytest.raises(CodecError):
            unpack_in_parts(bad, depth)


@given(st.binary(max_size=40), st.integers(0, 4))
def test_any_bytes_are_unpacked_in_parts_or_refused(data: bytes, depth: int) -> None:
    with contextlib.suppress(CodecError):
        unpack_in_parts(data, depth)


def test_a_snapshot_is_decoded_topic_by_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads run between two calls of the library, so none of them may take the whole snapshot."""
    machine = MetadataStateMachine()
    for number in range(30):
        topic = NewTopic(name=f"t{number:02}", topic_id=TopicId(number.to_bytes(16, "big")), partitions=20)
        command = CreateTopics(topics=(topic,), time_ms=Millis(0))
        machine.apply(number + 10, 1, encode_command(command))
        if number == 0:
            for broker in three_brokers:
                machine.apply(number, 1, encode_command(broker))
    snapshot = machine.snapshot()
    largest: list[int] = []

    class Counting(msgpack.Unpacker):  # type: ignore[misc]
        def unpack(self) -> Any:
            began = self.tell()
            found = super().unpack()
            largest.append(self.tell() - began)
            return found

    monkeypatch.setattr(codec.msgpack, "Unpacker", Counting)
    assert Image.from_bytes(snapshot).to_bytes() == snapshot
    assert sum(largest) > len(snapshot) // 2
    assert max(largest) < len(snapshot) // 20
