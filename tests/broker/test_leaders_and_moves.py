"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UpdateFeatures, UnregisterBroker, ApiVersions'
features: what a cluster of several brokers answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_clusters import MadeCluster, context

from kraftpy.broker.handlers import cluster as about_cluster
from kraftpy.broker.handlers import leaders
from kraftpy.broker.handlers.metadata import describe_topic_partitions
from kraftpy.metadata.commands import ChangeBroker
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_partition_reassignments as alter
from kraftpy.protocol.messages import list_partition_reassignments as listing
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kraftpy.protocol.messages.elect_leaders import PREFERRED, UNCLEAN, ElectLeadersRequest, TopicPartitions
from kraftpy.protocol.messages.unregister_broker import UnregisterBrokerRequest
from kraftpy.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kraftpy.types import BrokerId, Millis

INSIDE = ("INSIDE",)
ELR = "eligible.leader.replicas.version"


def three() -> MadeCluster:
    return MadeCluster(b1=INSIDE, b2=INSIDE, b3=INSIDE)


async def elected(
    made: MadeCluster,
    partitions: dict[str, list[int]] | None,
    *,
    kind: int = PREFERRED,
    version: int = 2,
    timeout_ms: int = 1000,
) -> tuple[int, dict[tuple[str, int], int]]:
    request = ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if partitions is None
        else [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in partitions.items()],
        timeout_ms=timeout_ms,
    )
    answer = await leaders.elect_leaders(made.broker(1), request, context(ApiKey.ELECT_LEADERS, version))
    found = {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }
    return answer.error_code, found


async def test_the_preferred_leader_leads_again() -> None:
    made = three()
    made.topic("t", (1, 2, 3), (2, 1, 3))
    made.fence(1)
    made.fence(1, fenced=False)
    assert await elected(made, {"t": [0]}) == (0, {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})
    made.isr("t", 0, 1, 2, 3)
    assert await elected(made, {"t": [0, 1, 2], "no": [0]}) == (
        0,
        {
            ("t", 0): ErrorCode.NONE,
            ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    )
    partition = made.image.partition("t", 0)
    assert partition is not None
    assert partition.leader == 1


async def test_of_all_partitions_only_those_that_changed_are_told() -> None:
    made = three()
    made.topic("t", (1, 2), (2, 3))
    made.fence(1)
    made.fence(1, fenced=False)
    made.isr("t", 0, 2, 1)
    assert await elected(made, None) == (0, {("t", 0): ErrorCode.NONE})
    assert await elected(made, None) == (0, {})


async def test_of_all_partitions_every_topic_is_listed() -> None:
    made = three()
    made.topic("t", (1, 2))
    made.topic("u", (2, 3))
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=1000)
    answer = await leaders.elect_leaders(made.broker(1), request, context(ApiKey.ELECT_LEADERS, 2))
    assert [(topic.topic, topic.partition_result) for topic in answer.replica_election_results] == [
        ("t", []),
        ("u", []),
    ]


@pytest.mark.parametrize("kind", [PREFERRED, 7])
async def test_topics_and_partitions_are_answered_as_they_are_named(kind: int) -> None:
    made = three()
    made.topic("t", (1, 2))
    named = [TopicPartitions(topic="t", partitions=partitions) for partitions in ([0, 0], [], [0])]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=named, timeout_ms=1000)
    answer = await leaders.elect_leaders(made.broker(1), request, context(ApiKey.ELECT_LEADERS, 2))
    told = [
        (topic.topic, [(part.partition_id, part.error_code) for part in topic.partition_result])
        for topic in answer.replica_election_results
    ]
    error = ErrorCode.ELECTION_NOT_NEEDED if kind == PREFERRED else ErrorCode.INVALID_REQUEST
    assert told == [("t", [(0, error)] * 2), ("t", []), ("t", [(0, error)])]


async def test_moves_are_answered_as_they_are_named() -> None:
    made = three()
    made.topic("t", (1, 2))
    same = alter.ReassignablePartition(partition_index=0, replicas=[2, 3])
    other = alter.ReassignablePartition(partition_index=0, replicas=[3, 2])
    for moves, errors in (([same, same], [0, 0]), ([], []), ([same, other], [ErrorCode.INVALID_REQUEST] * 2)):
        moved_request = alter.AlterPartitionReassignmentsRequest(
            topics=[alter.ReassignableTopic(name="t", partitions=moves)], timeout_ms=1000
        )
        asked = context(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        (of_topic,) = (await leaders.alter_partition_reassignments(made.broker(1), moved_request, asked)).responses
        assert [part.error_code for part in of_topic.partitions] == errors


async def test_an_unclean_election_is_held_only_on_request() -> None:
    made = three()
    made.topic("t", (1, 2))
    made.isr("t", 0, 1)
    made.fence(1)
    assert await elected(made, {"t": [0]}, kind=UNCLEAN) == (0, {("t", 0): ErrorCode.NONE})
    partition = made.image.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.isr, partition.is_recovering) == (2, (2,), True)
    assert await elected(made, {"t": [0]}, kind=UNCLEAN) == (0, {("t", 0): ErrorCode.ELECTION_NOT_NEEDED})


async def test_an_election_that_cannot_be_held_says_why() -> None:
    made = three()
    made.topic("t", (1, 2))
    refused = {("t", 0): ErrorCode.INVALID_REQUEST}
    assert await elected(made, {"t": [0]}, kind=7) == (ErrorCode.INVALID_REQUEST, refused)
    assert await elected(made, {"t": [0]}, kind=7, version=0) == (0, refused)
    made.decides_after_s = 10.0
    late = {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
    assert await elected(made, {"t": [0]}, timeout_ms=20) == (ErrorCode.REQUEST_TIMED_OUT, late)
    assert await elected(made, {"t": [0]}, timeout_ms=-1, version=0) == (0, late)


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_an_election_or_a_move_without_time_is_not_begun(timeout_ms: int) -> None:
    made = three()
    made.topic("t", (1, 2))
    made.fence(1)
    made.fence(1, fenced=False)
    made.isr("t", 0, 1, 2)
    late = {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
    assert await elected(made, {"t": [0]}, timeout_ms=timeout_ms) == (ErrorCode.REQUEST_TIMED_OUT, late)
    assert await elected(made, None, timeout_ms=timeout_ms) == (ErrorCode.REQUEST_TIMED_OUT, {})
    assert await moved(made, {0: [3]}, timeout_ms=timeout_ms) == [
        (-1, ErrorCode.REQUEST_TIMED_OUT),
        (0, ErrorCode.REQUEST_TIMED_OUT),
    ]
    partition = made.image.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.is_reassigning) == (2, False)


async def moved(made: MadeCluster, moves: dict[int, list[int] | None], **options: Any) -> list[tuple[int, int]]:
    request = alter.AlterPartitionReassignmentsRequest(
        topics=[
            alter.ReassignableTopic(
                name="t",
                partitions=[
                    alter.ReassignablePartition(partition_index=number, replicas=replicas)
                    for number, replicas in moves.items()
                ],
            )
        ],
        **options,
    )
    asked = context(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    answer = await leaders.alter_partition_reassignments(made.broker(1), request, asked)
    assert answer.allow_replication_factor_change == request.allow_replication_factor_change
    (topic,) = answer.responses
    found = [(part.partition_index, part.error_code) for part in topic.partitions]
    return [(-1, answer.error_code), *found] if answer.error_code else found


async def moving(made: MadeCluster, *named: tuple[str, list[int]] | None) -> dict[tuple[str, int], tuple[Any, ...]]:
    topics = [
        listing.ListPartitionReassignmentsTopics(name=each[0], partition_indexes=each[1])
        for each in named
        if each is not None
    ]
    request = listing.ListPartitionReassignmentsRequest(topics=topics if named else None)
    asked = context(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    answer = await leaders.list_partition_reassignments(made.broker(1), request, asked)
    return {
        (topic.name, part.partition_index): (part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    }


async def test_a_move_is_listed_until_it_is_done_or_given_up() -> None:
    made = three()
    made.topic("t", (1, 2), (2, 1), (1, 2))
    assert await moved(made, {0: [2, 3], 1: [3, 2], 2: [1, 2], 3: [1], 9: None}) == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.NONE),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    both = {("t", 0): ([2, 3, 1], [3], [1]), ("t", 1): ([3, 2, 1], [3], [1])}
    assert await moving(made) == both
    assert await moving(made, ("t", [1, 1, 2, -1, 7]), ("no", [0])) == {("t", 1): both["t", 1]}
    assert await moving(made, None) == {}

    made.isr("t", 0, 1, 2, 3)  # the new replica has caught up
    assert await moving(made) == {("t", 1): both["t", 1]}
    done = made.image.partition("t", 0)
    assert done is not None
    assert (done.replicas, done.isr, done.leader) == ((2, 3), (2, 3), 2)

    assert await moved(made, {0: None, 1: None}) == [(0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS), (1, ErrorCode.NONE)]
    assert await moving(made) == {}
    back = made.image.partition("t", 1)
    assert back is not None
    assert sorted(back.replicas) == [1, 2]


@pytest.mark.parametrize("replicas", [[], [1, 1], [-1], [1, 9]])
async def test_a_move_that_makes_no_sense_is_refused(replicas: list[int]) -> None:
    made = three()
    made.topic("t", (1, 2))
    assert await moved(made, {0: replicas}) == [(0, ErrorCode.INVALID_REPLICA_ASSIGNMENT)]


async def test_the_replication_factor_changes_only_where_that_is_allowed() -> None:
    made = three()
    made.topic("t", (1, 2))
    refused = await moved(made, {0: [1, 2, 3]}, allow_replication_factor_change=False)
    assert refused == [(0, ErrorCode.INVALID_REPLICATION_FACTOR)]
    assert await moved(made, {0: [1, 2, 3]}) == [(0, ErrorCode.NONE)]


async def test_a_move_that_is_not_decided_in_time_says_so() -> None:
    made = three()
    made.topic("t", (1, 2))
    made.decides_after_s = 10.0
    late = ErrorCode.REQUEST_TIMED_OUT
    assert await moved(made, {0: [1, 3]}, timeout_ms=20) == [(-1, late), (0, late)]


async def test_eligible_leader_replicas_are_described() -> None:
    made = three()
    made.topic("t", (1, 2, 3))
    made.submit_config("t", "min.insync.replicas", "2")
    made.fence(3)
    made.fence(2)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    asked = context(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    (topic,) = (await describe_topic_partitions(made.broker(1), request, asked)).topics
    (part,) = topic.partitions
    assert (part.isr_nodes, part.eligible_leader_replicas, part.offline_replicas) == ([1], [2], [2, 3])


async def unregistered(made: MadeCluster, broker_id: int) -> int:
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = await about_cluster.unregister_broker(made.broker(1), request, context(ApiKey.UNREGISTER_BROKER))
    assert bool(answer.error_code) == bool(answer.error_message)
    return answer.error_code


async def test_a_broker_that_has_stopped_can_be_forgotten() -> None:
    made = three()
    made.topic("t", (3, 1))
    assert await unregistered(made, 3) == ErrorCode.INVALID_REQUEST  # it is alive
    made.fence(3)
    assert await unregistered(made, 3) == ErrorCode.NONE
    assert [broker.broker_id for broker in made.image.brokers()] == [1, 2]
    partition = made.image.partition("t", 0)
    assert partition is not None
    assert (partition.replicas, partition.leader) == ((3, 1), 1)
    for number in (3, -1):
        assert await unregistered(made, number) == ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_a_broker_with_many_partitions_is_forgotten_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about_cluster, "PARTITIONS_AT_ONCE", 2)
    made = three()
    made.fence(3)
    made.topic("t", *((1, 2) for _ in range(5)))
    topic = made.image.topic("t")
    assert topic is not None
    ids = (BrokerId(1), BrokerId(3))
    topic.partitions[:] = [replace(each, replicas=ids, isr=ids) for each in topic.partitions]
    for number in range(5):
        made.image._count("t", None, topic.partitions[number])
    changed: list[int] = []
    submit = made.submit

    def counted(command: Any) -> Any:
        decision = submit(command)
        changed.append(len(decision.records))
        return decision

    made.submit = counted  # type: ignore[method-assign]
    assert await unregistered(made, 3) == ErrorCode.NONE
    assert changed == [2, 2, 2], "the last part has the broker's own record too"
    assert made.image.broker(BrokerId(3)) is None
    assert {each.isr for each in topic.partitions} == {(1,)}


async def test_a_broker_that_comes_back_while_it_is_being_forgotten_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about_cluster, "PARTITIONS_AT_ONCE", 1)
    made = three()
    made.fence(3)
    made.topic("t", (1, 2), (1, 2), (1, 2))
    topic = made.image.topic("t")
    assert topic is not None
    ids = (BrokerId(1), BrokerId(3))
    topic.partitions[:] = [replace(each, replicas=ids, isr=ids) for each in topic.partitions]
    for number in range(3):
        made.image._count("t", None, topic.partitions[number])
    submit = made.submit

    def returning(command: Any) -> Any:
        decision = submit(command)
        registered = made.image.broker(BrokerId(3))
        assert registered is not None
        submit(
            ChangeBroker(broker_id=BrokerId(3), broker_epoch=registered.broker_epoch, fenced=False, time_ms=Millis(0))
        )
        return decision

    made.submit = returning  # type: ignore[method-assign]
    assert await unregistered(made, 3) == ErrorCode.INVALID_REQUEST
    assert made.image.broker(BrokerId(3)) is not None


async def features(made: MadeCluster, version: int) -> tuple[dict[str, int], dict[str, tuple[int, int]], int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = await about_cluster.api_versions(made.broker(1), request, context(ApiKey.API_VERSIONS, version))
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert finalized == {feature.name: feature.min_version_level for feature in answer.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    return finalized, supported, answer.finalized_features_epoch


async def test_features_are_told_with_the_versions() -> None:
    made = three()
    finalized, supported, epoch = await features(made, 4)
    assert finalized[ELR] == 1
    assert supported[ELR] == (0, 1)
    assert finalized.keys() <= supported.keys()
    assert all(first <= finalized.get(name, 0) <= last for name, (first, last) in supported.items())
    assert supported["transaction.version"] == (0, 2)
    older = (await features(made, 3))[1]
    assert older == {name: levels for name, levels in supported.items() if levels[0] > 0}
    made.topic("t", (1,))
    assert (await features(made, 4))[2] > epoch


async def updated(made: MadeCluster, version: int, update: dict[str, Any], **options: Any) -> tuple[int, list[int]]:
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(**update)], **options)
    asked = context(ApiKey.UPDATE_FEATURES, version)
    answer = await about_cluster.update_features(made.broker(1), request, asked)
    return answer.error_code, [result.error_code for result in answer.results]


async def test_features_go_up_and_down() -> None:
    made = three()
    lower: dict[str, Any] = {"feature": ELR, "max_version_level": 0}
    invalid = ErrorCode.INVALID_UPDATE_VERSION
    assert await updated(made, 1, lower) == (invalid, [])
    assert await updated(made, 1, {**lower, "upgrade_type": 2}, validate_only=True) == (0, [0])
    assert (await features(made, 4))[0][ELR] == 1
    assert await updated(made, 0, {**lower, "allow_downgrade": True}) == (0, [0])
    assert ELR not in (await features(made, 4))[0]
    assert await updated(made, 2, {"feature": ELR, "max_version_level": 1}, timeout_ms=0) == (0, [0])
    assert await updated(made, 2, {"feature": "no.such", "max_version_level": 1}) == (invalid, [])
    made.decides_after_s = 10.0
    assert await updated(made, 2, {**lower, "upgrade_type": 2}, timeout_ms=10) == (ErrorCode.REQUEST_TIMED_OUT, [])
