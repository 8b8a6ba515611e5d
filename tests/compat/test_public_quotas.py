"""Quotas as public clients see them: brokers throttle them, they wait, and get everything in the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.client import BlockingAdmin
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

BOUND_SECONDS = 30
VALUE = bytes(20_000)
RECORDS = 8
_names = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    """A broker whose quotas forget soon, so that no client waits for long."""
    with EmbeddedBroker(settings={"quota.window.num": "2", "controller.quota.window.num": "3"}) as started:
        yield started


@pytest.fixture
def client_id(server: EmbeddedBroker) -> Iterator[str]:
    """A client id whose quotas are removed afterwards."""
    name = f"limited-{next(_names)}-{time.time_ns()}"
    yield name
    with BlockingAdmin(bootstrap_servers=server.bootstrap) as admin:
        for found in admin.describe_client_quotas({"client-id": name}):
            admin.alter_client_quotas(found.entity, dict.fromkeys(found.values))


@pytest.fixture
def limit(server: EmbeddedBroker, client_id: str) -> Callable[..., None]:
    """Sets quotas of the client id."""

    def alter(**values: float) -> None:
        with BlockingAdmin(bootstrap_servers=server.bootstrap) as admin:
            admin.alter_client_quotas({"client-id": client_id}, values)

    return alter


def fill(server: EmbeddedBroker, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap)
    for _ in range(RECORDS):
        producer.send(topic, VALUE)
    producer.flush(BOUND_SECONDS)
    producer.close()


def test_kafka_python_produces_within_its_quota(
    server: EmbeddedBroker, client_id: str, limit: Callable[..., None]
) -> None:
    limit(producer_byte_rate=len(VALUE) * 4)
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, client_id=client_id, acks=1, linger_ms=0)
    sent = [producer.send(client_id, VALUE).get(BOUND_SECONDS) for _ in range(RECORDS)]
    assert [each.offset for each in sent] == list(range(RECORDS))
    told = producer.metrics()["producer-metrics"]
    producer.close()
    assert told["throttle-time-max"] > 0


def test_kafka_python_consumes_everything_within_its_quota(
    server: EmbeddedBroker,
    client_id: str,
    limit: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(server, client_id)
    limit(consumer_byte_rate=len(VALUE) * 4)
    consumer = kafka.KafkaConsumer(
        client_id,
        bootstrap_servers=server.bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2 * len(VALUE),
        consumer_timeout_ms=BOUND_SECONDS * 1000,
    )
    found = list(itertools.islice(consumer, RECORDS))
    assert [record.offset for record in found] == list(range(RECORDS))
    consumer.close()
    assert any(
        message.endswith(" ms)") and "FetchResponse throttled by broker" in message for message in caplog.messages
    )


def test_librdkafka_produces_and_consumes_within_its_quota(
    server: EmbeddedBroker, client_id: str, limit: Callable[..., None]
) -> None:
    rate = len(VALUE) * 4
    limit(producer_byte_rate=rate, consumer_byte_rate=rate)
    told: list[confluent_kafka.ThrottleEvent] = []
    common = {"bootstrap.servers": server.bootstrap, "client.id": client_id, "throttle_cb": told.append}
    producer = confluent_kafka.Producer({**common, "linger.ms": 0, "acks": 1})
    for _ in range(RECORDS):
        producer.produce(client_id, VALUE)
        assert producer.flush(BOUND_SECONDS) == 0
    produced = [event.throttle_time for event in told]
    assert max(produced) > 0
    told.clear()
    consumer = confluent_kafka.Consumer(
        {**common, "group.id": client_id, "auto.offset.reset": "earliest", "fetch.message.max.bytes": 2 * len(VALUE)}
    )
    consumer.subscribe([client_id])
    found = []
    give_up_at = time.monotonic() + BOUND_SECONDS
    while len(found) < RECORDS and time.monotonic() < give_up_at:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.offset())
    consumer.close()
    assert found == list(range(RECORDS))
    assert any(event.throttle_time > 0 for event in told)


def test_topics_beyond_the_quota_are_refused_or_made_and_waited_for(
    server: EmbeddedBroker, client_id: str, limit: Callable[..., None]
) -> None:
    limit(controller_mutation_rate=1)
    librdkafka = AdminClient({"bootstrap.servers": server.bootstrap, "client.id": client_id})
    name = f"{client_id}-a"  # by a version that cannot be refused
    assert librdkafka.create_topics([NewTopic(name, 31, 1)])[name].result(BOUND_SECONDS) is None
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=server.bootstrap, client_id=client_id)
    with pytest.raises(kafka.errors.ThrottlingQuotaExceededError, match="The throttling quota has been exceeded"):
        admin.create_topics([kafka.admin.NewTopic(f"{client_id}-b", 1, 1)])
    admin.close()


def test_a_share_of_time_is_told_to_every_client(
    server: EmbeddedBroker, client_id: str, limit: Callable[..., None]
) -> None:
    limit(request_percentage=0.0001)
    told: list[confluent_kafka.ThrottleEvent] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap, "client.id": client_id, "throttle_cb": told.append}
    )
    producer.produce(client_id, b"value")
    assert producer.flush(BOUND_SECONDS) == 0
    assert [event.throttle_time for event in told if event.throttle_time > 0]
    assert all(event.throttle_time <= 1.0 for event in told)
