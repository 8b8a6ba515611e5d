"""Share coordinators as the rest of a broker asks them: bounded in time, and at an end when the broker is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from kraftpy.broker.share.coordinator_client import ShareStates
from kraftpy.broker.share.state_requests import coordinator_key, is_coordinator_key, response_of
from kraftpy.config import BrokerConfig
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.effects import Write
from kraftpy.share.events import Result
from kraftpy.share.records import ShareKey
from kraftpy.types import TopicId

KEY = ShareKey("a:group", TopicId(b"\xfb" * 16), 3)
BOUND_SECONDS = 60.0


def states_without_leaders(write_timeout_ms: int) -> ShareStates:
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=-1)])
    metadata = SimpleNamespace(image=SimpleNamespace(topic=lambda _: topic))
    config = BrokerConfig.of({"share.coordinator.write.timeout.ms": str(write_timeout_ms)})
    return ShareStates(config, cast(Any, None), cast(Any, metadata), cast(Any, None), cast(Any, None), cast(Any, None))


async def test_who_asks_is_answered_within_the_write_timeout() -> None:
    result = await asyncio.wait_for(states_without_leaders(200).read(KEY, 1), BOUND_SECONDS)
    assert result.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_write_outlives_a_coordinator_that_says_nothing_until_another_is_elected() -> None:
    """A silently dead coordinator keeps its place for `broker.session.timeout.ms`, longer than a write may take."""
    partition = SimpleNamespace(leader=2)
    topic = SimpleNamespace(partitions=[partition])
    states = ShareStates(
        BrokerConfig.of({"share.coordinator.write.timeout.ms": "200"}),
        cast(Any, None),
        cast(Any, SimpleNamespace(image=SimpleNamespace(topic=lambda _: topic))),
        cast(Any, None),
        cast(Any, None),
        cast(Any, None),
    )
    asked: list[int] = []

    async def ask(broker_id: int, api_key: ApiKey, request: Any) -> Any:
        asked.append(broker_id)
        if asked == [2, 2]:
            partition.leader = 3
        if broker_id == 2:
            await asyncio.Event().wait()
        return response_of(api_key, {KEY: Result()})

    cast(Any, states)._peers = SimpleNamespace(ask=ask)
    said = Write(start_offset=1, delivery_complete_count=0, batches=())
    result = await asyncio.wait_for(states.write(KEY, 1, 1, said), BOUND_SECONDS)
    assert (result.error_code, asked) == (ErrorCode.NONE, [2, 2, 3])


async def test_a_broker_that_stops_waits_for_no_coordinator() -> None:
    states = states_without_leaders(3_600_000)
    asking = asyncio.create_task(states.read(KEY, 1))
    await asyncio.sleep(0)
    states.close()
    result = await asyncio.wait_for(asking, BOUND_SECONDS)
    assert result.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_key_of_a_share_partition() -> None:
    text = coordinator_key(KEY)
    assert text == "a:group:-_v7-_v7-_v7-_v7-_v7-w:3"
    assert is_coordinator_key(text)
    for bad in ("", "g", "g:3", "g:AAAAAAAAAAAAAAAAAAAAAA", ":AAAAAAAAAAAAAAAAAAAAAA:3", "g:AAAAAAAAAAAA:3"):
        assert not is_coordinator_key(bad), bad
    assert is_coordinator_key("g:AAAAAAAAAAAAAAAAAAAAAA:-1"), "any number, as for Kafka"
    assert not is_coordinator_key("g:AAAAAAAAAAAAAAAAAAAAAA:--1")
    assert not is_coordinator_key("g:!!!!:1")
