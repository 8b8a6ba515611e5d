"""Checks broker settings that depend on each other: at the start, and before each change while the broker runs.

Conditions and messages are those of Kafka 4.3 (KafkaConfig and GroupCoordinatorConfig), for the settings that can
change. `value` returns a setting's parsed value by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from kraftpy.config.settings import ConfigError

Value = Callable[[str], Any]

OVERRIDES: Final = "max.connections.per.ip.overrides"
_CLEANER_BYTES: Final = 1 << 20
_MOST_DIGITS: Final = 10
_HOST: Final = re.compile(r"[0-9a-zA-Z\-%._:]*")
_COLLECTOR: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z\-._]+)(:[0-9]{1,5})?(/[!-~]*)?")
_RETENTION: Final = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
ASSIGNMENT_INTERVALS: Final = tuple(
    (f"group.{kind}.assignment.interval.ms", f"group.{kind}.min.assignment.interval.ms",
     f"group.{kind}.max.assignment.interval.ms")
    for kind in ("consumer", "share", "streams")
)  # fmt: skip
"""The interval between assignments of a kind of groups, and the settings with its bounds."""


def check_together(value: Value) -> None:
    """Check the settings that depend on each other. Raises ConfigError."""
    check_logs(value)
    check_cleaner(value)
    check_connections(value)
    check_assignments(value)
    check_collector(value)


def check_logs(value: Value) -> None:
    """Check the defaults of topics that have a value of their own for "no limit". Raises ConfigError."""
    for name in _RETENTION:
        if value(name) == 0:
            raise ConfigError(f"{name} must be unlimited (-1) or, greater than or equal to 1")
    for name, least in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
        if (number := value(name)) is not None and number < least:
            raise ConfigError(f"{name} must be greater than or equal to {least}")


def check_cleaner(value: Value) -> None:
    """Check that the cleaner's settings fit together. Raises ConfigError."""
    threads = value("log.cleaner.threads")
    if threads > 0 and value("log.cleaner.dedupe.buffer.size") // threads <= _CLEANER_BYTES:
        raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    if not value("log.cleaner.io.max.bytes.per.second") > 0:
        raise ConfigError("log.cleaner.io.max.bytes.per.second is not allowed: expected more than 0")


def check_connections(value: Value) -> None:
    """Check the limits on connections. Raises ConfigError."""
    overrides = parse_overrides(value(OVERRIDES))
    if value("max.connections.per.ip") == 0 and not overrides:
        raise ConfigError(f"max.connections.per.ip can be set to zero only if {OVERRIDES} property is set.")


def check_assignments(value: Value) -> None:
    """Check that the time between two assignments of a kind of groups is within its bounds. Raises ConfigError."""
    for name, least, most in ASSIGNMENT_INTERVALS:
        if value(most) < value(least):
            raise ConfigError(f"{most} must be greater than or equal to {least}")
        if value(name) < value(least):
            raise ConfigError(f"{name} must be greater than or equal to {least}")
        if value(name) > value(most):
            raise ConfigError(f"{name} must be less than or equal to {most}")


def check_collector(value: Value) -> None:
    """Check the URL of the collector of client metrics. Raises ConfigError."""
    name = "kraftpy.telemetry.otlp.endpoint"
    endpoint = value(name)
    if endpoint is not None and _COLLECTOR.fullmatch(endpoint) is None:
        raise ConfigError(f"{name}={endpoint} is not allowed: expected a URL as http://host:4318/v1/metrics")


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides` into connection counts by host or address. Raises ConfigError.

    The form is "10.0.0.1:100,db:200"; the last colon precedes the count, since an IPv6 address contains colons.
    """
    overrides: dict[str, int] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = each.rpartition(":")
        if not host or not (count.isascii() and count.isdigit() and len(count) <= _MOST_DIGITS):
            raise ConfigError(f"{OVERRIDES}={each} is not allowed: expected address:count")
        overrides[host] = int(count)
    if invalid := [host for host in overrides if _HOST.fullmatch(host) is None]:
        raise ConfigError(f"{OVERRIDES} contains invalid addresses : {','.join(invalid)}")
    return overrides
