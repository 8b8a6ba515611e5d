"""Moves a member of a streams group from its current tasks to its target, one heartbeat at a time (KIP-1071).

The member is first asked to give up tasks that are not in its target, and stays at its epoch. When its heartbeat
reports that it has done so, it moves to the epoch of the target and gets the tasks that are free: active tasks on which
no other member works, and tasks in any role that no other member has in the same process, whose disk holds the state.
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.records import NO_TASKS, StreamsCurrentValue, StreamsState, Tasks


def reconciled_tasks(group: StreamsGroup, member_id: str, owned: Tasks | None) -> StreamsCurrentValue:
    """Return the member's next tasks. `owned` is what it reports as owned, None if it reports nothing."""
    current = group.current(member_id)
    match current.state:
        case StreamsState.STABLE:
            if current.member_epoch == group.assignment_epoch:
                return current
        case StreamsState.UNREVOKED_TASKS:
            if _still_owned(owned, current.pending_revocation):
                return current
        case StreamsState.UNRELEASED_TASKS | StreamsState.UNKNOWN:
            pass
    return _next(group, member_id, current, owned)


def _still_owned(owned: Tasks | None, tasks: Tasks) -> bool:
    """Return True if the member may still have some of these: one that reports nothing still has all of them."""
    return owned is None or bool(owned & tasks)


def _next(
    group: StreamsGroup, member_id: str, current: StreamsCurrentValue, owned: Tasks | None
) -> StreamsCurrentValue:
    target = group.target(member_id)
    kept = current.assigned & target
    revoked = current.assigned - target
    if revoked and _still_owned(owned, revoked):
        return replace(
            current,
            previous_member_epoch=current.member_epoch,
            state=StreamsState.UNREVOKED_TASKS,
            assigned=kept,
            pending_revocation=revoked,
        )
    wanted = target - kept
    free = _free(group, member_id, wanted)
    after = StreamsCurrentValue(
        member_epoch=group.assignment_epoch,
        previous_member_epoch=current.member_epoch,
        state=StreamsState.STABLE if free == wanted else StreamsState.UNRELEASED_TASKS,
        assigned=kept | free,
        pending_revocation=NO_TASKS,
    )
    waits_on = replace(after, previous_member_epoch=current.previous_member_epoch) == current
    return current if waits_on else after


def _free(group: StreamsGroup, member_id: str, wanted: Tasks) -> Tasks:
    if not wanted:
        return NO_TASKS
    process_id = group.process(member_id)
    workers, holders = group.active_holders(), group.process_holders()
    here = frozenset(task for task in wanted.all() if holders.get((task, process_id), member_id) == member_id)
    return Tasks(
        active=frozenset(task for task in wanted.active & here if workers.get(task, member_id) == member_id),
        standby=wanted.standby & here,
        warmup=wanted.warmup & here,
    )
