"""How a group goes from one generation to the next: the two barriers, and the clocks behind them.

Empty --join--> PreparingRebalance --everybody joined, or time is up--> CompletingRebalance --the leader's assignment
is durable--> Stable. Any change of membership leads back to PreparingRebalance.

Three kinds of deadline: `join` (how long members may take to join again), `sync` (how long those of a new generation
may take to send SyncGroup), and one `session` for each member and each member id that was given out.

Invariants: the join barrier has a deadline whenever it stands; every member and pending member has a session
deadline; a request that waits is answered when its member leaves, is replaced or fenced.

Left out: the log lines; reasons become `Note` effects.

Read: KIP-62 (rebalance timeout apart from session timeout), KIP-134 (initial delay), KIP-345 (static members),
KIP-394 (member ids).
"""

from __future__ import annotations

from kraftpy.groups.appends import StoreAssignment, StoreEmpty, StoreStaticMember, group_error
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.group import Group, Member, State, Waiting
from kraftpy.groups.records import group_record
from kraftpy.groups.step import Turn
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kraftpy.protocol.messages.sync_group import SyncGroupResponse
from kraftpy.types import Millis

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a JoinGroup of a member without an id of its own may wait: it cannot send heartbeats meanwhile."""

LEAST_TIME_BETWEEN_VAIN_BARRIERS_MS = 1_000
"""A barrier nobody came to is set up again. Members that ask for no time at all shall not keep the broker busy."""

JOIN = "join"
SYNC = "sync"
SESSION = "session"

FIRST_JOIN_WITH_NULLABLE_PROTOCOL = 7
FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9


def join_error(api_version: int, member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """A JoinGroup response that carries nothing but an error."""
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
    group: Group, member: Member, *, leads: bool, leader_id: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """A JoinGroup response with the present generation; who `leads` is told who the members are.

    `leader_id` names another leader than the group's; `skip_assignment` (from v9, KIP-814) has the leader keep the
    assignment that stands.
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
    """Takes groups through their generations. Keeps no state of its own but the deadlines."""

    def __init__(self, config: GroupConfig, deadlines: Deadlines) -> None:
        self.config = config
        self.deadlines = deadlines

    # ---- sessions

    def touch(self, group: Group, member: Member, turn: Turn) -> None:
        """A sign of life: the member's session runs from now. One that cannot send heartbeats yet gets longer."""
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._session(group, member.member_id, Millis(turn.now + max(timeout_ms, 1)))

    def await_claim(self, group: Group, member_id: str, session_timeout_ms: int, turn: Turn) -> None:
        """A member id was given out; it must join with it within its session timeout (KIP-394)."""
        group.pending_members.add(member_id)
        self._session(group, member_id, Millis(turn.now + max(session_timeout_ms, 1)))

    def _session(self, group: Group, member_id: str, deadline: Millis) -> None:
        self.deadlines.set(Key(group.group_id, SESSION, member_id), deadline)

    def forget_session(self, group: Group, member_id: str) -> None:
        """Whoever it was has gone."""
        self.deadlines.cancel(Key(group.group_id, SESSION, member_id))

    # ---- answers to those who wait

    def answer_join(self, member: Member, response: JoinGroupResponse, turn: Turn) -> None:
        """Answer the member's waiting JoinGroup, if there is one."""
        if member.join is not None:
            turn.reply(member.join.request_id, response)
            member.join = None

    def refuse_join(self, member: Member, error_code: ErrorCode, turn: Turn, member_id: str = "") -> None:
        """Answer the member's waiting JoinGroup, if there is one, with an error."""
        if member.join is not None:
            self.answer_join(member, join_error(member.join.api_version, member_id, error_code), turn)

    def refuse_sync(self, member: Member, error_code: ErrorCode, turn: Turn) -> None:
        """Answer the member's waiting SyncGroup, if there is one, with an error."""
        if member.sync is not None:
            turn.reply(member.sync.request_id, SyncGroupResponse(error_code=error_code, assignment=b""))
            member.sync = None

    def wait_for_join(self, member: Member, join: Waiting, turn: Turn) -> None:
        """Let this request wait for the barrier. An earlier one of the same member has lost its reader."""
        self.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, turn, member.member_id)
        member.join = join

    def wait_for_sync(self, member: Member, sync: Waiting, turn: Turn) -> None:
        """Let this request wait for the assignment. An earlier one of the same member has lost its reader."""
        self.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, turn)
        member.sync = sync

    # ---- membership changes

    def add(self, group: Group, member: Member, turn: Turn, reason: str) -> None:
        """A member joins for the first time; its request already waits."""
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.joined_while_initial = True
        group.add(member)
        self.touch(group, member, turn)
        self.prepare_or_complete(group, turn, f"member {member.member_id} is new ({reason})")

    def drop(self, group: Group, member_id: str, turn: Turn) -> None:
        """Take a member or pending member out, and answer what it waits for. The group does not react yet."""
        member = group.members.get(member_id)
        if member is not None:
            self.refuse_join(member, ErrorCode.UNKNOWN_MEMBER_ID, turn)
            self.refuse_sync(member, ErrorCode.UNKNOWN_MEMBER_ID, turn)
        group.remove(member_id)
        self.forget_session(group, member_id)
        if not group.pending_sync:
            self.deadlines.cancel(Key(group.group_id, SYNC))

    def react_to_departure(self, group: Group, turn: Turn, reason: str) -> None:
        """Members have gone: the rest share the work anew, or no longer wait for them."""
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(group, turn, reason)
        else:
            self.complete_if_joined(group, turn)

    def replace_static(self, group: Group, old_id: str, new_id: str, turn: Turn) -> Member:
        """A static member is back under a new id: whoever still uses the old one is fenced (KIP-345)."""
        member = group.members[old_id]
        self.refuse_join(member, ErrorCode.FENCED_INSTANCE_ID, turn, old_id)
        self.refuse_sync(member, ErrorCode.FENCED_INSTANCE_ID, turn)
        self.forget_session(group, old_id)
        return group.rename(old_id, new_id)

    # ---- the join barrier

    def prepare_or_complete(self, group: Group, turn: Turn, reason: str) -> None:
        """Begin a rebalance, or, where one is under way, see whether this was what it waited for."""
        if State.PREPARING_REBALANCE is group.state:
            self.complete_if_joined(group, turn)
        else:
            self.prepare(group, turn, reason)

    def complete_if_joined(self, group: Group, turn: Turn) -> None:
        """Let the join barrier fall if everybody is there. An initial delay is waited out while anybody is."""
        if group.state is not State.PREPARING_REBALANCE or not group.all_joined:
            return
        if group.previous_state is not State.EMPTY or not group.members:
            self.complete_join(group, turn)

    def prepare(self, group: Group, turn: Turn, reason: str) -> None:
        """Ask everybody to join again."""
        if group.state is State.COMPLETING_REBALANCE:
            self._drop_assignment(group, turn, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self.deadlines.cancel(Key(group.group_id, SYNC))
        initial = group.state is State.EMPTY
        group.become(State.PREPARING_REBALANCE, turn.timestamp)
        turn.note(group, f"rebalancing after generation {group.generation_id}: {reason}")
        delay_ms = self.config.group_initial_rebalance_delay_ms
        if initial and delay_ms > 0:
            group.joined_while_initial = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self.deadlines.set(Key(group.group_id, JOIN), Millis(turn.now + delay_ms))
        elif initial or group.all_joined:
            self.complete_join(group, turn)
        else:
            self.deadlines.set(Key(group.group_id, JOIN), Millis(turn.now + group.rebalance_timeout_ms))

    def join_time_is_up(self, group: Group, turn: Turn) -> None:
        """The join deadline has passed: an initial delay is extended while members keep coming, else it is over."""
        if group.previous_state is State.EMPTY and group.joined_while_initial and group.initial_delay_left_ms > 0:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, group.initial_delay_left_ms)
            group.joined_while_initial = False
            group.initial_delay_left_ms -= delay_ms
            self.deadlines.set(Key(group.group_id, JOIN), Millis(turn.now + delay_ms))
            return
        self.complete_join(group, turn)

    def complete_join(self, group: Group, turn: Turn) -> None:
        """The join barrier falls: a new generation of those who came, and of static members, who may be late."""
        self.deadlines.cancel(Key(group.group_id, JOIN))
        late = [m.member_id for m in group.members.values() if m.join is None and m.group_instance_id is None]
        for member_id in late:
            self.drop(group, member_id, turn)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none is here. Their sessions will end, or they will come.
            again_ms = max(group.rebalance_timeout_ms, LEAST_TIME_BETWEEN_VAIN_BARRIERS_MS)
            self.deadlines.set(Key(group.group_id, JOIN), Millis(turn.now + again_ms))
            return
        group.generation_id += 1
        if not group.members:
            self._complete_empty(group, turn)
            return
        group.protocol_name = group.select_protocol()
        group.become(State.COMPLETING_REBALANCE, turn.timestamp)
        turn.note(group, f"generation {group.generation_id} has {len(group.members)} members")
        for member in group.members.values():
            member.assignment = None
            member.is_new = False
            self.answer_join(member, join_answer(group, member, leads=member.member_id == group.leader_id), turn)
            self.touch(group, member, turn)
        group.pending_sync = set(group.members)
        self.deadlines.set(Key(group.group_id, SYNC), Millis(turn.now + group.rebalance_timeout_ms))

    def _complete_empty(self, group: Group, turn: Turn) -> None:
        group.protocol_name = None
        group.become(State.EMPTY, turn.timestamp)
        turn.note(group, f"empty in generation {group.generation_id}")
        turn.append([group_record(group.group_id, group.to_value({}))], StoreEmpty(group_id=group.group_id))

    # ---- the sync barrier

    def synced(self, group: Group, member: Member) -> None:
        """The member has sent its SyncGroup; when all have, nobody waits for them any longer."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.deadlines.cancel(Key(group.group_id, SYNC))

    def store_assignment(self, group: Group, given: dict[str, bytes], turn: Turn) -> None:
        """The leader has decided. Members it forgot get nothing to do; the first decision of a generation stands."""
        if group.assignment_in_flight:
            return
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        purpose = StoreAssignment(group_id=group.group_id, generation_id=group.generation_id, assignments=assignments)
        turn.append([group_record(group.group_id, group.to_value(assignments))], purpose)
        group.assignment_in_flight = True

    def assignment_stored(self, group: Group, purpose: StoreAssignment, error_code: ErrorCode, turn: Turn) -> None:
        """The assignment is durable, or failed. Of no interest if the group has moved on meanwhile (rule 35)."""
        if group.state is not State.COMPLETING_REBALANCE or group.generation_id != purpose.generation_id:
            return
        group.assignment_in_flight = False
        if error_code is not ErrorCode.NONE:
            self._drop_assignment(group, turn, group_error(error_code))
            self.prepare(group, turn, f"its assignment could not be stored: {error_code.name}")
            return
        group.become(State.STABLE, turn.timestamp)
        for member in group.members.values():
            member.assignment = purpose.assignments[member.member_id]
            if member.sync is not None:
                turn.reply(member.sync.request_id, sync_answer(group, member))
                member.sync = None
                self.touch(group, member, turn)

    def _drop_assignment(self, group: Group, turn: Turn, error_code: ErrorCode) -> None:
        group.assignment_in_flight = False
        for member in group.members.values():
            member.assignment = None
            if member.sync is not None:
                self.refuse_sync(member, error_code, turn)
                self.touch(group, member, turn)

    # ---- a static member's next incarnation in a Stable group

    def static_member_stored(self, group: Group, purpose: StoreStaticMember, error_code: ErrorCode, turn: Turn) -> None:
        """Its new id is durable, or failed. If a rebalance has begun meanwhile, its request waits for that instead."""
        member = group.members.get(purpose.member_id)
        if group.state is not State.STABLE or member is None or member.join is None:
            return
        if error_code is not ErrorCode.NONE:
            self.refuse_join(member, group_error(error_code), turn)
            self.forget_session(group, purpose.member_id)
            group.revert_static(purpose.group_instance_id)
            self.touch(group, member, turn)
            return
        if member.join.api_version >= FIRST_JOIN_WITH_SKIP_ASSIGNMENT:
            leads = member.member_id == group.leader_id
            response = join_answer(group, member, leads=leads, skip_assignment=leads)
        else:
            # Told the leader's old id it will not compute an assignment that nobody would wait for.
            response = join_answer(group, member, leads=False, leader_id=purpose.leader_id)
        self.answer_join(member, response, turn)

    # ---- passing from one protocol to the other

    def dissolve(self, group: Group, turn: Turn) -> None:
        """The coordinator assigns to the group now. Who waits joins again, and is a member of that."""
        if group.protocol_type is None and not group.pending_members:
            return  # nobody has ever joined by the classic protocol, or not since
        for member_id in sorted({*group.members, *group.pending_members}):
            member = group.members.get(member_id)
            if member is not None:
                self.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, turn, member_id)
                self.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, turn)
            self.forget_session(group, member_id)
        for kind in (JOIN, SYNC):
            self.deadlines.cancel(Key(group.group_id, kind))
        group.forget_classic()

    def resume(self, group: Group, turn: Turn, reason: str) -> None:
        """The group is of the classic protocol now, as the log says; its members agree on a generation of their own."""
        group.restore()
        for member in group.members.values():
            self.touch(group, member, turn)
        self.prepare(group, turn, reason)

    # ---- clocks

    def session_is_over(self, group: Group, member_id: str, turn: Turn) -> None:
        """Nothing was heard of it for too long. A member whose request we keep waiting is not silent."""
        member = group.members.get(member_id)
        if member is not None:
            waits = member.join is not None or member.sync is not None
            if waits and not member.is_new:
                self.touch(group, member, turn)
                return
        self.drop(group, member_id, turn)
        if member is None:  # an id nobody claimed: at most a barrier waited for it
            self.complete_if_joined(group, turn)
        else:
            self.react_to_departure(group, turn, f"member {member_id} was silent for too long")

    def sync_time_is_up(self, group: Group, turn: Turn) -> None:
        """Members of this generation never asked for their assignment: go on without them."""
        silent = sorted(group.pending_sync)
        for member_id in silent:
            self.drop(group, member_id, turn)
        self.prepare(group, turn, f"members {', '.join(silent)} did not ask for their assignment")


def sync_answer(group: Group, member: Member) -> SyncGroupResponse:
    """A SyncGroup response with the member's assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment or b"",
    )
