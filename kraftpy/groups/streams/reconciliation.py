"""Moves a member of a streams group from its current tasks to its target (KIP-1071).

A task is free if no other member has it in the same process, in any role, because the process holds the state on its
disk. An active task must not be worked on by any other member at all.

Read: `groups.reconciliation`, whose steps these are.
"""

from __future__ import annotations

from functools import partial

from kraftpy.groups.reconciliation import Current, Phase, reconcile
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.records import NO_TASKS, StreamsCurrentValue, StreamsState, Tasks

_PHASES = {
    StreamsState.STABLE: Phase.STABLE,
    StreamsState.UNREVOKED_TASKS: Phase.UNREVOKED,
    StreamsState.UNRELEASED_TASKS: Phase.UNRELEASED,
    StreamsState.UNKNOWN: Phase.UNKNOWN,
}
_STATES = {
    Phase.STABLE: StreamsState.STABLE,
    Phase.UNREVOKED: StreamsState.UNREVOKED_TASKS,
    Phase.UNRELEASED: StreamsState.UNRELEASED_TASKS,
}


def reconciled_tasks(group: StreamsGroup, member_id: str, owned: Tasks | None) -> StreamsCurrentValue:
    """Return the member's next tasks. `owned` is what it reports as owned, None if it reports nothing."""
    current = group.current(member_id)
    after = reconcile(
        Current(_PHASES[current.state], current.member_epoch, current.assigned, current.pending_revocation),
        group.assignment_epoch,
        partial(group.target, member_id),
        owned,
        partial(_free, group, member_id),
    )
    if after is None:
        return current
    return StreamsCurrentValue(
        member_epoch=after.member_epoch,
        previous_member_epoch=current.member_epoch,
        state=_STATES[after.phase],
        assigned=after.assigned,
        pending_revocation=after.pending_revocation,
    )


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
