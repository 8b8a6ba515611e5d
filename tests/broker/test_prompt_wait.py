"""A task that waits for frames runs within `wake`, and can be cancelled as in any other wait."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from kraftpy.broker.prompt_wait import PromptWait


async def test_the_task_runs_within_the_call() -> None:
    wait, steps = PromptWait(asyncio.get_running_loop()), []

    async def waiting() -> None:
        for number in range(3):
            await wait
            steps.append((number, asyncio.current_task()))
        await asyncio.sleep(0)
        steps.append((3, asyncio.current_task()))

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    seen: list[int] = []

    def arrive() -> None:
        for _ in range(4):
            assert wait.is_awaited is (len(steps) < 3)
            wait.wake()
            seen.append(len(steps))

    asyncio.get_running_loop().call_soon(arrive)
    await task
    assert seen == [1, 2, 3, 3], "each call runs one step; a task that waits elsewhere is left alone"
    assert steps == [(number, task) for number in range(4)]


async def test_the_task_keeps_its_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    wait, found = PromptWait(asyncio.get_running_loop()), []

    async def waiting() -> None:
        variable.set("the task's")
        await wait
        found.append(variable.get())

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(wait.wake)
    await task
    assert found == ["the task's"]
    assert variable.get() == ""


async def test_a_wait_is_cancelled() -> None:
    wait, ends = PromptWait(asyncio.get_running_loop()), []

    async def waiting() -> None:
        try:
            await wait
        except asyncio.CancelledError:
            ends.append("cancelled")
            await wait  # it can wait again
            ends.append("woken")
            raise

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    task.cancel()
    assert not wait.is_awaited
    wait.wake()
    await asyncio.sleep(0)
    assert ends == ["cancelled"]
    asyncio.get_running_loop().call_soon(wait.wake)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled", "woken"]


async def test_a_task_that_is_cancelled_before_it_waits_does_not_wait() -> None:
    wait = PromptWait(asyncio.get_running_loop())

    async def waiting() -> None:
        await wait

    task = asyncio.create_task(waiting())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
