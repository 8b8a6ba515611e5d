"""Broker settings that can change while a broker runs (KIP-226), and the settings in force with their changes.

A setting in the metadata takes precedence over the broker's file, and one of this broker over one of all brokers.
`in_force` never fails: a stored value that cannot be used counts as not set. `check_settings` is for requests.

The certificates of a listener can change too, by names with its prefix (`CERTIFICATES`), and so can the limits on its
connections (`listener_limits`).

Left out: settings that Kafka can change too, but that this broker does not have or reads only from its file: listeners
and the rest of their security, metrics reporters, config providers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin, WrittenSetting
from kraftpy.config.consistency import (
    ASSIGNMENT_INTERVALS,
    OVERRIDES,
    check_cleaner,
    check_logs,
    check_together,
    parse_overrides,
)
from kraftpy.config.listener_limits import LISTENER_LIMITS, PREFIX, limit_name, parse_limit
from kraftpy.config.settings import ConfigError, Setting, whole_number

DYNAMIC_ONLY = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Settings that Kafka allows only dynamically; here they may also be in the file."""

CLUSTER_SETTINGS = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""Dynamic settings for all brokers together, but not for a single one, because all must use the same value."""

OF_ONE_BROKER = frozenset({"cordoned.log.dirs"})
"""Dynamic settings for a single broker only."""

_LOGS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "message.max.bytes",
    }
)
"""Defaults of topics' settings."""

_CLEANER = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
    }
)

_OTHERS = frozenset(
    {
        "cordoned.log.dirs",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "group.consumer.assignment.interval.ms",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)

WITHOUT_EFFECT = frozenset(
    {
        "background.threads",
        "follower.fetch.last.tiered.offset.enable",
        "group.coordinator.cached.buffer.max.bytes",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "num.io.threads",
        "num.network.threads",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
        "share.coordinator.cached.buffer.max.bytes",
    }
)
"""Settings that Kafka can change at runtime, and that have no effect here; they are stored all the same."""

CERTIFICATES = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Settings of a single listener, `listener.name.<name>.` before them, that can be changed while a broker runs."""

_IN_FORCE = CLUSTER_SETTINGS | _LOGS | _CLEANER | _OTHERS

DYNAMIC_SETTINGS = DYNAMIC_ONLY | _IN_FORCE | WITHOUT_EFFECT
"""Settings that can be changed while a broker runs."""

_NEVER_ZERO = frozenset({"max.connection.creation.rate", "max.connections"})
"""Limits that may be 0 in a file, but not while a broker runs, as in Kafka."""

_THREADS = frozenset(
    {
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
    }
)


@cache
def dynamic_settings() -> Mapping[str, Setting]:
    """Return the definition of each dynamic setting."""
    from kraftpy.config.other_settings import OTHER_SETTINGS

    return {name: BROKER_SETTINGS.get(name) or OTHER_SETTINGS[name] for name in DYNAMIC_SETTINGS}


class Levels(NamedTuple):
    """Dynamic settings: those of one broker, which take precedence, and those of all brokers."""

    own: Mapping[str, str]
    cluster: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """Return the text of a setting; None if neither has it."""
        own = None if name in CLUSTER_SETTINGS else self.own.get(name)
        return self.cluster.get(name) if own is None else own


def in_force(config: BrokerConfig, own: Mapping[str, str], cluster: Mapping[str, str]) -> BrokerConfig:
    """Return a broker's settings with the dynamic ones: `own` are this broker's, `cluster` those of all brokers.

    As in Kafka, an interval between assignments that is out of the bounds in this broker's file becomes the nearest
    allowed one.
    """
    values = _usable(Levels(own, cluster))
    found = with_certificates(config, own)
    if not values:
        return found
    for name, least, most in ASSIGNMENT_INTERVALS:
        attribute = BROKER_SETTINGS[name].attribute
        if attribute in values:
            values[attribute] = min(max(values[attribute], _value(config, least)), _value(config, most))
    found = replace(found, **values)
    try:
        check_cleaner(lambda name: _value(found, name))
    except ConfigError:
        return replace(found, **{name: getattr(config, name) for name in _CLEANER_ATTRIBUTES})
    return found


def _usable(levels: Levels) -> dict[str, Any]:
    """Return the values of the settings in force, by attribute; one that cannot be used counts as not set."""
    values: dict[str, Any] = {}
    for name in sorted(_IN_FORCE & {*levels.own, *levels.cluster}):
        own = None if name in CLUSTER_SETTINGS else levels.own.get(name)
        for text in (own, levels.cluster.get(name)):
            if text is not None:
                try:
                    values[BROKER_SETTINGS[name].attribute] = _parsed(name, text)
                    break
                except ConfigError:
                    continue
    return values


def with_certificates(config: BrokerConfig, own: Mapping[str, str], *, strictly: bool = False) -> BrokerConfig:
    """Return a broker's settings with the dynamic ones of its listeners' certificates; others are ignored.

    Those of a listener that do not fit together count as not set, or raise ConfigError if they are taken `strictly`.
    """
    if not config.secured:
        return config
    from kraftpy.config.security import base_name, resolve

    names = [name for name in own if base_name(name) in CERTIFICATES]
    if not names:
        return config
    given = {**config.given, **{name: WrittenSetting(own[name], Origin.OVERRIDE) for name in names}}
    secured = list(config.secured)
    for place, each in enumerate(secured):
        prefix = f"{PREFIX}{each.listener.lower()}."
        if each.tls is None or not any(name.startswith(prefix) for name in names):
            continue
        try:
            elsewhere = [each.listener] if each.is_elsewhere else []
            (found,) = resolve(given, [each.listener], {each.listener: each.protocol}, elsewhere)
        except ConfigError:
            if strictly:
                raise
            continue
        secured[place] = replace(each, tls=found.tls)
    return replace(config, secured=tuple(secured))


def check_listeners(before: Mapping[str, str], after: Mapping[str, str], static: BrokerConfig) -> None:
    """Check that one broker's dynamic settings change nothing of its listeners that cannot change. Raises ConfigError.

    Only the certificates and the limits of a listener can change while the broker runs, as in Kafka. Settings may be
    deleted. Those of listeners that the broker does not have are of no consequence.
    """
    for listener in static.client_listeners:
        prefix = f"{PREFIX}{listener.name.lower()}."
        for name, text in after.items():
            base = name.removeprefix(prefix)
            if base == name or base in CERTIFICATES or base in LISTENER_LIMITS or base == "num.network.threads":
                continue
            given = static.given.get(name)
            if text != before.get(name, None if given is None else given.text):
                raise ConfigError(
                    f"Configs cannot be updated dynamically for existing listener ListenerName({listener.name}), "
                    "restart broker or create a new listener for update"
                )


def check_settings(before: Levels, after: Levels, static: BrokerConfig) -> None:
    """Check a change of the settings of one broker or of all. Raises ConfigError.

    `static` are the settings in the broker's file. As in Kafka, one change may at most double or halve a number of
    threads. Settings that did not fit together before the change do not stand in its way.
    """
    for earlier, later in zip(before, after, strict=True):
        for name, text in later.items():
            if earlier.get(name) != text:
                check_value(name, text)
    for name in sorted(_THREADS):
        _check_threads(name, _number(name, before, static), _number(name, after, static))
    if (problem := _problem(after, static)) is not None and problem != _problem(before, static):
        raise ConfigError(problem)


def check_value(name: str, text: str) -> None:
    """Check a setting of brokers by itself; `name` may have the prefix of a listener. Raises ConfigError."""
    if limit_name(name) is not None:
        parse_limit(name, text)
    elif name in DYNAMIC_SETTINGS:
        value = _parsed(name, text)
        if name in _NEVER_ZERO and value == 0:
            raise ConfigError(f"Invalid {name} 0")
    elif name.startswith(PREFIX):
        from kraftpy.config.describe import every_setting

        if (setting := every_setting().get(name.removeprefix(PREFIX).partition(".")[2])) is not None:
            setting.parse(text)


def _problem(levels: Levels, static: BrokerConfig) -> str | None:
    """Say why settings do not fit together; return None if they do."""
    found = replace(static, **_usable(levels))
    try:
        check_together(lambda name: _value(found, name))
        _check_local_retention(levels, found)
    except ConfigError as error:
        return str(error)
    return None


def _value(config: BrokerConfig, name: str) -> Any:
    return getattr(config, BROKER_SETTINGS[name].attribute)


def _check_local_retention(levels: Levels, config: BrokerConfig) -> None:
    """Check that what tiered storage would keep locally is no more than all, although there is none here."""
    defaults = config.topic_defaults
    for local, whole, most in (
        ("log.local.retention.ms", "log.retention.ms", defaults.retention_ms),
        ("log.local.retention.bytes", "log.retention.bytes", defaults.retention_bytes),
    ):
        given = config.given.get(local)
        value = whole_number(levels.text(local) or (given and given.text), -2)
        if most < 0 or value == -2:
            continue
        problem = f"Invalid value {value} for configuration {local}: Value must not be "
        if value == -1:
            raise ConfigError(f"{problem}-1 as {whole} value is set as {most}.")
        if value > most:
            raise ConfigError(f"{problem}more than {whole} property value: {most}")


_CLEANER_ATTRIBUTES = ("log_cleaner_threads", "log_cleaner_dedupe_buffer_size", "log_cleaner_io_max_bytes_per_second")


def _parsed(name: str, text: str) -> Any:
    value = dynamic_settings()[name].parse(text)
    check_logs(lambda each: value if each == name else None)
    if name == OVERRIDES:
        parse_overrides(text)
    return value


def _number(name: str, levels: Levels, static: BrokerConfig) -> int:
    """Return a number of threads, whether or not it has any effect here."""
    setting = dynamic_settings()[name]
    given = static.given.get(name)
    return whole_number(levels.text(name), whole_number(given.text if given else setting.default, 1))


def _check_threads(name: str, before: int, after: int) -> None:
    if after == before:
        return
    if name == "log.cleaner.threads":
        if after < 1:
            raise ConfigError("Log cleaner threads should be at least 1")
        less = more = "Log cleaner threads cannot be "
        less += "reduced to less than half the current value"
        more += "increased to more than double the current value"
    else:
        less = more = f"Dynamic thread count update validation failed for {name}={after}, value should "
        less += "be at least half the current value"
        more += "not be greater than double the current value"
    if after < before // 2:
        raise ConfigError(f"{less} {before}")
    if after > before * 2:
        raise ConfigError(f"{more} {before}")
