"""A group's settings: defaults from the broker, per-group overrides, and their validation (KIP-848, KIP-932).

An override is stored as the client's text; `group_settings` returns the values. The broker sets bounds for overrides
(`group.consumer.min.session.timeout.ms` and the like). An override that is out of bounds, because they have changed
since, is replaced by the nearest allowed value. The broker's own default is always within bounds. A stored value that
cannot be used at all, which an earlier version allowed, counts as not set (`usable_group_overrides`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kraftpy.config.broker import BrokerConfig
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND, GROUP_TABLE
from kraftpy.config.settings import ConfigError, Setting, Value, check_length, nearest, parse_table, shortened
from kraftpy.frozen import frozen

GROUP_SETTINGS: dict[str, Setting] = parse_table(GROUP_TABLE)

_MORE_THAN = (
    ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
    ("streams.session.timeout.ms", "streams.heartbeat.interval.ms"),
)
_RESET = "share.auto.offset.reset"
_DEAD_LETTERS = "errors.deadletterqueue.topic.name"
_INTERNAL = "__"
_DURATION = re.compile(r"P(?=.)(?:(\d+)D)?(T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.IGNORECASE)
_MAX_NUMBER_LENGTH = 19
"""The number of digits of 2^63-1, the largest number in a Java Duration."""
_RESETS = "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
_MAX_MS = _MAX_SECONDS = (1 << 63) - 1


def _default(name: str) -> Any:
    return GROUP_SETTINGS[name].default_value()


@frozen
class GroupSettings:
    """Every group setting with its value, as Kafka's names with dots as underscores and with Kafka's defaults."""

    consumer_assignment_interval_ms: int = _default("consumer.assignment.interval.ms")
    consumer_heartbeat_interval_ms: int = _default("consumer.heartbeat.interval.ms")
    consumer_session_timeout_ms: int = _default("consumer.session.timeout.ms")
    errors_deadletterqueue_copy_record_enable: bool = _default("errors.deadletterqueue.copy.record.enable")
    errors_deadletterqueue_topic_name: str = _default("errors.deadletterqueue.topic.name")
    share_assignment_interval_ms: int = _default("share.assignment.interval.ms")
    share_auto_offset_reset: str = _default("share.auto.offset.reset")
    share_delivery_count_limit: int = _default("share.delivery.count.limit")
    share_heartbeat_interval_ms: int = _default("share.heartbeat.interval.ms")
    share_isolation_level: str = _default("share.isolation.level")
    share_partition_max_record_locks: int = _default("share.partition.max.record.locks")
    share_record_lock_duration_ms: int = _default("share.record.lock.duration.ms")
    share_renew_acknowledge_enable: bool = _default("share.renew.acknowledge.enable")
    share_session_timeout_ms: int = _default("share.session.timeout.ms")
    streams_assignment_interval_ms: int = _default("streams.assignment.interval.ms")
    streams_heartbeat_interval_ms: int = _default("streams.heartbeat.interval.ms")
    streams_initial_rebalance_delay_ms: int = _default("streams.initial.rebalance.delay.ms")
    streams_num_standby_replicas: int = _default("streams.num.standby.replicas")
    streams_session_timeout_ms: int = _default("streams.session.timeout.ms")


def group_settings(overrides: Mapping[str, str], broker: BrokerConfig) -> GroupSettings:
    """Return the settings of a group with these overrides on this broker. Raises ConfigError for an invalid text."""
    values: dict[str, Any] = dict(group_default_values(broker))
    for name, text in overrides.items():
        values[name] = _within(name, parse_group_setting(name, text), broker)
    return GroupSettings(**{name.replace(".", "_"): value for name, value in values.items()})


def usable_group_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the usable stored overrides, and a one-line message for each other one, whose default applies instead.

    `group_settings` accepts the usable ones.
    """
    usable: dict[str, str] = {}
    problems: list[str] = []
    for name, text in overrides.items():
        try:
            _check_usable(name, parse_group_setting(name, text))
        except ConfigError as error:
            problems.append(str(error))
        else:
            usable[name] = text
    return usable, problems


def check_group_settings(overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """Validate overrides as a whole. Raises ConfigError if this broker does not allow them for a group."""
    values = group_default_values(broker)
    for name, text in overrides.items():
        check_length(text)
        values[name] = parse_group_setting(name, text)
        _check_usable(name, values[name])
        least, most = _bounds(name, broker)
        value = values[name]
        behind = BROKER_SETTINGS_BEHIND.get(name)
        if isinstance(value, int) and behind is not None:
            if value < least:
                raise ConfigError(f"{name} must be greater than or equal to {behind.least}")
            if value > most:
                raise ConfigError(f"{name} must be less than or equal to {behind.most}")
    for longer, shorter in _MORE_THAN:
        if longer.partition(".")[0] in {name.partition(".")[0] for name in overrides}:
            _check_longer(longer, shorter, values)


def parse_group_setting(name: str, text: str) -> Value:
    """Parse one group setting. Raises ConfigError for an invalid value or an unknown name."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        guess = nearest(name, sorted(GROUP_SETTINGS))
        hint = f"; did you mean {guess}?" if guess else ""
        raise ConfigError(f"Unknown group config name: {shortened(name)}{hint}")
    value = setting.parse(text)
    if name == _RESET and not _is_reset(str(value)):
        raise setting.refusal(text, _RESETS)
    return value


def duration_ms(text: str) -> int:
    """Convert an ISO 8601 duration of days and smaller units, like P1DT2H3M4.5S, to milliseconds, at most 2^63 - 1.

    Raises ValueError for anything else, and for a duration longer than Java's Duration can hold.
    """
    found = _DURATION.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError(f"{shortened(text)} is not a duration")
    days, _, hours, minutes, seconds, fraction = found.groups(default="0")
    numbers = (days, hours, minutes, seconds)
    if max(len(number.lstrip("0")) for number in numbers) > _MAX_NUMBER_LENGTH:
        raise ValueError(f"{shortened(text)} is too long a duration")
    units = (86_400, 3_600, 60, 1)
    whole = sum(int(number[-_MAX_NUMBER_LENGTH:]) * unit for number, unit in zip(numbers, units, strict=True))
    if whole > _MAX_SECONDS:
        raise ValueError(f"{shortened(text)} is too long a duration")
    return min(whole * 1000 + round(int(fraction.ljust(9, "0")) / 1_000_000), _MAX_MS)


def group_default_values(broker: BrokerConfig) -> dict[str, Value]:
    """Return, for each group setting, its value for a group without overrides on this broker."""
    values = {name: setting.default_value() for name, setting in GROUP_SETTINGS.items()}
    for name, behind in BROKER_SETTINGS_BEHIND.items():
        values[name] = _of(broker, behind.default)
    return values


def _of(broker: BrokerConfig, name: str) -> int:
    value: int = getattr(broker, name.replace(".", "_"))
    return value


def _bounds(name: str, broker: BrokerConfig) -> tuple[float, float]:
    behind = BROKER_SETTINGS_BEHIND.get(name)
    if behind is None:
        return float("-inf"), float("inf")
    default = _of(broker, behind.default)
    least = float("-inf") if behind.least is None else min(_of(broker, behind.least), default)
    most = float("inf") if behind.most is None else max(_of(broker, behind.most), default)
    return least, most


def _within(name: str, value: Value, broker: BrokerConfig) -> Value:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    least, most = _bounds(name, broker)
    return int(min(max(value, least), most))


def _check_longer(longer: str, shorter: str, values: Mapping[str, Value]) -> None:
    long, short = values[longer], values[shorter]
    assert isinstance(long, int)
    assert isinstance(short, int)
    if long <= short:
        raise ConfigError(f"{longer} must be greater than {shorter}")


def _check_usable(name: str, value: Value) -> None:
    """Refuse a well-formed but meaningless value: a duration that is too long, an internal topic for dead letters."""
    if name == _DEAD_LETTERS and str(value).startswith(_INTERNAL):
        raise ConfigError(f"{name}: DLQ topic name must not start with '{_INTERNAL}'")
    kind, _, duration = str(value).partition(":")
    if name != _RESET or kind != "by_duration":
        return
    try:
        duration_ms(duration)
    except ValueError as error:
        raise GROUP_SETTINGS[name].refusal(str(value), f"{error}. {_RESETS}") from None


def _is_reset(text: str) -> bool:
    kind, colon, duration = text.partition(":")
    if not colon:
        return kind in ("latest", "earliest")
    return kind == "by_duration" and _DURATION.fullmatch(duration) is not None
