"""Handlers for the four requests of classic members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Each handler refuses a request that does not fit the group, changes the group through `rebalance`, and either answers
now or leaves the request waiting there. Checks are made in this order: the member, its instance id, its generation, its
protocol, the state.

Deliberate differences from Kafka: if a member sends a second request while its first still waits, the first is answered
REBALANCE_IN_PROGRESS instead of being dropped; the first assignment that a leader sends for a generation stands,
whereas Kafka stores a repeated one but continues with the first; a pending member that suddenly names an instance id
gets UNKNOWN_MEMBER_ID.

Read: KIP-345, KIP-394, KIP-559 (protocol checks in SyncGroup), KIP-800 (reasons), KIP-814 (static leader).
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.frozen import frozen
from kraftpy.groups.appends import StoreStaticMember
from kraftpy.groups.classic.group import ClassicGroup, Member, Protocols, State, Waiting
from kraftpy.groups.classic.rebalance import Rebalance, join_answer, join_error, sync_answer
from kraftpy.groups.events import Request
from kraftpy.groups.group import Group
from kraftpy.groups.records import group_record
from kraftpy.groups.step import Step
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

UNKNOWN_MEMBER = ""
"""The member id sent by a client that does not have one yet."""

FIRST_JOIN_WITH_MEMBER_ID_REQUIRED = 4
FIRST_LEAVE_WITH_MEMBERS = 3
_MAX_NAME_IN_ID = 1_000
"""Far longer than names of clients and instances usually are: the id must fit in records and answers."""


@frozen
class Joining:
    """A normalized JoinGroup request: fields missing in older versions are filled in."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    reason: str
    client_id: str
    client_host: str
    waiting: Waiting

    @classmethod
    def of(cls, event: Request, message: JoinGroupRequest) -> Joining:
        """Normalize a request of any version: v0 has one timeout for both purposes."""
        rebalance_timeout_ms = message.rebalance_timeout_ms
        return cls(
            group_id=message.group_id,
            member_id=message.member_id,
            group_instance_id=message.group_instance_id,
            session_timeout_ms=message.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else message.session_timeout_ms,
            protocol_type=message.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            reason=message.reason or "not given",
            client_id=event.client_id,
            client_host=event.client_host,
            waiting=Waiting(request_id=event.request_id, api_version=event.api_version),
        )


def member_id_for(joining: Joining, unique: str) -> str:
    """Build a member id. A static member's begins with its instance id, any other's with the client's name."""
    name = joining.client_id if joining.group_instance_id is None else joining.group_instance_id
    return f"{name[:_MAX_NAME_IN_ID]}-{unique}"


class Membership:
    """Handles members' requests. `new_id` returns the unguessable, unique part of a member id."""

    def __init__(self, rebalance: Rebalance, new_id: Callable[[], str]) -> None:
        self.rebalance = rebalance
        self.config = rebalance.config
        self.new_id = new_id

    # ---- JoinGroup

    def join(self, event: Request, message: JoinGroupRequest, groups: dict[str, Group], step: Step) -> None:
        """Let a member join or rejoin. The answer is sent when all members have joined."""
        joining = Joining.of(event, message)
        known = groups.get(joining.group_id)
        error = self._check_join(joining, is_known=known is not None)
        if error is not ErrorCode.NONE:
            self._refuse(joining, error, step)
            return
        if known is None:
            known = groups[joining.group_id] = Group(group_id=joining.group_id)
        group = known.classic_or_empty()
        if not self._has_room(group, joining):
            self._refuse(joining, ErrorCode.GROUP_MAX_SIZE_REACHED, step, member_id=UNKNOWN_MEMBER)
            if joining.member_id in group.members or joining.member_id in group.pending_members:
                self.rebalance.drop(group, joining.member_id, step)
                self.rebalance.complete_if_joined(group, step)
        elif group.state is State.DEAD:
            self._refuse(joining, ErrorCode.COORDINATOR_NOT_AVAILABLE, step)
        elif not group.supports(joining.protocol_type, joining.protocols):
            self._refuse(joining, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, step)
        elif joining.member_id == UNKNOWN_MEMBER:
            self._join_unknown(joining, group, step)
        else:
            self._join_known(joining, group, step)

    def _check_join(self, joining: Joining, *, is_known: bool) -> ErrorCode:
        if not joining.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low, high = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
        if not low <= joining.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not is_known and joining.member_id != UNKNOWN_MEMBER:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _refuse(self, joining: Joining, error: ErrorCode, step: Step, member_id: str | None = None) -> None:
        named = joining.member_id if member_id is None else member_id
        step.reply(joining.waiting.request_id, join_error(joining.waiting.api_version, named, error))

    def _has_room(self, group: ClassicGroup, joining: Joining) -> bool:
        """Return True if this member can join without exceeding the maximum group size.

        During a rebalance, the members waiting at the barrier are counted. A group that has become too large (because
        the limit was lowered) thus sheds the last to arrive. A static member that returns takes its own place.
        """
        place = joining.member_id or group.static_members.get(joining.group_instance_id or "", UNKNOWN_MEMBER)
        member = group.members.get(place)
        match group.state:
            case State.EMPTY | State.DEAD:
                return True
            case State.PREPARING_REBALANCE:
                waits = member is not None and member.join is not None
                return waits or group.awaiting_join < self.config.group_max_size
            case State.COMPLETING_REBALANCE | State.STABLE:
                return member is not None or len(group.members) < self.config.group_max_size

    def _join_unknown(self, joining: Joining, group: ClassicGroup, step: Step) -> None:
        new_id = member_id_for(joining, self.new_id())
        instance_id = joining.group_instance_id
        if instance_id is not None and instance_id in group.static_members:
            self._rejoin_static(joining, group, group.static_members[instance_id], new_id, step)
        elif instance_id is None and joining.waiting.api_version >= FIRST_JOIN_WITH_MEMBER_ID_REQUIRED:
            self.rebalance.await_claim(group, new_id, joining.session_timeout_ms, step)
            self._refuse(joining, ErrorCode.MEMBER_ID_REQUIRED, step, member_id=new_id)
        else:
            self._add(joining, group, new_id, step)

    def _add(self, joining: Joining, group: ClassicGroup, member_id: str, step: Step) -> None:
        if not group.members and group.state is State.EMPTY:
            group.protocol_type = joining.protocol_type
        member = Member(
            member_id=member_id,
            group_instance_id=joining.group_instance_id,
            client_id=joining.client_id,
            client_host=joining.client_host,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            session_timeout_ms=joining.session_timeout_ms,
            protocols=joining.protocols,
            is_new=True,
            join=joining.waiting,
        )
        self.rebalance.add(group, member, step, joining.reason)

    def _join_known(self, joining: Joining, group: ClassicGroup, step: Step) -> None:
        member_id = joining.member_id
        if member_id in group.pending_members and joining.group_instance_id is None:
            self._add(joining, group, member_id, step)
            return
        error = group.check_member(member_id, joining.group_instance_id)
        if error is not ErrorCode.NONE:
            self._refuse(joining, error, step)
            return
        member = group.members[member_id]
        leads = member_id == group.leader_id
        unchanged = member.protocols == joining.protocols
        if (group.state is State.COMPLETING_REBALANCE and unchanged) or (
            group.state is State.STABLE and unchanged and not leads
        ):
            # The answer to its first request may have been lost: send the same generation again. For the leader of a
            # Stable group a rejoin is how it asks for a rebalance, for example when a topic has grown (rule 34).
            self.rebalance.touch(group, member, step)
            step.reply(joining.waiting.request_id, join_answer(group, member, leads=leads))
            return
        self._update(joining, group, member, step)
        self.rebalance.prepare_or_complete(group, step, f"member {member_id} joins again ({joining.reason})")

    def _update(self, joining: Joining, group: ClassicGroup, member: Member, step: Step) -> None:
        """Update the member from its request, and let the request wait."""
        group.resubscribe(member, joining.protocols)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.session_timeout_ms
        member.client_id = joining.client_id
        member.client_host = joining.client_host
        self.rebalance.wait_for_join(group, member, joining.waiting, step)
        self.rebalance.touch(group, member, step)

    def _rejoin_static(self, joining: Joining, group: ClassicGroup, old_id: str, new_id: str, step: Step) -> None:
        """Let a static member return. No rebalance in a Stable group whose protocol stays the same (rule 36)."""
        old_leader = group.leader_id or ""
        member = self.rebalance.replace_static(group, old_id, new_id, step)
        self._update(joining, group, member, step)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            assignments = {each.member_id: each.assignment or b"" for each in group.members.values()}
            purpose = StoreStaticMember(
                group_id=group.group_id,
                group_instance_id=joining.group_instance_id or "",
                member_id=new_id,
                leader_id=old_leader,
            )
            step.append([group_record(group.group_id, group.to_value(assignments))], purpose)
            return
        # In CompletingRebalance the leader may be assigning to the old id right now: all members must rejoin.
        self.rebalance.prepare_or_complete(
            group, step, f"static member {joining.group_instance_id} is back ({joining.reason})"
        )

    # ---- SyncGroup

    def sync(self, event: Request, message: SyncGroupRequest, group: ClassicGroup | None, step: Step) -> None:
        """Answer with the member's assignment once it is known; the leader's request carries all assignments."""
        error = self._check_sync(message, group)
        if error is not ErrorCode.NONE or group is None:
            step.reply(event.request_id, SyncGroupResponse(error_code=error, assignment=b""))
            return
        member = group.members[message.member_id]
        self.rebalance.touch(group, member, step)
        self.rebalance.synced(group, member)
        if group.state is State.STABLE:
            step.reply(event.request_id, sync_answer(group, member))
            return
        waiting = Waiting(request_id=event.request_id, api_version=event.api_version)
        self.rebalance.wait_for_sync(member, waiting, step)
        if member.member_id == group.leader_id:
            given = {each.member_id: bytes(each.assignment) for each in message.assignments}
            self.rebalance.store_assignment(group, given, step)

    def _check_sync(self, message: SyncGroupRequest, group: ClassicGroup | None) -> ErrorCode:
        error = self._check_generation(message, group)
        if error is not ErrorCode.NONE or group is None:
            return error
        if message.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if message.protocol_name not in (None, group.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _check_generation(self, message: SyncGroupRequest | HeartbeatRequest, group: ClassicGroup | None) -> ErrorCode:
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.check_member(message.member_id, message.group_instance_id)
        if error is ErrorCode.NONE and message.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # ---- Heartbeat

    def heartbeat(self, event: Request, message: HeartbeatRequest, group: ClassicGroup | None, step: Step) -> None:
        """Keep a member alive; the answer tells it if it must rejoin."""
        error = self._check_generation(message, group)
        if error is ErrorCode.NONE and group is not None:
            self.rebalance.touch(group, group.members[message.member_id], step)
            if group.state is State.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        step.reply(event.request_id, HeartbeatResponse(error_code=error))

    # ---- LeaveGroup

    def leave(self, event: Request, message: LeaveGroupRequest, group: ClassicGroup | None, step: Step) -> None:
        """Remove members: one before v3; from v3 several, and static ones by instance id alone (KIP-345)."""
        if event.api_version >= FIRST_LEAVE_WITH_MEMBERS:
            leaving = [(each.member_id, each.group_instance_id) for each in message.members]
        else:
            leaving = [(message.member_id, None)]
        error = ErrorCode.NONE
        if not message.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif group is not None and group.state is State.DEAD:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        results = []
        departed = []
        pending = frozenset(group.pending_members) if group is not None else frozenset()
        for member_id, group_instance_id in leaving if error is ErrorCode.NONE else []:
            gone, member_error = self._leaver(group, member_id, group_instance_id)
            if gone is not None and group is not None:
                self.rebalance.drop(group, gone, step)
                departed.append(gone)
            results.append(
                MemberResponse(member_id=member_id, group_instance_id=group_instance_id, error_code=member_error)
            )
        if event.api_version >= FIRST_LEAVE_WITH_MEMBERS:
            step.reply(event.request_id, LeaveGroupResponse(error_code=error, members=results))
        else:
            step.reply(event.request_id, LeaveGroupResponse(error_code=results[0].error_code if results else error))
        if group is None or not departed:
            return
        if all(member_id in pending for member_id in departed):
            self.rebalance.complete_if_joined(group, step)
        else:
            self.rebalance.react_to_departure(group, step, f"members left: {', '.join(departed)}")

    def _leaver(
        self, group: ClassicGroup | None, member_id: str, group_instance_id: str | None
    ) -> tuple[str | None, ErrorCode]:
        """Return the id of the member to remove, or the error."""
        if group is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        if member_id == UNKNOWN_MEMBER:
            static = group.static_members.get(group_instance_id or "")
            return static, ErrorCode.NONE if static is not None else ErrorCode.UNKNOWN_MEMBER_ID
        if member_id in group.pending_members:
            return member_id, ErrorCode.NONE
        error = group.check_member(member_id, group_instance_id)
        return (member_id, error) if error is ErrorCode.NONE else (None, error)
