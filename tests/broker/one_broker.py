"""A broker within the test's own event loop, and its handlers asked without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import topics
from kraftpy.broker.request import RequestContext
from kraftpy.broker.runtime import SystemClock
from kraftpy.config import load
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

BOUND_SECONDS = 60.0


def context(key: ApiKey, version: int) -> RequestContext:
    return RequestContext(api_key=key, api_version=version, client_id="", client_host="", listener="PLAINTEXT")


@asynccontextmanager
async def running(directory: Path, *settings: str, clock: Clock | None = None) -> AsyncIterator[Broker]:
    overrides = [f"log.dirs={directory}", "listeners=PLAINTEXT://127.0.0.1:0", *settings]
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(load("", {}, overrides).config, clock or SystemClock(), tasks)
        await broker.start()
        try:
            yield broker
        finally:
            assert await broker.stop()
    assert broker.incidents.count == 0, broker.incidents.last


async def create(broker: Broker, names: Sequence[str], partitions: int = 1, **more: Any) -> CreateTopicsResponse:
    wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    request = CreateTopicsRequest(topics=wanted, timeout_ms=int(BOUND_SECONDS * 1000), **more)
    return await topics.create_topics(broker, request, context(ApiKey.CREATE_TOPICS, 7))


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that will come about."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.005)
