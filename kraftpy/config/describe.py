"""Settings as DescribeConfigs returns them, and the list of defaults that differ from Kafka's.

`ConfigSource` and `ConfigType` have the codes of the protocol (KIP-226, KIP-569). Password values are never returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from kraftpy.config.broker import BROKER_SETTINGS, CLUSTER_SETTINGS, DYNAMIC_SETTINGS, BrokerConfig
from kraftpy.config.group import GROUP_SETTINGS, group_default_values
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND
from kraftpy.config.listeners import Listener
from kraftpy.config.settings import ConfigType, Setting, render
from kraftpy.config.topic import TOPIC_SETTINGS, topic_default_values
from kraftpy.config.topic_settings import NO_EFFECT, SYNONYMS

NOTHING: Mapping[str, str] = MappingProxyType({})


class ConfigSource(IntEnum):
    """The source of a described value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A setting that supplies the value, or would if others were not set."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Return the broker's settings, sorted by name: all it acts on, or those in `names` that Kafka has.

    `own` and `cluster` are the dynamic settings of this broker and of all brokers.
    """
    settings = dict(BROKER_SETTINGS)
    if names is not None:
        from kraftpy.config.other_settings import OTHER_SETTINGS

        settings = {name: setting for name, setting in (settings | OTHER_SETTINGS).items() if name in names}
    return [
        _with_dynamic(_broker_entry(config, setting), {} if name not in own else {name: own[name]}, cluster)
        for name, setting in sorted(settings.items())
    ]


def describe_every_broker(cluster: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the dynamic settings of all brokers, sorted by name."""
    return [
        _with_dynamic(_entry(BROKER_SETTINGS[name], None, ConfigSource.UNKNOWN, [], read_only=False), NOTHING, cluster)
        for name in sorted(cluster)
        if name in BROKER_SETTINGS and (names is None or name in names)
    ]


def _with_dynamic(entry: ConfigEntry, own: Mapping[str, str], cluster: Mapping[str, str]) -> ConfigEntry:
    """Return the entry with dynamic settings as its first synonyms."""
    found = []
    if entry.name in own:
        found.append(ConfigSynonym(name=entry.name, value=own[entry.name], source=ConfigSource.DYNAMIC_BROKER_CONFIG))
    if entry.name in cluster:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        found.append(ConfigSynonym(name=entry.name, value=cluster[entry.name], source=source))
    synonyms = (*found, *entry.synonyms)
    return replace(
        entry,
        value=synonyms[0].value if found else entry.value,
        source=synonyms[0].source if found else entry.source,
        read_only=entry.name not in DYNAMIC_SETTINGS,
        synonyms=synonyms,
    )


def describe_topic(
    overrides: Mapping[str, str],
    config: BrokerConfig,
    names: Collection[str] | None = None,
    *,
    cluster: Mapping[str, str] = NOTHING,
) -> list[ConfigEntry]:
    """Return a topic's settings, sorted by name: all or those in `names`. Kafka's internal ones appear only if set.

    `cluster` holds the dynamic settings of all brokers.
    """
    defaults = topic_default_values(config)
    entries = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        if (names is not None and name not in names) or (name.startswith("internal.") and name not in overrides):
            continue
        synonyms = _topic_synonyms(name, config)
        if name in cluster and name in CLUSTER_SETTINGS:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            synonyms.insert(0, ConfigSynonym(name=name, value=cluster[name], source=source))
        if name in overrides:
            own = ConfigSynonym(name=name, value=overrides[name], source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, own)
        first_source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        value = render(defaults[name])
        if first_source in (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG):
            value = synonyms[0].value
        entries.append(_entry(setting, value, first_source, synonyms, read_only=False))
    return entries


def describe_group(
    overrides: Mapping[str, str], config: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Return a group's settings, sorted by name: all or those in `names`. The group does not have to exist."""
    defaults = group_default_values(config)
    entries = []
    for name, setting in sorted(GROUP_SETTINGS.items()):
        if names is not None and name not in names:
            continue
        behind = BROKER_SETTINGS_BEHIND.get(name)
        synonyms = [] if behind is None else _static_and_default(config, BROKER_SETTINGS[behind.default])
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        value = render(defaults[name])
        if name in overrides:
            source, value = ConfigSource.DYNAMIC_GROUP_CONFIG, overrides[name]
            synonyms.insert(0, ConfigSynonym(name=name, value=value, source=source))
        entries.append(_entry(setting, value, source, synonyms, read_only=False))
    return entries


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


def _broker_entry(config: BrokerConfig, setting: Setting) -> ConfigEntry:
    synonyms = _static_and_default(config, setting)
    value = synonyms[0].value if synonyms else None
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    if setting.name in config.given or setting.name not in BROKER_SETTINGS:
        return _entry(setting, value, source, synonyms, read_only=True)
    in_force = getattr(config, setting.attribute)
    if setting.name in ("listeners", "advertised.listeners"):
        in_force = tuple(str(listener) for listener in in_force if isinstance(listener, Listener))
    return _entry(setting, render(in_force), source, synonyms, read_only=True)


def _static_and_default(config: BrokerConfig, setting: Setting) -> list[ConfigSynonym]:
    found = []
    if setting.name in config.given:
        text = None if setting.type is ConfigType.PASSWORD else config.given[setting.name].text
        found.append(ConfigSynonym(name=setting.name, value=text, source=ConfigSource.STATIC_BROKER_CONFIG))
    if setting.default is not None:
        found.append(ConfigSynonym(name=setting.name, value=setting.default, source=ConfigSource.DEFAULT_CONFIG))
    return found


def _topic_synonyms(name: str, config: BrokerConfig) -> list[ConfigSynonym]:
    """Return the broker settings behind a topic setting: those that were set, in order, then those with a default."""
    broker_settings = [BROKER_SETTINGS[synonym] for synonym in SYNONYMS.get(name, ())]
    found = [synonym for setting in broker_settings for synonym in _static_and_default(config, setting)]
    static = [synonym for synonym in found if synonym.source is ConfigSource.STATIC_BROKER_CONFIG]
    return static + [synonym for synonym in found if synonym.source is ConfigSource.DEFAULT_CONFIG]


def _entry(
    setting: Setting,
    value: str | None,
    source: ConfigSource,
    synonyms: list[ConfigSynonym],
    *,
    read_only: bool,
) -> ConfigEntry:
    sensitive = setting.type is ConfigType.PASSWORD
    return ConfigEntry(
        name=setting.name,
        value=None if sensitive else value,
        source=source,
        type=setting.type,
        read_only=read_only,
        is_sensitive=sensitive,
        documentation=_documentation(setting),
        synonyms=tuple(synonyms),
    )


def _documentation(setting: Setting) -> str:
    if TOPIC_SETTINGS.get(setting.name) is setting:
        has_none = setting.name in NO_EFFECT
    elif setting.name in GROUP_SETTINGS:
        has_none = False
    else:
        has_none = setting.name not in BROKER_SETTINGS
    if has_none:
        return f"{setting.meaning} (No effect in this broker.)"
    return setting.meaning
