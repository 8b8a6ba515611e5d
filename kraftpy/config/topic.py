"""A topic's settings: defaults from the broker's, overrides of its own, and how those are checked and altered.

An override is kept as the text the client sent; `topic_config` gives the values. Checks follow KIP-339 (incremental
alter) and the validators of Kafka 4.3. The broker that takes a request refuses what `check_topic_config` does; what was
stored by an earlier version, or beside other settings of the broker, is read through `usable_topic_overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from kraftpy.config.settings import (
    ConfigError,
    ConfigType,
    Setting,
    Value,
    check_length,
    nearest,
    parse_table,
    render,
    shortened,
)
from kraftpy.config.topic_settings import SYNONYMS, TOPIC_TABLE

if TYPE_CHECKING:
    from kraftpy.config.broker import BrokerConfig

TOPIC_SETTINGS: dict[str, Setting] = parse_table(TOPIC_TABLE)
_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_SETS = frozenset(
    {"cleanup.policy", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
)
MAX_INDEX_INTERVAL_BYTES = 1 << 18
"""Caps `index.interval.bytes`: a read may have to walk so many bytes of batches, on the event loop."""
_MS_PER = {"hours": 3_600_000, "minutes": 60_000, "ms": 1}


def _default(name: str) -> Any:
    value = TOPIC_SETTINGS[name].default_value()
    return frozenset(value) if name in _SETS and isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Every topic setting with its value: Kafka's name with dots as underscores, Kafka's default where not given.

    As they take effect: `segment_bytes` is `internal.segment.bytes` where a topic sets that, no batch is larger than a
    request may be, and an index has an entry for each `MAX_INDEX_INTERVAL_BYTES` at least.
    """

    cleanup_policy: frozenset[str] = _default("cleanup.policy")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_type: str = _default("compression.type")
    compression_zstd_level: int = _default("compression.zstd.level")
    delete_retention_ms: int = _default("delete.retention.ms")
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
        """Whether `cleanup.policy` asks for compaction."""
        return "compact" in self.cleanup_policy


class AlterOperation(IntEnum):
    """The operations of IncrementalAlterConfigs (KIP-339), by their wire codes."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def validate_topic_config(name: str, value: str | None) -> str | None:
    """What is wrong with one topic setting, in one line, or None."""
    try:
        _parse(name, value)
    except ConfigError as error:
        return str(error)
    return None


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """The settings of a topic with these overrides on this broker. Raises ConfigError for a bad one."""
    values: dict[str, Any] = topic_default_values(broker)
    for name, text in overrides.items():
        values[name] = _parse(name, text)
    if values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]:
        raise ConfigError(
            f"min.compaction.lag.ms={values['min.compaction.lag.ms']} is not allowed: "
            f"it is above max.compaction.lag.ms={values['max.compaction.lag.ms']}"
        )
    for name in _SETS:
        values[name] = frozenset(values[name])
    if values["internal.segment.bytes"] is not None:
        values["segment.bytes"] = values["internal.segment.bytes"]
    values["max.message.bytes"] = min(
        values["max.message.bytes"],
        broker.socket_request_max_bytes,
        max(broker.kraftpy_batch_max_bytes, broker.message_max_bytes),  # what the operator chose counts
    )
    values["index.interval.bytes"] = min(values["index.interval.bytes"], MAX_INDEX_INTERVAL_BYTES)
    return TopicConfig(**{name.replace(".", "_"): value for name, value in values.items()})


def check_topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise ConfigError where these may not be set together for a topic on this broker."""
    for name, text in overrides.items():
        check_length(text)
        _check_usable(name, _parse(name, text))
    topic_config(overrides, broker)


def usable_topic_overrides(overrides: Mapping[str, str], broker: BrokerConfig) -> tuple[dict[str, str], list[str]]:
    """Those of the stored overrides that can be used, and one line for each that cannot: its default counts instead.

    `topic_config` takes what is usable.
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
    except ConfigError as error:  # the lags of compaction, which the broker's own settings may have passed by
        problems.append(str(error))
        for name in _LAGS:
            usable.pop(name, None)
    return usable, problems


def topic_default_values(broker: BrokerConfig) -> dict[str, Value]:
    """Topic setting -> the value a topic without overrides has on this broker."""
    values = {name: setting.default_value() for name, setting in TOPIC_SETTINGS.items()}
    for name, synonyms in SYNONYMS.items():
        values[name] = next((v for v in (synonym_value(broker, s) for s in synonyms) if v is not None), values[name])
    return values


def synonym_value(broker: BrokerConfig, synonym: str) -> Value:
    """The value a broker setting gives to topics: hours and minutes become milliseconds."""
    value: Value = getattr(broker, synonym.replace(".", "_"))
    unit = synonym.rpartition(".")[2]
    if unit in ("hours", "minutes") and isinstance(value, int):
        return -1 if value < 0 else value * _MS_PER[unit]
    return value


def alter_topic_config(
    overrides: Mapping[str, str], name: str, operation: AlterOperation, value: str | None, broker: BrokerConfig
) -> dict[str, str]:
    """The overrides after one operation of IncrementalAlterConfigs. Raises ConfigError.

    APPEND and SUBTRACT start from the value in force, default or not, and keep the order of the list.
    """
    altered = dict(overrides)
    setting = _known(name)
    if operation is AlterOperation.DELETE:
        altered.pop(name, None)
        return altered
    if value is None:
        raise ConfigError(f"{name}: no value was given")
    if operation is not AlterOperation.SET:
        if setting.type is not ConfigType.LIST:
            verb = "append to" if operation is AlterOperation.APPEND else "subtract from"
            raise ConfigError(f"{name}: cannot {verb} it, it is not a list")
        current = overrides.get(name)
        in_force = topic_default_values(broker)[name] if current is None else setting.parse(current)
        value = _edit_list(operation, in_force, value)
    _parse(name, value)
    altered[name] = value
    return altered


def _edit_list(operation: AlterOperation, in_force: Value, text: str) -> str:
    items = list(in_force) if isinstance(in_force, tuple) else []
    given = [item.strip() for item in text.split(",") if item.strip()]
    if operation is AlterOperation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return render(tuple(items)) or ""


def _check_usable(name: str, value: Value) -> None:
    """Refuse a value that the table lets pass and no log can work with."""
    if name == "internal.segment.bytes" and isinstance(value, int) and value < 1:
        raise ConfigError(f"{name}={value} is not allowed: expected an integer of at least 1")


def _known(name: str) -> Setting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        near = nearest(name, list(TOPIC_SETTINGS))
        raise ConfigError(f"{shortened(name)} is not a topic setting" + (f"; did you mean {near}?" if near else ""))
    return setting


def _parse(name: str, text: str | None) -> Value:
    setting = _known(name)
    if text is None:
        raise ConfigError(f"{name}: no value was given")
    value = setting.parse(text)
    if name == "remote.storage.enable" and value is True:
        raise ConfigError("remote.storage.enable=true is not allowed: this broker has no remote tier")
    return value
