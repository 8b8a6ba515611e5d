"""The smaller parts: deadlines, subscriptions, routing, transitions, and events that the coordinator rejects."""

from __future__ import annotations

import random
import struct
from typing import Any, get_args

import pytest
from group_world import World, subscription
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups import routing
from kraftpy.groups.classic.group import FOLLOWS, ClassicGroup, State
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import Append, Appended, GroupRequest, Reply, Request, Tick, TopicsDeleted
from kraftpy.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    write_group,
    write_key,
    write_offset,
)
from kraftpy.groups.routing import merge, partition_for_group, refuse, split, while_loading
from kraftpy.groups.subscription import subscribed_topics
from kraftpy.protocol.apis import API_VERSIONS, ApiKey
from kraftpy.protocol.errors import ErrorCode, ProtocolError
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kraftpy.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.protocol.schema import decode, encode
from kraftpy.types import Millis

# ---- deadlines


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 40)), max_size=80))
def test_deadlines_agree_with_a_plain_dictionary(moves: list[tuple[int, int, int]]) -> None:
    deadlines, model, now = Deadlines(), dict[Key, int](), 0
    for move, number, at in moves:
        key = Key("g", "session", str(number))
        if move == 0:
            deadlines.set(key, Millis(at))
            model[key] = at
        elif move == 1:
            deadlines.cancel(key)
            model.pop(key, None)
        elif move == 2:
            now = max(now, at)
            due = deadlines.pop_due(Millis(now))
            earliest = min(((at, key) for key, at in model.items()), default=None)
            assert due == (earliest[1] if earliest is not None and earliest[0] <= now else None)
            if due is not None:
                del model[due]
        assert deadlines.next() == min(model.values(), default=None)
        assert deadlines.all() == model
        assert all((key in deadlines) for key in model)


def test_moving_deadlines_does_not_grow_the_heap() -> None:
    deadlines = Deadlines()
    dice = random.Random(1)
    for now in range(5_000):
        for number in range(3):
            deadlines.set(Key("g", "session", str(number)), Millis(now + 10 + dice.randrange(20)))
        if now % 7 == 0:
            deadlines.cancel(Key("g", "session", "0"))
        deadlines.next()
    assert len(deadlines._heap) < 100


# ---- subscriptions


@pytest.mark.parametrize("version", range(4))
def test_topics_are_found_in_every_version(version: int) -> None:
    owned = struct.pack(">i", 0) if version >= 1 else b""
    generation = struct.pack(">i", 7) if version >= 2 else b""
    rack = struct.pack(">h", -1) if version >= 3 else b""
    data = subscription(["a", "bö"], version) + owned + generation + rack
    assert subscribed_topics(data) == {"a", "bö"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih", 0, 1, 5) + b"abc",
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 1) + b"\xff",
        struct.pack(">hi", 0, 1),
    ],
)
def test_what_is_no_subscription_is_unknown(data: bytes) -> None:
    assert subscribed_topics(data) is None


@given(st.binary(max_size=40))
def test_no_metadata_breaks_it(data: bytes) -> None:
    subscribed_topics(data)


# ---- which partition


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("test", 3556498),
        ("hello", 99162322),
        ("Hello, World!", 1498789909),
        ("é", 233),
        ("\U0001f600", 1772899),  # two UTF-16 code units
        ("foobar", -1268878963),
    ],
)
def test_the_hash_is_javas(group_id: str, java_hash: int) -> None:
    assert partition_for_group(group_id, 50) == abs(java_hash) % 50
    assert partition_for_group(group_id, 2**31) == abs(java_hash)


def test_the_hash_without_a_positive_counterpart_is_zero() -> None:
    assert partition_for_group("polygenelubricants", 50) == 0  # its hash is -2**31


# ---- splitting and merging


def test_a_request_over_several_groups_is_split_by_partition_and_merged() -> None:
    groups = [f"group-{number}" for number in range(20)]
    parts = split(DescribeGroupsRequest(groups=groups, include_authorized_operations=True), 5, 4)
    assert sorted(parts) == [0, 1, 2, 3]
    for partition, part in parts.items():
        assert isinstance(part, DescribeGroupsRequest)
        assert part.include_authorized_operations
        assert all(partition_for_group(group_id, 4) == partition for group_id in part.groups)
    asked = [group_id for part in parts.values() if isinstance(part, DescribeGroupsRequest) for group_id in part.groups]
    assert sorted(asked) == sorted(groups)
    merged = merge([while_loading(part, 5) for part in parts.values()])
    assert isinstance(merged, DescribeGroupsResponse)
    assert {group.group_id for group in merged.groups} == set(groups)


def test_fetches_and_deletions_are_split_too() -> None:
    groups = [f"group-{number}" for number in range(20)]
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=each) for each in groups], require_stable=True)
    parts = split(fetch, 9, 3)
    assert len(parts) == 3
    assert all(isinstance(part, OffsetFetchRequest) and part.require_stable for part in parts.values())
    merged = merge([refuse(part, 9, ErrorCode.NOT_COORDINATOR) for part in parts.values()])
    assert isinstance(merged, OffsetFetchResponse)
    assert {(each.group_id, each.error_code) for each in merged.groups} == {(each, 16) for each in groups}
    deletion = split(DeleteGroupsRequest(groups_names=groups), 2, 3)
    merged = merge([refuse(part, 2, ErrorCode.NOT_COORDINATOR) for part in deletion.values()])
    assert isinstance(merged, DeleteGroupsResponse)
    assert {each.group_id for each in merged.results} == set(groups)


def test_a_request_of_one_group_goes_where_it_is() -> None:
    message = HeartbeatRequest(group_id="test", generation_id=1, member_id="m")
    assert split(message, 4, 50) == {partition_for_group("test", 50): message}
    old_fetch = OffsetFetchRequest(group_id="test")
    assert split(old_fetch, 7, 50) == {partition_for_group("test", 50): old_fetch}


def test_listing_asks_everybody_and_ignores_those_who_are_elsewhere() -> None:
    assert sorted(split(ListGroupsRequest(), 5, 3)) == [0, 1, 2]
    parts = [
        ListGroupsResponse(groups=[ListedGroup(group_id="b")]),
        ListGroupsResponse(error_code=ErrorCode.NOT_COORDINATOR),
        ListGroupsResponse(groups=[ListedGroup(group_id="a")]),
    ]
    merged = merge(parts)
    assert isinstance(merged, ListGroupsResponse)
    assert (merged.error_code, [group.group_id for group in merged.groups]) == (0, ["a", "b"])
    merged = merge([*parts, ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
    assert isinstance(merged, ListGroupsResponse)
    assert merged.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_only_what_was_split_can_be_merged() -> None:
    with pytest.raises(ValueError, match="nothing"):
        merge([])
    with pytest.raises(ValueError, match="HeartbeatResponse"):
        merge([HeartbeatResponse(), HeartbeatResponse()])
    one = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g")])
    assert merge([one]) is one


# ---- refusals, in every version there is


def every_request(version: int, key: ApiKey) -> GroupRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    if key == ApiKey.OFFSET_FETCH:
        if version >= 8:
            topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
            return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    requests: dict[ApiKey, GroupRequest] = {
        ApiKey.JOIN_GROUP: JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        ApiKey.SYNC_GROUP: SyncGroupRequest(group_id="g", generation_id=1, member_id="m"),
        ApiKey.HEARTBEAT: HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
        ApiKey.LEAVE_GROUP: LeaveGroupRequest(group_id="g"),
        ApiKey.OFFSET_COMMIT: OffsetCommitRequest(
            group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
        ),
        ApiKey.OFFSET_DELETE: OffsetDeleteRequest(group_id="g"),
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=["g"]),
        ApiKey.LIST_GROUPS: ListGroupsRequest(),
        ApiKey.DELETE_GROUPS: DeleteGroupsRequest(groups_names=["g"]),
    }
    return requests[key]


def error_in(response: object) -> int:
    """Return the error of a response, from the field that carries it."""
    match response:
        case OffsetFetchResponse(groups=[OffsetFetchResponseGroup(error_code=code)]):
            return code
        case OffsetFetchResponse(error_code=code, topics=[topic]):
            return code or topic.partitions[0].error_code
        case DescribeGroupsResponse(groups=[group]):
            return group.error_code
        case DeleteGroupsResponse(results=[result]):
            return result.error_code
    topics = getattr(response, "topics", [])
    return topics[0].partitions[0].error_code if topics else getattr(response, "error_code", 0)


KEYS = [
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_version_can_say_no_and_every_version_is_answered(key: ApiKey) -> None:
    for version in range(versions(key)[0], versions(key)[1] + 1):
        message = every_request(version, key)
        refused = refuse(message, version, ErrorCode.NOT_COORDINATOR)
        arrived = decode(type(refused), encode(refused, version), version)
        assert error_in(arrived) == ErrorCode.NOT_COORDINATOR, version
        world = World()
        world.request(message, version)
        assert world.answers, f"{key.name} v{version} was not answered"


def test_a_join_that_is_not_looked_at_names_no_member() -> None:
    message = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, member_id="m", protocol_type="consumer", protocols=[]
    )
    for version in range(10):
        refused = refuse(message, version, ErrorCode.NOT_COORDINATOR)
        assert isinstance(refused, JoinGroupResponse)
        assert refused.member_id == ""


def test_a_description_of_share_groups_says_that_its_coordinator_is_elsewhere() -> None:
    """Kafka has this message for share groups only; and none if there are no share groups at all."""
    for error, message in (
        (ErrorCode.NOT_COORDINATOR, "This is not the correct coordinator."),
        (ErrorCode.UNSUPPORTED_VERSION, None),
    ):
        refused: Any = refuse(ShareGroupDescribeRequest(group_ids=["a", "b"]), 1, error)
        told = [(each.group_id, each.error_code, each.error_message) for each in refused.groups]
        assert told == [("a", error, message), ("b", error, message)]


def test_no_request_is_without_a_refusal() -> None:
    assert routing._REFUSALS.keys() == set(get_args(GroupRequest))


def versions(key: ApiKey) -> tuple[int, int]:
    """The lowest and highest version of an API."""
    low, high = API_VERSIONS[key]
    return low, high


# ---- the coordinator's edges


def request(message: GroupRequest, version: int, request_id: int = 1) -> Request:
    return Request(request_id=request_id, api_version=version, message=message)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_before_it_has_loaded_it_says_so(key: ApiKey) -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    version = versions(key)[1]
    effects = coordinator.step(request(every_request(version, key), version), Millis(0))
    assert len(effects) == 1
    assert isinstance(effects[0], Reply)
    expected = {
        ApiKey.HEARTBEAT: ErrorCode.NONE,
        ApiKey.SYNC_GROUP: ErrorCode.REBALANCE_IN_PROGRESS,
    }.get(key, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert error_in(effects[0].response) == expected
    assert coordinator.next_deadline() is None


def test_topics_deleted_while_loading_lose_their_offsets_afterwards() -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    assert coordinator.step(TopicsDeleted(topics=("t",)), Millis(0)) == []
    for topic in ("t", "u"):
        key = OffsetCommitKey(group_id="g", topic=topic, partition=0)
        coordinator.replay(write_key(key), write_offset(OffsetCommitValue(offset=1, commit_timestamp=0)), 0)
    (append,) = coordinator.loaded(Millis(0))
    assert isinstance(append, Append)
    coordinator.step(Appended(token=append.token), Millis(0))
    assert [partition.topic for partition in coordinator.groups["g"].offsets] == ["u"]


def test_records_of_other_protocols_and_without_key_are_passed_over() -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    coordinator.replay(None, b"value", 0)
    coordinator.replay(struct.pack(">hh", 99, 1) + b"g", b"\x00\x00", 1)
    coordinator.replay(write_key(GroupMetadataKey(group_id="g")), None, 2)
    coordinator.loaded(Millis(0))
    assert coordinator.durable() == {}
    assert coordinator.groups == {}


def test_a_broken_record_is_named_by_its_offset() -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    with pytest.raises(ProtocolError, match="offset 17"):
        coordinator.replay(write_key(GroupMetadataKey(group_id="g")), b"\x00\x03\x00", 17)


def test_an_append_is_reported_once_and_only_if_it_was_asked_for() -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    coordinator.loaded(Millis(0))
    with pytest.raises(AssertionError):
        coordinator.step(Appended(token=1), Millis(0))
    for request_id in (1, 2):
        coordinator.step(request(every_request(9, ApiKey.OFFSET_COMMIT), 9, request_id), Millis(0))
    coordinator.step(Appended(token=2), Millis(0))
    with pytest.raises(AssertionError):
        coordinator.step(Appended(token=2), Millis(0))


def test_the_two_clocks_are_apart() -> None:
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    coordinator.loaded(Millis(100), Millis(1_700_000_000_000))
    assert coordinator.next_deadline() == 100 + 600_000
    commit = every_request(9, ApiKey.OFFSET_COMMIT)
    (append,) = coordinator.step(request(commit, 9), Millis(200), Millis(1_700_000_000_100))
    assert isinstance(append, Append)
    coordinator.step(Appended(token=append.token), Millis(201), Millis(1_700_000_000_101))
    (offset,) = coordinator.groups["g"].offsets.values()
    assert offset.commit_timestamp == 1_700_000_000_100
    late = Millis(1_700_000_000_100 + 7 * 24 * 3_600_000)
    assert coordinator.step(Tick(), Millis(600_099), late) == []
    effects = coordinator.step(Tick(), Millis(600_100), late)
    assert any(isinstance(effect, Append) for effect in effects)


def test_the_oldest_group_value_gives_sessions_and_barriers_to_its_members() -> None:
    """A group as the very first brokers stored it has one timeout for both purposes."""
    value = write_group(GroupMetadataValue(protocol_type="consumer", generation_id=4, protocol=None, leader=None))
    coordinator = GroupCoordinator(GroupConfig(), lambda: "1")
    coordinator.replay(write_key(GroupMetadataKey(group_id="g")), value, 0)
    coordinator.loaded(Millis(0))
    coordinator.validate()
    classic = coordinator.groups["g"].classic
    assert classic is not None
    assert classic.state is State.EMPTY
    assert classic.generation_id == 4


def test_members_leaving_an_old_version_hear_the_one_error_there_is() -> None:
    world = World()
    world.request(LeaveGroupRequest(group_id="g", member_id="m"), 0)
    assert world.answers[1] == LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def test_old_joins_are_refused_without_null() -> None:
    """Before v7 a protocol name could not be null."""
    world = World()
    message = every_request(0, ApiKey.JOIN_GROUP)
    assert isinstance(message, JoinGroupRequest)
    refused = refuse(message, 0, ErrorCode.NOT_COORDINATOR)
    assert isinstance(refused, JoinGroupResponse)
    assert refused.protocol_name == ""
    world.request(message, 0)
    answer = world.answers[1]
    assert isinstance(answer, JoinGroupResponse)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    classic = world.coordinator.groups["g"].classic_or_empty()
    assert classic.rebalance_timeout_ms == 10_000, "v0 has one timeout for both purposes"


def test_only_the_transitions_of_the_table_are_possible() -> None:
    assert set(FOLLOWS) == set(State)
    for state in State:
        for target in State:
            group = ClassicGroup(group_id="g", state=state)
            if target in FOLLOWS[state]:
                group.become(target, Millis(5))
                assert (group.state, group.previous_state, group.current_state_timestamp) == (target, state, 5)
            else:
                with pytest.raises(AssertionError):
                    group.become(target, Millis(5))


def test_responses_without_topics_are_no_error() -> None:
    assert error_in(SyncGroupResponse()) == error_in(OffsetDeleteResponse()) == 0
