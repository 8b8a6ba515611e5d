"""The path of a group from one generation to the next: two barriers and their timers.

Empty --join--> PreparingRebalance --all members joined, or timeout--> CompletingRebalance --the leader's assignment is
durable--> Stable. Any change of membership leads back to PreparingRebalance.

There are three kinds of deadline: `join` (how long members may take to rejoin), `sync` (how long members of a new
generation may take to send SyncGroup), and a `session` for each member and each member id handed out.

Invariants: the join barrier always has a deadline; every member and pending member has a session deadline; a waiting
request is answered when its member leaves, is replaced or is fenced.

Left out: logging; reasons become `Note` effects.

Read: KIP-62 (rebalance timeout separate from session timeout), KIP-134 (initial delay), KIP-345 (static members),
KIP-394 (member ids).
"""

from __future__ import annotations

from kraftpy.groups.appends import (
    StoreAssignment,
    StoreConsumerGroup,
    StoreEmpty,
    StoreStaticMember,
    StoreStreamsGroup,
    group_error,
)
from kraftpy.groups.classic.group import ClassicGroup, Member, State, Waiting
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.records import group_record
from kraftpy.groups.step import Step
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kraftpy.protocol.messages.sync_group import SyncGroupResponse
from kraftpy.types import Millis

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long the JoinGroup of a member without an id may wait: it cannot send heartbeats in the meantime."""

LEAST_TIME_BETWEEN_VAIN_BARRIERS_MS = 1_000
"""How soon a barrier that no member reached is set up again: timeouts of 0 must not keep the broker busy."""

JOIN = "join"
SYNC = "sync"
SESSION = "session"

FIRST_JOIN_WITH_NULLABLE_PROTOCOL = 7
FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9


def join_error(api_version: int, member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """Return a JoinGroup response that carries only an error."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if api_version >= FIRST_JOIN_WITH_NULLABLE_PROTOCOL else "",
        leader="",
        member_id=member_id,
        members=[],
    )


def join_answer(
    group: ClassicGroup, member: Member, *, leads: bool, leader_id: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return a JoinGroup response with the present generation; the member that `leads` gets the list of members.

    `leader_id` overrides the group's leader; `skip_assignment` (from v9, KIP-814) tells the leader to keep the present
    assignment.
    """
    members = [
        JoinGroupResponseMember(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            metadata=each.metadata(group.protocol_name),
        )
        for each in (group.members.values() if leads else ())
    ]
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader_id if leader_id is not None else group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


class Rebalance:
    """Takes groups from generation to generation. Its only state is the deadlines."""

    def __init__(self, config: GroupConfig, deadlines: Deadlines) -> None:
        self.config = config
        self.deadlines = deadlines

    # ---- sessions

    def touch(self, group: ClassicGroup, member: Member, step: Step) -> None:
        """Restart the member's session. A member that cannot send heartbeats yet gets more time."""
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._session(group, member.member_id, Millis(step.now + max(timeout_ms, 1)))

    def await_claim(self, group: ClassicGroup, member_id: str, session_timeout_ms: int, step: Step) -> None:
        """Wait for a member to join with the id it was given, within its session timeout (KIP-394)."""
        group.pending_members.add(member_id)
        self._session(group, member_id, Millis(step.now + max(session_timeout_ms, 1)))

    def _session(self, group: ClassicGroup, member_id: str, deadline: Millis) -> None:
        self.deadlines.set(Key(group.group_id, SESSION, member_id), deadline)

    def forget_session(self, group: ClassicGroup, member_id: str) -> None:
        """Cancel the session deadline of a member that left."""
        self.deadlines.cancel(Key(group.group_id, SESSION, member_id))

    # ---- answers to those who wait

    def answer_join(self, group: ClassicGroup, member: Member, response: JoinGroupResponse, step: Step) -> None:
        """Answer the member's waiting JoinGroup, if there is one."""
        if member.join is not None:
            step.reply(member.join.request_id, response)
            group.wait_for_join(member, None)

    def refuse_join(
        self, group: ClassicGroup, member: Member, error_code: ErrorCode, step: Step, member_id: str = ""
    ) -> None:
        """Answer the member's waiting JoinGroup, if there is one, with an error."""
        if member.join is not None:
            self.answer_join(group, member, join_error(member.join.api_version, member_id, error_code), step)

    def refuse_sync(self, member: Member, error_code: ErrorCode, step: Step) -> None:
        """Answer the member's waiting SyncGroup, if there is one, with an error."""
        if member.sync is not None:
            step.reply(member.sync.request_id, SyncGroupResponse(error_code=error_code, assignment=b""))
            member.sync = None

    def wait_for_join(self, group: ClassicGroup, member: Member, join: Waiting, step: Step) -> None:
        """Keep the request waiting at the barrier. An earlier request of the same member is refused."""
        self.refuse_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS, step, member.member_id)
        group.wait_for_join(member, join)

    def wait_for_sync(self, member: Member, sync: Waiting, step: Step) -> None:
        """Keep the request waiting for the assignment. An earlier request of the same member is refused."""
        self.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
        member.sync = sync

    # ---- membership changes

    def add(self, group: ClassicGroup, member: Member, step: Step, reason: str) -> None:
        """Add a new member whose request is already waiting."""
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.joined_while_initial = True
        group.add(member)
        self.touch(group, member, step)
        self.prepare_or_complete(group, step, f"member {member.member_id} is new ({reason})")

    def drop(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        """Remove a member or pending member and refuse its waiting requests. The group does not react yet."""
        member = group.members.get(member_id)
        if member is not None:
            self.refuse_join(group, member, ErrorCode.UNKNOWN_MEMBER_ID, step)
            self.refuse_sync(member, ErrorCode.UNKNOWN_MEMBER_ID, step)
        group.remove(member_id)
        self.forget_session(group, member_id)
        if not group.pending_sync:
            self.deadlines.cancel(Key(group.group_id, SYNC))

    def react_to_departure(self, group: ClassicGroup, step: Step, reason: str) -> None:
        """React to the departure of members: rebalance, or stop waiting for them."""
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(group, step, reason)
        else:
            self.complete_if_joined(group, step)

    def replace_static(self, group: ClassicGroup, old_id: str, new_id: str, step: Step) -> Member:
        """Let a static member return under a new id and fence the old one (KIP-345)."""
        member = group.members[old_id]
        self.refuse_join(group, member, ErrorCode.FENCED_INSTANCE_ID, step, old_id)
        self.refuse_sync(member, ErrorCode.FENCED_INSTANCE_ID, step)
        self.forget_session(group, old_id)
        return group.rename(old_id, new_id)

    # ---- the join barrier

    def prepare_or_complete(self, group: ClassicGroup, step: Step, reason: str) -> None:
        """Start a rebalance or, if one is in progress, check whether it can complete now."""
        if State.PREPARING_REBALANCE is group.state:
            self.complete_if_joined(group, step)
        else:
            self.prepare(group, step, reason)

    def complete_if_joined(self, group: ClassicGroup, step: Step) -> None:
        """Lift the join barrier if all members have joined. An initial delay lasts while there are members."""
        if group.state is not State.PREPARING_REBALANCE or not group.all_joined:
            return
        if group.previous_state is not State.EMPTY or not group.members:
            self.complete_join(group, step)

    def prepare(self, group: ClassicGroup, step: Step, reason: str) -> None:
        """Start a rebalance: all members must rejoin."""
        if group.state is State.COMPLETING_REBALANCE:
            self._drop_assignment(group, step, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self.deadlines.cancel(Key(group.group_id, SYNC))
        initial = group.state is State.EMPTY
        group.become(State.PREPARING_REBALANCE, step.timestamp)
        step.note(group, f"rebalancing after generation {group.generation_id}: {reason}")
        delay_ms = self.config.group_initial_rebalance_delay_ms
        if initial and delay_ms > 0:
            group.joined_while_initial = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self.deadlines.set(Key(group.group_id, JOIN), Millis(step.now + delay_ms))
        elif initial or group.all_joined:
            self.complete_join(group, step)
        else:
            self.deadlines.set(Key(group.group_id, JOIN), Millis(step.now + group.rebalance_timeout_ms))

    def join_time_is_up(self, group: ClassicGroup, step: Step) -> None:
        """Handle the join deadline: extend an initial delay while members keep joining, otherwise lift the barrier."""
        if group.previous_state is State.EMPTY and group.joined_while_initial and group.initial_delay_left_ms > 0:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, group.initial_delay_left_ms)
            group.joined_while_initial = False
            group.initial_delay_left_ms -= delay_ms
            self.deadlines.set(Key(group.group_id, JOIN), Millis(step.now + delay_ms))
            return
        self.complete_join(group, step)

    def complete_join(self, group: ClassicGroup, step: Step) -> None:
        """Lift the join barrier: the new generation has the members that joined, and all static members."""
        self.deadlines.cancel(Key(group.group_id, JOIN))
        late = [m.member_id for m in group.members.values() if m.join is None and m.group_instance_id is None]
        for member_id in late:
            self.drop(group, member_id, step)
        if group.members and not group.elect_joined_leader():
            # Only absent static members are left. Either their sessions end or they return.
            again_ms = max(group.rebalance_timeout_ms, LEAST_TIME_BETWEEN_VAIN_BARRIERS_MS)
            self.deadlines.set(Key(group.group_id, JOIN), Millis(step.now + again_ms))
            return
        group.generation_id += 1
        if not group.members:
            self._complete_empty(group, step)
            return
        group.protocol_name = group.select_protocol()
        group.become(State.COMPLETING_REBALANCE, step.timestamp)
        step.note(group, f"generation {group.generation_id} has {len(group.members)} members")
        for member in group.members.values():
            member.is_new = False
            self.answer_join(group, member, join_answer(group, member, leads=member.member_id == group.leader_id), step)
            self.touch(group, member, step)
        group.pending_sync = set(group.members)
        self.deadlines.set(Key(group.group_id, SYNC), Millis(step.now + group.rebalance_timeout_ms))

    def _complete_empty(self, group: ClassicGroup, step: Step) -> None:
        group.protocol_name = None
        group.become(State.EMPTY, step.timestamp)
        step.note(group, f"empty in generation {group.generation_id}")
        step.append([group_record(group.group_id, group.to_value({}))], StoreEmpty(group_id=group.group_id))

    # ---- the sync barrier

    def synced(self, group: ClassicGroup, member: Member) -> None:
        """Note that the member has sent SyncGroup. When all members have, the sync deadline is cancelled."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.deadlines.cancel(Key(group.group_id, SYNC))

    def store_assignment(self, group: ClassicGroup, given: dict[str, bytes], step: Step) -> None:
        """Store the leader's assignment. Members it omits get none; the first assignment of a generation stands."""
        if group.assignment_in_flight:
            return
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        purpose = StoreAssignment(group_id=group.group_id, generation_id=group.generation_id, assignments=assignments)
        step.append([group_record(group.group_id, group.to_value(assignments))], purpose)
        group.assignment_in_flight = True

    def assignment_stored(
        self, group: ClassicGroup, purpose: StoreAssignment, error_code: ErrorCode, step: Step
    ) -> None:
        """Handle the outcome of storing the assignment. It does not matter if the group has moved on (rule 35)."""
        if group.state is not State.COMPLETING_REBALANCE or group.generation_id != purpose.generation_id:
            return
        group.assignment_in_flight = False
        if error_code is not ErrorCode.NONE:
            self._drop_assignment(group, step, group_error(error_code))
            self.prepare(group, step, f"its assignment could not be stored: {error_code.name}")
            return
        group.become(State.STABLE, step.timestamp)
        for member in group.members.values():
            member.assignment = purpose.assignments[member.member_id]
            if member.sync is not None:
                step.reply(member.sync.request_id, sync_answer(group, member))
                member.sync = None
                self.touch(group, member, step)

    def _drop_assignment(self, group: ClassicGroup, step: Step, error_code: ErrorCode) -> None:
        group.assignment_in_flight = False
        for member in group.members.values():
            member.assignment = None
            if member.sync is not None:
                self.refuse_sync(member, error_code, step)
                self.touch(group, member, step)

    # ---- a static member's next incarnation in a Stable group

    def static_member_stored(
        self, group: ClassicGroup, purpose: StoreStaticMember, error_code: ErrorCode, step: Step
    ) -> None:
        """Handle the outcome of storing the new id. If a rebalance has started, the request waits for that instead."""
        member = group.members.get(purpose.member_id)
        if group.state is not State.STABLE or member is None or member.join is None:
            return
        if error_code is not ErrorCode.NONE:
            self.refuse_join(group, member, group_error(error_code), step)
            self.forget_session(group, purpose.member_id)
            group.revert_static(purpose.group_instance_id)
            self.touch(group, member, step)
            return
        if member.join.api_version >= FIRST_JOIN_WITH_SKIP_ASSIGNMENT:
            leads = member.member_id == group.leader_id
            response = join_answer(group, member, leads=leads, skip_assignment=leads)
        else:
            # A member that sees the leader's old id does not compute an assignment that would not be used.
            response = join_answer(group, member, leads=False, leader_id=purpose.leader_id)
        self.answer_join(group, member, response, step)

    # ---- passing from one protocol to the other

    def dissolve(self, group: ClassicGroup, step: Step) -> None:
        """Forget the members, because the group is of another kind now or they cannot be used. They must rejoin."""
        if group.protocol_type is None and not group.pending_members:
            return  # no member has joined by the classic protocol, or not since then
        for member_id in sorted({*group.members, *group.pending_members}):
            member = group.members.get(member_id)
            if member is not None:
                self.refuse_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS, step, member_id)
                self.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
            self.forget_session(group, member_id)
        for kind in (JOIN, SYNC):
            self.deadlines.cancel(Key(group.group_id, kind))
        group.clear()

    def dissolve_replaced(self, purpose: StoreConsumerGroup | StoreStreamsGroup, step: Step) -> None:
        """Tell the waiting members of a classic group that has turned into one of another kind to rejoin there."""
        if purpose.replaces is not None:
            self.dissolve(purpose.replaces, step)

    def resume(self, group: ClassicGroup, step: Step, reason: str) -> None:
        """Resume the classic protocol, as the log says. The members agree on a generation of their own."""
        group.restore()
        for member in group.members.values():
            self.touch(group, member, step)
        self.prepare(group, step, reason)

    # ---- clocks

    def session_is_over(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        """Handle the end of a session. A member whose request is waiting here is not considered silent."""
        member = group.members.get(member_id)
        if member is not None:
            waits = member.join is not None or member.sync is not None
            if waits and not member.is_new:
                self.touch(group, member, step)
                return
        self.drop(group, member_id, step)
        if member is None:  # an id that never joined: at most a barrier waited for it
            self.complete_if_joined(group, step)
        else:
            self.react_to_departure(group, step, f"member {member_id} was silent for too long")

    def sync_time_is_up(self, group: ClassicGroup, step: Step) -> None:
        """Continue without the members of this generation that never asked for their assignment."""
        silent = sorted(group.pending_sync)
        for member_id in silent:
            self.drop(group, member_id, step)
        self.prepare(group, step, f"members {', '.join(silent)} did not ask for their assignment")


def sync_answer(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Return a SyncGroup response with the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment or b"",
    )
