"""The partitions of a broker, opened, deleted and tried again at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kraftpy.broker.auto_creation import auto_create_topics
from kraftpy.broker.broker import Broker
from kraftpy.broker.runtime import SystemClock
from kraftpy.config import load
from kraftpy.types import TopicPartition


async def test_a_partition_that_is_being_opened_is_not_opened_again(tmp_path: Path) -> None:
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", "num.partitions=5"]).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        brought_online = []

        async def try_again_all_the_time() -> None:
            while True:
                brought_online.extend(await broker.replicas.retry_offline())
                await asyncio.sleep(0)

        trying = tasks.create_task(try_again_all_the_time())
        try:
            opened = {}
            for name in ("one", "two", "three"):
                assert await auto_create_topics([name], broker.metadata, config, SystemClock()) == {}
                for number in range(5):
                    opened[TopicPartition(name, number)] = broker.replicas.leader(name, number)
            assert {replica.topic_partition: replica for replica in broker.replicas} == opened
        finally:
            trying.cancel()
        assert brought_online == [], "nothing was offline"
        assert await broker.stop()
