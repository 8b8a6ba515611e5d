"""Topics, settings, offsets and groups through public admin clients."""

from __future__ import annotations

import asyncio
import itertools
import time

import aiokafka.admin
import confluent_kafka
import kafka
import pytest
from compat.clients import CONFLUENT, Message
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.error import KafkaException

from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

BOUND_SECONDS = 20
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"admin-{next(_names)}-{time.time_ns()}"


@pytest.fixture
def admin(kraftpy_server: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})


def create(admin: AdminClient, topic: str, partitions: int = 3, **config: str) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(BOUND_SECONDS)


def test_topics_are_created_described_grown_and_deleted(admin: AdminClient, topic: str) -> None:
    create(admin, topic, 2, **{"retention.ms": "60000"})
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(admin, topic)
    assert len(admin.list_topics(timeout=BOUND_SECONDS).topics[topic].partitions) == 2
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(BOUND_SECONDS)
    assert len(admin.list_topics(topic, timeout=BOUND_SECONDS).topics[topic].partitions) == 5
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(BOUND_SECONDS)
    admin.delete_topics([topic])[topic].result(BOUND_SECONDS)
    assert topic not in admin.list_topics(timeout=BOUND_SECONDS).topics


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "error"),
    [
        ("bad name", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("..", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("x" * 250, 1, 1, {}, "TOPIC_EXCEPTION"),
        ("zero-partitions", 0, 1, {}, "INVALID_PARTITIONS"),
        ("two-replicas", 1, 2, {}, "INVALID_REPLICATION_FACTOR"),
        ("bad-config", 1, 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("no-such-config", 1, 1, {"retention.mss": "1"}, "INVALID_CONFIG"),
    ],
)
def test_what_cannot_be_created_is_refused(
    admin: AdminClient, name: str, partitions: int, replicas: int, config: dict[str, str], error: str
) -> None:
    with pytest.raises(KafkaException, match=error):
        admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(BOUND_SECONDS)


def test_a_deleted_topic_comes_back_empty(kraftpy_server: EmbeddedBroker, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1)
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"old")] * 10)
    admin.delete_topics([topic])[topic].result(BOUND_SECONDS)
    create(admin, topic, 1)
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"new")])
    found = CONFLUENT.consume(kraftpy_server.bootstrap, topic, 1)
    assert [(m.value, m.offset) for m in found] == [(b"new", 0)]


def test_settings_are_described_and_changed(admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1, **{"cleanup.policy": "compact"})
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def described() -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(BOUND_SECONDS)
        return found

    assert described()["cleanup.policy"].value == "compact"
    assert described()["retention.ms"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "1234", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(BOUND_SECONDS)
    assert described()["retention.ms"].value == "1234"
    assert sorted(described()["cleanup.policy"].value.split(",")) == ["compact", "delete"]
    undo = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)],
    )
    admin.incremental_alter_configs([undo])[undo].result(BOUND_SECONDS)
    assert described()["retention.ms"].is_default
    bad = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "never", incremental_operation=AlterConfigOpType.SET)],
    )
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.incremental_alter_configs([bad])[bad].result(BOUND_SECONDS)


def test_the_brokers_own_settings_are_described(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result(BOUND_SECONDS)
    assert found["node.id"].value == "1"
    assert found["offsets.topic.num.partitions"].value == "8"
    assert found["num.partitions"].value == "1"


def test_offsets_by_time_and_the_ends(kraftpy_server: EmbeddedBroker, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1)
    sent = [Message(b"%d" % i, timestamp=1_700_000_000_000 + i * 1000) for i in range(50)]
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, sent)
    partition = confluent_kafka.TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({partition: spec})[partition].result(BOUND_SECONDS)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 50
    assert offset(OffsetSpec.max_timestamp()) == (49, 1_700_000_049_000)
    assert offset(OffsetSpec.for_timestamp(1_700_000_010_000)) == (10, 1_700_000_010_000)
    assert offset(OffsetSpec.for_timestamp(1_700_000_010_001)) == (11, 1_700_000_011_000)
    assert offset(OffsetSpec.for_timestamp(1_800_000_000_000))[0] == -1


def test_records_are_deleted_up_to_an_offset(kraftpy_server: EmbeddedBroker, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1)
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"%d" % i) for i in range(20)])
    partition = confluent_kafka.TopicPartition(topic, 0, 15)
    deleted = admin.delete_records([partition])[partition].result(BOUND_SECONDS)
    assert deleted.low_watermark == 15
    found = CONFLUENT.consume(kraftpy_server.bootstrap, topic, 5)
    assert [m.offset for m in found] == [15, 16, 17, 18, 19]


def test_groups_are_listed_described_and_deleted(
    kraftpy_server: EmbeddedBroker, admin: AdminClient, topic: str
) -> None:
    group = f"group-{topic}"
    create(admin, topic, 1)
    CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"%d" % i) for i in range(20)])
    CONFLUENT.consume(kraftpy_server.bootstrap, topic, 20, group=group)
    listed = {found.group_id: found for found in admin.list_consumer_groups().result(BOUND_SECONDS).valid}
    assert listed[group].state.name == "EMPTY"
    described = admin.describe_consumer_groups([group])[group].result(BOUND_SECONDS)
    assert (described.group_id, described.state.name, described.members) == (group, "EMPTY", [])
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(BOUND_SECONDS)
    assert [(p.topic, p.partition, p.offset) for p in offsets.topic_partitions] == [(topic, 0, 20)]
    reset = confluent_kafka.ConsumerGroupTopicPartitions(group, [confluent_kafka.TopicPartition(topic, 0, 5)])
    admin.alter_consumer_group_offsets([reset])[group].result(BOUND_SECONDS)
    assert [m.offset for m in CONFLUENT.consume(kraftpy_server.bootstrap, topic, 15, group=group)] == list(range(5, 20))
    admin.delete_consumer_groups([group])[group].result(BOUND_SECONDS)
    assert group not in {found.group_id for found in admin.list_consumer_groups().result(BOUND_SECONDS).valid}


def test_the_cluster_is_described(kraftpy_server: EmbeddedBroker, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(BOUND_SECONDS)
    assert [(node.id, f"{node.host}:{node.port}") for node in cluster.nodes] == [(1, kraftpy_server.bootstrap)]
    assert cluster.controller.id == 1
    assert len(cluster.cluster_id) == 22


def test_topics_are_described_with_ids_and_leaders(admin: AdminClient, topic: str) -> None:
    create(admin, topic, 2)
    found = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(BOUND_SECONDS)
    assert [(p.id, p.leader.id, [r.id for r in p.isr]) for p in found.partitions] == [(0, 1, [1]), (1, 1, [1])]


def test_kafka_pythons_admin(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=kraftpy_server.bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic(name=topic, num_partitions=3, replication_factor=1)])
        CONFLUENT.produce(kraftpy_server.bootstrap, topic, [Message(b"x", partition=1)] * 7)
        assert topic in admin.list_topics()
        partition = kafka.TopicPartition(topic, 1)
        found = admin.list_partition_offsets({partition: kafka.OffsetSpec.LATEST})
        assert found[partition].offset == 7
        directories = admin.describe_log_dirs()
        assert directories
        assert admin.describe_cluster()["controller_id"] == 1
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_kafka_python_gives_a_group_settings_of_its_own(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=kraftpy_server.bootstrap)
    group = kafka.admin.ConfigResource("GROUP", topic, {"consumer.session.timeout.ms": "50000"})
    every = kafka.admin.ConfigResource("GROUP", topic, None)
    try:
        assert topic not in admin.list_config_resources(["GROUP"]).get("group", [])
        admin.alter_configs([group])
        assert admin.list_config_resources(["GROUP"])["group"].count(topic) == 1
        assert "topic" not in admin.list_config_resources(["GROUP"])
        assert admin.list_config_resources(["BROKER", "CLIENT_METRICS"]) == {"broker": ["1"]}
        assert {"broker", "group", "broker_logger"} <= admin.list_config_resources().keys()
        described = admin.describe_configs([every], include_synonyms=True, config_filter="all")["group"][topic]
        session = described["consumer.session.timeout.ms"]
        assert (session["value"], session["config_source"]) == ("50000", "DYNAMIC_GROUP_CONFIG")
        assert [synonym["value"] for synonym in session["synonyms"]] == ["50000", "45000"]
        assert described["consumer.heartbeat.interval.ms"]["value"] == "5000"
        for name, text in {
            "consumer.session.timeout.ms": "1000",
            "consumer.heartbeat.interval.ms": "15001",
            "streams.num.standby.replicas": "3",
            "share.auto.offset.reset": "soon",
            "retention.ms": "1",
        }.items():
            bad = kafka.admin.ConfigResource("GROUP", topic, {name: text})
            refused = admin.alter_configs([bad], raise_on_unknown=False)["group"][topic]
            assert "InvalidConfigurationError" in str(refused), refused
            assert name in str(refused)
        nobody = kafka.admin.ConfigResource("GROUP", "", {"consumer.session.timeout.ms": "50000"})
        refused = admin.alter_configs([nobody], raise_on_unknown=False)["group"][""]
        assert "InvalidRequestError" in str(refused), refused
        admin.reset_configs([group])
        assert topic not in admin.list_config_resources(["GROUP"]).get("group", [])
    finally:
        admin.close()


def test_aiokafkas_admin(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=kraftpy_server.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic(topic, 2, 1)])
            described = await admin.describe_topics([topic])
            assert len(described[0]["partitions"]) == 2
            await admin.create_partitions({topic: aiokafka.admin.NewPartitions(4)})
            described = await admin.describe_topics([topic])
            assert len(described[0]["partitions"]) == 4
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(run())
