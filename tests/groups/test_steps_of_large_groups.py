"""No step of a coordinator loops over all topics, partitions or tasks of a large group: that is done apart.

Lines of Python are counted, and not time: a loop that a step should not have executes more lines than there are topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from group_world import World
from test_costs_of_groups import lines

from kraftpy.groups import change_queue, descriptions
from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer import protocol as consumer_protocol
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.events import Effect, Event, Request, StateChanged, Survived
from kraftpy.groups.share import protocol as share_protocol
from kraftpy.groups.share import records as share_records
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.streams import protocol as streams_protocol
from kraftpy.groups.streams import topology as streams_topology
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_share_group_offsets as altering
from kraftpy.protocol.messages import delete_share_group_offsets as deleting
from kraftpy.protocol.messages import streams_group_heartbeat as wire
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupTopicPartitions,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.types import TopicId, TopicPartition

MANY = UNITS_AT_ONCE + 500
AT_ONCE = 10
"""The work that may be done on the spot, so that the rest of a step shows."""
SHAPES: dict[str, dict[str, int]] = {
    "one large topic": {"t": MANY},
    "many topics": {f"topic-{number:05}": 1 for number in range(MANY)},
}


class Steps(World):
    """Counts the lines of each step; what is done apart does not count."""

    def __init__(self, topics: Mapping[str, int], config: GroupConfig | None = None) -> None:
        super().__init__(config)
        self.most = 0
        self.longest: Any = None
        self.become(topics)

    def become(self, topics: Mapping[str, int]) -> None:
        self.topics.become(dict(topics))
        names = {info.topic_id: name for name, info in self.topics._topics.items()}

        def name(topic_id: TopicId) -> str | None:
            return names.get(topic_id)

        self.topics.name = name  # type: ignore[method-assign]

    def step(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        count = lines(lambda: effects.extend(self.coordinator.step(event, self.now)))
        if count > self.most:
            self.most, self.longest = count, event.message if isinstance(event, Request) else event
        assert not [effect for effect in effects if isinstance(effect, Survived)]
        self.take(effects)
        self.go_on()
        return effects

    def check(self) -> None:
        """Leave it to `check_replay`: it takes long for large groups."""

    def _answered(self, reply: Any) -> None:
        assert reply.request_id not in self.answers
        self.answers[reply.request_id] = reply.response

    def request(self, message: Any, api_version: int, client_id: str = "c", host: str = "/10.0.0.1") -> int:
        request_id = len(self.requests) + 1
        event = Request(
            request_id=request_id, api_version=api_version, message=message, client_id=client_id, client_host=host
        )
        self.requests[request_id] = event
        self.step(event)
        return request_id

    def told(self, token: int, failing: Any = None) -> None:
        self.asked.remove(next(each for each in self.asked if each.token == token))
        self.step(StateChanged(token=token, failed={}))

    def ask(self, message: Any, version: int) -> Any:
        """Return the answer. A request at a barrier gets it once time passes."""
        request_id = self.request(message, version)
        if request_id not in self.answers:
            self.tick(self.now + 10_000)
        return self.answers[request_id]

    def had_short_steps(self) -> None:
        assert self.most < MANY, (type(self.longest), self.most)
        assert self.waiting_outside() == set()
        self.check_replay()


@pytest.fixture(autouse=True)
def _little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (
        change_queue,
        descriptions,
        consumer_protocol,
        share_protocol,
        share_records,
        streams_protocol,
        streams_topology,
    )
    for module in modules:
        monkeypatch.setattr(module, "UNITS_AT_ONCE", AT_ONCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_share_groups(shape: str) -> None:
    world = Steps(SHAPES[shape])
    names = list(SHAPES[shape])

    def group() -> ShareGroup:
        kind = world.coordinator.groups["g"].kind
        assert isinstance(kind, ShareGroup)
        return kind

    def beat(member: str, epoch: int | None = None) -> None:
        joins = epoch == 0
        message = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=group().current(member).member_epoch if epoch is None else epoch,
            subscribed_topic_names=names if joins else None,
        )
        assert world.ask(message, 1).error_code == ErrorCode.NONE

    beat("a", 0)
    beat("a")
    assert len(group().current("a").assigned) == MANY
    (described,) = world.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1).groups
    (member,) = described.members
    assert sum(len(topic.partitions) for topic in member.assignment.topic_partitions) == MANY
    beat("b", 0)
    for member in "ab":
        beat(member)
    assert {len(group().current(member).assigned) for member in "ab"} == {MANY // 2}
    world.become({**SHAPES[shape], "another": 1})
    for member in "ab":
        beat(member)
    beat("b", -1)
    beat("a")
    beat("a")
    assert len(group().current("a").assigned) == MANY
    beat("a", -1)
    alter = altering.AlterShareGroupOffsetsRequest(
        group_id="g",
        topics=[
            altering.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    altering.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=number)
                    for number in range(count)
                ],
            )
            for name, count in SHAPES[shape].items()
        ],
    )
    altered = world.ask(alter, 0)
    assert {part.error_code for topic in altered.responses for part in topic.partitions} == {ErrorCode.NONE}
    assert sum(len(topic.partitions) for topic in altered.responses) == MANY
    some = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names[:-1]]
    deleted = world.ask(deleting.DeleteShareGroupOffsetsRequest(group_id="g", topics=some), 0)
    assert [each.error_code for each in deleted.responses] == [ErrorCode.NONE] * len(some)
    world.delete_topics(*names[-1:])
    (gone,) = world.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert gone.error_code == ErrorCode.NONE
    assert not world.coordinator.groups
    world.had_short_steps()


def test_who_waits_for_the_description_of_a_large_group_is_told_if_the_coordinator_moves() -> None:
    world = Steps(SHAPES["one large topic"])
    Consumers(world).beat("a", 0)
    world.is_busy = True
    asked = world.request(ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    assert asked not in world.answers
    world.reload()
    (described,) = world.answers[asked].groups
    assert described.error_code == ErrorCode.NOT_COORDINATOR


class Consumers:
    """Members of a consumer group that report what they own."""

    def __init__(self, world: Steps) -> None:
        self.world = world
        self.told: dict[str, list[ConsumerGroupTopicPartitions]] = {}

    def group(self) -> ConsumerGroup:
        kind = self.world.coordinator.groups["g"].kind
        assert isinstance(kind, ConsumerGroup)
        return kind

    def beat(self, member: str, epoch: int | None = None, instance_id: str | None = None) -> None:
        joins = epoch == 0
        message = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=self.group().current(member).member_epoch if epoch is None else epoch,
            instance_id=instance_id,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=self.world.topics.names() if joins else None,
            topic_partitions=[] if joins else self.told.get(member, []),
        )
        answer = self.world.ask(message, 1)
        assert answer.error_code == ErrorCode.NONE, answer
        if answer.assignment is not None:
            self.told[member] = answer.assignment.topic_partitions

    def settle(self, *members: str) -> None:
        for _ in range(3):
            for member in members:
                self.beat(member)
        assert len(self.group().holders) == sum(self.world.topics.counts().values())


@pytest.mark.parametrize("shape", SHAPES)
def test_consumer_groups(shape: str) -> None:
    world = Steps({**SHAPES[shape], "another": 1})
    members = Consumers(world)
    members.beat("a", 0)
    members.settle("a")
    (described,) = world.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
    (member,) = described.members
    for assignment in (member.assignment, member.target_assignment):
        assert sum(len(topic.partitions) for topic in assignment.topic_partitions) == MANY + 1
    members.beat("b", 0, "static")
    members.settle("a", "b")
    assert len(members.group().current("b").assigned) >= MANY // 2
    world.become({**SHAPES[shape], "another": 2})
    members.settle("a", "b")
    members.beat("b", -2, "static")
    members.beat("c", 0, "static")
    members.settle("a", "c")
    members.beat("c", -1, "static")
    members.settle("a")
    world.delete_topics("another")
    members.settle("a")
    members.beat("a", -1)
    world.had_short_steps()


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_that_migrate_to_the_consumer_protocol_and_back(shape: str) -> None:
    world = Steps(SHAPES[shape])
    members = Consumers(world)
    names = tuple(SHAPES[shape])
    everything = tuple(TopicPartition(name, number) for name, count in SHAPES[shape].items() for number in range(count))

    def join(member_id: str, owned: tuple[TopicPartition, ...]) -> JoinGroupResponse:
        metadata = encode_subscription(Subscription(topics=names, owned=owned))
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        answer = world.ask(joining, 9)
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def sync(epoch: int, given: dict[str, bytes]) -> tuple[TopicPartition, ...]:
        syncing = SyncGroupRequest(
            group_id="g",
            generation_id=epoch,
            member_id=member_id,
            assignments=[SyncGroupRequestAssignment(member_id=key, assignment=each) for key, each in given.items()],
        )
        answer = world.ask(syncing, 5)
        assert answer.error_code == ErrorCode.NONE
        return decode_assignment(answer.assignment)

    def beat(epoch: int) -> int:
        code: int = world.ask(HeartbeatRequest(group_id="g", generation_id=epoch, member_id=member_id), 4).error_code
        return code

    member_id = join("", ()).member_id
    joining = join(member_id, ())
    assert len(sync(joining.generation_id, {member_id: encode_assignment(everything)})) == MANY
    members.beat("new", 0)
    for owned in (everything, everything[: MANY // 2]):  # it gives up what it is asked to
        assert beat(members.group().current(member_id).member_epoch) == ErrorCode.REBALANCE_IN_PROGRESS
        joined = join(member_id, owned)
        assert joined.error_code == ErrorCode.NONE
        owned = sync(joined.generation_id, {})
    members.settle("new")
    beat(members.group().current(member_id).member_epoch)
    joined = join(member_id, owned)
    sync(joined.generation_id, {})
    members.beat("new", -1)
    assert isinstance(world.coordinator.groups["g"].kind, ClassicGroup)
    world.had_short_steps()


TOPOLOGIES: dict[str, tuple[dict[str, int], wire.Topology]] = {
    "one large topic": (
        {"t": MANY},
        wire.Topology(epoch=1, subtopologies=[wire.Subtopology(subtopology_id="0", source_topics=["t"])]),
    ),
    "many subtopologies": (
        SHAPES["many topics"],
        wire.Topology(
            epoch=1,
            subtopologies=[
                wire.Subtopology(subtopology_id=f"{number:05}", source_topics=[name])
                for number, name in enumerate(SHAPES["many topics"])
            ],
        ),
    ),
    "many sources": (
        SHAPES["many topics"],
        wire.Topology(
            epoch=1,
            subtopologies=[wire.Subtopology(subtopology_id="0", source_topics=list(SHAPES["many topics"]))],
        ),
    ),
    "many missing changelogs": (
        {"t": 1},
        wire.Topology(
            epoch=1,
            subtopologies=[
                wire.Subtopology(
                    subtopology_id="0",
                    source_topics=["t"],
                    state_changelog_topics=[wire.TopicInfo(name=name) for name in SHAPES["many topics"]],
                )
            ],
        ),
    ),
}


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_streams_groups(kind: str) -> None:
    topics, topology = TOPOLOGIES[kind]
    world = Steps({**topics, "another": 1}, GroupConfig(group_streams_initial_rebalance_delay_ms=0))
    told: dict[str, list[wire.TaskIds]] = {}

    def beat(member: str, epoch: int | None = None) -> wire.StreamsGroupHeartbeatResponse:
        joins = epoch == 0
        group = world.coordinator.groups["g"].kind if "g" in world.coordinator.groups else None
        if epoch is None:
            assert isinstance(group, StreamsGroup)
            epoch = group.current(member).member_epoch
        message = wire.StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            topology=topology if joins else None,
            active_tasks=[] if joins else told.get(member, []),
            standby_tasks=[],
            warmup_tasks=[],
            process_id=member,
            user_endpoint=wire.Endpoint(host=member, port=1),
            task_offsets=[wire.TaskOffset(subtopology_id="0", partition=number, offset=1) for number in range(MANY)],
        )
        answer = world.ask(message, 0)
        assert answer.error_code == ErrorCode.NONE, answer
        if answer.active_tasks is not None:
            told[member] = answer.active_tasks
        assert isinstance(answer, wire.StreamsGroupHeartbeatResponse)
        return answer

    beat("a", 0)
    beat("b", 0)
    for _ in range(3):
        for member in "ab":
            said = beat(member)
    if kind != "many missing changelogs":
        assert not said.status
        assert {sum(len(ids.partitions) for ids in told[member]) for member in "ab"} != {0}
        (described,) = world.ask(StreamsGroupDescribeRequest(group_ids=["g"]), 0).groups
        (first, second) = described.members
        given = [sum(len(ids.partitions) for ids in each.assignment.active_tasks) for each in (first, second)]
        assert given == [sum(len(ids.partitions) for ids in told[member]) for member in "ab"]
        assert described.topology.subtopologies
    world.become({**topics, "another": 2})
    world.delete_topics("another")
    for member in "ab":
        beat(member)
    beat("b", -1)
    beat("a")
    beat("a", -1)
    world.had_short_steps()
