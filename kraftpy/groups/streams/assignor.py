"""The assignor of streams groups: which member gets which tasks (KIP-1071). It is sticky.

Active tasks are spread as evenly as possible. A member keeps the tasks it had, up to its share. The rest goes first to
the process that has the state, because it had the task or a standby of it, and then to the member with the fewest
tasks.

Standby tasks: each stateful task gets the requested number, each in a separate process if there are enough, preferably
on the same member as before, otherwise on the least loaded one.

Left out: warm-up tasks, which Kafka 4.3's own assignor does not create either; racks and client tags.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping

from kraftpy.frozen import frozen
from kraftpy.groups.streams.records import NO_TASKS, Task, Tasks


@frozen
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
    load = {member_id: len(given[member_id]) for member_id in order}
    idlest = _Idlest(workers, order, load, room)
    for task in left:
        best = idlest.within(near.get(task, ())) or idlest.outside(())
        assert best is not None, "there is room for every task"
        given[best].append(task)
        load[best] += 1
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
    busy: dict[Task, set[str]] = {}
    had: dict[Task, list[str]] = {}
    for member_id in order:
        for task in active[member_id]:
            busy.setdefault(task, set()).add(workers[member_id].process_id)
        for task in workers[member_id].target.standby | workers[member_id].target.active:
            had.setdefault(task, []).append(member_id)
    load = {member_id: len(active[member_id]) for member_id in order}
    idlest = _Idlest(workers, order, load)
    for task in stateful:
        taken = busy.setdefault(task, set())
        for _ in range(standby_replicas):
            before = [each for each in had.get(task, ()) if workers[each].process_id not in taken]
            best = min(before, key=lambda each: (load[each], each)) if before else idlest.outside(taken)
            if best is None:
                break  # there are not that many processes
            given[best].append(task)
            load[best] += 1
            taken.add(workers[best].process_id)
    return given


class _Idlest:
    """Finds the member with the smallest load, in some processes or outside them; the first by id wins a tie.

    Loads only grow, so the heaps are corrected when they are looked at. A member whose load has reached its `room` is
    not found any more.
    """

    def __init__(
        self,
        workers: Mapping[str, Worker],
        order: list[str],
        load: Mapping[str, int],
        room: Mapping[str, int] | None = None,
    ) -> None:
        self._load = load
        self._room = room
        self._members: dict[str, list[tuple[int, str]]] = {}
        for member_id in order:
            self._members.setdefault(workers[member_id].process_id, []).append((load[member_id], member_id))
        for members in self._members.values():
            heapq.heapify(members)
        self._processes = [(*members[0], process_id) for process_id, members in self._members.items()]
        heapq.heapify(self._processes)

    def within(self, processes: Iterable[str]) -> str | None:
        """Return the idlest member of these processes."""
        found = [first for process_id in processes if (first := self._first(process_id)) is not None]
        return min(found)[1] if found else None

    def outside(self, processes: Container[str]) -> str | None:
        """Return the idlest member of all other processes."""
        passed_over = []
        found: str | None = None
        while self._processes and found is None:
            load, member_id, process_id = self._processes[0]
            first = self._first(process_id)
            if first is None:
                heapq.heappop(self._processes)
            elif first != (load, member_id):
                heapq.heapreplace(self._processes, (*first, process_id))
            elif process_id in processes:
                passed_over.append(heapq.heappop(self._processes))
            else:
                found = member_id
        for each in passed_over:
            heapq.heappush(self._processes, each)
        return found

    def _first(self, process_id: str) -> tuple[int, str] | None:
        members = self._members.get(process_id, [])
        while members:
            load, member_id = members[0]
            if self._room is not None and self._load[member_id] >= self._room[member_id]:
                heapq.heappop(members)
            elif load != self._load[member_id]:
                heapq.heapreplace(members, (self._load[member_id], member_id))
            else:
                return load, member_id
        return None
