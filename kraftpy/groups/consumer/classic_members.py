"""Members of a consumer group that speak the classic protocol, while the group migrates between the two (KIP-848).

They send JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and get what those promise: a generation, which is their
member epoch; an assignment, which is what they may read; and REBALANCE_IN_PROGRESS if they must rejoin. None of them
leads: the coordinator assigns. A member rejoins to learn of a new epoch, to report that it gave up partitions, or to
get partitions that others have given up.

Like `protocol`, whose draft, admission and reconciliation it shares, this module decides and sends nothing.

Left out: `sync` and `join` barriers; members do not wait for each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftpy.groups.apart import LIGHT, Deciding, Work
from kraftpy.groups.assignment import Assignment, TopicIdPartition
from kraftpy.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from kraftpy.groups.classic.membership import (
    FIRST_JOIN_WITH_MEMBER_ID_REQUIRED,
    FIRST_LEAVE_WITH_MEMBERS,
    UNKNOWN_MEMBER,
    Joining,
)
from kraftpy.groups.classic.rebalance import join_error
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.consumer.records import ClassicMember, MemberState, MemberValue
from kraftpy.groups.events import Request
from kraftpy.groups.topics import Topics
from kraftpy.protocol.consumer_protocol import Subscription, decode_subscription, encode_assignment
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.types import Millis, TopicPartition

BYTES_PER_UNIT: Final = 16
"""The bytes of an encoded subscription or assignment that are parsed in a unit of work (`apart`)."""


class ClassicMembers:
    """Decides for the classic members of consumer groups."""

    def __init__(self, protocol: ConsumerProtocol) -> None:
        self._protocol = protocol
        self._config = protocol.config

    # ---- JoinGroup

    def join(
        self, draft: Draft, event: Request, message: JoinGroupRequest, timestamp: Millis
    ) -> Deciding[JoinGroupResponse]:
        """Let a member join or rejoin; it learns its epoch at once."""
        joining = Joining.of(event, message)
        member_id = joining.member_id
        try:
            self._check_join(draft.group, joining)
            if member_id == UNKNOWN_MEMBER:
                member_id = self._protocol.new_id()
                must_ask_again = event.api_version >= FIRST_JOIN_WITH_MEMBER_ID_REQUIRED
                if joining.group_instance_id is None and must_ask_again:
                    self._admit(draft.group, joining, member_id)
                    return join_error(event.api_version, member_id, ErrorCode.MEMBER_ID_REQUIRED)
            encoded = joining.protocols[0][1]
            said: _Said = yield Work(len(encoded) // BYTES_PER_UNIT, lambda: self._read(joining, encoded))
            predecessor = self._admit(draft.group, joining, member_id)
        except KafkaError as error:
            return join_error(event.api_version, UNKNOWN_MEMBER, error.code)
        updated = said.member
        _, after = yield from self._protocol.take_in(draft, member_id, updated, said.owned, timestamp, predecessor)
        assert updated.classic is not None
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=after.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=updated.classic.protocol_name,
            leader="",
            member_id=member_id,
            members=[],
        )

    def _check_join(self, group: ConsumerGroup, joining: Joining) -> None:
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= joining.session_timeout_ms <= high:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        is_disabled = self._config.group_consumer_migration_policy.lower() == "disabled"
        if is_disabled or joining.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not group.shared_protocols({name for name, _ in joining.protocols}):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _read(self, joining: Joining, encoded: bytes) -> _Said:
        """Read the member's subscription. Raises KafkaError if it is malformed."""
        try:
            subscription = decode_subscription(encoded, joining.group_instance_id)
        except ProtocolError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        owned = to_ids(subscription.owned, self._protocol.topics)
        return _Said(classic_member(joining, subscription), owned)

    def _admit(self, group: ConsumerGroup, joining: Joining, member_id: str) -> str | None:
        """Check that the member may join. Returns the id of the static member that it replaces, if any."""
        instance_id = joining.group_instance_id
        holder = None if instance_id is None else group.static_members.get(instance_id)
        if holder is not None and holder != member_id:
            if joining.member_id != UNKNOWN_MEMBER:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            return holder
        if member_id not in group.members and len(group.members) >= self._config.group_consumer_max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return None

    # ---- SyncGroup

    def sync(self, draft: Draft, message: SyncGroupRequest, timestamp: Millis) -> Deciding[SyncGroupResponse]:
        """Return the partitions that a member which has joined may read."""
        try:
            classic = self._check_member(draft.group, message)
            if message.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if message.protocol_name not in (None, classic.protocol_name):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            current = draft.group.current(message.member_id)
            is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
            if not is_revoking and self._is_behind(draft.group, message.member_id, timestamp):
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            return SyncGroupResponse(error_code=error.code, assignment=b"")

        def encoded() -> bytes:
            return encode_assignment(to_names(current.assigned, self._protocol.topics))

        assignment: bytes = yield Work(len(current.assigned), encoded)
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=classic.protocol_name,
            assignment=assignment,
        )

    # ---- Heartbeat

    def heartbeat(self, draft: Draft, message: HeartbeatRequest, timestamp: Millis) -> Deciding[HeartbeatResponse]:
        """Keep a member alive; the answer tells it if it must rejoin."""
        try:
            self._check_member(draft.group, message)
        except KafkaError as error:
            return HeartbeatResponse(error_code=error.code)
        yield from self._protocol.look_at_topics(draft, timestamp)
        is_waiting = draft.group.current(message.member_id).state is MemberState.UNRELEASED_PARTITIONS
        units = len(draft.group.target(message.member_id)) // LIGHT if is_waiting else 0
        must_join: bool = yield Work(units, lambda: self._must_join(draft.group, message.member_id, timestamp))
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if must_join else ErrorCode.NONE)

    def _is_behind(self, group: ConsumerGroup, member_id: str, timestamp: Millis) -> bool:
        """Return True if the member would learn of a new epoch by joining again now."""
        following = group.epoch if self._protocol.may_assign(group, timestamp) else group.assignment_epoch
        return group.current(member_id).member_epoch < following

    def _must_join(self, group: ConsumerGroup, member_id: str, timestamp: Millis) -> bool:
        current = group.current(member_id)
        match current.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                wanted = group.target(member_id) - current.assigned
                are_free = all(group.holders.get(each, member_id) == member_id for each in wanted)
                return are_free or self._is_behind(group, member_id, timestamp)
        return self._is_behind(group, member_id, timestamp)

    def _check_member(self, group: ConsumerGroup, message: SyncGroupRequest | HeartbeatRequest) -> ClassicMember:
        """Return the member. Raises KafkaError if it is unknown or not in that generation."""
        if message.group_instance_id is not None:
            holder = group.static_members.get(message.group_instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != message.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(message.member_id)
        if member is None or member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if message.generation_id != group.current(message.member_id).member_epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member.classic

    # ---- LeaveGroup

    def leave(self, draft: Draft, event: Request, message: LeaveGroupRequest) -> Deciding[LeaveGroupResponse]:
        """Remove members of either protocol (an administrator may name any); static ones by instance id alone."""
        if event.api_version < FIRST_LEAVE_WITH_MEMBERS:
            return LeaveGroupResponse(error_code=(yield from self._let_go(draft, message.member_id, None)))
        members = []
        for each in message.members:
            error_code = yield from self._let_go(draft, each.member_id, each.group_instance_id)
            left = MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error_code
            )
            members.append(left)
        return LeaveGroupResponse(members=members)

    def _let_go(self, draft: Draft, member_id: str, instance_id: str | None) -> Deciding[ErrorCode]:
        if instance_id is not None:
            holder = draft.group.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id not in (UNKNOWN_MEMBER, holder):
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = holder
        if member_id not in draft.group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        yield from self._protocol.remove(draft, member_id)
        return ErrorCode.NONE


class _Said(NamedTuple):
    """The content of a JoinGroup: the member as the group stores it, and the partitions that it owns."""

    member: MemberValue
    owned: Assignment


def classic_member(joining: Joining, subscription: Subscription) -> MemberValue:
    """Convert a JoinGroup to the form in which a consumer group stores its member."""
    return MemberValue(
        instance_id=joining.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=joining.client_id,
        client_host=joining.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        classic=ClassicMember(session_timeout_ms=joining.session_timeout_ms, protocols=joining.protocols),
    )


def to_ids(partitions: tuple[TopicPartition, ...], topics: Topics) -> Assignment:
    """Convert topic names to ids; partitions of deleted topics are dropped."""
    return frozenset(
        TopicIdPartition(info.topic_id, each.partition)
        for each in partitions
        if (info := topics.topic(each.topic)) is not None
    )


def to_names(assignment: Assignment, topics: Topics) -> list[TopicPartition]:
    """Convert topic ids to names, in order; partitions of deleted topics are dropped."""
    return [
        TopicPartition(name, each.partition)
        for each in sorted(assignment)
        if (name := topics.name(each.topic_id)) is not None
    ]
