"""A coordinator's partition that cannot be written, each reason logged once; and what in it cannot be read."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path

import pytest
from hostile_batches import batch_of, bomb, empty_members

from kraftpy.broker import coordinator_shards as shards
from kraftpy.broker.broker import Broker
from kraftpy.broker.internal_topics import SHARE_GROUP_STATE
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.runtime import SystemClock
from kraftpy.config import load
from kraftpy.log.results import Origin
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.share.events import Initialize, Read
from kraftpy.share.records import ShareKey


async def test_what_hinders_a_write_is_logged_once_until_it_changes_or_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", "share.coordinator.state.topic.min.isr=1"]
    given += [f"share.coordinator.state.topic.{name}=1" for name in ("replication.factor", "num.partitions")]
    config = load("", {}, given).config
    clock = SystemClock()
    reasons: list[str] = []
    epochs = itertools.count()

    def check_in_sync(self: Replica) -> None:
        if reasons:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, reasons[0])

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == shards.__name__]
        caplog.clear()
        return lines

    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, clock, tasks)
        await broker.start()
        assert await auto_create_topics(["t", SHARE_GROUP_STATE], broker.metadata, config, clock) == {}
        topic = broker.image.topic("t")
        assert topic is not None
        monkeypatch.setattr(Replica, "check_in_sync", check_in_sync)
        caplog.set_level(logging.WARNING, shards.__name__)

        async def write(times: int) -> set[ErrorCode]:
            key = ShareKey("g", topic.topic_id, 0)
            asked = [Initialize(key=key, state_epoch=next(epochs), start_offset=0) for _ in range(times)]
            return {(await broker.share_coordinators.ask(each)).error_code for each in asked}

        reasons[:] = ["1 of 2 in sync"]
        assert await write(3) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert told() == ["__share_group_state-0: NOT_ENOUGH_REPLICAS: 1 of 2 in sync"]
        reasons[:] = ["1 of 3 in sync"]
        assert await write(3) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert told() == ["__share_group_state-0: NOT_ENOUGH_REPLICAS: 1 of 3 in sync"]
        reasons.clear()
        assert await write(3) == {ErrorCode.NONE}
        assert told() == ["__share_group_state-0: can be written again"]
        reasons[:] = ["1 of 3 in sync"]
        assert await write(3) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert told() == ["__share_group_state-0: NOT_ENOUGH_REPLICAS: 1 of 3 in sync"]
        assert await broker.stop()


async def test_a_batch_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", "share.coordinator.state.topic.min.isr=1"]
    given += [f"share.coordinator.state.topic.{name}=1" for name in ("replication.factor", "num.partitions")]
    config = load("", {}, given).config
    clock = SystemClock()
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, clock, tasks)
        await broker.start()
        assert await auto_create_topics(["t", SHARE_GROUP_STATE], broker.metadata, config, clock) == {}
        topic = broker.image.topic("t")
        assert topic is not None
        coordinators, replica = broker.share_coordinators, broker.replicas.leader(SHARE_GROUP_STATE, 0)

        def key(number: int) -> ShareKey:
            return ShareKey(f"g{number}", topic.topic_id, 0)

        unreadable = batch_of(b"garbage" * 3, codec=Compression.NONE)
        for number, bad in enumerate((unreadable, bomb(), empty_members(Compression.GZIP))):
            wanted = Initialize(key=key(number), state_epoch=number + 1, start_offset=10)
            assert (await coordinators.ask(wanted)).error_code is ErrorCode.NONE
            replica.append(bad, Origin.COORDINATOR, clock.now())
        await coordinators.ask(Initialize(key=key(3), state_epoch=4, start_offset=10))
        caplog.set_level(logging.ERROR, shards.__name__)
        coordinators.stop()
        coordinators._is_stopped = False
        coordinators.reconcile()
        found = []
        for number in range(4):
            asked = Read(key=key(number), leader_epoch=0)
            async with asyncio.timeout(20):
                while True:
                    result = await coordinators.ask(asked)
                    if result.error_code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                        break
                    await asyncio.sleep(0.01)
            found.append((result.error_code, result.state_epoch))
        assert found == [(ErrorCode.NONE, number) for number in (1, 2, 3, 4)]
        passed = [each.getMessage() for each in caplog.records if "skipped" in each.getMessage()]
        first, rest = passed
        assert first.startswith("__share_group_state-0: skipped at offset 1: ")
        assert rest == "__share_group_state-0: 3 records or batches were skipped"
        assert await broker.stop()
