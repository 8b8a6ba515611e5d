"""Our own client above its quotas: it waits as long as brokers ask, and delivers and reads everything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from one_broker import BOUND_SECONDS, running

from kraftpy.broker.broker import Broker
from kraftpy.client import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from kraftpy.protocol.errors import ErrorCode

RECORDS = 8
VALUE = bytes(20_000)


def options(broker: Broker) -> dict[str, str]:
    listener = broker.advertised[0]
    return {"bootstrap_servers": f"{listener.host}:{listener.port}", "client_id": "limited"}


async def test_records_are_produced_and_consumed_within_quotas(tmp_path: Path) -> None:
    async with running(tmp_path, "quota.window.num=2") as broker:
        async with Admin(**options(broker)) as admin:
            await admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)])
            rates = {"producer_byte_rate": 4 * len(VALUE), "consumer_byte_rate": 4 * len(VALUE)}
            await admin.alter_client_quotas({"client-id": "limited"}, rates)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        async with asyncio.timeout(BOUND_SECONDS):
            async with Producer(**options(broker), linger_ms=0) as producer:
                for _ in range(RECORDS):
                    delivery = await producer.send("t", VALUE)
                    await delivery
            async with Consumer(**options(broker), auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("t", 0)])
                found = [await anext(consumer) for _ in range(RECORDS)]
        assert [record.offset for record in found] == list(range(RECORDS))
        assert loop.time() - began_at >= 1.0  # 160,000 bytes at 80,000 a second, and a window's burst


async def test_the_admin_client_waits_until_the_quota_allows_a_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, Admin(**options(broker)) as admin:
        entity = {"user": None, "client-id": "limited"}
        await admin.alter_client_quotas(entity, {"controller_mutation_rate": 10})
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await admin.create_topics([NewTopic(name="a", num_partitions=120, replication_factor=1)])  # 10 too many
        await admin.create_topics([NewTopic(name="b", num_partitions=1, replication_factor=1)])
        assert loop.time() - began_at >= 0.95
        assert broker.image.topic("b") is not None


async def test_the_admin_client_describes_what_matches_and_says_what_is_wrong(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, Admin(**options(broker)) as admin:
        await admin.alter_client_quotas({"user": None, "client-id": "x"}, {"producer_byte_rate": 1})
        await admin.alter_client_quotas({"user": "a"}, {"producer_byte_rate": 2}, validate_only=True)
        with pytest.raises(KafkaError, match="Invalid configuration key nonsense") as refused:
            await admin.alter_client_quotas({"user": None}, {"nonsense": 1})
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        (found,) = await admin.describe_client_quotas(types=["user", "client-id"], strict=True)
        assert (found.entity, found.values) == ({"user": None, "client-id": "x"}, {"producer_byte_rate": 1.0})
        assert await admin.describe_client_quotas({"user": None}, strict=True) == []
        with pytest.raises(KafkaError, match="Unsupported entity type group"):
            await admin.describe_client_quotas({"group": "g"})
