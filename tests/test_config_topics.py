"""A topic's settings: defaults from the broker, overrides, and how they are described."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.config import (
    BrokerConfig,
    ConfigError,
    ConfigType,
    TopicConfig,
    topic_config,
)
from kraftpy.config.describe import (
    ConfigSource,
    describe_broker,
    describe_topic,
    differing_defaults,
    render_differing_defaults,
)

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
    with pytest.raises(ConfigError, match=r"segment\.bytes='100' is not allowed"):
        topic_config({"segment.bytes": "100"}, DEFAULT)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("retention.ms", "-1", None),
        ("retention.ms", "-2", "retention.ms='-2' is not allowed: expected an integer of at least -1"),
        ("cleanup.policy", "delete,compact", None),
        ("cleanup.policy", "shred", "cleanup.policy='shred' is not allowed: expected a list of compact, delete"),
        ("retention.ms", None, "retention.ms: no value was given"),
        ("retention", "1", "retention is not a topic setting; did you mean retention.ms?"),
        ("qqqq", "1", "qqqq is not a topic setting"),
        (
            "remote.storage.enable",
            "true",
            "remote.storage.enable=true is not allowed: this broker has no remote tier",
        ),
        ("remote.storage.enable", "false", None),
        (
            "compression.gzip.level",
            "0",
            "compression.gzip.level='0' is not allowed: expected an integer from 1 to 9, or -1",
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
    with pytest.raises(ConfigError, match=r"above max\.compaction\.lag\.ms=1"):
        topic_config({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, DEFAULT)


def test_a_topic_setting_is_described_with_where_it_comes_from() -> None:
    broker = BrokerConfig.of({"log.retention.minutes": "1"})
    (entry,) = describe_topic({"retention.ms": "5"}, broker, ["retention.ms"])
    assert (entry.value, entry.source, entry.type) == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigType.LONG)
    assert not entry.read_only
    assert not entry.is_default
    assert entry.documentation == "Time to keep a segment before it is deleted; -1 means no limit."
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.minutes", "1", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]
    (entry,) = describe_topic({}, broker, ["retention.ms"])
    assert (entry.value, entry.source) == ("60000", ConfigSource.STATIC_BROKER_CONFIG)
    (entry,) = describe_topic({}, DEFAULT, ["local.retention.ms"])
    assert entry.documentation.endswith("(No effect in this broker.)")
    (entry,) = describe_topic({}, DEFAULT, ["retention.ms"])
    assert (entry.value, entry.is_default) == ("604800000", True)


def test_all_of_a_topics_settings_are_described_but_the_internal_one() -> None:
    names = [entry.name for entry in describe_topic({}, DEFAULT)]
    assert len(names) == 34
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
    assert "ssl.key.password" not in entries
    (password,) = describe_broker(broker, ["ssl.key.password"])
    assert password.is_sensitive
    assert password.value is None
    assert "secret" not in repr(password)


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
