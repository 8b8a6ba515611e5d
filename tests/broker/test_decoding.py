"""Long work on records: one at a time, in slices and threads, with every other client served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kraftpy.broker.storage.record_inspection import Decoding
from kraftpy.log.work import Work
from kraftpy.protocol.record_batch import CorruptBatch


def sliced(name: str, told: list[str], slices: int = 3) -> Work[str]:
    for number in range(slices):
        told.append(f"{name}{number}")
        yield None
    return name


async def test_short_work_is_done_at_once() -> None:
    decoding = Decoding()
    assert await decoding.carry_out(sliced("a", [], 0)) == "a"
    assert decoding.slices == 0


async def test_others_are_let_in_between_slices_and_long_work_takes_turns() -> None:
    decoding, told = Decoding(), list[str]()
    tasks = [asyncio.create_task(decoding.carry_out(sliced(name, told))) for name in "ab"]
    while not all(task.done() for task in tasks):
        told.append("-")
        await asyncio.sleep(0)
    assert [await task for task in tasks] == ["a", "b"]
    said = [each for each in told if each != "-"]
    assert said == ["a0", "b0", "a1", "a2", "b1", "b2"]  # first slices run at once: short work ends with them
    for one, other in (("a1", "a2"), ("b1", "b2")):
        assert "-" in told[told.index(one) : told.index(other)]


async def test_a_function_runs_in_a_thread_and_its_outcome_goes_back() -> None:
    def failing() -> Any:
        raise CorruptBatch("no")

    def work() -> Work[tuple[bool, str]]:
        thread = yield threading.current_thread
        try:
            yield failing
        except CorruptBatch as error:
            return thread is not threading.current_thread(), error.message
        raise AssertionError

    assert await Decoding().carry_out(work()) == (True, "no")


async def test_what_work_raises_gives_the_turn_back() -> None:
    def broken() -> Work[None]:
        yield None
        raise CorruptBatch("broken")

    decoding = Decoding()
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            await decoding.carry_out(broken())
    assert await decoding.carry_out(sliced("a", [])) == "a"


async def test_work_that_is_abandoned_keeps_its_turn_until_its_thread_is_done() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(20)

    def work() -> Work[None]:
        yield wait

    decoding, told = Decoding(), list[str]()
    first = asyncio.create_task(decoding.carry_out(work()))
    await asyncio.to_thread(begun.wait, 20)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(decoding.carry_out(sliced("b", told)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert told == ["b0"]
    go_on.set()
    assert await asyncio.wait_for(second, 20) == "b"
