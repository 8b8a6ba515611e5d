"""What is logged of a coordinator's partition that cannot be written: each reason once, and its end."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path

import pytest

from kraftpy.broker import shards
from kraftpy.broker.auto_creation import auto_create_topics
from kraftpy.broker.broker import Broker
from kraftpy.broker.internal_topics import SHARE_GROUP_STATE
from kraftpy.broker.replica import Replica
from kraftpy.broker.runtime import SystemClock
from kraftpy.config import load
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.share.events import Initialize
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
        assert told() == ["__share_group_state-0: is written again"]
        reasons[:] = ["1 of 3 in sync"]
        assert await write(3) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert told() == ["__share_group_state-0: NOT_ENOUGH_REPLICAS: 1 of 3 in sync"]
        assert await broker.stop()
