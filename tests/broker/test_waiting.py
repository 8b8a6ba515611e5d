"""A wait can be ended early by a change, and its deadline can be moved nearer without waking its task."""

from __future__ import annotations

import asyncio

from kraftpy.broker.waiting import ChangedKeys

LONG_S, SHORT_S = 3600.0, 0.01


async def test_a_key_for_later_ends_a_long_wait_soon_and_wakes_nobody_now() -> None:
    keys: ChangedKeys[str] = ChangedKeys()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(keys.wait_until(loop.time() + LONG_S))
    await asyncio.sleep(0)
    keys.add_for_later("key", SHORT_S)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await asyncio.wait_for(waiting, 30) is False, "as if that had been the deadline"
    assert keys.take() == ["key"]


async def test_a_key_for_later_never_makes_a_wait_longer() -> None:
    keys: ChangedKeys[str] = ChangedKeys()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(keys.wait_until(loop.time() + SHORT_S))
    await asyncio.sleep(0)
    keys.add_for_later("key", LONG_S)
    assert await asyncio.wait_for(waiting, 30) is False


async def test_a_key_for_now_wakes_a_wait_that_a_key_for_later_has_shortened() -> None:
    keys: ChangedKeys[str] = ChangedKeys()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(keys.wait_until(loop.time() + LONG_S))
    await asyncio.sleep(0)
    keys.add_for_later("first", LONG_S / 2)
    keys.add("second")
    assert await asyncio.wait_for(waiting, 30) is True
    assert keys.take() == ["first", "second"]


async def test_a_key_for_later_waits_for_the_next_take_if_nobody_waits() -> None:
    keys: ChangedKeys[str] = ChangedKeys()
    keys.add_for_later("key", SHORT_S)
    assert keys.take() == ["key"]
