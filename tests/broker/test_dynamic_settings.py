"""Broker settings that change while the broker runs take effect at once (KIP-226), as do levels of loggers (KIP-412).

Each test has its own cluster of one broker, since its settings are changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from broker_wire import StartBroker, ask, connect, create_topic, produce

from kraftpy.config import BROKER_SETTINGS, BrokerConfig
from kraftpy.config.dynamic import CLUSTER_SETTINGS, DYNAMIC_SETTINGS, WITHOUT_EFFECT, in_force
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import describe_configs as describing
from kraftpy.protocol.messages import incremental_alter_configs as altering
from kraftpy.protocol.messages import list_config_resources as listing
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.protocol.record_batch import encode_batch

TOPIC, BROKER, LOGGERS, METRICS = 2, 4, 8, 16
SET, DELETE, APPEND = 0, 1, 2
BOUND_SECONDS = 20.0


def change(connection: Any, kind: int, resource: str, name: str, value: str | None, operation: int = SET) -> Any:
    config = altering.AlterableConfig(name=name, value=value, config_operation=operation)
    named = altering.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])
    request = altering.IncrementalAlterConfigsRequest(resources=[named], validate_only=False)
    answer = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]
    return ErrorCode.of(answer.error_code), answer.error_message


def described(connection: Any, kind: int, resource: str) -> dict[str, Any]:
    named = describing.DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=None)
    request = describing.DescribeConfigsRequest(resources=[named], include_synonyms=True)
    answer = ask(connection, ApiKey.DESCRIBE_CONFIGS, 4, request).results[0]
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return {config.name: config for config in answer.configs}


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_the_largest_batch_changes_for_topics_that_have_no_limit_of_their_own(start_broker: StartBroker) -> None:
    broker = start_broker()
    batch = encode_batch([(0, b"key", b"v" * 2_000, ())])
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "plain")
        create_topic(connection, "own", max_message_bytes="1000000")

        def error(topic: str) -> int:
            return int(produce(connection, topic, batch).error_code)

        for resource, topic_source in (("", 3), ("1", 2)):
            assert change(connection, BROKER, resource, "message.max.bytes", "1000")[0] == ErrorCode.NONE
            until(lambda: error("plain") == ErrorCode.MESSAGE_TOO_LARGE, "the limit is in force")
            assert error("own") == ErrorCode.NONE
            config = described(connection, TOPIC, "plain")["max.message.bytes"]
            assert (config.value, config.config_source) == ("1000", topic_source)
            assert change(connection, BROKER, resource, "message.max.bytes", None, DELETE)[0] == ErrorCode.NONE
            until(lambda: error("plain") == ErrorCode.NONE, "the broker's file has no limit")


def test_dynamic_settings_are_in_force_after_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"message.max.bytes": "100000"})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "t")
        assert change(connection, BROKER, "1", "message.max.bytes", "1000")[0] == ErrorCode.NONE
    broker.stop()
    broker.start()
    with connect(broker.bootstrap) as connection:
        refused = produce(connection, "t", encode_batch([(0, b"key", b"v" * 2_000, ())]))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        config = described(connection, BROKER, "1")["message.max.bytes"]
        assert [(each.value, each.source) for each in config.synonyms][:2] == [("1000", 2), ("100000", 4)]
        assert not config.read_only


def test_the_limit_of_connections_changes(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        assert change(connection, BROKER, "", "max.connections.per.ip", "1")[0] == ErrorCode.NONE

        def is_refused() -> bool:
            try:
                with connect(broker.bootstrap) as other:
                    described(other, BROKER, "1")
            except (OSError, EOFError, AssertionError):
                return True
            return False

        until(is_refused, "a second connection is refused")
        assert change(connection, BROKER, "", "max.connections.per.ip", None, DELETE)[0] == ErrorCode.NONE
        until(lambda: not is_refused(), "the limit is gone")


def test_what_cannot_be_is_refused_in_kafka_s_words(start_broker: StartBroker) -> None:
    broker = start_broker()
    refused = {
        "listeners": ("PLAINTEXT://:0", "Cannot update these configs dynamically: [listeners]"),
        "log.cleaner.threads": ("3", "Log cleaner threads cannot be increased to more than double the current value 1"),
        "num.io.threads": (
            "17",
            "Dynamic thread count update validation failed for num.io.threads=17, value should not be greater than "
            "double the current value 8",
        ),
        "log.segment.bytes": (
            "1",
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        "log.roll.ms": ("0", "log.roll.ms must be greater than or equal to 1"),
        "log.roll.jitter.ms": ("-1", "log.roll.jitter.ms must be greater than or equal to 0"),
        "log.retention.ms": ("0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        "log.local.retention.ms": (
            "-1",
            "Invalid value -1 for configuration log.local.retention.ms: Value must not be -1 as log.retention.ms value "
            "is set as 604800000.",
        ),
        "log.cleaner.min.cleanable.ratio": (
            "2",
            "Invalid value 2.0 for configuration log.cleaner.min.cleanable.ratio: Value must be no more than 1",
        ),
        "max.connections": ("0", "Invalid max.connections 0"),
        "max.connections.per.ip": (
            "0",
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        ),
        "max.connections.per.ip.overrides": (
            "a b:1",
            "max.connections.per.ip.overrides contains invalid addresses : a b",
        ),
        "group.consumer.assignment.interval.ms": (
            "15001",
            "group.consumer.assignment.interval.ms must be less than or equal to "
            "group.consumer.max.assignment.interval.ms",
        ),
        "ssl.keystore.location": (
            "/keys",
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.location]",
        ),
        "listener.name.plaintext.max.connections": (
            "few",
            "Invalid value few for configuration max.connections: Not a number of type INT",
        ),
    }
    with connect(broker.bootstrap) as connection:
        for resource in ("", "1"):
            for name, (value, message) in refused.items():
                assert change(connection, BROKER, resource, name, value) == (ErrorCode.INVALID_REQUEST, message)
        error, _ = change(connection, BROKER, "", "log.cleaner.dedupe.buffer.size", "1000")
        assert error == ErrorCode.INVALID_REQUEST, "less than each cleaner needs"


@pytest.mark.parametrize("name", sorted(DYNAMIC_SETTINGS - WITHOUT_EFFECT))
def test_every_dynamic_setting_is_in_force(name: str) -> None:
    """A setting of one broker precedes one of all brokers; what cannot be used counts as not set."""
    config = BrokerConfig()
    setting = BROKER_SETTINGS[name]
    before = getattr(config, setting.attribute)
    if isinstance(before, bool):
        texts = [str(not before).lower()]
    elif setting.allowed.startswith("{"):
        texts = [text for text in setting.allowed.strip("{}").split(",") if (text,) != before and text != before][:1]
    elif name == "max.connections.per.ip.overrides":
        texts = ["localhost:3", "localhost:4"]
    else:
        texts = {
            "log.cleaner.dedupe.buffer.size": ["2097153", "2097154"],
            "log.cleaner.threads": ["2", "3"],
        }.get(name, ["2097153", "2097154", "1", "2", "0.25", "0.75"])
    valid = [text for text in texts if _is_valid(name, text)]
    assert valid, name
    changed = getattr(in_force(config, {}, {name: valid[0]}), setting.attribute)
    if name.endswith((".throttled.rate", "bytes.per.second")) and name != "log.cleaner.io.max.bytes.per.second":
        assert changed == before, "the throttles are looked up where they apply (`broker.replication.throttle`)"
        return
    assert changed != before
    own = getattr(in_force(config, {name: valid[-1]}, {name: valid[0]}), setting.attribute)
    assert own == (changed if name in CLUSTER_SETTINGS else setting.parse(valid[-1]))
    assert in_force(config, {name: "?"}, {}) == config or setting.type.name in ("STRING", "LIST")


def _is_valid(name: str, text: str) -> bool:
    from kraftpy.config import ConfigError

    try:
        BROKER_SETTINGS[name].parse(text)
    except ConfigError:
        return False
    return True


def test_levels_of_loggers(start_broker: StartBroker) -> None:
    broker = start_broker()
    name = "kraftpy.broker.server"
    with connect(broker.bootstrap) as connection:
        before = described(connection, LOGGERS, "1")
        assert before["root"].value == before[name].value
        assert change(connection, LOGGERS, "1", name, "DEBUG") == (ErrorCode.NONE, None)
        after = described(connection, LOGGERS, "1")
        assert after[name].value == "DEBUG"
        assert after["root"].value == before["root"].value
        assert change(connection, LOGGERS, "1", name, None, DELETE)[0] == ErrorCode.NONE
        assert described(connection, LOGGERS, "1")[name].value == before[name].value
        assert change(connection, LOGGERS, "1", "kraftpy", "TRACE") == (ErrorCode.NONE, None)
        assert change(connection, LOGGERS, "1", "kraftpy.broker", "FATAL") == (ErrorCode.NONE, None)
        levels = {each: config.value for each, config in described(connection, LOGGERS, "1").items()}
        of_package = {level for each, level in levels.items() if each.startswith("kraftpy.broker")}
        assert (levels["kraftpy"], of_package, levels["asyncio"]) == ("TRACE", {"FATAL"}, before["asyncio"].value)
        for package in ("kraftpy", "kraftpy.broker"):
            assert change(connection, LOGGERS, "1", package, None, DELETE)[0] == ErrorCode.NONE
        restored = {each: config.value for each, config in described(connection, LOGGERS, "1").items()}
        assert {each: restored[each] for each in before} == {each: config.value for each, config in before.items()}
        for resource, logger, level, operation, error in (
            ("2", name, "INFO", SET, ErrorCode.INVALID_REQUEST),
            ("x", name, "INFO", SET, ErrorCode.INVALID_REQUEST),
            ("1", "no.such.logger", "INFO", SET, ErrorCode.INVALID_CONFIG),
            ("1", name, "LOUD", SET, ErrorCode.INVALID_CONFIG),
            ("1", name, "INFO", APPEND, ErrorCode.INVALID_REQUEST),
            ("1", "root", None, DELETE, ErrorCode.INVALID_REQUEST),
        ):
            assert change(connection, LOGGERS, resource, logger, level, operation)[0] == error


def test_client_metrics_are_kept_and_listed(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        for name, value, error in (
            ("metrics", "a.,b.", ErrorCode.NONE),
            ("interval.ms", "99", ErrorCode.INVALID_REQUEST),
            ("interval.ms", "100", ErrorCode.NONE),
            ("match", "client_id=[", ErrorCode.INVALID_CONFIG),
            ("match", "client_name=x", ErrorCode.INVALID_CONFIG),
            ("match", "client_id=x.*,client_source_port=1", ErrorCode.NONE),
            ("retention.ms", "1", ErrorCode.INVALID_REQUEST),
        ):
            assert change(connection, METRICS, "mine", name, value)[0] == error, (name, value)
        assert change(connection, METRICS, "mine", "metrics", "c.", APPEND)[0] == ErrorCode.NONE
        assert change(connection, METRICS, "", "metrics", "a.")[0] == ErrorCode.INVALID_REQUEST
    broker.stop()
    broker.start()
    with connect(broker.bootstrap) as connection:
        found = described(connection, METRICS, "mine")
        assert {name: (config.value, config.config_source) for name, config in found.items()} == {
            "interval.ms": ("100", 7),
            "match": ("client_id=x.*,client_source_port=1", 7),
            "metrics": ("a.,b.,c.", 7),
        }
        request = listing.ListConfigResourcesRequest(resource_types=[METRICS])

        def listed() -> list[tuple[int, str]]:
            answer = ask(connection, ApiKey.LIST_CONFIG_RESOURCES, 1, request)
            return [(each.resource_type, each.resource_name) for each in answer.config_resources]

        assert listed() == [(METRICS, "mine")]
        for name in found:
            assert change(connection, METRICS, "mine", name, None, DELETE)[0] == ErrorCode.NONE
        assert listed() == []
        assert described(connection, METRICS, "mine")["interval.ms"].value == "300000"


def test_protocols_of_groups_that_the_broker_does_not_serve(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"group.coordinator.rebalance.protocols": "classic"})
    consumer = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, topic_partitions=[])
    streams = StreamsGroupHeartbeatRequest(group_id="s", member_id="m", member_epoch=0)
    with connect(broker.bootstrap) as connection:
        for key, request in ((ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer), (ApiKey.STREAMS_GROUP_HEARTBEAT, streams)):
            assert ask(connection, key, 0, request).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_settings_that_nobody_knows_are_kept_and_never_shown(start_broker: StartBroker) -> None:
    """They may be those of a plug-in, or of a listener, and secrets; as in Kafka."""
    broker = start_broker()
    listeners = "listener.name.internal.ssl.keystore.password"
    with connect(broker.bootstrap) as connection:
        for resource in ("", "1"):
            assert change(connection, BROKER, resource, "plug.in", "secret") == (ErrorCode.NONE, None)
            config = described(connection, BROKER, resource)["plug.in"]
            assert (config.value, config.is_sensitive, config.read_only) == (None, True, False)
            assert {synonym.value for synonym in config.synonyms} == {None}
        assert change(connection, BROKER, "1", listeners, "secret")[0] == ErrorCode.NONE
        location = listeners.replace("password", "location")
        assert change(connection, BROKER, "1", location, "/keys")[0] == ErrorCode.NONE
        found = described(connection, BROKER, "1")
        assert (found[listeners].value, found[listeners].is_sensitive) == (None, True)
        assert (found[location].value, found[location].is_sensitive) == ("/keys", False)
        kind, jaas = "listener.name.internal.ssl.keystore.type", "listener.name.internal.plain.sasl.jaas.config"
        for name, value in ((kind, "PEM"), (jaas, "secret")):
            assert change(connection, BROKER, "1", name, value)[0] == ErrorCode.NONE
        found = described(connection, BROKER, "1")
        synonyms = [(each.name, each.value, each.source) for each in found[kind].synonyms]
        assert synonyms == [(kind, "PEM", 2), ("ssl.keystore.type", "JKS", 5)]
        assert (found[jaas].value, found[jaas].config_type) == (None, 9)
        assert change(connection, BROKER, "", listeners, "secret") == (
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs at default cluster level, broker id must be specified: [{listeners}]",
        )
        assert change(connection, BROKER, "1", "plug.in", None, DELETE)[0] == ErrorCode.NONE
        assert change(connection, BROKER, "1", "never.there", None, DELETE)[0] == ErrorCode.NONE
        for name in ("", "x" * 250, "line\n"):
            assert change(connection, BROKER, "1", name, "1")[0] == ErrorCode.INVALID_REQUEST


def test_a_group_tells_where_its_defaults_come_from(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"group.consumer.assignment.interval.ms": "2000"})
    name, default = "consumer.assignment.interval.ms", "group.consumer.assignment.interval.ms"

    def synonyms(connection: Any) -> list[tuple[str, str, int]]:
        config = described(connection, 32, "g")[name]
        return [(each.name, each.value, each.source) for each in config.synonyms]

    static = [(default, "2000", 4), (default, "1000", 5)]
    with connect(broker.bootstrap) as connection:
        assert synonyms(connection) == static
        assert change(connection, BROKER, "", default, "3000")[0] == ErrorCode.NONE
        assert change(connection, BROKER, "1", default, "4000")[0] == ErrorCode.NONE
        until(
            lambda: synonyms(connection) == [(default, "4000", 2), (default, "3000", 3), *static], "they are in force"
        )
        assert described(connection, 32, "g")[name].value == "4000"
