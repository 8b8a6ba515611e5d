"""Broker settings that can change while a broker runs (KIP-226), and the settings in force with their changes.

A setting in the metadata takes precedence over the broker's file, and one of this broker over one of all brokers.
`in_force` never fails: a stored value that cannot be used counts as not set. `check_settings` is for requests.

The certificates of a listener can change too, by names with its prefix (`CERTIFICATES`).

Left out: settings that Kafka can change too, but that this broker does not have or reads only from its file: listeners
and the rest of their security, metrics reporters, config providers, cordoned log directories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin, WrittenSetting, check_cleaner
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
        "num.replica.fetchers",
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

_THREADS = frozenset(
    {
        "background.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    }
)


@cache
def dynamic_settings() -> Mapping[str, Setting]:
    """Return the definition of each dynamic setting."""
    from kraftpy.config.other_settings import OTHER_SETTINGS

    return {name: BROKER_SETTINGS.get(name) or OTHER_SETTINGS[name] for name in DYNAMIC_SETTINGS}


def in_force(config: BrokerConfig, own: Mapping[str, str], cluster: Mapping[str, str]) -> BrokerConfig:
    """Return a broker's settings with the dynamic ones: `own` are this broker's, `cluster` those of all brokers."""
    values: dict[str, Any] = {}
    for name in sorted(_IN_FORCE & {*own, *cluster}):
        own_text = None if name in CLUSTER_SETTINGS else own.get(name)
        for text in (own_text, cluster.get(name)):
            if text is not None:
                try:
                    values[BROKER_SETTINGS[name].attribute] = _parsed(name, text)
                    break
                except ConfigError:
                    continue
    found = with_certificates(config, own)
    if not values:
        return found
    found = replace(found, **values)
    try:
        _check_cleaner_of(found)
    except ConfigError:
        return replace(found, **{name: getattr(config, name) for name in _CLEANER_ATTRIBUTES})
    return found


def with_certificates(config: BrokerConfig, own: Mapping[str, str], *, strictly: bool = False) -> BrokerConfig:
    """Return a broker's settings with the dynamic ones of its listeners' certificates; others are ignored.

    Those of a listener that do not fit together count as not set, or raise ConfigError if they are taken `strictly`.
    """
    if not config.secured:
        return config
    from kraftpy.config.security import PREFIX, base_name, resolve

    names = [name for name in own if base_name(name) in CERTIFICATES]
    if not names:
        return config
    given = {**config.given, **{name: WrittenSetting(own[name], Origin.OVERRIDE) for name in names}}
    secured = list(config.secured)
    for place, each in enumerate(secured):
        prefix = f"{PREFIX}{each.listener.lower()}."
        if each.tls is None or each.is_elsewhere or not any(name.startswith(prefix) for name in names):
            continue
        try:
            (found,) = resolve(given, [each.listener], {each.listener: each.protocol})
        except ConfigError:
            if strictly:
                raise
            continue
        secured[place] = replace(each, tls=found.tls)
    return replace(config, secured=tuple(secured))


def check_settings(after: Mapping[str, str], current: BrokerConfig, static: BrokerConfig) -> None:
    """Check the dynamic settings that would result from a request. Raises ConfigError.

    `current` are the settings now in force: as in Kafka, one change may at most double or halve a number of threads.
    """
    from kraftpy.config.broker import parse_overrides

    for name, text in after.items():
        value = _parsed(name, text)
        if name in _THREADS or name == "log.cleaner.threads":
            _check_threads(name, int(str(value)), current)
    parse_overrides(after.get("max.connections.per.ip.overrides", ""))
    _check_cleaner_of(in_force_strictly(static, after))


def in_force_strictly(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """Return a broker's settings with these, without checking how they fit together. Raises ConfigError."""
    values: dict[str, Any] = {
        BROKER_SETTINGS[name].attribute: _parsed(name, text) for name, text in settings.items() if name in _IN_FORCE
    }
    return replace(config, **values)


_CLEANER_ATTRIBUTES = ("log_cleaner_threads", "log_cleaner_dedupe_buffer_size", "log_cleaner_io_max_bytes_per_second")


def _parsed(name: str, text: str) -> Any:
    value = dynamic_settings()[name].parse(text)
    if name == "log.retention.ms" and value == 0:
        raise ConfigError("Invalid value 0 for configuration log.retention.ms: Value must be at least 1, or -1")
    if name == "max.connections.per.ip.overrides":
        from kraftpy.config.broker import parse_overrides

        parse_overrides(text)
    return value


def _check_threads(name: str, value: int, current: BrokerConfig) -> None:
    setting = dynamic_settings()[name]
    before = getattr(current, setting.attribute, None)
    if before is None:
        given = current.given.get(name)
        before = whole_number(given.text if given else setting.default, 1)
    if name == "log.cleaner.threads":
        if value < 1:
            raise ConfigError("Log cleaner threads should be at least 1")
        less = more = "Log cleaner threads cannot be "
        less += "reduced to less than half the current value"
        more += "increased to more than double the current value"
    else:
        less = more = f"Dynamic thread count update validation failed for {name}={value}, value should "
        less += "be at least half the current value"
        more += "not be greater than double the current value"
    if value < before // 2:
        raise ConfigError(f"{less} {before}")
    if value > before * 2:
        raise ConfigError(f"{more} {before}")


def _check_cleaner_of(config: BrokerConfig) -> None:
    check_cleaner(
        config.log_cleaner_threads, config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_max_bytes_per_second
    )
