"""ShareFetch and ShareAcknowledge over the wire: sessions, acquiring, acknowledging, waiting (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from broker_wire import BOUND_SECONDS, StartBroker, ask, connect, create_topic, produce_values, say_to_be_a_broker
from share_wire import ACCEPT, REJECT, RELEASE, RENEW, Member, acquired, begin, set_group

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import read_share_group_state_summary as summary
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.testing.cluster import EmbeddedBroker


@pytest.fixture(autouse=True)
def _members_are_gone_afterwards() -> Iterator[None]:
    yield
    while Member.there:
        Member.there.pop().vanish()


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> tuple[str, str, bytes]:
    """A topic with a group that begins at its first record: name, group, topic id."""
    name = f"share-{time.time_ns()}"
    with connect(kraftpy_server.bootstrap) as connection:
        topic_id = create_topic(connection, name, 2)
        for partition in range(2):
            begin(connection, f"group-{name}", topic_id, partition, data=kraftpy_server.data_dir / "logs")
    return name, f"group-{name}", topic_id


Topic = tuple[str, str, bytes]


def produce(server: EmbeddedBroker, name: str, count: int, partition: int = 0) -> None:
    with connect(server.bootstrap) as connection:
        produce_values(connection, name, *(b"value %d" % number for number in range(count)), partition=partition)


def done_until(server: EmbeddedBroker, group: str, topic_id: bytes) -> int:
    """The start offset that describing the group reports."""
    part = summary.PartitionData(partition=0, leader_epoch=-1)
    asked = summary.ReadShareGroupStateSummaryRequest(
        group_id=group, topics=[summary.ReadStateSummaryData(topic_id=topic_id, partitions=[part])]
    )
    with connect(server.bootstrap) as connection:
        refused = ask(connection, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, asked).results[0].partitions[0]
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "a client asked"
        say_to_be_a_broker(connection, server.data_dir / "logs")
        answered = ask(connection, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, asked).results[0].partitions[0]
    assert answered.error_code == ErrorCode.NONE
    return int(answered.start_offset)


def test_two_members_share_a_partition(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    name, group, topic_id = topic
    first, second = (Member(kraftpy_server.bootstrap, group, topic_id) for _ in range(2))
    produce(kraftpy_server, name, 3)
    assert first.take(3) == [(0, 1), (1, 1), (2, 1)]
    produce(kraftpy_server, name, 2)
    assert second.take(2) == [(3, 1), (4, 1)]
    assert first.acknowledge([(0, 2, [ACCEPT, RELEASE, REJECT])]) == ErrorCode.NONE
    assert second.take(1) == [(1, 2)]
    assert second.acknowledge([(1, 1, [ACCEPT]), (3, 4, [ACCEPT])]) == ErrorCode.NONE
    assert done_until(kraftpy_server, group, topic_id) == 5
    first.close()
    second.close()


def test_acknowledgements_come_with_the_next_fetch(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    name, group, topic_id = topic
    member = Member(kraftpy_server.bootstrap, group, topic_id)
    produce(kraftpy_server, name, 2)
    member.take(2)
    produce(kraftpy_server, name, 1)
    part = member.fetch(acknowledge=[(0, 1, [ACCEPT])], version=1)
    assert part.acknowledge_error_code == ErrorCode.NONE
    assert [(each.first_offset, each.last_offset) for each in part.acquired_records] == [(2, 2)]
    part = member.fetch(acknowledge=[(0, 2, [ACCEPT])])
    assert part.acknowledge_error_code == ErrorCode.NONE, "what is before the start is passed over"
    part = member.fetch(acknowledge=[(2, 7, [ACCEPT])])
    assert part.acknowledge_error_code == ErrorCode.INVALID_REQUEST, "and what was never delivered is no part of it"
    assert done_until(kraftpy_server, group, topic_id) == 3


def test_what_is_not_a_members_is_refused(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    name, group, topic_id = topic
    first, second = (Member(kraftpy_server.bootstrap, group, topic_id) for _ in range(2))
    produce(kraftpy_server, name, 4)
    first.take(4)
    second.fetch()
    assert second.acknowledge([(1, 2, [ACCEPT])]) == ErrorCode.INVALID_RECORD_STATE
    assert first.acknowledge([(1, 2, [ACCEPT]), (2, 3, [ACCEPT])]) == ErrorCode.INVALID_RECORD_STATE, "said twice"
    assert first.acknowledge([(0, 3, [ACCEPT, ACCEPT])]) == ErrorCode.INVALID_REQUEST
    assert first.acknowledge([(0, 3, [9])]) == ErrorCode.INVALID_REQUEST
    assert first.acknowledge([(0, 3, [RENEW])]) == ErrorCode.INVALID_REQUEST, "not said to be renewing"
    assert first.acknowledge([(3, 5, [ACCEPT])]) == ErrorCode.INVALID_REQUEST, "never delivered"
    assert first.acknowledge([(0, 3, [ACCEPT])], partition=1) == ErrorCode.INVALID_RECORD_STATE
    assert first.acknowledge([(2, 3, [ACCEPT]), (0, 1, [ACCEPT])]) == ErrorCode.NONE, "in any order"


def test_the_end_of_a_session_releases_and_counts_its_deliveries(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    """A member leaves, vanishes or opens a new session: its records are available again, counted as delivered."""
    name, group, topic_id = topic
    produce(kraftpy_server, name, 2)
    other = Member(kraftpy_server.bootstrap, group, topic_id, 1)
    other.fetch(partition=1)  # keeps the group here
    for number, end in enumerate((Member.close, Member.vanish), 1):
        member = Member(kraftpy_server.bootstrap, group, topic_id)
        assert member.take(2) == [(0, number), (1, number)]
        end(member)
    member = Member(kraftpy_server.bootstrap, group, topic_id)
    assert member.take(2) == [(0, 3), (1, 3)]
    member.epoch = 0
    assert member.take(1)[0] == (0, 4), "a session that is opened anew"


def test_session_epochs(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    _, group, topic_id = topic
    member = Member(kraftpy_server.bootstrap, group, topic_id)

    def fetched(epoch: int, **more: Any) -> ErrorCode:
        member.epoch = epoch
        return ErrorCode.of(member.fetch_all(**more).error_code)

    assert fetched(1) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert fetched(-1) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert fetched(0, acknowledge=[(0, 0, [ACCEPT])]) == ErrorCode.INVALID_REQUEST
    assert fetched(0) == ErrorCode.NONE
    assert fetched(2) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert fetched(1) == ErrorCode.NONE
    assert fetched(2, share_acquire_mode=7) == ErrorCode.INVALID_REQUEST
    member.epoch = 0
    assert member.acknowledge([(0, 0, [ACCEPT])]) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 3
    assert member.acknowledge([(0, 0, [ACCEPT])]) != ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert fetched(4) == ErrorCode.NONE
    assert fetched(-2) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert fetched(-1) == ErrorCode.NONE
    assert fetched(5) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert fetched(-2) == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.member_id = "m" * 37
    assert fetched(0) == ErrorCode.INVALID_REQUEST


def still_waits(asked: Future[Any], seconds: float = 0.3) -> bool:
    """Return whether the answer is still missing after that time."""
    return not wait([asked], timeout=seconds).done


def test_a_fetch_waits_for_records(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    name, group, topic_id = topic
    member, other = (Member(kraftpy_server.bootstrap, group, topic_id) for _ in range(2))
    opened = member.fetch(wait_ms=100)
    assert (opened.error_code, opened.acquired_records) == (0, []), "the first answer names every partition"
    assert member.fetch(wait_ms=100) is None
    with ThreadPoolExecutor(1) as waiting:
        fetched = waiting.submit(member.fetch, wait_ms=int(BOUND_SECONDS * 500))
        assert still_waits(fetched)
        produce(kraftpy_server, name, 2)
        part = fetched.result()
        assert [(each.first_offset, each.last_offset) for each in part.acquired_records] == [(0, 1)]
        other.fetch()
        fetched = waiting.submit(other.fetch, wait_ms=int(BOUND_SECONDS * 500))
        assert still_waits(fetched)
        assert member.acknowledge([(1, 1, [RELEASE])]) == ErrorCode.NONE
        part = fetched.result()
    assert [(each.first_offset, each.delivery_count) for each in part.acquired_records] == [(1, 2)]


def test_a_lock_runs_out_unless_it_is_renewed(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"group.share.record.lock.duration.ms": "3000"})
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "locked")
        begin(connection, "g", topic_id, data=broker.data_dir / "logs")
        produce_values(connection, "locked", b"0", b"1")
    slow, other = (Member(broker.bootstrap, "g", topic_id) for _ in range(2))
    assert slow.take(2) == [(0, 1), (1, 1)]
    given: list[tuple[int, int]] = []
    renewing: Any = {"is_renew_ack": True, "max_bytes": 0, "max_records": 0, "min_bytes": 0}
    deadline = time.monotonic() + BOUND_SECONDS
    while not given:
        assert time.monotonic() < deadline
        renewed_at = time.monotonic()
        response = slow.fetch_all(acknowledge=[(1, 1, [RENEW])], **renewing)
        assert response.error_code == ErrorCode.NONE
        assert response.acquisition_lock_timeout_ms == 3000
        part = other.fetch(wait_ms=200)
        given = [] if part is None else acquired(part)
    assert given == [(0, 2)]
    assert slow.acknowledge([(0, 0, [ACCEPT])]) == ErrorCode.INVALID_RECORD_STATE
    assert other.take(1) == [(1, 2)]
    assert time.monotonic() - renewed_at >= 3
    assert other.acknowledge([(0, 1, [ACCEPT])]) == ErrorCode.NONE
    assert slow.fetch_all(acknowledge=[(1, 1, [RENEW])], is_renew_ack=True).error_code == ErrorCode.INVALID_REQUEST


def test_what_is_acknowledged_survives_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "kept")
        begin(connection, "g", topic_id, data=broker.data_dir / "logs", start=-1)
        set_group(connection, "g", share_auto_offset_reset="earliest")
        produce_values(connection, "kept", *(b"%d" % number for number in range(6)))
    member = Member(broker.bootstrap, "g", topic_id)
    assert len(member.take(6)) == 6
    assert member.acknowledge([(0, 5, [ACCEPT, RELEASE, ACCEPT, REJECT, RELEASE, ACCEPT])]) == ErrorCode.NONE
    broker.kill()
    broker.start()
    member = Member(broker.bootstrap, "g", topic_id)
    assert member.take(2) == [(1, 2), (4, 2)]
    assert broker.stop() == 0


def test_where_a_group_begins(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "begun")
        for group in ("latest", "earliest", "long-ago", "an-hour"):
            begin(connection, group, topic_id, data=broker.data_dir / "logs", start=-1)
        set_group(connection, "earliest", share_auto_offset_reset="earliest")
        set_group(connection, "long-ago", share_auto_offset_reset="by_duration:P99999D")
        set_group(connection, "an-hour", share_auto_offset_reset="by_duration:PT1H")
        produce_values(connection, "begun", b"0", b"1")  # of 2023
        members = {
            group: Member(broker.bootstrap, group, topic_id) for group in ("latest", "earliest", "long-ago", "an-hour")
        }
        assert members["earliest"].take(2) == [(0, 1), (1, 1)]
        assert members["long-ago"].take(2) == [(0, 1), (1, 1)]
        for group in ("latest", "an-hour"):
            assert not members[group].fetch(wait_ms=1000).acquired_records
        produce_values(connection, "begun", b"2")
        for group in ("latest", "an-hour"):
            assert members[group].take(1) == [(2, 1)]


def test_nobody_fetches_without_state(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    """A fetch without share state, or from an unknown topic, gets its error only after the full wait."""
    name, _, topic_id = topic
    produce(kraftpy_server, name, 1)
    member = Member(kraftpy_server.bootstrap, "nobody-began", topic_id)
    began_at = time.monotonic()
    assert member.fetch(wait_ms=700).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert time.monotonic() - began_at >= 0.7
    member = Member(kraftpy_server.bootstrap, "nobody-began", b"no-such-topic-id")
    assert member.fetch(wait_ms=300).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_share_sessions_are_limited(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"group.share.max.share.sessions": "2"})
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "limited")
    members = [Member(broker.bootstrap, "g", topic_id) for _ in range(3)]
    assert [member.fetch_all().error_code for member in members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ]
    members[0].close()
    assert members[2].fetch_all().error_code == ErrorCode.NONE


def test_records_of_open_and_aborted_transactions_are_kept_from_who_reads_committed_ones(
    start_broker: StartBroker,
) -> None:
    from confluent_kafka import Producer

    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "transactions")
        for group in ("all", "committed"):
            begin(connection, group, topic_id, data=broker.data_dir / "logs")
        set_group(connection, "committed", share_isolation_level="read_committed")
        produce_values(connection, "transactions", b"0")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(BOUND_SECONDS)
    committed, everything = (Member(broker.bootstrap, group, topic_id) for group in ("committed", "all"))
    assert committed.take(1) == [(0, 1)]
    producer.begin_transaction()
    producer.produce("transactions", b"1")
    producer.flush(BOUND_SECONDS)
    assert everything.take(2) == [(0, 1), (1, 1)]
    assert committed.fetch(wait_ms=300) is None
    producer.abort_transaction(BOUND_SECONDS)
    producer.begin_transaction()
    producer.produce("transactions", b"3")
    producer.commit_transaction(BOUND_SECONDS)
    assert committed.take(1) == [(3, 1)]
    assert everything.take(1) == [(3, 1)]
    assert committed.acknowledge([(0, 0, [ACCEPT]), (3, 3, [ACCEPT])]) == ErrorCode.NONE
    assert done_until(broker, "committed", topic_id) >= 4, "nothing waits for what nobody is to have"


def test_limits_of_a_fetch(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    name, group, topic_id = topic
    for _ in range(3):
        produce(kraftpy_server, name, 10)
    member = Member(kraftpy_server.bootstrap, group, topic_id)
    assert len(member.take(1, max_records=3, share_acquire_mode=1)) == 3
    assert len(member.take(1, max_records=3)) == 7, "to the end of the batch"
    part = member.fetch(batch_size=5, max_records=15)
    assert [(each.first_offset, each.last_offset) for each in part.acquired_records] == [(10, 19), (20, 29)]
    produce(kraftpy_server, name, 1)
    assert member.fetch(wait_ms=300, min_bytes=1 << 19).acquired_records[0].first_offset == 30, "time is up"
    assert member.fetch(max_records=0) is None


def test_what_is_not_needed_of_the_state_is_deleted(start_broker: StartBroker) -> None:
    broker = start_broker(
        settings={
            "share.coordinator.state.topic.prune.interval.ms": "200",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.snapshot.update.records.per.snapshot": "4",
        }
    )
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "pruned")
        begin(connection, "g", topic_id, data=broker.data_dir / "logs")
        produce_values(connection, "pruned", *(b"%d" % number for number in range(20)))
        member = Member(broker.bootstrap, "g", topic_id)
        member.take(20)
        for offset in range(1, 20):
            assert member.acknowledge([(offset, offset, [ACCEPT])]) == ErrorCode.NONE
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            wanted = ListOffsetsPartition(partition_index=0, timestamp=-2)
            asked = ListOffsetsRequest(topics=[ListOffsetsTopic(name="__share_group_state", partitions=[wanted])])
            found = ask(connection, ApiKey.LIST_OFFSETS, 6, asked).topics[0].partitions[0]
            assert found.error_code == ErrorCode.NONE
            if found.offset >= 10:
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
    broker.kill()
    broker.start()
    member = Member(broker.bootstrap, "g", topic_id)
    assert member.take(1) == [(0, 1)], "what is left says it all"
    assert member.fetch(wait_ms=300) is None


def test_the_first_answer_of_a_session_names_every_partition(kraftpy_server: EmbeddedBroker, topic: Topic) -> None:
    """Also one without records, as in Kafka; later answers name only those with something to tell."""
    _, group, topic_id = topic
    member = Member(kraftpy_server.bootstrap, group, topic_id)

    def named() -> list[int]:
        answer = member.fetch_all(wait_ms=100)
        assert answer.error_code == ErrorCode.NONE
        return [part.partition_index for each in answer.responses for part in each.partitions]

    deadline = time.monotonic() + BOUND_SECONDS
    while named() != [0]:  # until its state is known
        assert time.monotonic() < deadline
        member.epoch = 0
    assert named() == []
