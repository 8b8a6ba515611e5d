"""The settings of a client metrics subscription (KIP-714): which metrics which clients push, and how often.

They are stored, described and listed, but have no effect: GetTelemetrySubscriptions is not served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kraftpy.config.settings import ConfigError, Setting, parse_table

CLIENT_METRICS_SETTINGS: dict[str, Setting] = parse_table("""
metrics                                          list     ""
    Telemetry metric name prefix list
interval.ms                                      int      300000
    Metrics push interval in milliseconds
match                                            list     ""
    Client match criteria
""")

_INTERVAL_MS = (100, 3_600_000)
_MATCHED = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


class UnknownOrOutOfRange(ConfigError):
    """A setting that does not exist, or an interval out of range: Kafka refuses these as invalid requests."""


def check_client_metrics(settings: Mapping[str, str], *, with_patterns: bool = True) -> None:
    """Check the settings of a subscription. Raises ConfigError.

    Without `with_patterns`, regular expressions are not checked, so that every version of Python gives the same result.
    """
    for name in settings:
        if name not in CLIENT_METRICS_SETTINGS:
            raise UnknownOrOutOfRange(f"Unknown client metrics configuration: {name}")
    values = {name: CLIENT_METRICS_SETTINGS[name].parse(text) for name, text in settings.items()}
    interval_ms = values.get("interval.ms")
    if isinstance(interval_ms, int) and not _INTERVAL_MS[0] <= interval_ms <= _INTERVAL_MS[1]:
        raise UnknownOrOutOfRange(
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        )
    patterns = values.get("match")
    for pattern in patterns if isinstance(patterns, tuple) else ():
        _check_pattern(pattern, is_whole=with_patterns)


def _check_pattern(pattern: str, *, is_whole: bool) -> None:
    """Check `parameter=regular expression`; the expression itself only if `is_whole`."""
    parts = pattern.split("=")
    try:
        if len(parts) == 2 and parts[0].strip() in _MATCHED and parts[1]:
            if is_whole:
                re.compile(parts[1].strip())
            return
    except (re.error, RecursionError, OverflowError):
        pass
    raise ConfigError(f"Illegal client matching pattern: {pattern}")
