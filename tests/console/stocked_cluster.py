"""A cluster of three nodes with users, and with something to see on every page of the console."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kraftpy.audit.counts import Tally
from kraftpy.client import (
    AclBinding,
    AclOperation,
    AclResource,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    BlockingShareConsumer,
    NewTopic,
)
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing import Cluster

USERS = {"alice": "alice's password", "vera": "vera's password", "console": "the console's password"}
SETTINGS = {
    "super.users": "User:alice",
    "transaction.partition.verification.enable": "false",  # so that a transaction can hang
}
HOUR_MS = 3_600_000


def binding(user: str, operation: AclOperation, resource: AclResource, name: str) -> AclBinding:
    return AclBinding(resource_type=resource, name=name, principal=f"User:{user}", operation=operation)


ACLS = (
    binding("console", AclOperation.DESCRIBE, AclResource.TOPIC, "*"),
    binding("console", AclOperation.DESCRIBE, AclResource.GROUP, "*"),
    binding("console", AclOperation.DESCRIBE, AclResource.CLUSTER, "kafka-cluster"),
    binding("vera", AclOperation.READ, AclResource.TOPIC, "orders"),
)


@contextmanager
def stocked_cluster() -> Iterator[Cluster]:
    """Run the cluster; alice is its super user. Consumers and a producer stay active until the block ends."""
    with (
        Cluster(3, security="sasl_plaintext", users=USERS, acls=ACLS, settings=SETTINGS) as cluster,
        ExitStack() as active,
    ):
        options = cluster.client_options("alice")
        with BlockingAdmin(**options) as admin:
            admin.create_topics(
                [
                    NewTopic(name="orders", num_partitions=6),
                    *(NewTopic(name=name) for name in ("payments", "to-delete", "audit")),
                ]
            )
            admin.alter_client_quotas({"user": "vera"}, {"consumer_byte_rate": 1_048_576.0})
        with BlockingProducer(**options) as producer:
            for number in range(500):
                order = {
                    "id": number,
                    "customer": {"name": ("Ada", "Grace", "Edsger")[number % 3]},
                    "total": number * 1.5,
                }
                producer.send("orders", json.dumps(order).encode(), key=f"customer-{number % 7}".encode())
            for hour, lost in enumerate((0, 0, 7, 0)):
                for tier, count in (("producer", 1_000), ("log", 1_000 - lost)):
                    each = _tally(tier, hour, count)
                    producer.send("audit", each.value(), key=each.key())
        _commit_some(cluster)
        _leave_hanging(cluster)
        active.enter_context(_reading(cluster))
        transactional = active.enter_context(
            BlockingProducer(**options, transactional_id="payments-1", transaction_timeout_ms=900_000)
        )
        transactional.init_transactions()
        transactional.begin_transaction()
        transactional.send("payments", b"not committed yet")
        transactional.flush()
        try:
            yield cluster
        finally:
            transactional.abort_transaction()


def _tally(tier: str, hour: int, count: int) -> Tally:
    """The count of a tier in an hour of this day."""
    now_ms = time.time_ns() // 1_000_000
    start_ms = now_ms - now_ms % HOUR_MS - (6 - hour) * HOUR_MS
    return Tally(
        tier=tier, source="s", topic="orders", window_ms=HOUR_MS, start_ms=start_ms, count=count, counted_at_ms=now_ms
    )


def _commit_some(cluster: Cluster) -> None:
    """Leave a group without members, which lags."""
    consumer = BlockingConsumer(
        "orders", **cluster.client_options("alice"), group_id="shipping", auto_offset_reset="earliest"
    )
    with consumer:
        deadline = time.monotonic() + 60
        while not consumer.getmany(timeout_ms=500, max_records=50):
            assert time.monotonic() < deadline
        consumer.commit()


def _leave_hanging(cluster: Cluster) -> None:
    """Write a record of a transaction that no coordinator knows."""
    with BlockingAdmin(**cluster.client_options("alice")) as admin:
        (info,) = admin.describe_topics(["payments"])
    leader = info.partitions[0].leader
    long_ago = time.time_ns() // 1_000_000 - 24 * HOUR_MS
    batch = encode_batch(
        [(long_ago, None, b"hangs", ())], producer_id=999_999, producer_epoch=3, base_sequence=0, is_transactional=True
    )
    data = TopicProduceData(name="payments", partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id="forgotten", acks=-1, timeout_ms=5_000, topic_data=[data])
    host, port = cluster._host_and_port(leader)
    connection = BlockingConnection(host, port, client_id="test", request_timeout_ms=30_000, setup_timeout_ms=30_000)
    try:
        answer = connection.request(ApiKey.PRODUCE, request, high=11).responses[0].partition_responses[0]
    finally:
        connection.close()
    assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code)


@contextmanager
def _reading(cluster: Cluster) -> Iterator[None]:
    """Keep a group of consumers and a share group reading, and records coming."""
    done = threading.Event()
    options = cluster.client_options("alice")

    def consume() -> None:
        with BlockingConsumer("orders", **options, group_id="billing") as consumer:
            while not done.is_set():
                consumer.getmany(timeout_ms=300, max_records=1)

    def share() -> None:
        with BlockingShareConsumer("orders", **options, group_id="packing") as consumer:
            while not done.is_set():
                consumer.getmany(timeout_ms=300, max_records=5)

    def produce() -> None:
        with BlockingProducer(**options) as producer:
            number = 0
            while not done.wait(0.05):
                number += 1
                order = {"id": 1_000 + number, "customer": {"name": "Ada"}, "total": 9.5}
                producer.send("orders", json.dumps(order).encode(), key=f"customer-{number % 7}".encode())

    threads = [threading.Thread(target=each, daemon=True) for each in (consume, share, produce)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
