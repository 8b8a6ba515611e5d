"""Transactions at their edges, over the wire: what was not added, internal topics, deleted records."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator

import pytest
from broker_wire import BOUND_SECONDS, ask, connect, create_topic, produce_values
from transactional_wire import V1, V2, Version, WireProducer, described, latest

from kraftpy.client import BlockingAdmin, BlockingConsumer, TopicPartition
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kraftpy.testing.cluster import EmbeddedBroker

FEW_PARTITIONS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
both = pytest.mark.parametrize("version", [V1, V2], ids=["v1", "v2"])
_names = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=FEW_PARTITIONS) as made:
        yield made
        assert "Traceback" not in made.log_text


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(connection: socket.socket) -> str:
    name = f"t-{next(_names)}"
    create_topic(connection, name, 3)
    return name


def made(connection: socket.socket, version: Version) -> WireProducer:
    producer = WireProducer(connection, f"id-{next(_names)}", version)
    assert producer.init() is ErrorCode.NONE
    return producer


@pytest.mark.parametrize("produce", range(3, 12))
def test_what_was_not_added_is_abortable_for_clients_that_know_the_word(
    connection: socket.socket, topic: str, produce: int
) -> None:
    """KIP-890: Produce 11 and TxnOffsetCommit 4 are the first versions of clients that do, those of Kafka 3.8."""
    offsets = min(produce - 7, 4) if produce > 7 else 0
    producer = made(connection, Version(produce, 4, offsets, adds_implicitly=False))
    expected = ErrorCode.TRANSACTION_ABORTABLE if produce == 11 else ErrorCode.INVALID_TXN_STATE
    assert producer.send(topic, add=False) is expected
    assert producer.commit_offset(f"g-{next(_names)}", topic, 1) is expected
    assert producer.end(commit=False) is ErrorCode.INVALID_TXN_STATE, "nothing has begun"


def test_clients_may_not_add_partitions_of_internal_topics(connection: socket.socket, topic: str) -> None:
    producer = made(connection, V1)
    producer.add_offsets(f"g-{next(_names)}")  # so that the topic exists
    before = described(connection, producer.transactional_id).topics
    for version in range(4):
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=[0])
                for name in ("__consumer_offsets", "__transaction_state", topic)
            ],
        )
        answered = ask(connection, ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        codes = [each.results_by_partition[0].partition_error_code for each in answered.results_by_topic_v3_and_below]
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert codes == [refused, refused, ErrorCode.OPERATION_NOT_ATTEMPTED]
    assert described(connection, producer.transactional_id).topics == before
    assert producer.end(commit=False) is ErrorCode.NONE


@both
def test_readers_of_committed_records_begin_where_the_log_begins(
    broker: EmbeddedBroker, connection: socket.socket, topic: str, version: Version
) -> None:
    """Records of an open transaction were deleted: the last stable offset is not before the log's start."""
    producer = made(connection, version)
    for _ in range(3):
        assert producer.send(topic) is ErrorCode.NONE
    assert produce_values(connection, topic, b"a", b"b") == 3
    with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})
    assert [latest(connection, topic, level) for level in (0, 1)] == [5, 5]
    assert produce_values(connection, topic, b"c") == 5
    assert [latest(connection, topic, level) for level in (0, 1)] == [6, 5]
    with BlockingConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", auto_offset_reset="latest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.position(TopicPartition(topic, 0)) == 5
        assert producer.end(commit=True) is ErrorCode.NONE
        found: list[bytes | None] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while not found:
            assert time.monotonic() < deadline, "what came after is never read"
            found += [record.value for some in consumer.getmany(timeout_ms=500).values() for record in some]
        assert found == [b"c"]
