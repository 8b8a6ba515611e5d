"""A follower of thousands of partitions begins to fetch them without holding up anybody else."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from replicating import running

from kraftpy.broker.handlers import replica_fetch
from kraftpy.broker.replication import fetchers as fetching
from kraftpy.broker.replication.fetch_sessions import FetchedPartition
from kraftpy.broker.waiting import ChangedKeys
from kraftpy.config import load
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchRequest, PartitionData
from kraftpy.replication.fetch_plan import FetchLimits, PartitionKey
from kraftpy.types import BrokerId, TopicId

PARTITIONS = 40
AT_ONCE = 5


async def test_positions_are_set_in_slices_and_include_what_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_POSITIONS_AT_ONCE", AT_ONCE)
    clock = SimpleNamespace(monotonic_ms=lambda: 1000)
    throttles = SimpleNamespace(follower_wait_ms=lambda replica: None)
    fetchers = SimpleNamespace(config=load("", {}, []).config, clock=clock, throttles=throttles)
    fetcher = fetching._Fetcher(cast("Any", fetchers), cast("Any", (BrokerId(2), "")))
    turn = 0
    looked_at: Counter[int] = Counter()

    def next_fetch(now: int) -> None:
        looked_at[turn] += 1

    def replica() -> Any:
        following = SimpleNamespace(next_fetch=next_fetch, retry_at=None)
        syncs = SimpleNamespace(comes_before_ack=False)
        return SimpleNamespace(following=following, leader_id=fetcher.leader, syncs=syncs)

    def key(number: int) -> PartitionKey:
        return PartitionKey(TopicId(b"1" * 16), number)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            if turn == 3:
                fetcher.add(key(PARTITIONS), replica())
            await asyncio.sleep(0)

    for number in range(PARTITIONS):
        fetcher.add(key(number), replica())
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
    monkeypatch.setattr(fetching, "FetchLimits", functools.partial(FetchLimits, most_named=AT_ONCE))
    named: list[int] = []
    answered: list[int] = []
    known = replica_fetch.respond

    def noted(fetched: Any, answers: Any, endpoints: Any) -> Any:
        named.append(len(fetched.asked))
        answered.append(len(answers))
        return known(fetched, answers, endpoints)

    monkeypatch.setattr(replica_fetch, "respond", noted)
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("large", *[(1, 2)] * PARTITIONS)
        leader = cluster.nodes[1]
        produced = (leader.produce("large", b"one", partition=number) for number in range(PARTITIONS))
        assert {each.error_code for each in await asyncio.gather(*produced)} == {ErrorCode.NONE}
        await asyncio.gather(*(cluster.caught_up("large", number) for number in range(PARTITIONS)))
        assert max(named) <= AT_ONCE
        assert max(answered) <= AT_ONCE
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

    partitions = {
        ("", b"1" * 16, number): SimpleNamespace(is_accepted=True, topic_id=b"1" * 16, partition=number)
        for number in range(PARTITIONS)
    }
    session = SimpleNamespace(swept_at=0.0, partitions=partitions, changed_keys=None)
    broker = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=SimpleNamespace(throttles=None),
        replicas=SimpleNamespace(held_by_id=held_by_id),
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=1)
    fetched = SimpleNamespace(session=session)
    reading = replica_fetch._Reading(cast("Any", broker), request, cast("Any", fetched), None)
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
    keys = [("", b"1" * 16, number) for number in range(PARTITIONS)]
    changed: ChangedKeys[Any] = ChangedKeys()
    partitions = {key: SimpleNamespace(key=key, topic_id=key[1], partition=key[2]) for key in keys}
    session = SimpleNamespace(swept_at=0.0, partitions=partitions, changed_keys=changed)

    def leader_by_id(topic_id: TopicId, partition: int) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "gone")

    broker: Any = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=SimpleNamespace(throttles=None),
        replicas=SimpleNamespace(leader_by_id=leader_by_id),
    )
    fetched: Any = SimpleNamespace(session=session)
    answered: list[int] = []
    waiting = keys
    for _ in range(PARTITIONS // AT_ONCE):
        reading = replica_fetch._Reading(broker, FetchRequest(max_wait_ms=0, min_bytes=1), fetched, None)
        reading._read(waiting)
        assert len(reading.answers) <= AT_ONCE
        answered += [number for _, _, number in reading.answers]
        waiting = changed.take()
        assert sorted(waiting) == keys
    assert answered == list(range(PARTITIONS))


def test_what_has_no_room_in_an_answer_does_not_wait_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer goes out at once, even if nothing in it is new, so that the next one has the rest."""
    monkeypatch.setattr(replica_fetch, "_MOST_ANSWERED", AT_ONCE)
    broker: Any = SimpleNamespace(
        config=load("", {}, []).config,
        fetchers=SimpleNamespace(throttles=None),
        replicas=SimpleNamespace(confirmations=SimpleNamespace(is_awaited=lambda key, session: False)),
    )

    def nothing_new(self: object, partition: FetchedPartition) -> PartitionData:
        return PartitionData(partition_index=partition.partition, high_watermark=0, log_start_offset=0, records=b"")

    monkeypatch.setattr(replica_fetch._Reading, "_read_partition", nothing_new)
    partitions = [
        FetchedPartition(
            topic="",
            topic_id=TopicId(b"1" * 16),
            partition=number,
            fetch_offset=0,
            max_bytes=1,
            current_leader_epoch=0,
            last_fetched_epoch=-1,
            sent_high_watermark=0,
            sent_log_start_offset=0,
        )
        for number in range(AT_ONCE + 1)
    ]
    by_key = {partition.key: partition for partition in partitions}
    fetched: Any = SimpleNamespace(session=SimpleNamespace(partitions=by_key, changed_keys=ChangedKeys(), swept_at=0.0))
    for count, must_answer in ((AT_ONCE, False), (AT_ONCE + 1, True)):
        reading = replica_fetch._Reading(broker, FetchRequest(max_wait_ms=0, min_bytes=1), fetched, None)
        reading._read(list(by_key)[:count])
        assert reading._must_answer is must_answer
        assert not reading._has_news
