"""A topic's settings: defaults from the broker, overrides, and how they are described."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.config import (
    BrokerConfig,
    ConfigError,
    ConfigType,
    TopicConfig,
    load,
    topic_config,
)
from kraftpy.config.broker import BROKER_SETTINGS
from kraftpy.config.broker_settings import INTERNAL_SETTINGS
from kraftpy.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_group,
    describe_topic,
    differing_defaults,
    render_differing_defaults,
)
from kraftpy.config.dynamic import DYNAMIC_ONLY
from kraftpy.config.other_settings import OTHER_SETTINGS
from kraftpy.config.security_settings import SECURITY_SETTINGS

EVERY = {**BROKER_SETTINGS, **SECURITY_SETTINGS, **OTHER_SETTINGS}
DEFAULT = BrokerConfig()


@pytest.mark.parametrize(
    ("broker", "attribute", "value"),
    [
        ({}, "retention_ms", 604_800_000),
        ({"log.retention.hours": "1"}, "retention_ms", 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, "retention_ms", 60_000),
        ({"log.retention.minutes": "1", "log.retention.ms": "1"}, "retention_ms", 1),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.roll.hours": "2"}, "segment_ms", 7_200_000),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment_ms", 5),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", 3_600_000),
        ({"log.flush.scheduler.interval.ms": "7"}, "flush_ms", 7),
        ({"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "8"}, "flush_ms", 8),
        ({"log.cleanup.policy": "compact,delete"}, "cleanup_policy", frozenset({"compact", "delete"})),
        ({"message.max.bytes": "5"}, "max_message_bytes", 5),
        ({"log.message.timestamp.type": "LogAppendTime"}, "message_timestamp_type", "LogAppendTime"),
        ({"log.segment.bytes": "2000000"}, "segment_bytes", 2_000_000),
    ],
)
def test_a_topic_takes_its_defaults_from_the_broker(broker: dict[str, str], attribute: str, value: object) -> None:
    assert getattr(BrokerConfig.of(broker).topic_defaults, attribute) == value


def test_overrides_are_before_the_brokers_settings() -> None:
    config = topic_config(
        {"retention.ms": "5", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "preallocate": "true"},
        BrokerConfig.of({"log.retention.ms": "7"}),
    )
    assert (config.retention_ms, config.is_compacted, config.preallocate) == (5, True, True)
    assert config.min_cleanable_dirty_ratio == 0.1
    assert not TopicConfig().is_compacted


def test_the_internal_segment_size_has_no_lower_bound_and_comes_first() -> None:
    assert topic_config({"internal.segment.bytes": "100", "segment.bytes": "2000000"}, DEFAULT).segment_bytes == 100
    with pytest.raises(ConfigError, match=r"Invalid value 100 for configuration segment\.bytes"):
        topic_config({"segment.bytes": "100"}, DEFAULT)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("retention.ms", "-1", None),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("cleanup.policy", "delete,compact", None),
        (
            "cleanup.policy",
            "shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("retention.ms", None, "retention.ms: no value was given"),
        ("retention", "1", "Unknown topic config name: retention; did you mean retention.ms?"),
        ("qqqq", "1", "Unknown topic config name: qqqq"),
        (
            "remote.storage.enable",
            "true",
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        ("remote.storage.enable", "false", None),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
    ],
)
def test_one_setting_is_checked(name: str, value: Any, complaint: str | None) -> None:
    problem = None
    try:
        topic_config({name: value}, DEFAULT)
    except ConfigError as error:
        problem = str(error)
    assert problem == complaint


def test_compaction_lags_are_checked_together() -> None:
    with pytest.raises(ConfigError, match=r"> max\.compaction\.lag\.ms \(1\)"):
        topic_config({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, DEFAULT)


def test_a_topic_setting_is_described_with_where_it_comes_from() -> None:
    broker = BrokerConfig.of({"log.retention.minutes": "1"})
    (entry,) = describe_topic({"retention.ms": "5"}, broker, ["retention.ms"])
    assert (entry.value, entry.source, entry.type) == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigType.LONG)
    assert not entry.read_only
    assert not entry.is_default
    assert entry.documentation == "Time to keep a segment before it is deleted; -1 means no limit."
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    ], "as Kafka: of the broker's settings, none before log.retention.ms is told"
    (entry,) = describe_topic({}, broker, ["retention.ms"])
    assert (entry.value, entry.source, entry.synonyms) == ("60000", ConfigSource.DEFAULT_CONFIG, ())
    (entry,) = describe_topic({}, DEFAULT, ["local.retention.ms"])
    assert entry.documentation.endswith("(No effect in this broker.)")
    (entry,) = describe_topic({}, DEFAULT, ["retention.ms"])
    assert (entry.value, entry.is_default) == ("604800000", True)


def test_all_of_a_topics_settings_are_described_but_the_internal_one() -> None:
    names = [entry.name for entry in describe_topic({}, DEFAULT)]
    assert len(names) == 35
    assert names == sorted(names)
    assert "internal.segment.bytes" in [
        entry.name for entry in describe_topic({"internal.segment.bytes": "9"}, DEFAULT)
    ]


def test_a_broker_setting_is_described() -> None:
    broker = BrokerConfig.of({"num.partitions": "3", "ssl.key.password": "secret", "listeners": "PLAINTEXT://a:1"})
    entries = {entry.name: entry for entry in describe_broker(broker)}
    assert entries["num.partitions"].value == "3"
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].read_only
    assert entries["node.id"].value == "1"
    assert entries["advertised.listeners"].value == "PLAINTEXT://a:1"
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["log.dirs"].value == "./kraftpy-data"
    password = entries["ssl.key.password"]
    assert password.is_sensitive
    assert password.value is None
    assert "secret" not in repr(password)


def test_a_broker_setting_without_effect_says_so() -> None:
    says = "(No effect in this broker.)"
    entries = describe_broker(DEFAULT)
    without = {entry.name for entry in entries if entry.documentation.endswith(f". {says}")}
    assert without == {entry.name for entry in entries if says in entry.documentation}
    assert without == OTHER_SETTINGS.keys() & {entry.name for entry in entries}
    assert {"background.threads", "ssl.provider"} <= without
    assert not without & {"num.partitions", "ssl.keystore.location"}
    of_one = {"listener.name.a.ssl.provider": True, "listener.name.a.ssl.keystore.location": False}
    given = BrokerConfig.of(dict.fromkeys(of_one, "x"))
    described = {entry.name: entry.documentation for entry in describe_broker(given, list(of_one))}
    assert {name: says in text for name, text in described.items()} == of_one, "nor has one of a single listener"


def synonyms_of(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms]


TOPIC, CLUSTER, STATIC, KAFKAS_DEFAULT, GROUP = 1, 3, 4, 5, 8


@pytest.mark.parametrize(
    ("given", "name", "value", "synonyms"),
    [
        ({}, "retention.ms", "604800000", []),
        (
            {"log.retention.ms": "7", "log.retention.minutes": "9"},
            "retention.ms",
            "7",
            [
                ("log.retention.ms", "7", STATIC),
                ("log.retention.minutes", "9", STATIC),
                ("log.retention.hours", "168", KAFKAS_DEFAULT),
            ],
        ),
        ({}, "segment.ms", "604800000", []),
        (
            {"log.roll.ms": "86400000"},
            "segment.ms",
            "86400000",
            [("log.roll.ms", "86400000", STATIC), ("log.roll.hours", "168", KAFKAS_DEFAULT)],
        ),
        ({}, "segment.jitter.ms", "0", []),
        ({"log.flush.scheduler.interval.ms": "5000000"}, "flush.ms", "5000000", []),
        ({}, "local.retention.ms", "-2", [("log.local.retention.ms", "-2", KAFKAS_DEFAULT)]),
        (
            {"log.local.retention.bytes": "5"},
            "local.retention.bytes",
            "5",
            [("log.local.retention.bytes", "5", STATIC), ("log.local.retention.bytes", "-2", KAFKAS_DEFAULT)],
        ),
    ],
)
def test_the_settings_behind_a_topics_are_told_as_kafka_tells_them(
    given: dict[str, str], name: str, value: str, synonyms: list[tuple[str, str, int]]
) -> None:
    (entry,) = describe_topic({}, BrokerConfig.of(given), [name])
    assert (entry.value, synonyms_of(entry)) == (value, synonyms)
    assert entry.source == (synonyms[0][2] if synonyms else KAFKAS_DEFAULT)


@pytest.mark.parametrize(
    ("given", "name", "synonyms"),
    [
        ({"log.retention.minutes": "600"}, "log.retention.ms", []),
        (
            {"log.retention.minutes": "600"},
            "log.retention.minutes",
            [("log.retention.minutes", "600", STATIC), ("log.retention.hours", "168", KAFKAS_DEFAULT)],
        ),
        ({"log.retention.ms": "5"}, "log.retention.hours", [("log.retention.hours", "168", KAFKAS_DEFAULT)]),
        ({"node.id": "7"}, "broker.id", [("broker.id", "7", STATIC), ("broker.id", "-1", KAFKAS_DEFAULT)]),
        ({"broker.id": "7"}, "node.id", [("node.id", "7", STATIC), ("node.id", "1", KAFKAS_DEFAULT)]),
        ({}, "ssl.client.auth", [("ssl.client.auth", "none", KAFKAS_DEFAULT)]),
        ({}, "broker.rack", []),
        (
            {
                "controller.quorum.voters": "1@a:1,2@b:1",
                "listeners": "PLAINTEXT://h:1,CONTROLLER://h:2",
            },
            "offsets.topic.replication.factor",
            [("offsets.topic.replication.factor", "3", KAFKAS_DEFAULT)],
        ),
        ({"broker.rack": "r"}, "broker.rack", [("broker.rack", "r", STATIC)]),
        ({"sasl.jaas.config": "secret"}, "sasl.jaas.config", [("sasl.jaas.config", None, STATIC)]),
        ({"my.plugin": "secret"}, "my.plugin", [("my.plugin", None, STATIC)]),
    ],
)
def test_where_a_brokers_setting_comes_from(
    given: dict[str, str], name: str, synonyms: list[tuple[str, str | None, int]]
) -> None:
    (entry,) = describe_broker(BrokerConfig.of(given), [name])
    assert synonyms_of(entry) == synonyms
    assert entry.source == (synonyms[0][2] if synonyms else KAFKAS_DEFAULT)
    if synonyms:
        assert entry.value == synonyms[0][1]


def test_of_a_broker_everything_is_listed_that_kafka_lists() -> None:
    names = {entry.name for entry in describe_broker(DEFAULT)}
    theirs = {name for name in EVERY if not name.startswith("kraftpy.")}
    assert names >= theirs - INTERNAL_SETTINGS - DYNAMIC_ONLY
    assert not names & INTERNAL_SETTINGS
    assert not names & DYNAMIC_ONLY, "a throttle is told where it is set"
    given = BrokerConfig.of({"log.initial.task.delay.ms": "5"})
    assert [entry.name for entry in describe_broker(given, list(INTERNAL_SETTINGS))] == ["log.initial.task.delay.ms"]
    rate = "leader.replication.throttled.rate"
    (throttle,) = describe_broker(DEFAULT, [rate], own={rate: "9"}, cluster={rate: "8"})
    assert synonyms_of(throttle) == [(rate, "9", 2), (rate, "8", CLUSTER)]
    assert (throttle.value, throttle.read_only) == ("9", False)


def test_what_the_environment_has_besides_settings_is_not_told() -> None:
    config, _, _ = load(None, {"KAFKA_HEAP": "-Xmx1G", "KAFKA_NUM_PARTITIONS": "3"})
    entries = {entry.name: entry for entry in describe_broker(config)}
    assert "heap" not in entries
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG


@pytest.mark.parametrize(
    ("overrides", "given", "name", "synonyms"),
    [
        ({}, {}, "consumer.session.timeout.ms", [("group.consumer.session.timeout.ms", "45000", KAFKAS_DEFAULT)]),
        (
            {"consumer.session.timeout.ms": "51000"},
            {"group.consumer.session.timeout.ms": "50000"},
            "consumer.session.timeout.ms",
            [
                ("consumer.session.timeout.ms", "51000", GROUP),
                ("group.consumer.session.timeout.ms", "50000", STATIC),
                ("group.consumer.session.timeout.ms", "45000", KAFKAS_DEFAULT),
            ],
        ),
        ({}, {}, "share.auto.offset.reset", [("share.auto.offset.reset", "latest", KAFKAS_DEFAULT)]),
        (
            {"share.isolation.level": "read_committed"},
            {},
            "share.isolation.level",
            [
                ("share.isolation.level", "read_committed", GROUP),
                ("share.isolation.level", "read_uncommitted", KAFKAS_DEFAULT),
            ],
        ),
        ({}, {}, "share.renew.acknowledge.enable", [("share.renew.acknowledge.enable", "true", KAFKAS_DEFAULT)]),
        ({}, {}, "streams.num.standby.replicas", [("group.streams.num.standby.replicas", "0", KAFKAS_DEFAULT)]),
        (
            {},
            {},
            "consumer.assignment.interval.ms",
            [("group.consumer.assignment.interval.ms", "1000", KAFKAS_DEFAULT)],
        ),
        ({}, {}, "streams.assignment.interval.ms", [("group.streams.assignment.interval.ms", "1000", KAFKAS_DEFAULT)]),
    ],
)
def test_where_a_groups_setting_comes_from(
    overrides: dict[str, str], given: dict[str, str], name: str, synonyms: list[tuple[str, str, int]]
) -> None:
    (entry,) = describe_group(overrides, BrokerConfig.of(given), [name])
    assert synonyms_of(entry) == synonyms
    assert (entry.value, int(entry.source), entry.read_only) == (synonyms[0][1], synonyms[0][2], False)
    assert len(describe_group({}, DEFAULT)) == 19


def test_the_differing_defaults_are_the_ones_a_single_node_needs() -> None:
    assert [(name, theirs, ours) for name, theirs, ours, _ in differing_defaults()] == [
        ("controller.listener.names", None, "CONTROLLER"),
        ("group.initial.rebalance.delay.ms", "3000", "0"),
        ("listeners", "PLAINTEXT://:9092", "PLAINTEXT://127.0.0.1:9092"),
        ("log.dir", "/tmp/kafka-logs", "./kraftpy-data"),
        ("node.id", None, "1"),
        ("offsets.topic.replication.factor", "3", "1"),
        ("process.roles", None, "broker,controller"),
        ("queued.max.request.bytes", "-1", "268435456"),
        ("share.coordinator.state.topic.min.isr", "2", "1"),
        ("share.coordinator.state.topic.replication.factor", "3", "1"),
        ("transaction.state.log.min.isr", "2", "1"),
        ("transaction.state.log.replication.factor", "3", "1"),
    ]
    assert render_differing_defaults().count("\n") == 13


def test_what_takes_effect_is_bounded_whatever_a_topic_says() -> None:
    largest = {"index.interval.bytes": str(2**31 - 1), "max.message.bytes": str(2**31 - 1)}
    found = topic_config(largest, BrokerConfig())
    assert (found.index_interval_bytes, found.max_message_bytes) == (262_144, 16_777_216)
    found = topic_config({}, BrokerConfig.of({"socket.request.max.bytes": "1000000"}))
    assert (found.index_interval_bytes, found.max_message_bytes) == (4096, 1_000_000)


@pytest.mark.parametrize(
    ("broker", "in_effect"),
    [
        ({}, 16_777_216),
        ({"kraftpy.batch.max.bytes": "50000000"}, 50_000_000),
        ({"message.max.bytes": "60000000"}, 60_000_000),
        ({"message.max.bytes": "60000000", "socket.request.max.bytes": "1000000"}, 1_000_000),
    ],
)
def test_a_topic_cannot_ask_for_batches_that_hold_up_the_node(broker: dict[str, str], in_effect: int) -> None:
    config = topic_config({"max.message.bytes": "2147483647"}, BrokerConfig.of(broker))
    assert config.max_message_bytes == in_effect
