"""The parts that serve groups, transactions, share groups and secured listeners are imported when first needed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from one_broker import context, running, until

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.types import TopicPartition

NEEDED_LATER = (
    "kraftpy.groups",
    "kraftpy.transactions",
    "kraftpy.share",
    "kraftpy.broker.groups.coordinators",
    "kraftpy.broker.transactions.coordinators",
    "kraftpy.broker.share.coordinators",
    "kraftpy.broker.share.partitions",
    "kraftpy.broker.console",
    "kraftpy.broker.security.authorizer",
    "kraftpy.config.security",
    "kraftpy.security.jaas",
    "kraftpy.security.json_web_tokens",
    "kraftpy.protocol.codegen",
    "cryptography",
    "multiprocessing",
    "rich",
)
PROGRAM = f"""
import sys
from kraftpy.broker import server
from kraftpy.config import load

usual = server.start

async def start(broker, stop):
    is_ready = await usual(broker, stop)
    print([name for name in {NEEDED_LATER!r} if name in sys.modules])
    stop.set()
    return is_ready

server.start = start
sys.exit(server.run(load(overrides=sys.argv[1:]).config))
"""


async def test_a_new_node_starts_without_what_it_does_not_need_yet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]
    output = await asyncio.to_thread(subprocess.check_output, command, text=True)
    assert output.splitlines()[0] == "[]"


async def find(group: str, broker: Broker) -> ErrorCode:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    answered = await find_coordinator(broker, request, context(ApiKey.FIND_COORDINATOR, 4))
    return ErrorCode(answered.coordinators[0].error_code)


def are_ready(broker: Broker) -> bool:
    return all(broker.coordinators.check_ready(number) == ErrorCode.NONE for number in range(2))


async def test_coordinators_are_made_with_their_topic_and_after_a_restart_at_the_start(tmp_path: Path) -> None:
    settings = "offsets.topic.num.partitions=2"
    async with running(tmp_path, settings) as broker:
        assert broker.coordination.shards == []
        await find("group", broker)
        await until(lambda: broker.coordination.shards == [broker.coordinators])
        await until(
            lambda: {broker.coordinators.check_ready(0), broker.coordinators.check_ready(1)} == {ErrorCode.NONE}
        )
    async with running(tmp_path, settings) as broker:
        assert "coordinators" in vars(broker.coordination)
        assert "transactions" not in vars(broker.coordination)
        await until(
            lambda: {broker.coordinators.check_ready(0), broker.coordinators.check_ready(1)} == {ErrorCode.NONE}
        )


async def test_coordinators_that_are_made_late_find_their_partitions(tmp_path: Path) -> None:
    async with running(tmp_path, "offsets.topic.num.partitions=1") as broker:
        await find("group", broker)
        await until(lambda: broker.coordination.shards != [])
        broker.coordinators.stop()
        del broker.coordination.coordinators  # as if nobody had asked for them yet
        await until(lambda: broker.coordinators.check_ready(0) == ErrorCode.NONE)


async def test_coordinators_that_are_made_late_have_the_settings_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        changed = replace(broker.config, group_consumer_heartbeat_interval_ms=5_432)
        monkeypatch.setattr(broker.settings, "config", changed)
        assert broker.coordinators.settings("group").consumer_heartbeat_interval_ms == 5_432


async def test_what_is_made_after_the_stop_does_not_begin(tmp_path: Path) -> None:
    async with running(tmp_path, "offsets.topic.num.partitions=1") as broker:
        await find("group", broker)
        await until(lambda: broker.coordination.shards != [])
        broker.coordination.stop()
        del broker.coordination.coordinators
        broker.coordination.follow_leadership(TopicPartition(CONSUMER_OFFSETS, 0))
        assert broker.coordinators.check_ready(0) == ErrorCode.NOT_COORDINATOR
        tasks = asyncio.all_tasks()
        assert broker.share_coordinators
        assert asyncio.all_tasks() == tasks
