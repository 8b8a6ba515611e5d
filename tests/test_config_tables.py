"""The tables of settings: whole, parseable, and one with the typed objects."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

import kraftpy
from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, Setting, TopicConfig
from kraftpy.config.broker_settings import INTERNAL_SETTINGS
from kraftpy.config.dynamic import CERTIFICATES, DYNAMIC_ONLY, DYNAMIC_SETTINGS, OF_ONE_BROKER
from kraftpy.config.group import GROUP_SETTINGS, GroupSettings
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND
from kraftpy.config.other_settings import DROPPED, OTHER_SETTINGS, why_ignored
from kraftpy.config.security_settings import SECURITY_SETTINGS
from kraftpy.config.settings import parse_table, render
from kraftpy.config.topic_settings import NO_EFFECT, SYNONYMS

KAFKA_SETTINGS = Path(__file__).parent / "compat" / "kafka_settings.tsv"
"""Printed by compat/java_settings/PrintSettings.java."""
EVERY = {**BROKER_SETTINGS, **SECURITY_SETTINGS, **OTHER_SETTINGS}
ACTED_ON = BROKER_SETTINGS.keys() | SECURITY_SETTINGS.keys()
OURS = {
    "allow.everyone.if.no.acl.found",  # Kafka's authorizer reads these two itself
    "super.users",
    "kraftpy.sasl.oauthbearer.allow.unsecured.tokens",
    "org.apache.kafka.sasl.oauthbearer.allowed.files",  # properties of the JVM in Kafka
    "org.apache.kafka.sasl.oauthbearer.allowed.urls",
    "kraftpy.console.listener",
    "kraftpy.console.config",
    "kraftpy.console.allow.changes",
    "kraftpy.batch.max.expanded.bytes",
    "kraftpy.batch.max.headers",
    "kraftpy.audit.log.file",
    "kraftpy.audit.log.max.bytes",
    "kraftpy.broker.host",
    "kraftpy.metrics.listener",
    "kraftpy.metrics.open.health",
    "kraftpy.metrics.users.file",
    "kraftpy.batch.max.bytes",
    "kraftpy.batch.max.records",
    "kraftpy.broker.disconnect.grace.ms",
    "kraftpy.fetch.session.partitions.max",
    "kraftpy.group.coordinator.max.bytes",
    "kraftpy.group.max.bytes",
    "kraftpy.max.partitions",
    "kraftpy.max.producers",
    "kraftpy.share.coordinator.max.bytes",
    "kraftpy.log.format",
    "kraftpy.loop.stall.ms",
    "kraftpy.slow.request.ms",
    "kraftpy.telemetry.max.bytes",
    "kraftpy.telemetry.otlp.endpoint",
    "kraftpy.transaction.coordinator.max.bytes",
    "kraftpy.fetch.check.crcs",
    "kraftpy.fetch.zero.copy.min.bytes",
    "kraftpy.flush.before.ack",
    "kraftpy.max.configs.bytes",
    "kraftpy.group.regex.cache.bytes",
    "kraftpy.quorum.secret",
    "kraftpy.metadata.cache.max.bytes",
    "kraftpy.request.receive.timeout.ms",
    "kraftpy.quorum.secret.file",
}
"""Settings that Kafka does not have."""
PYTHON_TYPES = {
    ConfigType.BOOLEAN: bool,
    ConfigType.INT: int,
    ConfigType.SHORT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.STRING: str,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
    ConfigType.LIST: tuple,
}


def kafkas(kind: str) -> dict[str, tuple[ConfigType, str | None, bool]]:
    """The settings of Kafka 4.3.1 of one kind: type, default, and whether they are internal."""
    lines = [line.split("\t") for line in KAFKA_SETTINGS.read_text().splitlines() if line[:1] not in "#"]
    return {
        name: (
            ConfigType[type_],
            None if default == "null" else default.removeprefix('"').removesuffix('"'),
            internal == "internal",
        )
        for of, name, type_, default, internal, *_ in lines
        if of == kind
    }


def test_every_broker_setting_of_kafka_is_there_once() -> None:
    assert EVERY.keys() - OURS == kafkas("broker").keys() | DYNAMIC_ONLY
    assert len(EVERY) == len(BROKER_SETTINGS) + len(SECURITY_SETTINGS) + len(OTHER_SETTINGS)
    assert not EVERY.keys() & DROPPED
    assert {name for name, (_, _, is_internal) in kafkas("broker").items() if is_internal} == INTERNAL_SETTINGS


def test_settings_change_while_a_broker_runs_as_in_kafka() -> None:
    """Apart from those of listeners, which need a restart here, and those that an operator would set for nothing."""
    lines = [line.split("\t") for line in KAFKA_SETTINGS.read_text().splitlines()]
    modes = {line[1]: line[5] for line in lines if line[0] == "broker" and len(line) == 6}
    dynamic = {name for name, mode in modes.items() if mode != "read-only"}
    of_listeners = {name for name in dynamic if name.startswith(("listener", "sasl.", "ssl.", "principal."))}
    left_out = of_listeners | {"config.providers", "metric.reporters"}
    of_kafka_4_4 = {name for name in DYNAMIC_SETTINGS if name.startswith("errors.deadletterqueue.")}
    assert of_listeners >= CERTIFICATES
    assert dynamic - left_out == DYNAMIC_SETTINGS - DYNAMIC_ONLY - of_kafka_4_4
    assert {name for name in dynamic - left_out if modes[name] == "per-broker"} == OF_ONE_BROKER


def test_every_topic_and_group_setting_of_kafka_is_there() -> None:
    assert TOPIC_SETTINGS.keys() - OURS == kafkas("topic").keys()
    assert GROUP_SETTINGS.keys() == kafkas("group").keys()
    assert TOPIC_SETTINGS.keys() >= NO_EFFECT


@pytest.mark.parametrize(
    ("kind", "settings"), [("broker", EVERY), ("topic", TOPIC_SETTINGS), ("group", GROUP_SETTINGS)]
)
def test_types_and_defaults_are_kafkas(kind: str, settings: dict[str, Setting]) -> None:
    for name, (type_, default, _) in kafkas(kind).items():
        assert settings[name].type is type_, name
        assert settings[name].kafka_default == default or (not default and not settings[name].kafka_default), name


@pytest.mark.parametrize(
    "kind",
    [
        "broker",
        "topic",
        "group",
        "producer",
        "consumer",
        "admin",
        "client-metrics",
        "quota",
        "former-broker",
        "former-topic",
        "former-client",
    ],
)
def test_every_name_of_kafka_is_known_at_the_start(kind: str) -> None:
    """None of them is refused as if it were a mistake in writing."""
    assert [name for name in kafkas(kind) if name not in ACTED_ON and why_ignored(name) is None] == []


@pytest.mark.parametrize(
    "setting", [*EVERY.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()], ids=lambda setting: setting.name
)
def test_every_default_is_allowed_by_its_own_rule(setting: Setting) -> None:
    for text in (setting.default, setting.kafka_default):
        if text not in (None, ""):
            assert text is not None
            assert isinstance(setting.parse(text), PYTHON_TYPES[setting.type])
    assert setting.meaning.endswith((".", ")"))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(BrokerConfig, BROKER_SETTINGS), (TopicConfig, TOPIC_SETTINGS), (GroupSettings, GROUP_SETTINGS)],
)
def test_the_typed_fields_are_the_tables(kind: type, settings: dict[str, Setting]) -> None:
    hints = typing.get_type_hints(kind, localns={"ListenerSecurity": object})
    fields = {field.name for field in dataclasses.fields(kind)} - {"given", "secured"}
    assert fields == {setting.attribute for setting in settings.values()}
    for setting in settings.values():
        hint = hints[setting.attribute]
        allowed = [part for part in typing.get_args(hint) if part is not type(None)] if _is_union(hint) else [hint]
        base = typing.get_origin(allowed[0]) or allowed[0]
        assert base is PYTHON_TYPES[setting.type] or setting.name in SETS, setting.name
        assert _is_union(hint) == (setting.default is None and setting.attribute not in _RESOLVED), setting.name


SETS = ("cleanup.policy", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
_RESOLVED = ("log_dirs", "advertised_listeners")


def _is_union(hint: object) -> bool:
    return type(None) in typing.get_args(hint)


def test_an_object_without_arguments_has_the_defaults() -> None:
    assert BrokerConfig() == BrokerConfig.of({})
    assert BrokerConfig().topic_defaults == TopicConfig()


def test_every_synonym_is_a_broker_setting_of_the_same_kind() -> None:
    for name, synonyms in SYNONYMS.items():
        for synonym in synonyms:
            kinds = {TOPIC_SETTINGS[name].type, BROKER_SETTINGS[synonym].type}
            assert len(kinds) == 1 or kinds == {ConfigType.INT, ConfigType.LONG}


def setting_of(line: str) -> Setting:
    return parse_table(f"{line}\n    Meaning.\n")["x"]


@pytest.mark.parametrize(
    ("line", "text", "value"),
    [
        ("x int 1", " +7 ", 7),
        ("x int 1 -1,1..9", "-1", -1),
        ("x long 1 0..", "9223372036854775807", 2**63 - 1),
        ("x double 1 0..1", "0.5", 0.5),
        ("x boolean true", "FALSE", False),
        ("x string a {a,b}", "b", "b"),
        ("x string a ~{A,B}", "b", "b"),
        ("x list a {a,b}", "b, a,b", ("b", "a")),
        ("x list a", "", ()),
        ("x list a throttled", "0:1,2:3", ("0:1", "2:3")),
        ("x list a throttled", "*", ("*",)),
    ],
)
def test_a_text_is_parsed(line: str, text: str, value: object) -> None:
    assert setting_of(line).parse(text) == value


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        ("x int 1", "2147483648", "Not a number of type INT"),
        ("x int 1", "7_0", "Not a number of type INT"),
        ("x int 1", "٣", "Not a number of type INT"),
        ("x int 1", "", "Not a number of type INT"),
        ("x int 1 0..9", "10", "Value must be no more than 9"),
        ("x int 1 0..", "-1", "Value must be at least 0"),
        ("x int 1 -1,1..9", "0", "Value must be between 1 and 9 or equal to -1"),
        ("x short 1", "32768", "Not a number of type SHORT"),
        ("x long 1", "9223372036854775808", "Not a number of type LONG"),
        ("x double 1 0..1", "1.5", "Value must be no more than 1"),
        ("x double 1 0..1", "-0.5", "Value must be at least 0"),
        ("x double 1", "much", "Not a number of type DOUBLE"),
        ("x double 1", "nan", "Not a number of type DOUBLE"),
        ("x double 1 0..1", "nan", "Not a number of type DOUBLE"),
        ("x boolean true", "1", "Expected value to be either true or false"),
        ("x string a {a,b}", "B", "String must be one of: a, b"),
        ("x string a ~{A,B}", "c", "String must be one of (case insensitive): A, B"),
        ("x string a non-empty", "", "String must be non-empty"),
        ("x list a {a,b}", "c", "String must be one of: a, b"),
    ],
)
def test_a_text_is_refused_in_kafkas_words(line: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting_of(line).parse(text)
    assert str(refused.value) == f"Invalid value {text} for configuration x: {reason}"


@pytest.mark.parametrize("text", ["a,,b", "a,", ",a", ","])
def test_a_list_has_no_empty_entries(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting_of("x list a").parse(text)
    assert str(refused.value) == "Configuration 'x' values must not be empty."


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        ("0:1,", ("0:1",)),
        ("0:1,,1:2", ("0:1", "1:2")),
        (",", ()),
        ("*", ("*",)),
        ("*,", ("*",)),
        (" 0:1 , 1:2 ", ("0:1", "1:2")),
    ],
)
def test_throttled_replicas_may_be_listed_with_too_many_commas(text: str, replicas: tuple[str, ...]) -> None:
    assert setting_of("x list a throttled").parse(text) == replicas


@pytest.mark.parametrize("text", ["0-1", "0:x", "1:", ":1", "*,0:1", "٣:1"])
def test_throttled_replicas_that_are_none(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"x must be the literal '\*' or a list of replicas in the following format: "
    ):
        setting_of("x list a throttled").parse(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (1.5e22, "1.5E22"),
        (1e-4, "1.0E-4"),
        (123456.0, "123456.0"),
        (0.0, "0.0"),
    ],
)
def test_a_number_is_rendered_as_java_does(number: float, text: str) -> None:
    assert render(number) == text


def test_a_password_is_not_shown_in_an_error() -> None:
    setting = parse_table("x password null {a}\n    Meaning.\n")["x"]
    with pytest.raises(ConfigError, match="hidden") as refused:
        setting.parse("secret")
    assert "secret" not in str(refused.value)


WITHIN_CONFIG = {
    "broker.id",
    "controller.listener.names",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "kraftpy.batch.max.bytes",
    "log.dir",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "process.roles",
    "security.inter.broker.protocol",
}
"""Settings that are read only to check and resolve others."""


def _broker_source() -> str:
    package = Path(kraftpy.__file__).parent
    parts = ("broker", "groups", "log", "metadata")
    return "".join(path.read_text() for part in parts for path in sorted((package / part).rglob("*.py")))


def test_the_settings_called_used_are_those_the_broker_reads() -> None:
    source = _broker_source()
    read = {name for name, setting in EVERY.items() if re.search(rf"\.{setting.attribute}\b", source)}
    for_topics = {synonym for synonyms in SYNONYMS.values() for synonym in synonyms}
    for_groups = {name for behind in BROKER_SETTINGS_BEHIND.values() for name in behind if name is not None}
    assert BROKER_SETTINGS.keys() - read - for_topics - for_groups == WITHIN_CONFIG - read
    assert read - BROKER_SETTINGS.keys() == set()


def test_the_topic_settings_said_to_have_no_effect_are_those_nobody_reads() -> None:
    source = _broker_source()
    read = {name for name, setting in TOPIC_SETTINGS.items() if re.search(rf"\.{setting.attribute}\b", source)}
    # Into segment.bytes; refused where true; read by its name, in the metadata.
    resolved = {"internal.segment.bytes", "remote.storage.enable", "unclean.leader.election.enable"}
    assert TOPIC_SETTINGS.keys() - read - resolved == NO_EFFECT


def test_every_group_setting_is_read() -> None:
    source = _broker_source()
    read = {name for name, setting in GROUP_SETTINGS.items() if re.search(rf"\.{setting.attribute}\b", source)}
    assert read == GROUP_SETTINGS.keys()


def test_what_is_behind_a_group_setting_are_broker_settings_with_its_default() -> None:
    for name, behind in BROKER_SETTINGS_BEHIND.items():
        assert BROKER_SETTINGS[behind.default].default == GROUP_SETTINGS[name].default
        assert all(each in BROKER_SETTINGS for each in behind if each is not None)
