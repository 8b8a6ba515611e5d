"""The tasks of a client end together, and quietly when they are asked to."""

from __future__ import annotations

import asyncio

import pytest

from kraftpy.client.tasks import ClientTasks


def test_a_task_that_asks_for_another_while_all_are_closed_is_cancelled_and_no_failure() -> None:
    """It runs once more between `close` and its cancellation, as a fetcher does that connects to one more broker."""
    failures: list[BaseException] = []

    async def run() -> None:
        keeper = ClientTasks("client", on_failure=failures.append)
        await keeper.start()
        is_closing = asyncio.Event()
        reached: list[str] = []

        async def nothing() -> None:
            pass

        async def asking() -> None:
            await is_closing.wait()
            reached.append("asks")
            keeper.spawn(nothing(), "another")
            reached.append("is given one")

        keeper.spawn(asking(), "asking")
        await asyncio.sleep(0)
        is_closing.set()
        await keeper.close()
        assert reached == ["asks"]
        with pytest.raises(RuntimeError, match="client is not running"):
            keeper.spawn(nothing(), "from outside")

    asyncio.run(run())
    assert failures == []


def test_a_task_that_fails_ends_the_others_and_is_told() -> None:
    failures: list[BaseException] = []

    async def run() -> None:
        keeper = ClientTasks("client", on_failure=failures.append)
        await keeper.start()

        async def failing() -> None:
            raise OSError("no such disk")

        other = keeper.spawn(asyncio.sleep(3600), "waiting")
        keeper.spawn(failing(), "failing")
        await asyncio.wait([other])
        assert other.cancelled()
        await keeper.close()

    asyncio.run(run())
    assert [str(failure) for failure in failures] == ["no such disk"]
