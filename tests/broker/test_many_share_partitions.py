"""Share groups with thousands of partitions: coordinators are asked, and sessions looked through, in slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, create, running

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import share, share_groups
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.share.partitions import SharePartitions
from kraftpy.broker.share.state_requests import coordinator_key
from kraftpy.broker.slicing import UNITS_PER_ITERATION
from kraftpy.metadata.records import PartitionCreated, TopicCreated
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import describe_share_group_offsets as describing
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import read_share_group_state_summary as summary
from kraftpy.protocol.messages import share_acknowledge as acknowledging
from kraftpy.protocol.messages import share_fetch as fetching
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.share.events import Request
from kraftpy.share.records import ShareKey
from kraftpy.types import Millis, TopicId

PARTITIONS = 2_000
TOPIC_ID = TopicId(bytes(15) + b"\1")
MEMBER = "member-00000000000000"


class Calls:
    """Counts the most calls of something in one turn of the event loop."""

    def __init__(self) -> None:
        self.all = self.in_this_turn = self.most = 0

    def called(self) -> None:
        if not self.in_this_turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.all += 1
        self.in_this_turn += 1
        self.most = max(self.most, self.in_this_turn)

    def _next_turn(self) -> None:
        self.in_this_turn = 0

    def wrapping(self, function: Callable[..., Any], counts: Callable[..., bool] = lambda *_: True) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            if counts(*arguments):
                self.called()
            return function(*arguments, **named)

        return counted


async def prepare(broker: Broker) -> None:
    """Set up a share coordinator and a topic with many partitions; only their number matters, and none is led here."""
    key = coordinator_key(ShareKey("group", TOPIC_ID, 0))
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    found = await find_coordinator(broker, request, context(ApiKey.FIND_COORDINATOR, 6))
    assert found.coordinators[0].error_code == ErrorCode.NONE
    ids = (broker.node_id,)
    broker.image.replay(TopicCreated(name="many", topic_id=TOPIC_ID, created_ms=Millis(0)))
    for number in range(PARTITIONS):
        broker.image.replay(
            PartitionCreated(
                topic="many", topic_id=TOPIC_ID, partition=number, replicas=ids, isr=ids, leader=broker.node_id
            )
        )


async def test_share_coordinators_are_asked_of_many_partitions_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Calls()
    is_request = lambda machine, event, *_: isinstance(event, Request)  # noqa: E731 - as it is called
    monkeypatch.setattr(ShareCoordinator, "step", steps.wrapping(ShareCoordinator.step, is_request))
    async with running(tmp_path / "data", "share.coordinator.state.topic.num.partitions=1") as broker:
        await prepare(broker)
        begun = [initialize.PartitionData(partition=n, state_epoch=1, start_offset=n) for n in range(PARTITIONS)]
        request = initialize.InitializeShareGroupStateRequest(
            group_id="group", topics=[initialize.InitializeStateData(topic_id=TOPIC_ID, partitions=begun)]
        )
        answered = await asyncio.wait_for(
            broker.share_states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, request), BOUND_SECONDS
        )
        codes = Counter(part.error_code for result in answered.results for part in result.partitions)
        assert codes == {ErrorCode.NONE: PARTITIONS}
        assert steps.all == PARTITIONS
        assert steps.most <= 2 * UNITS_PER_ITERATION // 25, steps.most
        steps.most = 0
        asked = [summary.PartitionData(partition=n, leader_epoch=0) for n in range(PARTITIONS)]
        answered = await asyncio.wait_for(
            broker.share_states.ask(
                ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
                summary.ReadShareGroupStateSummaryRequest(
                    group_id="group", topics=[summary.ReadStateSummaryData(topic_id=TOPIC_ID, partitions=asked)]
                ),
            ),
            BOUND_SECONDS,
        )
        ((result,),) = [answered.results]
        assert [(part.partition, part.start_offset) for part in result.partitions] == [
            (n, n) for n in range(PARTITIONS)
        ]
        assert steps.most <= 2 * UNITS_PER_ITERATION // 25, steps.most


async def test_a_share_session_of_many_partitions_is_looked_through_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, said = Calls(), Calls()
    monkeypatch.setattr(SharePartitions, "get", looks.wrapping(SharePartitions.get))
    monkeypatch.setattr(share, "_acknowledged", said.wrapping(share._acknowledged))
    async with running(tmp_path / "data", "share.coordinator.state.topic.num.partitions=1") as broker:
        await prepare(broker)
        named = [fetching.FetchPartition(partition_index=number) for number in range(PARTITIONS)]
        request = fetching.ShareFetchRequest(
            group_id="group",
            member_id=MEMBER,
            share_session_epoch=0,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[fetching.FetchTopic(topic_id=TOPIC_ID, partitions=named)],
        )
        answered = await asyncio.wait_for(
            share.share_fetch(broker, request, context(ApiKey.SHARE_FETCH, 1)), BOUND_SECONDS
        )
        codes = Counter(part.error_code for topic in answered.responses for part in topic.partitions)
        assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER: PARTITIONS}, "each was looked at, and is told"
        assert looks.all == PARTITIONS
        assert looks.most <= 2 * UNITS_PER_ITERATION // 20, looks.most
        batch = acknowledging.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
        parts = [
            acknowledging.AcknowledgePartition(partition_index=number, acknowledgement_batches=[batch])
            for number in range(PARTITIONS)
        ]
        acknowledged = await asyncio.wait_for(
            share.share_acknowledge(
                broker,
                acknowledging.ShareAcknowledgeRequest(
                    group_id="group",
                    member_id=MEMBER,
                    share_session_epoch=1,
                    topics=[acknowledging.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=parts)],
                ),
                context(ApiKey.SHARE_ACKNOWLEDGE, 1),
            ),
            BOUND_SECONDS,
        )
        assert sum(len(topic.partitions) for topic in acknowledged.responses) == PARTITIONS
        assert said.all == PARTITIONS
        assert said.most <= 2 * UNITS_PER_ITERATION // 20, said.most


async def test_the_last_of_many_partitions_is_handed_out(tmp_path: Path) -> None:
    """Records that a session of many pieces waits for may arrive in any of the pieces."""
    from kraftpy.broker.handlers.produce import produce
    from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
    from kraftpy.protocol.record_batch import encode_batch

    async with running(tmp_path / "data", "share.coordinator.state.topic.num.partitions=1") as broker:
        made = await create(broker, ["topic"], partitions=120)
        topic_id = TopicId(made.topics[0].topic_id)
        key = coordinator_key(ShareKey("group", topic_id, 0))
        finding = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
        await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
        begun = [initialize.PartitionData(partition=n, state_epoch=1, start_offset=0) for n in range(120)]
        state = initialize.InitializeShareGroupStateRequest(
            group_id="group", topics=[initialize.InitializeStateData(topic_id=topic_id, partitions=begun)]
        )
        await broker.share_states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, state)
        request = fetching.ShareFetchRequest(
            group_id="group",
            member_id=MEMBER,
            share_session_epoch=0,
            max_wait_ms=int(BOUND_SECONDS * 1000),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[
                fetching.FetchTopic(
                    topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=n) for n in range(120)]
                )
            ],
        )
        fetched = asyncio.create_task(share.share_fetch(broker, request, context(ApiKey.SHARE_FETCH, 1)))
        async with asyncio.timeout(BOUND_SECONDS / 2):
            while not all(  # noqa: ASYNC110 - a waiting fetch signals nothing
                (held := broker.share_partitions.find(ShareKey("group", topic_id, n))) is not None and held.watches
                for n in range(120)
            ):
                await asyncio.sleep(0.01)
            data = [PartitionProduceData(index=119, records=encode_batch([(1, None, b"value", ())]))]
            produced = ProduceRequest(
                acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="topic", partition_data=data)]
            )
            await produce(broker, produced, context(ApiKey.PRODUCE, 8))
            answered = await fetched
        found = [part for topic in answered.responses for part in topic.partitions]
        acquired = [(part.partition_index, len(part.acquired_records)) for part in found]
        assert acquired == [(119, 1), *((number, 0) for number in range(119))], "the first answer names all of them"


async def test_many_share_groups_are_described_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Calls()
    monkeypatch.setattr(share_groups, "_describe", begun.wrapping(share_groups._describe))
    names = [f"group-{number}" for number in range(PARTITIONS)]
    asked = [describing.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names]
    async with running(tmp_path / "data") as broker:
        told = context(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0)
        told.is_long = True
        described = await asyncio.wait_for(
            share_groups.describe_share_group_offsets(
                broker, describing.DescribeShareGroupOffsetsRequest(groups=asked), told
            ),
            BOUND_SECONDS,
        )
        assert [group.group_id for group in described.groups] == names
        assert begun.all == len(names)
        assert begun.most <= 2 * UNITS_PER_ITERATION // 20, begun.most
