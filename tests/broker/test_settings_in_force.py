"""Broker settings that change are in force in the parts of the broker that use them, without a new connection.

Each test has its own broker, within its own event loop, so that it can look at the logs and the limits.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from one_broker import create, running, until

from kraftpy.broker.broker import Broker
from kraftpy.client import Admin, AlterOperation, ResourceType
from kraftpy.config.dynamic import CLUSTER_SETTINGS, DYNAMIC_SETTINGS, in_force
from kraftpy.config.topic_settings import SYNONYMS
from kraftpy.protocol.errors import ErrorCode, KafkaError

BROKER = ResourceType.BROKER
TOPIC = ResourceType.TOPIC
VALUES = {
    "compression.gzip.level": "2",
    "compression.lz4.level": "3",
    "compression.type": "lz4",
    "compression.zstd.level": "4",
    "log.cleaner.delete.retention.ms": "1001",
    "log.cleaner.max.compaction.lag.ms": "2000001",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.min.compaction.lag.ms": "1002",
    "log.cleanup.policy": "compact",
    "log.flush.interval.messages": "7",
    "log.flush.interval.ms": "70001",
    "log.index.interval.bytes": "5000",
    "log.index.size.max.bytes": "9000000",
    "log.message.timestamp.after.max.ms": "70002",
    "log.message.timestamp.before.max.ms": "70003",
    "log.message.timestamp.type": "LogAppendTime",
    "log.preallocate": "true",
    "log.retention.bytes": "123456789",
    "log.retention.ms": "70004",
    "log.roll.jitter.ms": "70005",
    "log.roll.ms": "70006",
    "log.segment.bytes": "2097153",
    "log.segment.delete.delay.ms": "70007",
    "message.max.bytes": "2000",
}
"""Another value than the default for each dynamic default of topics."""
SYNONYM = {broker: topic.replace(".", "_") for topic, names in SYNONYMS.items() for broker in names if broker in VALUES}


def administering(broker: Broker) -> Admin:
    address = broker.advertised[0]
    return Admin(bootstrap_servers=f"{address.host}:{address.port}")


def in_log(broker: Broker, topic: str, attribute: str) -> Any:
    (log,) = [replica.log for replica in broker.replicas if replica.topic_partition.topic == topic]
    return getattr(log.config, attribute)


def test_each_default_of_topics_is_tried() -> None:
    of_topics = {each for names in SYNONYMS.values() for each in names}
    assert VALUES.keys() == (of_topics & DYNAMIC_SETTINGS) - CLUSTER_SETTINGS


async def test_open_logs_follow_the_defaults_of_brokers(tmp_path: Path) -> None:
    """All brokers' default, this broker's, both deleted again; a topic's own setting stays. All on one connection."""
    async with running(tmp_path) as broker, administering(broker) as admin:
        own_values = {"retention.ms": "5000", "max.message.bytes": "5000"}
        await create(broker, ["plain", "own"])
        await admin.alter_configs({(TOPIC, "own"): own_values})
        connections = set(broker.connections)
        before = {name: in_log(broker, "plain", SYNONYM[name]) for name in VALUES}
        for resource in ("", str(broker.node_id)):
            for name, value in VALUES.items():
                await admin.alter_configs({(BROKER, resource): {name: value}})
                await until(lambda name=name: in_log(broker, "plain", SYNONYM[name]) != before[name])
            assert in_log(broker, "plain", "retention_ms") == 70004
            assert (in_log(broker, "own", "retention_ms"), in_log(broker, "own", "max_message_bytes")) == (5000, 5000)
            await admin.alter_configs({(BROKER, resource): dict.fromkeys(VALUES)})
            await until(lambda: before == {name: in_log(broker, "plain", SYNONYM[name]) for name in VALUES})
        await admin.alter_configs({(BROKER, ""): {"log.retention.ms": "60000"}})
        await admin.alter_configs({(BROKER, str(broker.node_id)): {"log.retention.ms": "50000"}})
        await until(lambda: in_log(broker, "plain", "retention_ms") == 50000)
        await admin.alter_configs({(BROKER, str(broker.node_id)): {"log.retention.ms": None}})
        await until(lambda: in_log(broker, "plain", "retention_ms") == 60000)
        assert connections <= set(broker.connections)


async def test_parts_of_the_broker_have_what_is_in_force(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, administering(broker) as admin:
        cleaner = broker.maintenance._cleaner
        for name, value, used in (
            ("num.replica.fetchers", "2", lambda: broker.fetchers.config.num_replica_fetchers == 2),
            ("num.recovery.threads.per.data.dir", "4", lambda: broker.config.num_recovery_threads_per_data_dir == 4),
            ("log.cleaner.threads", "2", lambda: cleaner._threads == 2),
            ("log.cleaner.backoff.ms", "2000", lambda: cleaner._backoff_seconds == 2.0),
            ("log.cleaner.io.max.bytes.per.second", "1e6", lambda: cleaner._bytes_per_second == 5e5),
            (
                "producer.id.expiration.ms",
                "60000",
                lambda: broker.maintenance._config.producer_id_expiration_ms == 60000,
            ),
            ("max.connections", "77", lambda: broker.connection_limits.most == 77),
            (
                "group.share.assignment.interval.ms",
                "77",
                lambda: broker.config.group_share_assignment_interval_ms == 77,
            ),
        ):
            await admin.alter_configs({(BROKER, ""): {name: value}})
            await until(used)


async def test_what_is_only_validated_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, administering(broker) as admin:
        before = broker.config
        await admin.alter_configs({(BROKER, ""): {"log.retention.ms": "60000"}}, validate_only=True)
        await admin.alter_configs({(BROKER, ""): {"log.retention.bytes": "60000"}})
        await until(lambda: broker.config.log_retention_bytes == 60000)
        assert broker.config.log_retention_ms == before.log_retention_ms
        with pytest.raises(KafkaError, match=r"log.roll.ms must be greater than or equal to 1"):
            await admin.alter_configs({(BROKER, ""): {"log.roll.ms": "0"}}, validate_only=True)


@pytest.mark.parametrize("resource", ["", "1"])
async def test_a_listener_has_its_own_limit_of_connections(tmp_path: Path, resource: str) -> None:
    listeners = ("PLAINTEXT://127.0.0.1:0", "OTHER://127.0.0.1:0")
    settings = [
        f"listeners={','.join(listeners)}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    ]
    settings.append("listener.name.other.max.connections=2")
    async with running(tmp_path, *settings) as broker, administering(broker) as admin:
        plain, other = broker.advertised
        held = [await asyncio.open_connection(other.host, other.port) for _ in range(2)]

        async def is_refused(port: int) -> bool:
            """Return whether the broker closes a new connection."""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.append((reader, writer))
            address = writer.get_extra_info("sockname")
            known = lambda: {each._transport.get_extra_info("peername") for each in broker.connections}  # noqa: E731
            await until(lambda: reader.at_eof() or address in known())
            return reader.at_eof()

        name = "listener.name.other.max.connections"
        broker.connection_limits._reserved = 0  # otherwise a few more may prove to be brokers
        assert await is_refused(other.port)
        assert not await is_refused(plain.port)
        await admin.alter_configs({(BROKER, resource): {name: "3"}})
        await until(lambda: broker.settings.connections_of("OTHER") == 3)
        assert not await is_refused(other.port)
        assert await is_refused(other.port)
        await admin.alter_configs({(BROKER, resource): {name: None}})
        await until(lambda: broker.settings.connections_of("OTHER") == 2)
        held[0][1].close()
        held[1][1].close()
        await until(lambda: broker.connection_limits._by_listener["OTHER"] == 1)
        assert not await is_refused(other.port)
        for bad, message in (
            ("0", "Invalid max.connections 0"),
            ("-1", "Invalid value -1 for configuration max.connections: Value must be at least 0"),
            ("x", "Invalid value x for configuration max.connections: Not a number of type INT"),
        ):
            with pytest.raises(KafkaError, match=message):
                await admin.alter_configs({(BROKER, resource): {name: bad}})
        for _, writer in held:
            writer.close()


async def test_a_list_of_brokers_starts_from_the_default_in_kafka_not_from_the_file(tmp_path: Path) -> None:
    append, subtract = AlterOperation.APPEND, AlterOperation.SUBTRACT
    name = "log.cleanup.policy"
    async with running(tmp_path, f"{name}=compact") as broker, administering(broker) as admin:
        for change, policy in (
            ((append, "compact"), ("delete", "compact")),
            ((subtract, "delete"), ("compact",)),
            ((append, "delete"), ("compact", "delete")),
            (None, ("compact",)),
            ((subtract, "delete"), ()),
        ):
            await admin.alter_configs({(BROKER, ""): {name: change}})
            await until(lambda policy=policy: broker.config.log_cleanup_policy == policy)
        for other, message in (
            ("log.retention.ms", "Config value append is not allowed for config key: log.retention.ms"),
            ("background.threads", "Config value append is not allowed for config key: background.threads"),
            ("leader.replication.throttled.rate", "Unknown config name: leader.replication.throttled.rate"),
            ("plug.in", "Unknown config name: plug.in"),
        ):
            with pytest.raises(KafkaError, match=message) as refused:
                await admin.alter_configs({(BROKER, ""): {other: (append, "1")}})
            assert refused.value.code == ErrorCode.INVALID_CONFIG


async def test_threads_are_compared_with_what_is_in_force(tmp_path: Path) -> None:
    """Also those that do nothing here, and when a setting is deleted."""
    async with running(tmp_path) as broker, administering(broker) as admin:
        for name, first, second, least in (
            ("num.io.threads", "16", "32", 8),
            ("log.cleaner.threads", "2", "4", 1),
            ("remote.log.reader.threads", "20", "40", 10),
        ):
            for value in (first, second):
                await admin.alter_configs({(BROKER, ""): {name: value}})
            with pytest.raises(
                KafkaError, match=rf"less than half|at least half the current value {second}"
            ) as refused:
                await admin.alter_configs({(BROKER, ""): {name: None}})
            assert refused.value.code == ErrorCode.INVALID_REQUEST
            await admin.alter_configs({(BROKER, ""): {name: first}})
            await admin.alter_configs({(BROKER, ""): {name: None}})
            with pytest.raises(KafkaError, match=r"more than double|greater than double"):
                await admin.alter_configs({(BROKER, ""): {name: str(3 * least)}})


async def test_settings_must_fit_together_with_those_of_the_other_kind(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, administering(broker) as admin:
        own = str(broker.node_id)
        await admin.alter_configs({(BROKER, own): {"log.cleaner.dedupe.buffer.size": "3000000"}})
        await admin.alter_configs({(BROKER, ""): {"log.cleaner.threads": "2"}})
        with pytest.raises(KafkaError, match="must be at least 1MB per cleaner thread"):
            await admin.alter_configs({(BROKER, ""): {"log.cleaner.threads": "4"}})
        await admin.alter_configs({(BROKER, ""): {"max.connections.per.ip.overrides": "127.0.0.1:100"}})
        await admin.alter_configs({(BROKER, own): {"max.connections.per.ip": "0"}})
        with pytest.raises(KafkaError, match="can be set to zero only if"):
            await admin.alter_configs({(BROKER, ""): {"max.connections.per.ip.overrides": None}})


async def test_anything_may_be_deleted(tmp_path: Path) -> None:
    """A setting that an earlier version allowed must not stay forever."""
    async with running(tmp_path) as broker, administering(broker) as admin:
        names = ("node.id", "listeners", "ssl.keystore.location", "never.there", "unclean.leader.election.enable")
        await admin.alter_configs({(BROKER, str(broker.node_id)): dict.fromkeys(names)})


async def test_an_interval_between_assignments_stays_within_its_bounds(tmp_path: Path) -> None:
    async with running(tmp_path, "group.share.max.assignment.interval.ms=2000") as broker:
        name = "group.share.assignment.interval.ms"
        async with administering(broker) as admin:
            with pytest.raises(KafkaError, match=f"{name} must be less than or equal to group.share.max.assignment"):
                await admin.alter_configs({(BROKER, ""): {name: "2001"}})
        assert in_force(broker.config, {}, {name: "2001"}).group_share_assignment_interval_ms == 2000
