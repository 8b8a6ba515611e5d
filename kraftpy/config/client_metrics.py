"""The settings of a client metrics subscription (KIP-714): which metrics which clients push, and how often.

Expressions are RE2's, which take linear time; Kafka's are Java's. `kraftpy.telemetry` says what the settings do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
MAX_PATTERNS: Final = 60
"""Patterns of one subscription. Kafka has no limit, but uses only the last one for each of the six parameters."""
_MEMORY_OF_A_PATTERN: Final = 64 * 1024
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

    Without `with_patterns`, regular expressions are not checked, so that every version of RE2 gives the same result.
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
    if with_patterns and isinstance(patterns, tuple) and len(patterns) > MAX_PATTERNS:
        raise ConfigError(f"Invalid value for match: more than {MAX_PATTERNS} patterns")
    for pattern in patterns if isinstance(patterns, tuple) else ():
        _check_pattern(pattern, is_whole=with_patterns)


class PatternError(ConfigError):
    """A pattern of `match` that cannot be used."""

    def __init__(self, pattern: str) -> None:
        super().__init__(f"Illegal client matching pattern: {pattern}")


def parse_pattern(pattern: str) -> tuple[str, str]:
    """Split `parameter=regular expression`, and return both. Raises PatternError."""
    parts = pattern.split("=")
    if len(parts) == 2 and parts[0].strip() in _MATCHED and parts[1]:
        return parts[0].strip(), parts[1].strip()
    raise PatternError(pattern)


def compile_pattern(expression: str) -> Any:
    """Compile a regular expression, for `fullmatch`. Raises PatternError."""
    import re2  # here: most brokers have no subscription

    options = re2.Options()
    options.max_mem = _MEMORY_OF_A_PATTERN
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except (re2.error, UnicodeEncodeError):
        raise PatternError(expression) from None
    finally:
        re2.purge()  # the library would keep the last 128 expressions, regardless of size


def _check_pattern(pattern: str, *, is_whole: bool) -> None:
    """Check `parameter=regular expression`; the expression itself only if `is_whole`."""
    _, expression = parse_pattern(pattern)
    if is_whole:
        try:
            compile_pattern(expression)
        except PatternError:
            raise PatternError(pattern) from None
