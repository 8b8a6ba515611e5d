"""A follower of thousands of partitions begins to fetch them without holding up anybody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.broker.replication import fetchers as fetching
from kraftpy.config import load
from kraftpy.replication.fetch_plan import PartitionKey
from kraftpy.types import BrokerId, TopicId

PARTITIONS = 40
AT_ONCE = 5


async def test_positions_are_set_in_slices_and_include_what_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_POSITIONS_AT_ONCE", AT_ONCE)
    clock = SimpleNamespace(monotonic_ms=lambda: 1000)
    throttles = SimpleNamespace(follower_wait_ms=lambda replica: None)
    fetchers = SimpleNamespace(config=load("", {}, []).config, clock=clock, throttles=throttles)
    fetcher = fetching._Fetcher(cast("Any", fetchers), cast("Any", (BrokerId(2), "")))
    turn = 0
    looked_at: Counter[int] = Counter()

    def next_fetch(now: int) -> None:
        looked_at[turn] += 1

    def replica() -> Any:
        following = SimpleNamespace(next_fetch=next_fetch, retry_at=None)
        syncs = SimpleNamespace(comes_before_ack=False)
        return SimpleNamespace(following=following, leader_id=fetcher.leader, syncs=syncs)

    def key(number: int) -> PartitionKey:
        return PartitionKey(TopicId(b"1" * 16), number)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            if turn == 3:
                fetcher.add(key(PARTITIONS), replica())
            await asyncio.sleep(0)

    for number in range(PARTITIONS):
        fetcher.add(key(number), replica())
    counting = asyncio.create_task(count())
    await fetcher._set_positions(1000)
    counting.cancel()
    assert sum(looked_at.values()) == PARTITIONS + 1
    assert max(looked_at.values()) <= AT_ONCE + 1, "one that came meanwhile may follow the last slice"
    assert not fetcher._due
