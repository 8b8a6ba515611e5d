"""Shared by the tests of secured listeners: settings, users, and a round trip by each client, ours and others'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftpy.broker.containment import Complaints
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.peers import Outgoing
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.security.listeners import SecureListeners
from kraftpy.client import Consumer, OffsetSpec, Producer, RangeReader, TopicPartition
from kraftpy.client.connection import Connection
from kraftpy.client.runtime import RealRuntime
from kraftpy.client.security import Login, Security
from kraftpy.config import BrokerConfig
from kraftpy.metadata.image import Image
from kraftpy.testing import BrokerDied, Cluster, EmbeddedBroker
from tests.security.certificates import HOST
from tests.security.wire import BOUND_SECONDS, PASSWORD

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def listener_settings(ports: Mapping[str, int], protocols: Mapping[str, str]) -> dict[str, str]:
    """The settings of listeners, by their names in lower case."""
    return {
        "listeners": ",".join(f"{name.upper()}://{HOST}:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


def reason_not_to_start(settings: dict[str, str]) -> str:
    """Start a broker that cannot use its settings; return the reason that it gives."""
    with pytest.raises(BrokerDied) as died, EmbeddedBroker(settings=settings):
        pass
    return str(died.value)


def secure_listeners(
    config: BrokerConfig, *, links: Links | None = None, outgoing: Outgoing | None = None
) -> SecureListeners:
    """The listeners' security, as a starting broker makes it."""
    broker: Any = SimpleNamespace(
        config=config,
        clock=SystemClock(),
        complaints=Complaints(),
        metadata=SimpleNamespace(image=Image()),
        settings=SimpleNamespace(static=config, then=lambda listener: None),
        outgoing=outgoing or Outgoing(config),
        links=links,
        authorizer=None,
    )
    return SecureListeners(broker)


def add_users(bootstrap: str, *names: str, password: str = PASSWORD) -> None:
    """Give users a credential for each SCRAM mechanism."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        upsertions = [
            UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            for name in names
        ]
        for done in admin.alter_user_scram_credentials(upsertions).values():
            done.result(BOUND_SECONDS)


async def open_connection(port: int, login: Login) -> Connection:
    """A connection of our client, logged in."""
    return await Connection.open(
        RealRuntime(),
        HOST,
        port,
        client_id="renewing",
        request_timeout_ms=20_000,
        setup_timeout_ms=20_000,
        security=Security(login=login),
    )


# --- a record is written to a topic and read back, by each client -------------------------------------


def round_trip_by_confluent(options: dict[str, Any], topic: str) -> None:
    producer = confluent_kafka.Producer(options)
    producer.poll(0)  # which asks for a token, if the client has to show one
    producer.produce(topic, b"value")
    assert producer.flush(BOUND_SECONDS) == 0
    consumer = confluent_kafka.Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(BOUND_SECONDS)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()


def round_trip_by_kafka_python(options: dict[str, Any], topic: str) -> None:
    producer = kafka.KafkaProducer(**options)
    producer.send(topic, b"value").get(BOUND_SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **options)
    deadline = time.monotonic() + BOUND_SECONDS
    found: list[bytes] = []
    while not found:
        assert time.monotonic() < deadline
        found = [record.value for batch in consumer.poll(100).values() for record in batch]
    assert found == [b"value"]
    consumer.close()


async def round_trip_by_aiokafka(options: dict[str, Any], topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(**options) as producer:
        await producer.send_and_wait(topic, b"value")
    async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options) as consumer:
        async with asyncio.timeout(BOUND_SECONDS):
            assert (await consumer.getone()).value == b"value"


async def round_trip_by_ours(options: dict[str, Any], topic: str) -> None:
    async with Producer(**options) as producer:
        await (await producer.send(topic, b"value"))
    async with Consumer(topic, group_id=topic, auto_offset_reset="earliest", **options) as consumer:
        async with asyncio.timeout(BOUND_SECONDS):
            assert (await anext(consumer)).value == b"value"
    partition = TopicPartition(topic, 0)
    with RangeReader(**options) as reader:
        found = reader.offsets({partition: OffsetSpec.LATEST})[partition]
        assert found is not None
        assert found.offset == 1


# --- many records -------------------------------------------------------------------------------------


def produce_for(seconds: float, options: dict[str, Any], topic: str) -> None:
    """Produce records one after the other for a while; each must be delivered."""
    producer = confluent_kafka.Producer(options)
    deadline = time.monotonic() + seconds
    delivered: list[object] = []
    while time.monotonic() < deadline:
        producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(BOUND_SECONDS) == 0
    assert set(delivered) == {None}


def replicate(cluster: Cluster) -> None:
    """Produce records that every broker of the cluster must fetch before they are acknowledged."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic("replicated", 3, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([topic])["replicated"].result(BOUND_SECONDS)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    errors: list[object] = []
    for number in range(30):
        producer.produce("replicated", b"x", partition=number % 3, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(2 * BOUND_SECONDS) == 0
    assert errors == [None] * 30
