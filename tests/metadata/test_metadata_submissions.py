"""A submission sent twice is applied once, and one that an older version wrote can be read."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import (
    AllocateProducerIds,
    BalanceLeaders,
    Command,
    ConfigChange,
    ConfigOperation,
    ConfigValue,
    CreateTopics,
    FeatureUpdate,
    FormatCluster,
    NewTopic,
    RegisterBroker,
    SetConfigs,
    SetControllerDefaults,
    UpdateFeatures,
    encode_command,
)
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.features import LATEST
from kraftpy.metadata.image import Image
from kraftpy.metadata.submissions import (
    NONCES_PER_NODE,
    WINDOW,
    SubmissionId,
    Submissions,
    decode_submission,
    encode_submission,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, Millis, TopicId

TOPIC_ID = TopicId(b"topic-id-16bytes")
IDS = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=1, time_ms=Millis(0))
REGISTRATION = RegisterBroker(
    broker_id=BrokerId(1), incarnation_id=bytes(16), endpoints=(), time_ms=Millis(0), fenced=False
)


def one(sequence: int, *, node_id: int = 1, nonce: bytes = b"n") -> SubmissionId:
    return SubmissionId(node_id=node_id, nonce=nonce, sequence=sequence)


def test_a_submission_that_comes_again_changes_nothing_and_says_so() -> None:
    machine = MetadataStateMachine()
    machine.apply(1, 1, encode_command(REGISTRATION))
    data = encode_submission(one(0), IDS)
    first = machine.apply(2, 1, data)
    assert first.submission == one(0)
    assert first.decision.result is not None
    before = machine.snapshot()
    again = machine.apply(3, 2, data)
    assert again.is_duplicate
    assert again.submission == one(0)
    assert (again.decision.records, again.decision.result) == ((), None)
    assert machine.snapshot() == before
    machine.restore(before)
    assert machine.apply(4, 2, data).is_duplicate, "a snapshot remembers"
    assert not machine.apply(5, 2, encode_submission(one(1), IDS)).is_duplicate
    assert not machine.apply(6, 2, encode_submission(one(1, node_id=2), IDS)).is_duplicate
    assert not machine.apply(7, 2, encode_submission(one(1, nonce=b"later"), IDS)).is_duplicate


def test_what_was_refused_is_refused_once() -> None:
    machine = MetadataStateMachine()
    data = encode_submission(one(0), IDS)
    assert machine.apply(1, 1, data).decision.error is ErrorCode.STALE_BROKER_EPOCH
    machine.apply(2, 1, encode_command(REGISTRATION))
    assert machine.apply(3, 1, data).is_duplicate


def test_sequences_may_come_in_any_order_within_the_window() -> None:
    submissions = Submissions()
    for sequence in (3, 0, 2, 5):
        assert not submissions.has(one(sequence))
        submissions.add(one(sequence))
    assert [sequence for sequence in range(7) if submissions.has(one(sequence))] == [0, 2, 3, 5]
    submissions.add(one(1))
    (saved,) = submissions.saved()
    assert (saved.floor, saved.above) == (3, (5,))
    assert Submissions([saved]).saved() == (saved,)


def test_what_is_kept_is_bounded() -> None:
    submissions = Submissions()
    for number in range(WINDOW + 10):
        submissions.add(one(2 * number))
    (saved,) = submissions.saved()
    assert len(saved.above) == WINDOW
    assert submissions.has(one(1)), "older than the window: it counts as applied"
    assert not submissions.has(one(2 * (WINDOW + 9) - 1))
    for number in range(10):
        submissions.add(one(0, nonce=bytes([number])))
    assert len(submissions.saved()) == NONCES_PER_NODE
    assert submissions.has(one(0, nonce=bytes([9])))


@pytest.mark.parametrize(
    "spoilt",
    [
        [1, b"n", 0, "text"],
        ["1", b"n", 0, b""],
        [1, "n", 0, b""],
        [1, b"", 0, b""],
        [1, b"n", -1, b""],
        [1, b"n", True, b""],
    ],
)
def test_a_spoilt_submission_is_refused(spoilt: list[object]) -> None:
    data = msgpack.packb(spoilt)
    with pytest.raises(CodecError, match="not a metadata submission"):
        decode_submission(data)
    machine = MetadataStateMachine()
    assert machine.apply(1, 1, data).decision.error is ErrorCode.INVALID_REQUEST
    assert machine.snapshot() == Image().to_bytes()


def test_a_journal_and_a_snapshot_of_the_first_schema_are_read() -> None:
    machine = MetadataStateMachine()
    commands = [
        [1, 1, {"cluster_id": "c", "time_ms": 1}],
        [1, 2, {"broker_id": 1, "incarnation_id": b"a" * 16, "endpoints": [], "time_ms": 2, "fenced": False}],
        [1, 4, {"topics": [{"name": "t", "topic_id": b"i" * 16, "partitions": 2}], "time_ms": 3}],
        [1, 3, {"broker_id": 1, "broker_epoch": 2, "fenced": True, "time_ms": 4}],
    ]
    for index, command in enumerate(commands, 1):
        assert not machine.apply(index, 1, msgpack.packb(command)).decision.error
    partition = machine.image.partition("t", 0)
    assert partition is not None
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((1,), -1, 1)
    schema, saved = msgpack.unpackb(machine.snapshot())
    assert schema == 4
    for broker in saved["brokers"]:
        del broker["registered_index"]
    for name in ("features", "submissions"):
        assert name not in saved, "what is as it would be by default is left out"
    restored = Image.from_bytes(msgpack.packb([1, saved]))
    assert restored.partition("t", 0) == partition
    assert not restored.features()


def test_what_an_older_version_refused_stays_refused_and_what_it_knows_is_written_so_that_it_can_read_it() -> None:
    """`share.version` 2 came with schema 5: an older node has refused it in the same journal."""
    level = {"name": "share.version", "level": 2}
    older: list[tuple[int, int, dict[str, Any]]] = [
        (4, 1, {"cluster_id": "c", "time_ms": 1}),
        (4, 14, {"updates": [level], "time_ms": 2}),
    ]
    machine = MetadataStateMachine()
    errors = [machine.apply(at, 1, msgpack.packb(each)).decision.error for at, each in enumerate(older, 1)]
    assert errors == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    update = UpdateFeatures(updates=(FeatureUpdate(name="share.version", level=2),), time_ms=Millis(3))
    assert not machine.apply(3, 1, encode_command(update)).decision.error
    assert machine.image.feature_level("share.version") == 2
    assert msgpack.unpackb(machine.snapshot())[0] == 5, "an older node does not know what to do with it"
    assert Image.from_bytes(machine.snapshot()).feature_level("share.version") == 2
    formatted = MetadataStateMachine()
    assert formatted.apply(1, 1, msgpack.packb([4, 1, {**older[0][2], "features": [level]}])).decision.error

    setting = ConfigOperation(name="errors.deadletterqueue.topic.name", value="dlq.a")
    other = ConfigOperation(name="share.delivery.count.limit", value="3")
    queue = NewTopic(
        name="q", topic_id=TOPIC_ID, configs=(ConfigValue(name="errors.deadletterqueue.group.enable", value="true"),)
    )
    newer: list[Command] = [
        update,
        FormatCluster(cluster_id="c", time_ms=Millis(1), features=LATEST),
        SetConfigs(changes=(of_a_group(setting),), time_ms=Millis(1)),
        CreateTopics(topics=(queue,), time_ms=Millis(1)),
        SetConfigs(changes=(of_a_group(other),), time_ms=Millis(1), rules=1),
        SetControllerDefaults(configs=(), time_ms=Millis(1)),
    ]
    known: list[Command] = [
        UpdateFeatures(updates=(FeatureUpdate(name="share.version", level=1),), time_ms=Millis(3)),
        FormatCluster(cluster_id="c", time_ms=Millis(1)),
        SetConfigs(changes=(of_a_group(other),), time_ms=Millis(1)),
        CreateTopics(topics=(NewTopic(name="t", topic_id=TOPIC_ID),), time_ms=Millis(1)),
        BalanceLeaders(imbalance_percentage=10, time_ms=Millis(1)),
    ]
    assert [msgpack.unpackb(encode_command(command))[0] for command in newer] == [5] * len(newer)
    assert [msgpack.unpackb(encode_command(command))[0] for command in known] == [4] * len(known)


def of_a_group(operation: ConfigOperation) -> ConfigChange:
    return ConfigChange(resource_type=32, resource_name="g", operations=(operation,))
