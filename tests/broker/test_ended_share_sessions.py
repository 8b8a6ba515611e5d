"""Members of share groups that leave thousands of partitions behind hold nobody up, and nobody comes too early."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from one_broker import BOUND_SECONDS, context, create, running
from test_many_share_partitions import Calls

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import share
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.rights import ALL_RIGHTS
from kraftpy.broker.share import partitions
from kraftpy.broker.share.partitions import SharePartitions
from kraftpy.broker.share.sessions import SessionKey, SharedPartition, ShareSessions
from kraftpy.broker.share.state_requests import coordinator_key
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import share_fetch as fetching
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.share.records import ShareKey
from kraftpy.types import TopicId

PARTITIONS = 60
AT_ONCE = 5
ONE, OTHER = "member-00000000000001", "member-00000000000002"


async def prepare(broker: Broker) -> TopicId:
    made = await create(broker, ["topic"], partitions=PARTITIONS)
    topic_id = TopicId(made.topics[0].topic_id)
    finding = FindCoordinatorRequest(key_type=2, coordinator_keys=[coordinator_key(ShareKey("group", topic_id, 0))])
    await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
    begun = [initialize.PartitionData(partition=n, state_epoch=1, start_offset=0) for n in range(PARTITIONS)]
    state = initialize.InitializeShareGroupStateRequest(
        group_id="group", topics=[initialize.InitializeStateData(topic_id=topic_id, partitions=begun)]
    )
    await broker.share_states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, state)
    return topic_id


async def fetched(broker: Broker, topic_id: TopicId, member: str, epoch: int) -> None:
    named = [fetching.FetchPartition(partition_index=number) for number in range(PARTITIONS)]
    request = fetching.ShareFetchRequest(
        group_id="group",
        member_id=member,
        share_session_epoch=epoch,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=100,
        batch_size=100,
        topics=[fetching.FetchTopic(topic_id=topic_id, partitions=named if epoch == 0 else [])],
    )
    answered = await asyncio.wait_for(share.share_fetch(broker, request, context(ApiKey.SHARE_FETCH, 1)), BOUND_SECONDS)
    assert answered.error_code == ErrorCode.NONE


async def test_what_a_member_held_is_released_in_slices_before_the_next_member_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Calls()
    monkeypatch.setattr(SharePartitions, "_drop_unneeded", looked_at.wrapping(SharePartitions._drop_unneeded))
    monkeypatch.setattr(partitions, "_RELEASED_AT_ONCE", AT_ONCE)
    async with running(tmp_path / "data", "share.coordinator.state.topic.num.partitions=1") as broker:
        topic_id = await prepare(broker)
        await fetched(broker, topic_id, ONE, 0)
        before = dict(broker.share_partitions._held)
        assert len(before) == PARTITIONS
        looked_at.most = 0
        share.close_session(broker, SessionKey("group", ONE))
        assert len(broker.share_partitions._held) == PARTITIONS
        await fetched(broker, topic_id, OTHER, 0)
        assert 0 < looked_at.most <= 2 * AT_ONCE
        held = broker.share_partitions._held
        assert not [key for key in held if held[key] is before.get(key)], "the next member found what was left behind"
        for member in (ONE, "another"):
            broker.share_partitions.release("group", member)
        assert broker.share_partitions._releasing is not None
        await asyncio.wait_for(broker.share_partitions.released("group"), BOUND_SECONDS)
        assert len(broker.share_partitions._held) == PARTITIONS, "they have a member"


def test_whether_a_group_has_members_is_known_without_a_look_at_all_sessions() -> None:
    sessions = ShareSessions(limit=100)
    keys = [SessionKey(group, member) for group in ("a", "b") for member in ("1", "2")]
    for key in keys:
        sessions.open(key, None)
    sessions._sessions = cast("Any", _Unlisted(sessions._sessions))
    for key in keys:
        assert sessions.has_group(key.group_id)
        sessions.close(key)
        sessions.close(key)
    assert not sessions.has_group("a")
    assert not sessions.has_group("b")


class _Unlisted(dict[Any, Any]):
    def __iter__(self) -> Any:
        raise AssertionError("all of them were looked at")


async def test_many_acknowledgements_are_read_in_a_thread_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    in_loop: list[bool] = []
    usual = share._read_batches

    def read(*arguments: Any, **named: Any) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return usual(*arguments, **named)

    monkeypatch.setattr(share, "_read_batches", read)
    monkeypatch.setattr(share, "_acknowledged", lambda *_: None)
    said = Calls()
    broker = SimpleNamespace(
        slices=Slices(),
        share_partitions=SimpleNamespace(
            acknowledge=said.wrapping(lambda *_: asyncio.get_running_loop().create_future())
        ),
    )
    each = UNITS_PER_ITERATION - 100
    batch = fetching.AcknowledgementBatch(
        first_offset=0, last_offset=each - 1, acknowledge_types=[1 + number % 2 for number in range(each)]
    )
    batches = {SharedPartition(TopicId(bytes(16)), number): [batch] for number in range(10)}
    asked = context(ApiKey.SHARE_ACKNOWLEDGE, 1)
    asked.rights = ALL_RIGHTS
    await share._acknowledge(cast("Any", broker), SessionKey("group", ONE), batches, asked, is_renewing=False)
    assert in_loop == [False] * 10
    assert said.all == 10
    assert said.most <= 2
