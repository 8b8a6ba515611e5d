"""A topic's settings: defaults from the broker, per-topic overrides, and their validation.

An override is stored as the client's text; `topic_config` returns the values. Validation follows the validators of
Kafka 4.3. The broker that receives a request applies `check_topic_config`. Overrides that were stored by an earlier
version, or under other broker settings, are read through `usable_topic_overrides`. `metadata.configs` alters them
(KIP-339).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kraftpy.config.settings import (
    ConfigError,
    Setting,
    Value,
    check_length,
    nearest,
    parse_table,
    shortened,
)
from kraftpy.config.topic_settings import SYNONYMS, TOPIC_TABLE
from kraftpy.frozen import frozen

if TYPE_CHECKING:
    from kraftpy.config.broker import BrokerConfig

TOPIC_SETTINGS: dict[str, Setting] = parse_table(TOPIC_TABLE)
_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_SETS = frozenset(
    {"cleanup.policy", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
)
MAX_INDEX_INTERVAL_BYTES = 1 << 18
"""Cap of `index.interval.bytes`, since a read may have to scan that many bytes of batches on the event loop."""
_MS_PER = {"hours": 3_600_000, "minutes": 60_000, "ms": 1}


def _default(name: str) -> Any:
    value = TOPIC_SETTINGS[name].default_value()
    return frozenset(value) if name in _SETS and isinstance(value, tuple) else value


@frozen
class TopicConfig:
    """Every topic setting with its value, as Kafka's names with dots as underscores and with Kafka's defaults.

    Values are the effective ones: `segment_bytes` is `internal.segment.bytes` if a topic sets that, `max_message_bytes`
    is at most the size of a request, and `index_interval_bytes` is at most `MAX_INDEX_INTERVAL_BYTES`.
    """

    cleanup_policy: frozenset[str] = _default("cleanup.policy")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_type: str = _default("compression.type")
    compression_zstd_level: int = _default("compression.zstd.level")
    delete_retention_ms: int = _default("delete.retention.ms")
    errors_deadletterqueue_group_enable: bool = _default("errors.deadletterqueue.group.enable")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    follower_replication_throttled_replicas: frozenset[str] = _default("follower.replication.throttled.replicas")
    index_interval_bytes: int = _default("index.interval.bytes")
    internal_segment_bytes: int | None = _default("internal.segment.bytes")
    kraftpy_flush_before_ack: bool = _default("kraftpy.flush.before.ack")
    leader_replication_throttled_replicas: frozenset[str] = _default("leader.replication.throttled.replicas")
    local_retention_bytes: int = _default("local.retention.bytes")
    local_retention_ms: int = _default("local.retention.ms")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_type: str = _default("message.timestamp.type")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    preallocate: bool = _default("preallocate")
    remote_log_copy_disable: bool = _default("remote.log.copy.disable")
    remote_log_delete_on_disable: bool = _default("remote.log.delete.on.disable")
    remote_storage_enable: bool = _default("remote.storage.enable")
    retention_bytes: int = _default("retention.bytes")
    retention_ms: int = _default("retention.ms")
    segment_bytes: int = _default("segment.bytes")
    segment_index_bytes: int = _default("segment.index.bytes")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    segment_ms: int = _default("segment.ms")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")

    @property
    def is_compacted(self) -> bool:
        """True if `cleanup.policy` asks for compaction."""
        return "compact" in self.cleanup_policy


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """Return the settings of a topic with these overrides on this broker. Raises ConfigError for an invalid one."""
    values: dict[str, Any] = topic_default_values(broker)
    for name, text in overrides.items():
        values[name] = _parse(name, text)
    if values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({values['min.compaction.lag.ms']}) > "
            f"max.compaction.lag.ms ({values['max.compaction.lag.ms']})"
        )
    for name in _SETS:
        values[name] = frozenset(values[name])
    if values["internal.segment.bytes"] is not None:
        values["segment.bytes"] = values["internal.segment.bytes"]
    values["max.message.bytes"] = min(
        values["max.message.bytes"],
        broker.socket_request_max_bytes,
        max(broker.kraftpy_batch_max_bytes, broker.message_max_bytes),  # the operator's own choice takes precedence
    )
    values["index.interval.bytes"] = min(values["index.interval.bytes"], MAX_INDEX_INTERVAL_BYTES)
    return TopicConfig(**{name.replace(".", "_"): value for name, value in values.items()})


def check_topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Validate overrides as a whole. Raises ConfigError if this broker does not allow them for a topic."""
    for name, text in overrides.items():
        check_length(text)
        _check_usable(name, _parse(name, text))
    topic_config(overrides, broker)


def usable_topic_overrides(overrides: Mapping[str, str], broker: BrokerConfig) -> tuple[dict[str, str], list[str]]:
    """Return the usable stored overrides, and a one-line message for each other one, whose default applies instead.

    `topic_config` accepts the usable ones.
    """
    usable: dict[str, str] = {}
    problems: list[str] = []
    for name, text in overrides.items():
        try:
            _check_usable(name, _parse(name, text))
        except ConfigError as error:
            problems.append(str(error))
        else:
            usable[name] = text
    try:
        topic_config(usable, broker)
    except ConfigError as error:  # the compaction lags conflict, maybe with the broker's own settings
        problems.append(str(error))
        for name in _LAGS:
            usable.pop(name, None)
    return usable, problems


def topic_default_values(broker: BrokerConfig) -> dict[str, Value]:
    """Return, for each topic setting, its value for a topic without overrides on this broker."""
    values = {name: setting.default_value() for name, setting in TOPIC_SETTINGS.items()}
    for name, synonyms in SYNONYMS.items():
        values[name] = next((v for v in (synonym_value(broker, s) for s in synonyms) if v is not None), values[name])
    return values


def synonym_value(broker: BrokerConfig, synonym: str) -> Value:
    """Return the value that a broker setting gives to topics, with hours and minutes converted to milliseconds."""
    value: Value = getattr(broker, synonym.replace(".", "_"))
    unit = synonym.rpartition(".")[2]
    if unit in ("hours", "minutes") and isinstance(value, int):
        return -1 if value < 0 else value * _MS_PER[unit]
    return value


def _check_usable(name: str, value: Value) -> None:
    """Refuse a value that the table allows but no log can work with."""
    if name == "internal.segment.bytes" and isinstance(value, int) and value < 1:
        raise _known(name).refusal(str(value), "Value must be at least 1")


def _known(name: str) -> Setting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        near = nearest(name, list(TOPIC_SETTINGS))
        raise ConfigError(f"Unknown topic config name: {shortened(name)}" + (f"; did you mean {near}?" if near else ""))
    return setting


def _parse(name: str, text: str | None) -> Value:
    setting = _known(name)
    if text is None:
        raise ConfigError(f"{name}: no value was given")
    value = setting.parse(text)
    if name == "remote.storage.enable" and value is True:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return value
