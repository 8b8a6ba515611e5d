"""ShareFetch while something else is in progress: a broker in this process, asked through its own handler."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import share
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.request import RequestContext
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.share.reading import Piece, read_pieces
from kraftpy.config import load
from kraftpy.log.results import Origin
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import share_fetch as fetching
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.share.effects import Stretch
from kraftpy.types import TopicId

BOUND_SECONDS = 60.0
GROUP = "g"
CONTEXT = RequestContext(
    api_key=ApiKey.SHARE_FETCH, api_version=2, client_id="", client_host="/127.0.0.1", listener="PLAINTEXT"
)


class Taken(NamedTuple):
    """The records that a fetch acquired from the only partition."""

    offsets: list[int]
    acknowledged: ErrorCode


class Member:
    """One member with a session, and each of its fetches."""

    def __init__(self, broker: Broker, topic_id: TopicId, member_id: str) -> None:
        self.broker = broker
        self.topic_id = topic_id
        self.member_id = member_id
        self.epoch = 0

    async def fetch(self, *, accept: Iterable[int] = (), most: int = 100, wait_ms: int = 0) -> Taken:
        said = [
            fetching.AcknowledgementBatch(first_offset=each, last_offset=each, acknowledge_types=[1]) for each in accept
        ]
        part = fetching.FetchPartition(partition_index=0, acknowledgement_batches=said)
        request = fetching.ShareFetchRequest(
            group_id=GROUP,
            member_id=self.member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=most,
            batch_size=100,
            share_acquire_mode=1,
            topics=[fetching.FetchTopic(topic_id=self.topic_id, partitions=[part])],
        )
        self.epoch += 1
        response = await share.share_fetch(self.broker, request, CONTEXT)
        assert response.error_code == ErrorCode.NONE, response
        parts = [part for topic in response.responses for part in topic.partitions]
        assert all(part.error_code == ErrorCode.NONE for part in parts), response
        acquired = [each for part in parts for each in part.acquired_records]
        offsets = [offset for each in acquired for offset in range(each.first_offset, each.last_offset + 1)]
        return Taken(offsets, ErrorCode.of(parts[0].acknowledge_error_code if parts else ErrorCode.NONE))

    async def take(self, count: int) -> list[int]:
        """Fetch until `count` records have arrived."""
        taken: list[int] = []
        async with asyncio.timeout(BOUND_SECONDS):
            while len(taken) < count:
                taken += (await self.fetch(most=count - len(taken), wait_ms=100)).offsets
        return taken


async def begun(tasks: asyncio.TaskGroup, directory: Path, records: int) -> tuple[Broker, TopicId]:
    """Start a broker with a topic of `records` records, and a group that begins at the first of them."""
    given = [f"log.dirs={directory}", "listeners=PLAINTEXT://127.0.0.1:0", "share.coordinator.state.topic.min.isr=1"]
    config = load("", {}, [*given, "share.coordinator.state.topic.replication.factor=1"]).config
    clock = SystemClock()
    broker = Broker(config, clock, tasks)
    await broker.start()
    assert await auto_create_topics(["t"], broker.metadata, config, clock) == {}
    topic = broker.image.topic("t")
    assert topic is not None
    replica = broker.replicas.leader("t", 0)
    for number in range(records):
        replica.append(encode_batch([(clock.now(), None, b"%d" % number, ())]), Origin.CLIENT, clock.now())
    part = initialize.PartitionData(partition=0, state_epoch=1, start_offset=0)
    data = initialize.InitializeStateData(topic_id=topic.topic_id, partitions=[part])
    request = initialize.InitializeShareGroupStateRequest(group_id=GROUP, topics=[data])
    answer = await broker.share_states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, request)
    assert answer.results[0].partitions[0].error_code == ErrorCode.NONE, answer
    return broker, topic.topic_id


async def test_who_waits_for_its_acknowledgements_to_be_written_has_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records it acquired could not be processed by any member while its coordinator is not there."""
    asked, goes_on = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        broker, topic_id = await begun(tasks, tmp_path, 3)
        first, second = (Member(broker, topic_id, name) for name in ("first", "second"))
        assert await first.take(2) == [0, 1]
        write = broker.share_states.write

        async def held_up(*arguments: Any) -> Any:
            asked.set()
            await goes_on.wait()
            return await write(*arguments)

        monkeypatch.setattr(broker.share_states, "write", held_up)
        fetching_more = asyncio.create_task(first.fetch(accept=[0, 1]))
        await asyncio.wait_for(asked.wait(), BOUND_SECONDS)
        assert await second.take(1) == [2]
        goes_on.set()
        assert await asyncio.wait_for(fetching_more, BOUND_SECONDS) == Taken([], ErrorCode.NONE)
        assert await broker.stop()


async def test_who_has_opened_its_session_anew_is_handed_nothing_in_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records would be locked for an answer on a connection that is no longer read."""
    async with asyncio.TaskGroup() as tasks:
        broker, topic_id = await begun(tasks, tmp_path, 3)
        member, other = (Member(broker, topic_id, name) for name in ("member", "other"))
        assert await member.take(1) == [0]
        assert (await other.fetch(most=0)).offsets == [], "the share partition stays while somebody has a session"
        skipped: list[int] = []

        def read_one_without_records(replica: Replica, offset: int, max_bytes: int, *, read_committed: bool) -> Any:
            if skipped:
                return read_pieces(replica, offset, max_bytes, read_committed=read_committed)
            skipped.append(offset)
            return [Piece(Stretch(offset, offset, has_records=False), memoryview(b""))]

        monkeypatch.setattr(share, "read_pieces", read_one_without_records)
        old = asyncio.create_task(member.fetch(wait_ms=10_000))
        await asyncio.sleep(0)
        assert skipped == [1], "it is between two looks at the log now"
        member.epoch = 0
        assert (await member.fetch(most=0)).offsets == []
        assert (await asyncio.wait_for(old, BOUND_SECONDS)).offsets == []
        assert sorted(await member.take(2)) == [0, 2]
        assert await broker.stop()
