"""Requests that are dropped, delayed, held and refused, as clients that are not ours live through it.

A test with another number of nodes has its own cluster.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_request_header, decode_response_header, encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.schema import REQUIRED, ZERO_UUID, Array, Fixed, Nested, Sized, bytestring, decode, fields
from kraftpy.protocol.schema import records as records_wire
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.asking import ask
from kraftpy.testing.bad_answers import can_fail, failed
from kraftpy.testing.rules import Hit, Rule, claim

BOUND_SECONDS = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert "Traceback" not in running.log_text


class Writer:
    """An idempotent producer of librdkafka's, and what became of its records."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "retry.backoff.ms": 20, **settings}
        )

    def send(self, topic: str, value: bytes) -> None:
        def done(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.append(value)
            else:
                self.failed.append(str(error))

        self._producer.produce(topic, value, partition=0, on_delivery=done)
        self._producer.poll(0)

    def poll(self, seconds: float = 0.0) -> None:
        self._producer.poll(seconds)

    def flush(self) -> None:
        assert self._producer.flush(BOUND_SECONDS) == 0


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The first values of partition 0 and what there is beyond them, as kafka-python reads them."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest")
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while consumer.position(partition) < max(end, count):
            assert time.monotonic() < deadline, found
            found += [record.value for batch in consumer.poll(100).values() for record in batch]
        return found
    finally:
        consumer.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_a_lost_answer_makes_the_producer_retry_and_nothing_is_there_twice(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    writer.send("lost-answer", b"0")
    writer.flush()
    with broker.drop("Produce", response=True, count=2) as fault:
        writer.send("lost-answer", b"1")
        fault.wait(2)
        writer.flush()
        assert fault.hits == [Hit(node=1, what="PRODUCE", client_id="rdkafka")] * 2
    writer.send("lost-answer", b"2")
    writer.flush()
    assert writer.acknowledged == [b"0", b"1", b"2"]
    assert read_all(broker.bootstrap, "lost-answer", 3) == [b"0", b"1", b"2"]


def test_without_idempotence_a_lost_answer_is_a_duplicate(broker: EmbeddedBroker) -> None:
    """The test above would see this if the broker ignored sequence numbers."""
    writer = Writer(broker.bootstrap, **{"enable.idempotence": False})
    with broker.drop("Produce", response=True, count=1) as fault:
        writer.send("duplicate", b"0")
        fault.wait()
        writer.flush()
    assert read_all(broker.bootstrap, "duplicate", 2) == [b"0", b"0"]


def test_a_lost_request_has_no_effect(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap, **{"enable.idempotence": False, "retries": 0})
    with broker.drop("produce", count=1) as fault:
        writer.send("lost-request", b"0")
        fault.wait()
        writer.flush()
    assert writer.failed
    writer.send("lost-request", b"1")
    writer.flush()
    assert read_all(broker.bootstrap, "lost-request", 1) == [b"1"]


def test_a_group_is_found_in_the_end(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    writer.send("found", b"0")
    writer.flush()
    with broker.drop("FindCoordinator", count=3) as fault:
        consumer = kafka.KafkaConsumer(
            "found",
            bootstrap_servers=broker.bootstrap,
            group_id="found",
            auto_offset_reset="earliest",
            retry_backoff_ms=10,
            reconnect_backoff_ms=10,
        )
        deadline = time.monotonic() + BOUND_SECONDS
        found: list[bytes] = []
        while not found:
            assert time.monotonic() < deadline
            found += [record.value for batch in consumer.poll(100).values() for record in batch]
        assert found == [b"0"]
        assert len(fault.hits) == 3
        consumer.commit()
        consumer.close()


async def test_an_error_is_what_the_client_is_told(broker: EmbeddedBroker) -> None:
    with broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", count=2) as fault:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=10) as producer:
            await producer.send_and_wait("refused", b"0", partition=0)
        assert len(fault.hits) == 2
    with broker.fail("Produce", "MESSAGE_TOO_LARGE"):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            with pytest.raises(aiokafka.errors.MessageSizeTooLargeError):
                await producer.send_and_wait("refused", b"1", partition=0)
    assert read_all(broker.bootstrap, "refused", 1) == [b"0"]


async def test_an_error_after_the_effect(broker: EmbeddedBroker) -> None:
    with broker.fail("Produce", "MESSAGE_TOO_LARGE", response=True, count=1):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            with pytest.raises(aiokafka.errors.MessageSizeTooLargeError):
                await producer.send_and_wait("written-all-the-same", b"0", partition=0)
    assert read_all(broker.bootstrap, "written-all-the-same", 1) == [b"0"]


@pytest.mark.parametrize("library", ["kafka-python", "confluent-kafka"])
def test_a_group_gets_past_every_error_that_is_worth_another_try(broker: EmbeddedBroker, library: str) -> None:
    topic = f"worth-another-try-{library}"
    writer = Writer(broker.bootstrap)
    for number in range(3):
        writer.send(topic, b"%d" % number)
    writer.flush()
    faults = [
        broker.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", count=2),
        broker.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", count=1),
        broker.fail("SyncGroup", "REBALANCE_IN_PROGRESS", count=1),
        broker.fail("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS", count=1),
        broker.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER", count=1),
        broker.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", count=2),
        broker.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", count=1),
    ]
    try:
        consume = consumed_by_kafka_python if library == "kafka-python" else consumed_by_confluent
        assert consume(broker.bootstrap, topic, 3) == [b"0", b"1", b"2"]
        assert [len(fault.hits) for fault in faults] == [2, 1, 1, 1, 1, 2, 1]
    finally:
        broker.heal()


def consumed_by_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        enable_auto_commit=False,
    )
    assert consumer.partitions_for_topic(topic)  # a leader without metadata assigns nothing, for minutes
    found: list[bytes] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [record.value for batch in consumer.poll(100).values() for record in batch]
    consumer.commit()
    consumer.close()
    return found


def consumed_by_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [message.value() or b"" for message in consumer.consume(10, 0.1) if message.error() is None]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_metadata_with_an_error_still_has_the_brokers(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    writer.send("forbidden", b"0")
    writer.flush()
    with broker.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED"):
        seen = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics("forbidden", timeout=BOUND_SECONDS)
    assert set(seen.brokers) == {1}
    assert seen.topics["forbidden"].error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_held_request_goes_on_when_it_is_released(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    writer.send("held", b"0")
    writer.flush()
    with broker.hold("Produce", count=1) as fault:
        writer.send("held", b"1")
        fault.wait()
        assert read_all(broker.bootstrap, "held", 1) == [b"0"], "nothing is written yet"
        writer.poll()
        assert writer.acknowledged == [b"0"]
    writer.flush()
    with broker.hold("Produce", response=True, count=1) as fault:
        writer.send("held", b"2")
        fault.wait()
        assert read_all(broker.bootstrap, "held", 3) == [b"0", b"1", b"2"], "written, and not answered"
        writer.poll()
        assert writer.acknowledged == [b"0", b"1"]
    writer.flush()
    assert writer.acknowledged == [b"0", b"1", b"2"]


def test_a_delay_ends_with_its_fault(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    with broker.delay("Produce", seconds=10 * BOUND_SECONDS) as fault:
        writer.send("delayed", b"0")
        fault.wait()
    writer.flush()
    with broker.delay("Produce", seconds=0.05, count=1) as fault:
        began = time.monotonic()
        writer.send("delayed", b"1")
        writer.flush()
        assert time.monotonic() - began >= 0.05
        assert len(fault.hits) == 1
    assert writer.acknowledged == [b"0", b"1"]


def test_only_the_client_that_is_meant(broker: EmbeddedBroker) -> None:
    meant = Writer(broker.bootstrap, **{"client.id": "meant"})
    other = Writer(broker.bootstrap, **{"client.id": "other"})
    with broker.hold("Produce", client_id="meant") as fault:
        meant.send("two-clients", b"meant")
        fault.wait()
        other.send("two-clients", b"other")
        other.flush()
        assert {hit.client_id for hit in fault.hits} == {"meant"}
    meant.flush()
    assert read_all(broker.bootstrap, "two-clients", 2) == [b"other", b"meant"]


def test_faults_add_up_and_are_healed_one_by_one(broker: EmbeddedBroker) -> None:
    writer = Writer(broker.bootstrap)
    writer.send("both", b"0")
    writer.flush()
    requests, answers = broker.hold("Produce"), broker.hold("Produce", response=True)
    writer.send("both", b"1")
    requests.wait()
    assert not answers.hits
    requests.heal()
    answers.wait()
    assert requests.is_over
    assert requests.hits, "still known"
    assert read_all(broker.bootstrap, "both", 2) == [b"0", b"1"]
    broker.heal()
    assert answers.is_over
    writer.flush()
    assert writer.acknowledged == [b"0", b"1"]
    answers.heal()


def test_a_count_is_of_all_brokers_together_and_outlives_a_node() -> None:
    with Cluster(brokers=2) as cluster:
        one, two = cluster.address(1), cluster.address(2)
        fault = cluster.drop("Metadata", count=3)
        assert [is_answered(address) for address in (one, two, one, two, one)] == [False, False, False, True, True]
        assert [hit.node for hit in fault.hits] == [1, 2, 1]
        again = cluster.drop("Metadata", 2, count=2)
        assert [is_answered(address) for address in (one, two)] == [True, False]
        cluster.kill(2)
        cluster.start(2)
        assert [is_answered(address) for address in (two, two)] == [False, True]
        assert [hit.node for hit in again.hits] == [2, 2]


def is_answered(address: str) -> bool:
    """Return whether a Metadata request from a new client is answered before its connection is closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), BOUND_SECONDS) as connection:
        connection.sendall(encode_request(ApiKey.METADATA, 9, 1, "nobody", MetadataRequest(topics=[])))
        try:
            return connection.recv(1) != b""
        except ConnectionResetError:
            return False


async def test_as_coroutines() -> None:
    async with Cluster(brokers=1) as cluster:  # noqa: SIM117 - the second needs the first
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            async with cluster.hold("Produce") as fault:
                sent = await producer.send("events", b"0", partition=0)
                await fault.wait()
                assert not sent.done()
            assert (await sent).offset == 0
            fault = await cluster.drop("Produce", 1, count=1)
            await producer.send_and_wait("events", b"1", partition=0)
            await fault.heal()
            assert len(fault.hits) == 1
            async with asyncio.TaskGroup() as tasks:
                killing = tasks.create_task(cluster.kill(1))
            async with killing.result():
                assert not cluster.blocking.is_running(1)
            assert cluster.blocking.is_running(1)


def test_what_makes_no_sense_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match=r"unknown API 'Produced'; expected one of Produce, Fetch, ListOffsets"):
        broker.drop("Produced")
    with pytest.raises(ValueError, match="the only broker is 1, not 2"):
        broker.drop("Produce", 2)
    with pytest.raises(ValueError, match="count=0"):
        broker.drop("Produce", count=0)
    with pytest.raises(KeyError):
        broker.fail("Produce", "SOMETHING_ELSE")
    with broker.drop(ApiKey.PRODUCE) as fault, pytest.raises(TimeoutError, match="drop Produce requests on 1: met 0"):
        fault.wait(timeout=0.01)


def test_what_the_test_itself_asks_is_spared(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    with broker.drop() as fault:
        answer = ask((host, int(port)), ApiKey.METADATA, 9, MetadataRequest(topics=[]), timeout=BOUND_SECONDS)
        assert [each.node_id for each in answer.brokers] == [1]
        assert not fault.hits


# The shape of an answer with an error, for each API.


def test_every_api_that_has_a_place_for_an_error_can_fail() -> None:
    assert {key.name for key in map(ApiKey, APIS) if not can_fail(key)} == set()


PRODUCED = ProduceRequest(
    acks=-1,
    timeout_ms=1,
    topic_data=[
        TopicProduceData(name="a", partition_data=[PartitionProduceData(index=3), PartitionProduceData(index=5)]),
        TopicProduceData(name="b", partition_data=[PartitionProduceData(index=0)]),
    ],
)


def answer_of_failure(key: ApiKey, version: int, request: object, error: ErrorCode) -> Any:
    header, body = decode_request_header(encode_request(key, version, 77, "somebody", request)[4:])
    frame = failed(header, body, int(error))
    assert frame is not None
    correlation_id, answer = decode_response_header(key, version, memoryview(frame)[4:])
    assert correlation_id == 77
    return decode(APIS[key].response, answer, version)


def test_each_partition_of_a_produce_has_the_error() -> None:
    answer = answer_of_failure(ApiKey.PRODUCE, 9, PRODUCED, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert [
        (topic.name, each.index, each.error_code) for topic in answer.responses for each in topic.partition_responses
    ] == [("a", 3, 19), ("a", 5, 19), ("b", 0, 19)]


def asked_requests() -> Iterator[tuple[ApiKey, int, object]]:
    """Every API in each of its versions, asked about one of each thing."""
    for key, api in sorted(APIS.items()):
        for version in range(api.first, api.last + 1):
            yield ApiKey(key), version, one_of_each(api.request, version)


def one_of_each(kind: type, version: int) -> Any:
    """A request, or a part of one, with one element in each list."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        if version not in field.versions:
            continue
        match field.wire:
            case Array(element=None):
                assert field.struct is not None
                values[field.name] = [one_of_each(field.struct, version)]
            case Array(element=element):
                values[field.name] = ["thing"] if isinstance(element, Sized) else [4]
            case Fixed(code="16s"):
                values[field.name] = ZERO_UUID
            case Fixed(code="?"):
                values[field.name] = False
            case Fixed():
                values[field.name] = 4 if field.default is REQUIRED else field.default
            case Sized():
                values[field.name] = b"" if field.wire in (bytestring, records_wire) else "thing"
            case Nested():
                assert field.struct is not None
                values[field.name] = one_of_each(field.struct, version)
    return kind(**values)


def errors_in(value: Any) -> list[int]:
    found: list[int] = []
    for name in getattr(value, "__slots__", ()):
        inner = getattr(value, name)
        if name in ("error_code", "partition_error_code"):
            found.append(inner)
        for each in inner if isinstance(inner, list) else [inner]:
            found += errors_in(each)
    return found


@pytest.mark.parametrize(
    ("key", "version", "request_message"),
    [pytest.param(*each, id=f"{each[0].name} v{each[1]}") for each in asked_requests() if each[0] != ApiKey.METADATA],
)
def test_an_answer_with_an_error_says_so(key: ApiKey, version: int, request_message: object) -> None:
    answer = answer_of_failure(key, version, request_message, ErrorCode.REQUEST_TIMED_OUT)
    assert ErrorCode.REQUEST_TIMED_OUT in errors_in(answer), answer


def test_hits_of_many_threads_are_all_counted(broker: EmbeddedBroker) -> None:
    """Each hit is claimed once, no matter which thread asks."""
    rule = Rule(id=1, kind="drop", hits=str(broker.data_dir / "claimed.hits"), count=40)
    claimed: list[bool] = []

    def work() -> None:
        claimed.extend([claim(rule, Hit(node=1, what="PRODUCE")) for _ in range(20)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claimed.count(True) == 40
