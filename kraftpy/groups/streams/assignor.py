"""The assignor of streams groups: which member gets which tasks (KIP-1071). It is sticky.

Active tasks are spread as evenly as possible. A member keeps the tasks it had, up to its share. The rest goes first to
the process that has the state, because it had the task or a standby of it, and then to the member with the fewest
tasks.

Standby tasks: each stateful task gets the requested number, each in a separate process if there are enough, preferably
on the same member as before, otherwise on the least loaded one.

Left out: warm-up tasks, which Kafka 4.3's own assignor does not create either; racks and client tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kraftpy.groups.streams.records import NO_TASKS, Task, Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A member as the assignor sees it: its process, and its previous target."""

    process_id: str
    target: Tasks = NO_TASKS


def assign(
    workers: Mapping[str, Worker], tasks: Iterable[Task], stateful: Iterable[Task], standby_replicas: int
) -> dict[str, Tasks]:
    """Assign tasks to members. Every task is assigned if there are any members."""
    order = sorted(workers)
    wanted = sorted(tasks)
    if not order:
        return {}
    active = _active(workers, order, wanted)
    standby = _standby(workers, order, active, sorted(stateful), standby_replicas)
    return {
        member_id: Tasks(active=frozenset(active[member_id]), standby=frozenset(standby[member_id]))
        for member_id in order
    }


def _active(workers: Mapping[str, Worker], order: list[str], wanted: list[Task]) -> dict[str, list[Task]]:
    there = frozenset(wanted)
    share, more = divmod(len(wanted), len(order))
    # The members with most tasks keep the larger shares, so that no task moves just to even things out.
    had = sorted(order, key=lambda each: (-len(workers[each].target.active & there), each))
    room = {member_id: share + (place < more) for place, member_id in enumerate(had)}
    given: dict[str, list[Task]] = {member_id: [] for member_id in order}
    left = dict.fromkeys(wanted)
    for member_id in order:
        # Alternate between subtopologies, so that a member which gives some up keeps some of each.
        kept = sorted(workers[member_id].target.active & there, key=lambda task: (task.partition, task.subtopology_id))
        for task in kept[: room[member_id]]:
            if task in left:
                given[member_id].append(task)
                del left[task]
    near: dict[Task, list[str]] = {}
    for member_id in order:
        for task in (workers[member_id].target.active | workers[member_id].target.standby) & there:
            near.setdefault(task, []).append(workers[member_id].process_id)
    for task in list(left):
        free = [each for each in order if len(given[each]) < room[each]]
        processes = near.get(task, ())
        best = min(free, key=lambda each: (workers[each].process_id not in processes, len(given[each]), each))
        given[best].append(task)
    return given


def _standby(
    workers: Mapping[str, Worker],
    order: list[str],
    active: Mapping[str, list[Task]],
    stateful: list[Task],
    standby_replicas: int,
) -> dict[str, list[Task]]:
    given: dict[str, list[Task]] = {member_id: [] for member_id in order}
    if standby_replicas <= 0:
        return given
    busy = {(task, workers[member_id].process_id) for member_id in order for task in active[member_id]}
    load = {member_id: len(active[member_id]) for member_id in order}
    for task in stateful:
        for _ in range(standby_replicas):
            free = [each for each in order if (task, workers[each].process_id) not in busy]
            if not free:
                break  # there are not that many processes
            before = {
                each: task in workers[each].target.standby or task in workers[each].target.active for each in free
            }
            best = min(free, key=lambda each: (not before[each], load[each], each))
            given[best].append(task)
            load[best] += 1
            busy.add((task, workers[best].process_id))
    return given
