"""Random histories: clients that do anything, appends that fail or come out of order, reloads at any moment.

`World` checks every step. Here is added what clients may rely on: an acknowledged commit and an assignment that was
handed out are in the log at that moment, and a generation has one protocol.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from group_world import World, subscription
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import Reply, TopicsDeleted
from kraftpy.groups.records import GroupMetadataKey, OffsetCommitKey, read_group, read_key
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kraftpy.types import Millis

T = TypeVar("T")

GROUPS = ("g", "h")
INSTANCES = (None, None, "i1", "i2")
PROTOCOLS = (("range", "sticky"), ("range",), ("sticky", "range"), ("range", "other"), ("sticky",), ())
TOPICS = (("t",), ("t", "u"), ("u",))
ERRORS = (
    ErrorCode.NONE,
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
)


class Dice:
    """The numbers of one move; asked for more than there are, it says 0."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)

    def below(self, end: int) -> int:
        return next(self._numbers, 0) % end

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


class Clients(World):
    """Clients without manners. They know only the member ids that were given to them."""

    def __init__(self, config: GroupConfig) -> None:
        self.ids: dict[str, list[tuple[str, str | None]]] = {group: [("zz", None)] for group in GROUPS}
        self.protocols: dict[tuple[str, int], str] = {}
        super().__init__(config)

    def check(self) -> None:
        super().check()
        alive = {group_id for group_id, group in self.coordinator.groups.items() if not group.is_dead}
        self.protocols = {key: name for key, name in self.protocols.items() if key[0] in alive}

    # ---- what clients rely on

    def happened(self, effect: object) -> None:
        if not isinstance(effect, Reply):
            return
        message, answer = self.requests[effect.request_id].message, self.answers[effect.request_id]
        if isinstance(message, JoinGroupRequest) and isinstance(answer, JoinGroupResponse):
            if answer.member_id and (answer.member_id, message.group_instance_id) not in self.ids[message.group_id]:
                self.ids[message.group_id].append((answer.member_id, message.group_instance_id))
            if answer.error_code == 0:
                known = self.protocols.setdefault((message.group_id, answer.generation_id), answer.protocol_name or "")
                assert known == answer.protocol_name
        elif isinstance(message, SyncGroupRequest) and isinstance(answer, SyncGroupResponse) and not answer.error_code:
            stored = self._stored_group(message.group_id)
            assert stored.generation_id == message.generation_id
            assignments = {member.member_id: member.assignment for member in stored.members}
            assert assignments[message.member_id] == answer.assignment
        elif isinstance(message, OffsetCommitRequest):
            logged = {read_key(key) for key, value in self.log if value is not None}
            for topic in answer.topics:
                for partition in topic.partitions:
                    if partition.error_code == 0:
                        index = partition.partition_index
                        key = OffsetCommitKey(group_id=message.group_id, topic=topic.name, partition=index)
                        assert key in logged

    def _stored_group(self, group_id: str):
        return next(
            read_group(value)
            for key, value in reversed(self.log)
            if read_key(key) == GroupMetadataKey(group_id=group_id) and value is not None
        )

    # ---- moves

    def move(self, numbers: list[int]) -> None:
        dice = Dice(numbers)
        moves: list[Callable[[Dice], None]] = [
            self.join_new,
            self.join_new,
            self.join_again,
            self.all_join,
            self.all_join,
            self.all_sync,
            self.all_sync,
            self.sync,
            self.heartbeat,
            self.leave,
            self.commit,
            self.commit,
            self.look,
            self.delete_offsets,
            self.delete_groups,
            self.topics_deleted,
            self.time_passes,
            self.time_passes,
            self.hold_or_release,
            self.done,
            self.done,
            self.reloads,
            self.settle,
            self.settle,
            self.settle,
        ]
        dice.pick(moves)(dice)
        self.check_replay()

    def join_new(self, dice: Dice) -> None:
        self._join(dice, dice.pick(GROUPS), "", dice.pick(INSTANCES))

    def join_again(self, dice: Dice) -> None:
        group_id = dice.pick(GROUPS)
        member_id, instance_id = dice.pick(self.ids[group_id][-5:])
        self._join(dice, group_id, member_id, instance_id)

    def _join(self, dice: Dice, group_id: str, member_id: str, instance_id: str | None) -> None:
        metadata = subscription(dice.pick(TOPICS)) if dice.below(4) else b"nonsense"
        message = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=dice.pick((10_000, 6_000, 100_000, 30_000, 20_000, 1)),
            rebalance_timeout_ms=dice.pick((20_000, 3_000, 0)),
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=dice.pick(("consumer",) * 9 + ("connect",)),
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in dice.pick(PROTOCOLS)],
        )
        self.request(message, dice.pick((9, 5, 8)) if instance_id else dice.pick((3, 9, 4, 2)), dice.pick(("a", "b")))

    def all_join(self, dice: Dice) -> None:
        """Let every member that is asked to rejoin do so."""
        group = self._classic(dice.pick(GROUPS))
        if group is None or group.state is not State.PREPARING_REBALANCE:
            return
        for member_id in [each.member_id for each in group.members.values() if each.join is None]:
            member = group.members.get(member_id)
            if member is not None and group.state is State.PREPARING_REBALANCE:
                message = JoinGroupRequest(
                    group_id=group.group_id,
                    session_timeout_ms=30_000,
                    rebalance_timeout_ms=20_000,
                    member_id=member_id,
                    group_instance_id=member.group_instance_id,
                    protocol_type=group.protocol_type or "",
                    protocols=[JoinGroupRequestProtocol(name=name, metadata=m) for name, m in member.protocols],
                )
                self.request(message, 9)

    def all_sync(self, dice: Dice) -> None:
        """Let every member that is asked to send SyncGroup do so."""
        group = self._classic(dice.pick(GROUPS))
        if group is None or group.state is not State.COMPLETING_REBALANCE:
            return
        for member_id in sorted(group.pending_sync, reverse=bool(dice.below(2))):
            self._sync(dice, group.group_id, member_id, None, group.generation_id)

    def settle(self, dice: Dice) -> None:
        """Claim the ids that were handed out, and let every member join and ask for its assignment."""
        number = dice.below(2)
        group = self._classic(GROUPS[number])
        if group is None:
            return
        for member_id in sorted(group.pending_members):
            self._join(Dice([0]), group.group_id, member_id, None)
        self.all_join(Dice([number]))
        self.all_sync(Dice([number, dice.below(2)]))

    def sync(self, dice: Dice) -> None:
        group_id = dice.pick(GROUPS)
        member_id, instance_id = dice.pick(self.ids[group_id][-5:])
        self._sync(dice, group_id, member_id, instance_id, self._generation(dice, group_id))

    def _sync(self, dice: Dice, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> None:
        message = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=each, assignment=bytes([dice.below(200)]))
                for each, _ in self.ids[group_id]
                if dice.below(5)
            ],
        )
        self.request(message, 5)

    def _classic(self, group_id: str) -> ClassicGroup | None:
        group = self.coordinator.groups.get(group_id)
        return None if group is None else group.classic

    def _generation(self, dice: Dice, group_id: str) -> int:
        group = self._classic(group_id)
        return (group.generation_id if group is not None else 0) + dice.pick((0, 0, 0, 0, 1, -1))

    def heartbeat(self, dice: Dice) -> None:
        group_id = dice.pick(GROUPS)
        member_id, instance_id = dice.pick(self.ids[group_id][-5:])
        generation_id = self._generation(dice, group_id)
        message = HeartbeatRequest(
            group_id=group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
        )
        self.request(message, 4)

    def leave(self, dice: Dice) -> None:
        group_id = dice.pick(GROUPS)
        leaving = [dice.pick(self.ids[group_id][-5:]) for _ in range(1 + dice.below(2))]
        members = [
            MemberIdentity(member_id=member_id if dice.below(4) else "", group_instance_id=instance_id)
            for member_id, instance_id in leaving
        ]
        self.request(LeaveGroupRequest(group_id=group_id, members=members), 5)

    def commit(self, dice: Dice) -> None:
        group_id = dice.pick(GROUPS)
        member_id, instance_id = dice.pick(self.ids[group_id][-5:]) if dice.below(3) else ("", None)
        partitions = [
            OffsetCommitRequestPartition(partition_index=dice.below(2), committed_offset=dice.below(100))
            for _ in range(dice.below(3))
        ]
        message = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=self._generation(dice, group_id) if member_id else -1,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=dice.pick((-1, -1, 5_000)),
            topics=[OffsetCommitRequestTopic(name=dice.pick(("t", "u")), partitions=partitions)],
        )
        self.request(message, 9 if instance_id is not None else dice.pick((9, 4)))

    def look(self, dice: Dice) -> None:
        self.request(DescribeGroupsRequest(groups=list(GROUPS)), dice.below(7))
        self.request(ListGroupsRequest(), dice.below(6))
        asked = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in GROUPS]
        self.request(OffsetFetchRequest(groups=asked), 8)

    def delete_offsets(self, dice: Dice) -> None:
        partition = OffsetDeleteRequestPartition(partition_index=dice.below(2))
        topic = OffsetDeleteRequestTopic(name=dice.pick(("t", "u")), partitions=[partition])
        self.request(OffsetDeleteRequest(group_id=dice.pick(GROUPS), topics=[topic]), 0)

    def delete_groups(self, dice: Dice) -> None:
        self.request(DeleteGroupsRequest(groups_names=list(GROUPS[: 1 + dice.below(2)])), 2)

    def topics_deleted(self, dice: Dice) -> None:
        self.step(TopicsDeleted(topics=dice.pick(TOPICS)))

    def time_passes(self, dice: Dice) -> None:
        deadline = self.coordinator.next_deadline()
        assert deadline is not None
        self.tick(deadline if dice.below(2) else self.now + dice.pick((1, 1_000, 5_000, 30_000)))

    def hold_or_release(self, dice: Dice) -> None:
        self.hold = not self.hold

    def done(self, dice: Dice) -> None:
        if self.held:
            self.appended(self.held[dice.below(len(self.held))].token, dice.pick(ERRORS))

    def reloads(self, dice: Dice) -> None:
        self.protocols.clear()
        self.reload()

    def finish(self) -> None:
        """Let everything settle: held appends are stored, all sessions expire, all requests are answered."""
        self.hold = False
        while self.held:
            self.appended(self.held[0].token)
        for _ in range(1_000):
            classics = [group.classic_or_empty() for group in self.coordinator.groups.values()]
            busy = [group for group in classics if group.members or group.pending_members]
            if not busy:
                break
            deadline = self.coordinator.next_deadline()
            assert deadline is not None
            self.tick(deadline)
        assert not any(group.kind.members for group in self.coordinator.groups.values()), "sessions do not end"
        assert not self.waiting_outside()
        self.check_replay()


@pytest.mark.parametrize("seed", range(12))
def test_long_histories_keep_the_invariants(seed: int) -> None:
    dice = random.Random(seed)
    config = GroupConfig(
        group_max_size=dice.choice((2, 3, 1_000)),
        group_initial_rebalance_delay_ms=dice.choice((0, 3_000)),
        offsets_retention_minutes=1,
        offsets_retention_check_interval_ms=20_000,
    )
    clients = Clients(config)
    clients.now = Millis(1)
    for _ in range(250):
        clients.move([dice.randrange(2**16) for _ in range(14)])
    clients.finish()


numbers = st.lists(st.integers(0, 2**16), min_size=1, max_size=14)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    moves=st.lists(numbers, min_size=1, max_size=60),
    size=st.sampled_from((2, 3, 1_000)),
    delay_ms=st.sampled_from((0, 3_000)),
)
def test_any_history_keeps_the_invariants(moves: list[list[int]], size: int, delay_ms: int) -> None:
    config = GroupConfig(
        group_max_size=size,
        group_initial_rebalance_delay_ms=delay_ms,
        offsets_retention_minutes=1,
        offsets_retention_check_interval_ms=20_000,
    )
    clients = Clients(config)
    clients.now = Millis(1)
    for move in moves:
        clients.move(move)
    clients.finish()
