"""How a member of a streams group comes from the tasks it has to those it shall have, a heartbeat at a time (KIP-1071).

First it is told to give up what it shall no longer have, staying at its epoch; when its heartbeat says that it has, it
goes to the epoch of the target and gets what is free: an active task that nobody else works on, and a task of any role
that nobody else has in its own process, whose disk holds the state.
"""

from __future__ import annotations

from dataclasses import replace

from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.records import NO_TASKS, StreamsCurrentValue, StreamsState, Tasks


def reconciled_tasks(group: StreamsGroup, member_id: str, owned: Tasks | None) -> StreamsCurrentValue:
    """What the member is told next. `owned` is what it says it has, None where it says nothing of that."""
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
    """Whether the member has some of these, as far as is known: one that says nothing has all of them."""
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
