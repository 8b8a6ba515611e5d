"""Producer ids: each is handed out once, and a broker that cannot get more logs it instead of being silent."""

from __future__ import annotations

import asyncio

import pytest

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.transactions import producer_ids
from kraftpy.broker.transactions.producer_ids import ProducerIds
from kraftpy.metadata.decision import ProducerIdBlock
from kraftpy.protocol.errors import ErrorCode, KafkaError


class Blocks:
    """A metadata log that hands out blocks of three, when it may."""

    def __init__(self) -> None:
        self.given = 0
        self.may_answer = asyncio.Event()
        self.refusal: Exception | None = None

    async def allocate(self) -> ProducerIdBlock:
        await self.may_answer.wait()
        if self.refusal is not None:
            raise self.refusal
        self.given += 1
        return ProducerIdBlock(first_producer_id=3 * self.given, count=3)


async def test_many_who_ask_at_once_get_an_id_each() -> None:
    blocks = Blocks()
    blocks.may_answer.set()
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
        ids = ProducerIds(blocks.allocate, tasks)
        found = await asyncio.gather(*(ids.next() for _ in range(10)))
    assert sorted(found) == list(range(3, 13))
    assert blocks.given == 4


async def test_who_waits_too_long_is_told_and_the_block_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "PATIENCE_SECONDS", 0.01)
    blocks = Blocks()
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
        ids = ProducerIds(blocks.allocate, tasks)
        for _ in range(2):
            with pytest.raises(KafkaError) as told:
                await ids.next()
            assert told.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        monkeypatch.setattr(producer_ids, "PATIENCE_SECONDS", 30.0)
        blocks.may_answer.set()
        assert [await ids.next() for _ in range(3)] == [3, 4, 5]
    assert blocks.given == 1


async def test_a_refusal_is_told_and_the_next_who_asks_asks_again() -> None:
    blocks = Blocks()
    blocks.may_answer.set()
    blocks.refusal = KafkaError(ErrorCode.STALE_BROKER_EPOCH, "started again")
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
        ids = ProducerIds(blocks.allocate, tasks)
        with pytest.raises(KafkaError) as told:
            await ids.next()
        assert told.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "that broker's epoch is no client's business"
        assert "STALE_BROKER_EPOCH: started again" in str(told.value)
        blocks.refusal = None
        assert await ids.next() == 3


async def test_an_unexpected_error_is_told_to_those_who_wait_and_the_next_who_asks_asks_again() -> None:
    blocks, incidents = Blocks(), Incidents(Complaints())
    blocks.may_answer.set()
    blocks.refusal = ValueError("of ours")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        ids = ProducerIds(blocks.allocate, Tasks(group, incidents))
        for _ in range(2):
            with pytest.raises(KafkaError) as told:
                await ids.next()
            assert told.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
        blocks.refusal = None
        assert await ids.next() == 3
    assert incidents.count == 2
