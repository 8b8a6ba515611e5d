"""A follower of thousands of partitions begins to fetch them without holding up anybody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lone_replicas import TOPIC_ID, follow, lead, lone_fetchers, lone_replica
from replicating import running

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.handlers import replica_fetch
from kraftpy.broker.replication import fetchers as fetching
from kraftpy.broker.replication.fetch_sessions import FetchContext, FetchedPartition, Session
from kraftpy.broker.replication.leadership_check import Confirmations
from kraftpy.broker.waiting import ChangedKeys
from kraftpy.client.connection import Connection
from kraftpy.config import load
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchRequest, ReplicaState
from kraftpy.replication.fetch_plan import FetchLimits, PartitionKey
from kraftpy.types import BrokerId, Millis, TopicId

PARTITIONS = 40
AT_ONCE = 5


def asked(number: int, *, is_accepted: bool = False) -> FetchedPartition:
    """A partition of which a follower has everything, and knows that."""
    partition = FetchedPartition(
        topic="",
        topic_id=TOPIC_ID,
        partition=number,
        fetch_offset=0,
        max_bytes=1,
        current_leader_epoch=1,
        last_fetched_epoch=-1,
        log_start_offset=0,
    )
    partition.sent_high_watermark = partition.sent_log_start_offset = 0
    partition.is_accepted = is_accepted
    return partition


def fetched(partitions: list[FetchedPartition]) -> FetchContext:
    """The context of an incremental request that names none of the session's partitions."""
    session = Session(
        id=1,
        epoch=1,
        uses_topic_ids=True,
        partitions={partition.key: partition for partition in partitions},
        joining={partition.key: partition for partition in partitions},
        created_at=Millis(0),
        used_at=Millis(0),
        follower_id=2,
        changed_keys=ChangedKeys(),
    )
    return FetchContext(partitions=[], session=session, incremental=True, asked=[], epoch=1)


async def test_positions_are_set_in_slices_and_include_what_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_POSITIONS_AT_ONCE", AT_ONCE)
    turn = 0
    looked_at: Counter[int] = Counter()

    def monotonic_ms() -> Millis:
        looked_at[turn] += 1  # each position that is set has a look at the clock
        return Millis(1000)

    def key(number: int) -> PartitionKey:
        return PartitionKey(TOPIC_ID, number)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            if turn == 3:
                fetcher.add(key(PARTITIONS), late)
            await asyncio.sleep(0)

    late = follow(lone_replica("t", PARTITIONS))
    async with asyncio.TaskGroup() as group:
        clock: Any = SimpleNamespace(monotonic_ms=monotonic_ms)
        fetchers = lone_fetchers(Tasks(group, Incidents(Complaints())), clock)
        fetcher = fetching._Fetcher(fetchers, (BrokerId(2), "", 0))
        for number in range(PARTITIONS):
            fetcher.add(key(number), follow(lone_replica("t", number)))
        counting = asyncio.create_task(count())
        await fetcher._set_positions(1000)
        counting.cancel()
    assert sum(looked_at.values()) == PARTITIONS + 1
    assert max(looked_at.values()) <= AT_ONCE + 1, "one that came meanwhile may follow the last slice"
    assert not fetcher._due


async def test_a_follower_of_many_partitions_is_answered_a_bounded_number_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a follower's first fetch of many partitions nor many changes at a time make one long step anywhere."""
    monkeypatch.setattr(replica_fetch, "_MOST_ANSWERED", AT_ONCE)
    named: list[int] = []
    answered: list[int] = []
    known = Connection.send

    def noted(self: Connection, key: ApiKey, request: Any, version: int, **how: Any) -> asyncio.Future[Any]:
        answer = known(self, key, request, version, **how)
        if key is ApiKey.FETCH:
            named.append(sum(len(topic.partitions) for topic in request.topics))
            answer.add_done_callback(note_answer)
        return answer

    def note_answer(answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            answered.append(sum(len(topic.partitions) for topic in answer.result().responses))

    monkeypatch.setattr(Connection, "send", noted)
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("small", (1, 2))
        (fetcher,) = cluster.nodes[2].fetchers._fetchers.values()
        fetcher._limits = FetchLimits(
            partition_max_bytes=1 << 20,
            response_max_bytes=10 << 20,
            min_bytes=1,
            max_wait_ms=500,
            most_named=AT_ONCE,
        )
        await cluster.create("large", *[(1, 2)] * PARTITIONS)
        leader = cluster.nodes[1]
        produced = (leader.produce("large", b"one", partition=number) for number in range(PARTITIONS))
        assert {each.error_code for each in await asyncio.gather(*produced)} == {ErrorCode.NONE}
        await asyncio.gather(*(cluster.caught_up("large", number) for number in range(PARTITIONS)))
        assert 0 < max(named) <= AT_ONCE
        assert 0 < max(answered) <= AT_ONCE
        assert sum(named) >= PARTITIONS


async def test_what_a_follower_still_has_is_noted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetch, "_SWEPT_AT_ONCE", AT_ONCE)
    turn = 0
    noted: Counter[int] = Counter()

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def held_by_id(topic_id: TopicId, number: int) -> None:
        noted[turn] += 1

    partitions = [asked(number, is_accepted=True) for number in range(PARTITIONS)]
    broker: Any = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=lone_fetchers(),
        replicas=SimpleNamespace(held_by_id=held_by_id),
    )
    reading = replica_fetch._Reading(broker, FetchRequest(max_wait_ms=0, min_bytes=1), fetched(partitions), None)
    counting = asyncio.create_task(count())
    await reading._sweep(1e9)
    counting.cancel()
    assert sum(noted.values()) == PARTITIONS
    assert max(noted.values()) <= AT_ONCE


def test_many_changes_at_a_time_are_answered_a_bounded_number_at_a_time_and_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partitions with a lasting error are reported in each answer, and still keep out no other."""
    monkeypatch.setattr(replica_fetch, "_MOST_ANSWERED", AT_ONCE)
    partitions = [asked(number) for number in range(PARTITIONS)]
    keys = [partition.key for partition in partitions]
    context = fetched(partitions)
    assert context.session is not None
    assert context.session.changed_keys is not None
    changed = context.session.changed_keys

    def leader_by_id(topic_id: TopicId, partition: int) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "gone")

    broker: Any = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=lone_fetchers(),
        replicas=SimpleNamespace(leader_by_id=leader_by_id),
    )
    answered: list[int] = []
    waiting = keys
    for _ in range(PARTITIONS // AT_ONCE):
        reading = replica_fetch._Reading(broker, FetchRequest(max_wait_ms=0, min_bytes=1), context, None)
        reading._read(waiting)
        assert len(reading.answers) <= AT_ONCE
        answered += [number for _, _, number in reading.answers]
        waiting = changed.take()
        assert sorted(waiting) == keys
    assert answered == list(range(PARTITIONS))


def test_what_has_no_room_in_an_answer_does_not_wait_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer goes out at once, even if nothing in it is new, so that the next one has the rest."""
    monkeypatch.setattr(replica_fetch, "_MOST_ANSWERED", AT_ONCE)

    async def catch_up() -> None:
        raise NotImplementedError

    replica = lead(lone_replica(), 1, 2)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, replica_state=ReplicaState(replica_id=2, replica_epoch=1))
    broker: Any = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=lone_fetchers(),
        replicas=SimpleNamespace(
            leader_by_id=lambda topic_id, partition: replica,
            confirmations=Confirmations(catch_up, 500),
        ),
    )
    for count, must_answer in ((AT_ONCE, False), (AT_ONCE + 1, True)):
        partitions = [asked(number) for number in range(AT_ONCE + 1)]
        reading = replica_fetch._Reading(broker, request, fetched(partitions), None)
        reading._read([partition.key for partition in partitions][:count])
        assert len(reading.answers) == AT_ONCE
        assert {answer.error_code for _, answer in reading.answers.values()} == {ErrorCode.NONE}
        assert reading._must_answer is must_answer
        assert not reading._has_news
