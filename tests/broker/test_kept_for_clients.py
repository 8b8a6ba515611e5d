"""Bounds on a broker's memory of clients, besides groups: producers, verifications, partitions of sessions."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from broker_wire import BOUND_SECONDS, StartBroker, ask, connect, create_topic, produce, produce_values, read_all
from one_broker import context, create, running

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.produce import produce as handle_produce
from kraftpy.broker.replication.fetch_sessions import EVICTION_MS, FetchSessions
from kraftpy.broker.share.sessions import SessionKey, SharedPartition, ShareSessions
from kraftpy.broker.upkeep.producer_limit import forget_producers_beyond
from kraftpy.log.results import Origin
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import share_fetch
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.share_fetch import ShareFetchRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Millis

LIMIT = 100


def batch_of(producer_id: int, sequence: int = 0, *, is_transactional: bool = False) -> bytes:
    return encode_batch(
        [(0, None, b"x", ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


# --- producers --------------------------------------------------------------------------------------------------------


async def test_producers_that_are_silent_for_longest_are_forgotten_first(tmp_path: Path) -> None:
    async with running(tmp_path, f"kraftpy.max.producers={LIMIT}", "num.partitions=8") as broker:
        await create(broker, ["a"], partitions=8)
        now = broker.clock.now()
        for number in range(2 * LIMIT):
            leader = broker.replicas.leader("a", number % 8)
            leader.append(batch_of(number + 1), Origin.CLIENT, Millis(now + number))
        gone = await forget_producers_beyond(broker.replicas, LIMIT)
        kept = {each.producer_id for replica in broker.replicas for each in replica.log.producers.describe()}
        assert gone == 2 * LIMIT - len(kept)
        assert 0.8 * LIMIT <= len(kept) <= LIMIT
        assert kept == set(range(2 * LIMIT - len(kept) + 1, 2 * LIMIT + 1)), "those that wrote last"
        assert await forget_producers_beyond(broker.replicas, LIMIT) == 0, "there is room for more now"


async def test_no_partition_keeps_more_than_its_share_and_open_transactions_stay(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["a", "b"])
        now = broker.clock.now()
        a, b = broker.replicas.leader("a", 0), broker.replicas.leader("b", 0)
        b.append(batch_of(1_000), Origin.CLIENT, now)
        verification = a.log.producers.verification(999, 0)
        assert verification is not None
        a.append(batch_of(999, is_transactional=True), Origin.CLIENT, now)
        for number in range(LIMIT // 2):
            a.append(batch_of(number + 1), Origin.CLIENT, Millis(now + 1 + number))
        assert await forget_producers_beyond(broker.replicas, LIMIT) > 0
        assert len(a.log.producers) <= LIMIT // 4
        assert a.log.producers.first_open_offset == 0
        assert [each.producer_id for each in b.log.producers.describe()] == [1_000], "it is of another partition"


def test_a_producer_that_was_forgotten_goes_on_and_what_it_wrote_stays(start_broker: StartBroker) -> None:
    server = start_broker(settings={"kraftpy.max.producers": str(LIMIT)})
    with connect(server.bootstrap) as connection:
        create_topic(connection, "a")
        first = ask(connection, ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None)).producer_id
        assert produce(connection, "a", batch_of(first)).error_code == ErrorCode.NONE
        sent, deadline = 1, time.monotonic() + BOUND_SECONDS
        while (
            again := produce(connection, "a", batch_of(first))
        ).base_offset == 0:  # a duplicate as long as it is known
            assert time.monotonic() < deadline, "it is never forgotten"
            for _ in range(LIMIT):
                assert produce(connection, "a", batch_of(first + 1 + sent)).error_code == ErrorCode.NONE
                sent += 1
        assert again.error_code == ErrorCode.NONE
        assert produce(connection, "a", batch_of(first, 1)).error_code == ErrorCode.NONE
        assert len(read_all(server.bootstrap, "a")) == sent + 2


# --- verifications ----------------------------------------------------------------------------------------------------


async def test_nothing_is_kept_of_a_transactional_write_that_was_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create(broker, ["a"])
        for producer_id in range(1, 20):
            assert await write_in_transaction(broker, producer_id) is not ErrorCode.NONE
        assert broker.replicas.leader("a", 0).log.producers._verifications == {}


async def write_in_transaction(broker: Broker, producer_id: int) -> ErrorCode:
    data = PartitionProduceData(index=0, records=memoryview(bytearray(batch_of(producer_id, is_transactional=True))))
    request = ProduceRequest(
        transactional_id="nobody",
        acks=-1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name="a", partition_data=[data])],
    )
    answered = await handle_produce(broker, request, context(ApiKey.PRODUCE, 9))
    assert answered is not None
    return ErrorCode.of(answered.responses[0].partition_responses[0].error_code)


# --- fetch sessions ---------------------------------------------------------------------------------------------------


def sessions(most: int) -> FetchSessions:
    ids = itertools.count(1)
    return FetchSessions(100, lambda: next(ids), most)


def fetching(session: int, epoch: int, *partitions: int, forget: tuple[int, ...] = ()) -> FetchRequest:
    wanted = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in partitions]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=wanted)] if wanted else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
    )


def test_sessions_remember_no_more_partitions_than_they_may() -> None:
    store = sessions(10)
    first = store.open(fetching(0, 0, *range(8)), 12, Millis(0))
    assert first.session_id == 1
    second = store.open(fetching(0, 0, *range(3)), 12, Millis(0))
    assert (second.session_id, len(second.partitions)) == (0, 3), "it is served, without a session"
    assert store.open(fetching(1, 1, forget=(0, 1)), 12, Millis(0)).session_id == 1
    assert store.open(fetching(0, 0, *range(4)), 12, Millis(0)).session_id == 2
    with pytest.raises(KafkaError) as caught:
        store.open(fetching(2, 1, 7), 12, Millis(0))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert store.open(fetching(0, 0, 1, 2, 3, 4), 12, Millis(0)).session_id == 3, "its room is free again"


def test_sessions_that_nobody_uses_make_room() -> None:
    store = sessions(10)
    store.open(fetching(0, 0, *range(8)), 12, Millis(0))
    late = Millis(EVICTION_MS + 1)
    assert store.open(fetching(0, 0, *range(8)), 12, late).session_id == 2
    assert len(store) == 1


def test_a_follower_may_have_any_number_of_partitions() -> None:
    store = sessions(10)
    assert store.open(fetching(0, 0, *range(50)), 12, Millis(0), follower_id=2).session_id == 1
    assert store.open(fetching(0, 0, *range(10)), 12, Millis(0)).session_id == 2


def sharing(*partitions: int, forget: tuple[int, ...] = ()) -> ShareFetchRequest:
    return ShareFetchRequest(
        group_id="g",
        member_id="m",
        max_wait_ms=0,
        min_bytes=1,
        max_records=1,
        batch_size=1,
        topics=[
            share_fetch.FetchTopic(
                topic_id=bytes(16), partitions=[share_fetch.FetchPartition(partition_index=each) for each in partitions]
            )
        ],
        forgotten_topics_data=[share_fetch.ForgottenTopic(topic_id=bytes(16), partitions=list(forget))]
        if forget
        else [],
    )


def test_share_sessions_have_the_same_limit_and_say_so() -> None:
    store = ShareSessions(10, 10)
    one, other = SessionKey("g", "m"), SessionKey("g", "n")
    session = store.open(one, "connection")
    store.change(session, sharing(*range(8), forget=(0,)))
    assert list(session.partitions) == [SharedPartition(bytes(16), each) for each in range(1, 8)]  # type: ignore[arg-type]
    second = store.open(other, "connection")
    with pytest.raises(KafkaError, match=r"kraftpy\.fetch\.session\.partitions\.max=10") as caught:
        store.change(second, sharing(*range(4)))
    assert caught.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert not second.partitions, "nothing is added of what is refused"
    store.close(one)
    store.change(second, sharing(*range(10)))


def test_records_go_on_where_no_session_may_remember_them(start_broker: StartBroker) -> None:
    server = start_broker(settings={"kraftpy.fetch.session.partitions.max": "1"})
    with connect(server.bootstrap) as connection:
        create_topic(connection, "a", partitions=2)
        produce_values(connection, "a", b"one")
        wanted = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1_000) for each in range(2)]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=0,
            session_epoch=0,
            topics=[FetchTopic(topic="a", partitions=wanted)],
        )
        answered = ask(connection, ApiKey.FETCH, 12, request)
        assert answered.session_id == 0
        assert [len(each.records or b"") > 0 for each in answered.responses[0].partitions] == [True, False]


# --- what the log says ------------------------------------------------------------------------------------------------


def test_a_refusal_is_one_line_that_names_the_setting_and_prints_no_name_raw(start_broker: StartBroker) -> None:
    server = start_broker(settings={"kraftpy.group.coordinator.max.bytes": "1000"})
    with connect(server.bootstrap) as connection:
        create_topic(connection, "a")
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        deadline = time.monotonic() + 20
        while ask(connection, ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0].error_code != ErrorCode.NONE:
            assert time.monotonic() < deadline
        for name in ("one\nforged line", "two\x1b[31m", "three" * 2_000):
            answered = ask(
                connection,
                ApiKey.JOIN_GROUP,
                3,
                JoinGroupRequest(
                    group_id=name,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(2_000))],
                ),
            )
            assert ErrorCode.of(answered.error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED
    told = [line for line in server.log_text.splitlines() if "there is no room" in line]
    assert len(told) == 1
    assert "kraftpy.group.coordinator.max.bytes=1000" in told[0]
    assert r"one\nforged line" in told[0]
    assert "\x1b" not in server.log_text
