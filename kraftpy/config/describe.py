"""Settings as DescribeConfigs returns them, and the list of defaults that differ from Kafka's.

`ConfigSource` and `ConfigType` have the codes of the protocol (KIP-226, KIP-569). Password values are never returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import cache
from itertools import dropwhile
from types import MappingProxyType
from typing import NamedTuple

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin
from kraftpy.config.broker_settings import CHAINS, INTERNAL_SETTINGS
from kraftpy.config.client_metrics import CLIENT_METRICS_SETTINGS
from kraftpy.config.dynamic import DYNAMIC_ONLY, DYNAMIC_SETTINGS
from kraftpy.config.group import GROUP_SETTINGS, group_default_values
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND
from kraftpy.config.listeners import Listener
from kraftpy.config.settings import ConfigType, Setting, render
from kraftpy.config.topic import TOPIC_SETTINGS, topic_default_values
from kraftpy.config.topic_settings import DESCRIBED_SYNONYMS, NO_EFFECT, SYNONYMS
from kraftpy.frozen import frozen

NOTHING: Mapping[str, str] = MappingProxyType({})


class ConfigSource(IntEnum):
    """The source of a described value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


_DYNAMIC = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
)


_OF_MECHANISMS = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
"""Settings that can belong to one mechanism of a listener, whose name precedes them."""


@frozen
class ConfigSynonym:
    """A setting that supplies the value, or would if others were not set."""

    name: str
    value: str | None
    source: ConfigSource


@frozen
class ConfigEntry:
    """One described setting. `synonyms` are in order of precedence; the first supplied the value."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    is_sensitive: bool
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        """True if the value is a default; DescribeConfigs v0 returns this instead of the source."""
        return self.source is ConfigSource.DEFAULT_CONFIG


def describe_broker(
    config: BrokerConfig,
    names: Collection[str] | None = None,
    *,
    own: Mapping[str, str] = NOTHING,
    cluster: Mapping[str, str] = NOTHING,
) -> list[ConfigEntry]:
    """Return the broker's settings, sorted by name: all that Kafka lists and our own ones, or those in `names`.

    Internal settings, and those that Kafka has only dynamically, are listed if they are set. So is an unknown name that
    was given, as a secret. `own` and `cluster` are the dynamic settings of this broker and of all brokers.
    """
    is_set = {*config.given, *own, *cluster}
    settings = {
        name: setting
        for name, setting in every_setting().items()
        if name in is_set or name not in INTERNAL_SETTINGS | DYNAMIC_ONLY
    }
    for name, written in config.given.items():  # most names in the environment are not settings
        if name not in every_setting() and written.origin is not Origin.ENVIRONMENT:
            settings[name] = _unknown(name)
    settings.update((name, _unknown(name)) for name in {*own, *cluster} - every_setting().keys())
    sources = _Sources(own=own, cluster=cluster, given=_given(config))
    return [
        _broker_entry(config, setting, sources)
        for name, setting in sorted(settings.items())
        if names is None or name in names
    ]


def describe_every_broker(cluster: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the dynamic settings of all brokers, sorted by name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(
            every_setting().get(name) or _unknown(name),
            value,
            [ConfigSynonym(name=name, value=value, source=source)],
            read_only=name in every_setting() and name not in DYNAMIC_SETTINGS,
        )
        for name, value in sorted(cluster.items())
        if names is None or name in names
    ]


def describe_topic(
    overrides: Mapping[str, str],
    config: BrokerConfig,
    names: Collection[str] | None = None,
    *,
    own: Mapping[str, str] = NOTHING,
    cluster: Mapping[str, str] = NOTHING,
) -> list[ConfigEntry]:
    """Return a topic's settings, sorted by name: all or those in `names`. Kafka's internal ones appear only if set.

    `own` and `cluster` are the dynamic settings of this broker and of all, which `config` has taken over.
    """
    defaults = topic_default_values(config)
    sources = _Sources(own=own, cluster=cluster, given=_given(config))
    entries = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        if (names is not None and name not in names) or (name.startswith("internal.") and name not in overrides):
            continue
        value = render(defaults[name])
        broker_setting = SYNONYMS[name][0] if name in SYNONYMS else DESCRIBED_SYNONYMS.get(name)
        synonyms = [] if broker_setting is None else _synonyms(broker_setting, sources)
        if name in overrides:
            override = ConfigSynonym(name=name, value=overrides[name], source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, override)
        is_dynamic = synonyms and synonyms[0].source in _DYNAMIC
        if is_dynamic or name in DESCRIBED_SYNONYMS:
            value = synonyms[0].value
        entries.append(_entry(setting, value, synonyms, read_only=False))
    return entries


def describe_group(
    overrides: Mapping[str, str],
    config: BrokerConfig,
    names: Collection[str] | None = None,
    *,
    own: Mapping[str, str] = NOTHING,
    cluster: Mapping[str, str] = NOTHING,
) -> list[ConfigEntry]:
    """Return a group's settings, sorted by name: all or those in `names`. The group does not have to exist.

    `own` and `cluster` are the dynamic settings of this broker and of all, which `config` has taken over.
    """
    defaults = group_default_values(config)
    sources = _Sources(own=own, cluster=cluster, given=_given(config))
    entries = []
    for name, setting in sorted(GROUP_SETTINGS.items()):
        if names is not None and name not in names:
            continue
        value = render(defaults[name])
        behind = BROKER_SETTINGS_BEHIND.get(name)
        if behind is None:
            synonyms = [ConfigSynonym(name=name, value=setting.default, source=ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = _synonyms(behind.default, sources)
        if name in overrides:
            value = overrides[name]
            synonyms.insert(0, ConfigSynonym(name=name, value=value, source=ConfigSource.DYNAMIC_GROUP_CONFIG))
        entries.append(_entry(setting, value, synonyms, read_only=False))
    return entries


def describe_client_metrics(overrides: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the settings of a client metrics subscription, sorted by name: all or those in `names`."""
    entries = []
    for name, setting in sorted(CLIENT_METRICS_SETTINGS.items()):
        if names is not None and name not in names:
            continue
        source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
        own = [ConfigSynonym(name=name, value=overrides[name], source=source)] if name in overrides else []
        entries.append(_entry(setting, overrides.get(name, setting.default), own, read_only=False))
    return entries


def describe_loggers(levels: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the levels of a process's loggers, sorted by name: all or those in `names`."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(
            name=name,
            value=level,
            source=source,
            type=ConfigType.UNKNOWN,
            read_only=False,
            is_sensitive=False,
            documentation="",
            synonyms=(),
        )
        for name, level in sorted(levels.items())
        if names is None or name in names
    ]


def differing_defaults() -> list[tuple[str, str | None, str | None, str]]:
    """Return (name, Kafka's default, ours, meaning) of every setting whose default differs, sorted by name."""
    return sorted(
        (setting.name, setting.kafka_default, setting.default, setting.meaning)
        for setting in BROKER_SETTINGS.values()
        if setting.differs and not setting.name.startswith("kraftpy.")
    )


def render_differing_defaults() -> str:
    """Render `differing_defaults` as a Markdown table."""
    rows = ["| setting | Kafka | here | meaning |", "|---|---|---|---|"]
    for name, theirs, ours, meaning in differing_defaults():
        told = "must be set" if theirs is None else f"`{theirs}`"
        rows.append(f"| `{name}` | {told} | `{ours}` | {meaning} |")
    return "\n".join(rows)


class _Sources(NamedTuple):
    """A broker's settings by origin: its own dynamic ones, those of all brokers, and those it started with."""

    own: Mapping[str, str]
    cluster: Mapping[str, str]
    given: Mapping[str, str]


def _broker_entry(config: BrokerConfig, setting: Setting, sources: _Sources) -> ConfigEntry:
    name = setting.name
    synonyms = _synonyms(name, sources)
    if setting.type is ConfigType.UNKNOWN and not synonyms:
        synonyms = [ConfigSynonym(name=name, value=None, source=ConfigSource.STATIC_BROKER_CONFIG)]
    value = synonyms[0].value if synonyms and synonyms[0].name == name else None
    is_set = bool(synonyms) and synonyms[0].source is not ConfigSource.DEFAULT_CONFIG
    if not is_set and name in BROKER_SETTINGS:  # the value in force may come from other settings
        in_force = getattr(config, setting.attribute)
        if name in ("listeners", "advertised.listeners"):
            in_force = tuple(str(listener) for listener in in_force if isinstance(listener, Listener))
        value = render(in_force)
        if synonyms and synonyms[0].name == name:
            synonyms[0] = replace(synonyms[0], value=value)
    return _entry(setting, value, synonyms, read_only=name in every_setting() and name not in DYNAMIC_SETTINGS)


def _unknown(name: str) -> Setting:
    """Return a definition for an unknown setting, whose value may be a secret.

    A setting of one listener, like `listener.name.internal.ssl.keystore.location`, has the type of the plain setting.
    """
    if (plain := _plain_name(name)) is not None:
        return replace(every_setting()[plain], name=name, kafka_default=None, default=None)
    return Setting(name, ConfigType.UNKNOWN, None, None, "", "")


def _plain_name(name: str) -> str | None:
    """Return the name of a setting of one listener, or of its mechanism, without that; None if it has another form."""
    prefix, _, rest = name.removeprefix("listener.name.").partition(".")
    if not name.startswith("listener.name.") or not prefix:
        return None
    if rest in every_setting():
        return rest
    return next((plain for plain in _OF_MECHANISMS if rest.endswith(f".{plain}")), None)


def _synonyms(name: str, sources: _Sources) -> list[ConfigSynonym]:
    """Return the settings that can supply a broker setting's value, in order of precedence, as Kafka lists them.

    Settings of the same quantity in several units stand in for each other. Those before the first that is `name` are
    left out, as in Kafka: the synonyms of `log.retention.minutes` do not include `log.retention.ms`.
    """
    chain = [setting for each in CHAINS.get(name, (name,)) if (setting := every_setting().get(each)) is not None]
    if not chain:
        chain = [_unknown(name)]
        if (plain := _plain_name(name)) is not None:
            chain.append(every_setting()[plain])
    found = [
        ConfigSynonym(name=each.name, value=values[each.name], source=source)
        for values, source in (
            (sources.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (sources.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (sources.given, ConfigSource.STATIC_BROKER_CONFIG),
        )
        for each in chain
        if each.name in values
    ]
    found += [
        ConfigSynonym(name=each.name, value=each.default, source=ConfigSource.DEFAULT_CONFIG)
        for each in chain
        if each.default is not None and each.name not in DYNAMIC_ONLY
    ]
    return list(dropwhile(lambda synonym: synonym.name != name, found))


def _given(config: BrokerConfig) -> dict[str, str]:
    """Return the texts that were given; `broker.id` and `node.id` stand for each other."""
    given = {name: written.text for name, written in config.given.items()}
    for name, other in (("broker.id", "node.id"), ("node.id", "broker.id")):
        if name not in config.given and other in config.given:
            given[name] = config.given[other].text
    return given


def _entry(setting: Setting, value: str | None, synonyms: list[ConfigSynonym], *, read_only: bool) -> ConfigEntry:
    """Return the description of a setting; the source of its value is that of its first synonym."""
    is_sensitive = setting.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)
    if is_sensitive:
        synonyms = [replace(synonym, value=None) for synonym in synonyms]
    return ConfigEntry(
        name=setting.name,
        value=None if is_sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=setting.type,
        read_only=read_only,
        is_sensitive=is_sensitive,
        documentation=_documentation(setting),
        synonyms=tuple(synonyms),
    )


@cache
def every_setting() -> dict[str, Setting]:
    """Return every setting of brokers, including those that this broker does not act on."""
    from kraftpy.config.other_settings import OTHER_SETTINGS
    from kraftpy.config.security_settings import SECURITY_SETTINGS

    return BROKER_SETTINGS | SECURITY_SETTINGS | OTHER_SETTINGS


def _documentation(setting: Setting) -> str:
    if setting.type is ConfigType.UNKNOWN:
        return ""
    if TOPIC_SETTINGS.get(setting.name) is setting:
        has_none = setting.name in NO_EFFECT
    else:
        from kraftpy.config.other_settings import OTHER_SETTINGS

        name = _plain_name(setting.name) or setting.name
        has_none = name in OTHER_SETTINGS and name not in GROUP_SETTINGS
    if has_none:
        return f"{setting.meaning} (No effect in this broker.)"
    return setting.meaning
