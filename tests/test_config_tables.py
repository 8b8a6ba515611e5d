"""The tables of settings: whole, parseable, and one with the typed objects."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

import kraftpy
from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, Setting, TopicConfig
from kraftpy.config.broker import DYNAMIC_ONLY
from kraftpy.config.group import GROUP_SETTINGS, GroupSettings
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND
from kraftpy.config.other_settings import DROPPED, OTHER_SETTINGS
from kraftpy.config.settings import parse_table
from kraftpy.config.topic_settings import NO_EFFECT, SYNONYMS

EVERY = {**BROKER_SETTINGS, **OTHER_SETTINGS}
OURS = {
    "kraftpy.batch.max.expanded.bytes",
    "kraftpy.batch.max.headers",
    "kraftpy.batch.max.bytes",
    "kraftpy.batch.max.records",
    "kraftpy.broker.disconnect.grace.ms",
    "kraftpy.fetch.session.partitions.max",
    "kraftpy.group.coordinator.max.bytes",
    "kraftpy.group.max.bytes",
    "kraftpy.max.partitions",
    "kraftpy.max.producers",
    "kraftpy.share.coordinator.max.bytes",
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
"""What Kafka has not."""
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


def test_every_broker_setting_of_kafka_4_3_is_there_once() -> None:
    assert len(EVERY.keys() - OURS) == 360 + len(DYNAMIC_ONLY)
    assert not BROKER_SETTINGS.keys() & OTHER_SETTINGS.keys()
    assert not EVERY.keys() & DROPPED


def test_every_topic_setting_of_kafka_4_3_is_there() -> None:
    assert len(TOPIC_SETTINGS.keys() - OURS) == 34
    assert TOPIC_SETTINGS.keys() >= NO_EFFECT


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
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)} - {"given"}
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
    ("line", "text", "allowed"),
    [
        ("x int 1", "2147483648", "an integer of 32 bits"),
        ("x int 1", "7_0", "an integer of 32 bits"),
        ("x int 1", "٣", "an integer of 32 bits"),
        ("x int 1", "", "an integer of 32 bits"),
        ("x int 1 0..9", "10", "an integer from 0 to 9"),
        ("x int 1 0..", "-1", "an integer of at least 0"),
        ("x int 1 -1,1..9", "0", "an integer from 1 to 9, or -1"),
        ("x short 1", "32768", "an integer of 16 bits"),
        ("x long 1", "9223372036854775808", "an integer of 64 bits"),
        ("x double 1 0..1", "1.5", "a number from 0 to 1"),
        ("x double 1", "much", "a number"),
        ("x double 1", "nan", "a number"),
        ("x double 1 0..1", "nan", "a number from 0 to 1"),
        ("x boolean true", "1", "true or false"),
        ("x string a {a,b}", "B", "one of a, b"),
        ("x string a non-empty", " ", "a text that is not empty"),
        ("x list a {a,b}", "c", "a list of a, b"),
        ("x list a", "a,,b", "a list without empty entries"),
        ("x list a throttled", "0-1", "* or a list of partition:broker"),
    ],
)
def test_a_text_is_refused_with_what_is_allowed(line: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting_of(line).parse(text)
    assert str(refused.value) == f"x='{text}' is not allowed: expected {allowed}"


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
"""What the settings themselves use, to check and resolve others."""


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
    assert GROUP_SETTINGS.keys() == read


def test_what_is_behind_a_group_setting_are_broker_settings_with_its_default() -> None:
    for name, behind in BROKER_SETTINGS_BEHIND.items():
        assert BROKER_SETTINGS[behind.default].default == GROUP_SETTINGS[name].default
        assert all(each in BROKER_SETTINGS for each in behind if each is not None)
