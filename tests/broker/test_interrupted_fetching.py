"""A fetcher whose long poll is ended for a new partition continues at once, even if the partition is gone again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.broker.replication import fetchers
from kraftpy.config import load
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.fetch_plan import PartitionKey
from kraftpy.replication.follower import FetchPosition
from kraftpy.types import BrokerId, TopicId


class _Leader:
    """A leader that never has any records: every Fetch waits until its connection is closed."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self._poll: asyncio.Future[Any]

    def version(self, *_: object, **__: object) -> int:
        return 17

    async def send(self, *_: object) -> Any:
        self._poll = asyncio.get_running_loop().create_future()
        self.begun.put_nowait(None)
        return await self._poll

    def close(self) -> None:
        if not self._poll.done():
            self._poll.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed"))


def _replica() -> Any:
    position = FetchPosition(offset=0, last_fetched_epoch=0, leader_epoch=0, log_start_offset=0)
    following = SimpleNamespace(next_fetch=lambda now: position, retry_at=None)
    syncs = SimpleNamespace(comes_before_ack=False)
    return SimpleNamespace(following=following, leader_id=BrokerId(2), syncs=syncs)


async def test_a_partition_that_comes_and_goes_costs_the_others_no_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = _Leader()
    owner = SimpleNamespace(
        config=load("", {}, []).config,
        clock=SimpleNamespace(monotonic_ms=lambda: 1000),
        throttles=SimpleNamespace(follower_wait_ms=lambda replica: None),
        broker_epoch=lambda: 1,
    )
    fetcher = fetchers._Fetcher(cast("Any", owner), cast("Any", (BrokerId(2), "")))

    async def connect() -> Any:
        return leader

    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(fetcher, "_connect", connect)
    monkeypatch.setattr(fetcher, "_pause", rest)
    fetcher.add(PartitionKey(TopicId(b"1" * 16), 0), _replica())
    running = asyncio.create_task(fetcher._run())
    for partition in range(5):
        await asyncio.wait_for(leader.begun.get(), 10)
        passing = PartitionKey(TopicId(b"2" * 16), partition)
        fetcher.add(passing, _replica())
        fetcher.forget(passing)
    running.cancel()
    assert rests == []
    assert "cannot fetch" not in caplog.text
