"""The work of a coordinator for one request grows with the request's size, and not with the square of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from topics_now import TopicsNow

from kraftpy.groups import restoration, subscription
from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.change_queue import MOST_COST
from kraftpy.groups.classic.group import READ_BYTES_AT_ONCE, ClassicGroup, Member
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.assignors import Assignor, Subscriber, assign_range, assign_uniform
from kraftpy.groups.consumer.group import Draft
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.consumer.records import (
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    consumer_record,
)
from kraftpy.groups.coordinator import DUE_AT_ONCE, GroupCoordinator
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import (
    Append,
    Appended,
    Compute,
    Computed,
    Effect,
    Event,
    Reply,
    Request,
    Survived,
    Tick,
)
from kraftpy.groups.records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    Record,
    group_record,
    offset_record,
)
from kraftpy.groups.share.assignor import ShareSubscriber, assign_simple
from kraftpy.groups.share.partitions import asked, initializing
from kraftpy.groups.share.records import ShareStateValue
from kraftpy.groups.streams.assignor import Worker, assign
from kraftpy.groups.streams.records import Task
from kraftpy.groups.streams.topology import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_SOURCE_TOPICS,
    MOST_TASKS,
    InternalTopic,
    Subtopology,
    Topology,
    configure,
    hash_of,
)
from kraftpy.protocol.consumer_protocol import Subscription, encode_subscription
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kraftpy.types import Millis, TopicId


def lines(function: Callable[[], Any]) -> int:
    """Count the lines of Python that are executed, loops in comprehensions included."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def grows_with_its_size(make: Callable[[int], Callable[[], Any]]) -> bool:
    small, large = lines(make(100)), lines(make(400))
    return large < 6 * small + 1_000


def test_a_topology_is_configured_in_time_linear_in_its_subtopologies() -> None:
    def chain(length: int) -> Callable[[], Any]:
        """Each writes what the next reads, the last one first, so that partitions are known from the end."""
        topics = TopicsNow()
        topics.become({"t": 3})
        parts = [
            Subtopology(
                subtopology_id=f"{length - number:06}",
                source_topics=("t",) if number == 0 else (),
                repartition_source_topics=(InternalTopic(name=f"r{number}"),) if number else (),
                repartition_sink_topics=(f"r{number + 1}",),
            )
            for number in reversed(range(length))
        ]
        topology = Topology(epoch=1, subtopologies=tuple(parts))
        found = configure(topology, topics, {})
        assert {topic.partitions for topic in found.missing} == {3}
        assert len(found.missing) == length - 1
        return lambda: configure(topology, topics, {})

    assert grows_with_its_size(chain)


class Looked(str):
    """A topic's name that counts how often names are looked up: what a set operation does is no line of Python."""

    times = 0

    def __hash__(self) -> int:
        Looked.times += 1
        return super().__hash__()

    __eq__ = str.__eq__


def test_a_topology_is_configured_with_lookups_linear_in_its_subtopologies() -> None:
    def lookups(count: int) -> int:
        names = [Looked(f"topic-{number:05}") for number in range(count)]
        topics = TopicsNow()
        topics.become(dict.fromkeys(names, 1))
        parts = (Subtopology(subtopology_id=name.upper(), source_topics=(name,)) for name in names)
        topology = Topology(epoch=1, subtopologies=tuple(parts))
        Looked.times = 0
        assert len(configure(topology, topics, {}).tasks) == count
        hash_of(topology, topics, {})
        return Looked.times

    assert lookups(400) < 6 * lookups(100) + 1_000


def test_the_tasks_of_a_topology_are_bounded() -> None:
    topics = TopicsNow()
    topics.become({"t": 1_000})
    parts = [Subtopology(subtopology_id=f"{number:03}", source_topics=("t",)) for number in range(101)]
    assert configure(Topology(epoch=1, subtopologies=tuple(parts[:100])), topics, {}).is_ready
    too_many = configure(Topology(epoch=1, subtopologies=tuple(parts)), topics, {})
    assert not too_many.is_ready
    assert too_many.status == INCORRECTLY_PARTITIONED_TOPICS
    assert too_many.detail == f"The topology has 101000 tasks, and there can be at most {MOST_TASKS}."


def test_a_status_names_a_few_topics() -> None:
    names = tuple(f"topic-{number:05}" for number in range(1_000))
    part = Subtopology(subtopology_id="0", source_topics=names)
    found = configure(Topology(epoch=1, subtopologies=(part,)), TopicsNow(), {})
    assert found.status == MISSING_SOURCE_TOPICS
    assert found.detail == f"Source topics {', '.join(names[:3])} and 997 additional topics are missing."


def test_a_protocol_is_chosen_in_time_linear_in_how_many_a_member_knows() -> None:
    def group(count: int) -> Callable[[], Any]:
        found = ClassicGroup(group_id="g")
        protocols = tuple((f"p{number}", b"") for number in range(count))
        for name in ("a", "b"):
            member = Member(
                member_id=name,
                group_instance_id=None,
                client_id="c",
                client_host="/",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                protocols=protocols if name == "a" else protocols[::-1],
            )
            found.add(member)
        assert found.select_protocol() == "p0"
        return found.select_protocol

    assert grows_with_its_size(group)


def test_the_state_of_a_share_group_changes_in_time_linear_in_its_partitions() -> None:
    def state(count: int) -> Callable[[], Any]:
        topics = TopicsNow()
        wanted = frozenset(TopicIdPartition(TopicId(number.to_bytes(16, "big")), 0) for number in range(count))
        value = initializing(ShareStateValue(), wanted, topics, Millis(0))
        assert len(asked(value, wanted, frozenset()).initialized) == count

        def change() -> None:
            asked(initializing(ShareStateValue(), wanted, topics, Millis(0)), wanted, frozenset())

        return change

    assert grows_with_its_size(state)


def topic(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


@pytest.mark.parametrize("assignor", [assign_range, assign_uniform])
def test_members_that_read_the_same_are_assigned_to_in_time_linear_in_members_and_topics(assignor: Assignor) -> None:
    def many(count: int) -> Callable[[], Any]:
        """Set up as many members as topics; each topic has one partition, and every member subscribes to it."""
        topics = frozenset(map(topic, range(count)))
        members = {f"member-{number:04}": Subscriber(topics=topics) for number in range(count)}
        return lambda: assignor(members, dict.fromkeys(topics, 1))

    assert grows_with_its_size(many)


class Compared(bytes):
    """A topic's id that counts how often ids are compared: sorting is no line of Python."""

    times = 0

    def __lt__(self, other: Any) -> bool:
        Compared.times += 1
        return bytes(self) < bytes(other)


def test_a_group_that_grows_is_assigned_to_in_time_almost_linear_in_its_topics() -> None:
    def comparisons(count: int) -> int:
        """The second member comes: the first has every topic, and keeps half of them."""
        topics = frozenset(TopicId(Compared(topic(number))) for number in range(count))
        target = frozenset(TopicIdPartition(each, 0) for each in topics)
        members = {"a": Subscriber(topics=topics, target=target), "b": Subscriber(topics=topics)}
        Compared.times = 0
        assert len(assign_uniform(members, dict.fromkeys(topics, 1))["b"]) == count // 2
        return Compared.times

    assert comparisons(400) < 8 * comparisons(100) + 1_000


@pytest.mark.parametrize("standby_replicas", [0, 1])
def test_tasks_are_assigned_in_time_linear_in_tasks_and_members(standby_replicas: int) -> None:
    def many(count: int) -> Callable[[], Any]:
        tasks = [Task("0", number) for number in range(2 * count)]
        workers = {f"member-{number:04}": Worker(process_id=f"process-{number:04}") for number in range(count)}
        return lambda: assign(workers, tasks, tasks, standby_replicas)

    assert grows_with_its_size(many)


def test_a_share_group_that_grows_is_assigned_to_in_time_linear_in_its_partitions() -> None:
    def second(count: int) -> Callable[[], Any]:
        """The second member comes: the first has every partition, and keeps half of them."""
        partitions = frozenset(TopicIdPartition(topic(0), number) for number in range(count))
        topics = frozenset((topic(0),))
        members = {"a": ShareSubscriber(topics=topics, target=partitions), "b": ShareSubscriber(topics=topics)}
        return lambda: assign_simple(members, partitions)

    assert grows_with_its_size(second)


def test_what_waited_is_not_all_decided_in_one_step_where_each_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that join while a record is on its way wait for it; each of them then needs new targets for all."""
    topics, made = TopicsNow(), 0
    topics.become({"t": MOST_COST // 2})
    retarget = ConsumerProtocol._retarget

    def counted(protocol: ConsumerProtocol, draft: Draft, timestamp: Millis) -> None:
        nonlocal made
        made += 1
        retarget(protocol, draft, timestamp)

    monkeypatch.setattr(ConsumerProtocol, "_retarget", counted)
    coordinator = GroupCoordinator(GroupConfig(), lambda: "new", topics)
    now = Millis(0)
    coordinator.loaded(now)
    tokens: list[int] = []
    answered = 0

    def take(effects: Iterable[Effect]) -> None:
        nonlocal answered
        for each in effects:
            if isinstance(each, Compute):
                done = Computed(group_id=each.group_id, token=each.token, result=each.function())
                take(coordinator.step(done, now))
        tokens.extend(each.token for each in effects if isinstance(each, Append))
        answered += sum(isinstance(each, Reply) for each in effects)

    for number in range(12):
        join = ConsumerGroupHeartbeatRequest(
            group_id="group",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        take(coordinator.step(Request(request_id=number, api_version=1, message=join), now))
    assert made == 1, "the others wait"
    while tokens:
        made = 0
        take(coordinator.step(Appended(token=tokens.pop(0)), now))
        assert made <= 2
    assert answered == 12


def classic(count: int) -> GroupMetadataValue:
    """A stored generation with that many members."""
    members = tuple(
        MemberMetadata(
            member_id=f"member-{number:05}",
            group_instance_id=None,
            client_id="c",
            client_host="/",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=10_000,
            subscription=encode_subscription(Subscription(topics=("t",))),
            assignment=b"",
        )
        for number in range(count)
    )
    return GroupMetadataValue(
        protocol_type="consumer",
        generation_id=1,
        protocol="range",
        leader=members[0].member_id,
        current_state_timestamp=0,
        members=members,
    )


def consumers(count: int) -> list[Record]:
    """The records of a consumer group with that many members."""
    records = [consumer_record(GroupKey("consumers"), GroupValue(epoch=1))]
    for number in range(count):
        member_id = f"member-{number:05}"
        records.append(consumer_record(MemberKey("consumers", member_id), MemberValue(subscribed_topic_names=("t",))))
        records.append(consumer_record(CurrentKey("consumers", member_id), CurrentValue()))
    return records


def replayed(records: Iterable[Record]) -> GroupCoordinator:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "new", TopicsNow())
    for key, value in records:
        coordinator.replay(key, value)
    return coordinator


def test_groups_are_restored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both many groups, and groups with many members."""
    monkeypatch.setattr(restoration, "MEMBERS_AT_ONCE", 200)
    started = 0
    set_deadline = Deadlines.set

    def counted(deadlines: Deadlines, key: Key, deadline: Millis) -> None:
        nonlocal started
        started += 1
        set_deadline(deadlines, key, deadline)

    monkeypatch.setattr(Deadlines, "set", counted)
    records = [
        *(group_record(f"group-{number}", classic(1)) for number in range(500)),
        group_record("large", classic(500)),
        *consumers(500),
    ]
    coordinator = replayed(records)
    most = 0
    while coordinator.restore(Millis(0)):
        most, started = max(most, started), 0
        assert coordinator.next_deadline() is None
    assert 0 < most <= 300
    coordinator.loaded(Millis(0))
    coordinator.validate()
    at_once = replayed(records)
    at_once.loaded(Millis(0))
    at_once.validate()
    assert coordinator._deadlines.all() == at_once._deadlines.all()


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_members_that_fall_silent_together_are_removed_in_bounded_steps(kind: str) -> None:
    count = 3 * DUE_AT_ONCE
    coordinator = replayed([group_record("g", classic(count))] if kind == "classic" else consumers(count))
    coordinator.loaded(Millis(0))
    group_id = "g" if kind == "classic" else "consumers"
    now, steps = Millis(60_000), 0
    tokens: list[int] = []
    while coordinator.groups[group_id].kind.members:
        effects = coordinator.step(Appended(token=tokens.pop(0)) if tokens else Tick(), now)
        tokens += [each.token for each in effects if isinstance(each, Append)]
        assert len(effects) <= 2 * DUE_AT_ONCE + 10
        steps += 1
        assert steps < 50
    assert steps >= 3
    coordinator.validate()


def test_members_that_fall_silent_together_are_removed_in_time_linear_in_their_number() -> None:
    def silent(count: int) -> Callable[[], Any]:
        coordinator = replayed([group_record("g", classic(count))])
        coordinator.loaded(Millis(0))
        return lambda: coordinator.step(Tick(), Millis(60_000))

    assert grows_with_its_size(silent)


class Readers:
    """A stable classic group whose members' subscriptions are large, with offsets for some topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        value = classic(2)
        topics = tuple(f"topic-{number:05}" for number in range(READ_BYTES_AT_ONCE // 12))
        metadata = encode_subscription(Subscription(topics=topics))
        assert len(metadata) > READ_BYTES_AT_ONCE
        members = tuple(replace(each, subscription=metadata) for each in value.members)
        offsets = [
            offset_record(
                OffsetCommitKey(group_id="g", topic=topic, partition=0),
                OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp=0),
            )
            for topic in ("topic-00007", "another")
        ]
        self.coordinator = replayed([group_record("g", replace(value, members=members)), *offsets])
        self.now = Millis(0)
        self.coordinator.loaded(self.now)
        self.is_stepping = False
        self.computing: list[Compute] = []
        self.answers: dict[int, Any] = {}
        read = subscription.subscribed_topics

        def checked(encoded: Any) -> Any:
            assert not self.is_stepping, "read in a step"
            return read(encoded)

        monkeypatch.setattr(subscription, "subscribed_topics", checked)

    def step(self, event: Event) -> None:
        self.is_stepping = True
        effects = self.coordinator.step(event, self.now)
        self.is_stepping = False
        self.computing += [each for each in effects if isinstance(each, Compute)]
        self.answers.update({each.request_id: each.response for each in effects if isinstance(each, Reply)})
        assert not [each for each in effects if isinstance(each, Survived)]
        for each in effects:
            if isinstance(each, Append):
                self.step(Appended(token=each.token))
        self.coordinator.validate()

    def compute(self) -> None:
        effect = self.computing.pop(0)
        self.step(Computed(group_id=effect.group_id, token=effect.token, result=effect.function()))

    def delete(self, request_id: int, *topics: str) -> None:
        partitions = [OffsetDeleteRequestPartition(partition_index=0)]
        named = [OffsetDeleteRequestTopic(name=topic, partitions=partitions) for topic in topics]
        message = OffsetDeleteRequest(group_id="g", topics=named)
        self.step(Request(request_id=request_id, api_version=0, message=message))


def test_offsets_of_a_large_classic_group_are_deleted_once_its_subscriptions_were_read_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Readers(monkeypatch)
    group.delete(1, "topic-00007", "another")
    group.delete(2, "another")
    assert not group.answers
    assert len(group.computing) == 1, "it is read once for both"
    group.compute()
    codes = [topic.partitions[0].error_code for topic in group.answers[1].topics]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert group.answers[2].error_code == ErrorCode.NONE
    group.delete(3, "topic-00007")
    assert 3 in group.answers, "what was read is still known"
    assert [key.topic for key in group.coordinator.groups["g"].offsets] == ["topic-00007"]


def test_subscriptions_that_changed_meanwhile_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Readers(monkeypatch)
    group.delete(1, "another")
    classic_group = group.coordinator.groups["g"].kind
    assert isinstance(classic_group, ClassicGroup)
    member = classic_group.members["member-00001"]
    metadata = encode_subscription(Subscription(topics=("another", *(f"t{n:012}" for n in range(6_000)))))
    classic_group.resubscribe(member, (("range", metadata),))
    group.coordinator._registry.usage.count(group.coordinator.groups["g"])
    monkeypatch.setattr(group.coordinator, "validate", lambda: None)
    group.compute()
    assert not group.answers
    group.compute()
    assert group.answers[1].topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_who_waits_for_subscriptions_to_be_read_is_told_if_the_coordinator_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Readers(monkeypatch)
    group.delete(1, "another")
    (reply,) = [each for each in group.coordinator.unload() if isinstance(each, Reply)]
    assert reply.request_id == 1
    assert reply.response.error_code == ErrorCode.NOT_COORDINATOR


def test_offsets_of_a_large_classic_group_expire_once_its_subscriptions_were_read_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Readers(monkeypatch)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="member-00000")
    other = HeartbeatRequest(group_id="g", generation_id=1, member_id="member-00001")
    group.now = Millis(8 * 24 * 3_600_000)
    for number, message in enumerate((beat, other), 1):
        monkeypatch.setattr(group.coordinator._deadlines, "pop_due", lambda now: None)
        group.step(Request(request_id=number, api_version=4, message=message))
    monkeypatch.undo()
    assert {answer.error_code for answer in group.answers.values()} == {ErrorCode.NONE}
    group.step(Tick())
    assert len(group.computing) == 1
    group.compute()
    assert [key.topic for key in group.coordinator.groups["g"].offsets] == ["topic-00007"]


def test_subscriptions_that_name_too_many_topics_count_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MOST_TOPICS", 3)
    few, many = (encode_subscription(Subscription(topics=tuple("abcd"[:count]))) for count in (3, 4))
    assert subscription.topics_of_all([few, few]) == {"a", "b", "c"}
    assert subscription.topics_of_all([few, many]) is None
