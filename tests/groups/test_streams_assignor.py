"""The assignor of streams groups: every task is assigned once, evenly, and moves only if it must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.groups.streams.assignor import Worker, assign
from kraftpy.groups.streams.records import Task, Tasks

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=3)
processes = st.lists(st.sampled_from("pqrs"), min_size=1, max_size=6)


def tasks_of(counts: list[int]) -> list[Task]:
    return [Task(str(number), partition) for number, count in enumerate(counts) for partition in range(count)]


def workers_of(where: list[str], before: dict[str, Tasks] | None = None) -> dict[str, Worker]:
    return {
        f"m{number}": Worker(process_id=process, target=(before or {}).get(f"m{number}", Tasks()))
        for number, process in enumerate(where)
    }


@given(sizes, processes, st.integers(0, 2))
def test_every_task_is_worked_on_by_one_and_the_numbers_are_even(
    counts: list[int], where: list[str], standby: int
) -> None:
    tasks = tasks_of(counts)
    given_out = assign(workers_of(where), tasks, tasks, standby)
    active = [task for each in given_out.values() for task in each.active]
    assert sorted(active) == sorted(tasks)
    loads = [len(each.active) for each in given_out.values()]
    assert max(loads) - min(loads) <= 1


@given(sizes, processes, st.integers(1, 3))
def test_a_process_has_a_task_once_and_standbys_are_as_many_as_there_are_processes_for(
    counts: list[int], where: list[str], standby: int
) -> None:
    tasks = tasks_of(counts)
    given_out = assign(workers_of(where), tasks, tasks, standby)
    for task in tasks:
        having = [
            where[int(member_id[1:])]
            for member_id, each in given_out.items()
            for role in (each.active, each.standby)
            if task in role
        ]
        assert len(having) == len(set(having)), (task, having)
        assert len(having) == min(1 + standby, len(set(where)))


@given(sizes, processes, st.integers(0, 2))
def test_the_same_question_has_the_same_answer_and_an_answer_stands(
    counts: list[int], where: list[str], standby: int
) -> None:
    tasks = tasks_of(counts)
    first = assign(workers_of(where), tasks, tasks, standby)
    assert assign(workers_of(where, first), tasks, tasks, standby) == first


@given(sizes, processes)
def test_who_joins_takes_no_more_than_its_share(counts: list[int], where: list[str]) -> None:
    tasks = tasks_of(counts)
    before = assign(workers_of(where), tasks, [], 0)
    after = assign(workers_of([*where, "new"], before), tasks, [], 0)
    moved = sum(len(before[member_id].active - after[member_id].active) for member_id in before)
    assert moved == len(after[f"m{len(where)}"].active)


def test_a_task_goes_to_its_standby_and_tasks_without_state_have_none() -> None:
    tasks = tasks_of([2, 2])
    before = assign(workers_of(["p", "q"]), tasks, tasks[:2], 1)
    assert all(task.subtopology_id == "0" for each in before.values() for task in each.standby)
    standby = before["m1"].standby
    alone = assign({"m1": Worker(process_id="q", target=before["m1"])}, tasks, tasks[:2], 1)
    assert alone["m1"].active == frozenset(tasks)
    assert standby <= alone["m1"].active


def test_nobody_is_given_nothing() -> None:
    assert assign({}, tasks_of([2]), [], 1) == {}
