"""Client metrics subscriptions: those that match a client make up what it is asked for (KIP-714).

The subscription id is Kafka's: CRC-32C of the text of a Java set of the metric prefixes followed by the push interval,
XORed with the hash of the client instance id. The order of a Java `HashSet` is therefore reproduced here, so that a
client that changes between a broker of Kafka's and one of ours keeps its subscription.

Expressions of `match` are RE2's, which takes linear time, because clients choose the texts that they are applied to. An
expression that RE2 does not accept matches no client; it was stored by an earlier version, which used Python's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kraftpy.config.client_metrics import CLIENT_METRICS_SETTINGS, PatternError, compile_pattern, parse_pattern
from kraftpy.protocol.checksum import crc32c

ALL_METRICS: Final = "*"
"""As the only prefix requested, stands for all metrics."""
DEFAULT_INTERVAL_MS: Final = 300_000
"""The push interval of a client that no subscription with a shorter one matches."""
_LEAST_BUCKETS: Final = 16


class Client(NamedTuple):
    """The attributes that subscriptions can match: texts, or None if one is not known."""

    client_instance_id: str
    client_id: str | None
    client_software_name: str | None
    client_software_version: str | None
    client_source_address: str | None
    client_source_port: str | None


class Subscription:
    """One CLIENT_METRICS resource."""

    __slots__ = ("_patterns", "interval_ms", "metrics", "unusable")

    def __init__(self, settings: Mapping[str, str]) -> None:
        values: dict[str, Any] = {
            name: setting.parse(settings[name]) if name in settings else setting.default_value()
            for name, setting in CLIENT_METRICS_SETTINGS.items()
        }
        self.metrics: tuple[str, ...] = java_set_order(values["metrics"], is_copy=True)
        self.interval_ms: int = values["interval.ms"]
        self._patterns: dict[str, Any] = {}
        self.unusable: str | None = None
        """The pattern that cannot be used, so that nothing matches; None if all can."""
        for name, expression in dict(map(parse_pattern, values["match"])).items():
            try:
                self._patterns[name] = compile_pattern(expression)
            except PatternError:
                self.unusable = f"{name}={expression}"

    def matches(self, client: Client) -> bool:
        """Return True if every expression matches the whole of what it names. Without any, all clients match."""
        if self.unusable is not None:
            return False
        for name, pattern in self._patterns.items():
            text = getattr(client, name)
            try:
                if text is None or pattern.fullmatch(text) is None:
                    return False
            except UnicodeEncodeError:
                return False
        return True


class Requested(NamedTuple):
    """The metrics that a client is asked for."""

    metrics: tuple[str, ...]
    """Prefixes of the names of metrics, in the order of Java's set; empty for none."""
    interval_ms: int
    subscription_id: int


def requested_of(client: Client, instance_id: bytes, subscriptions: Mapping[str, Subscription]) -> Requested:
    """Combine the subscriptions that match a client: all their metrics, and their shortest interval."""
    interval_ms = DEFAULT_INTERVAL_MS
    names: list[str] = []
    for name in java_set_order(subscriptions):
        subscription = subscriptions[name]
        if subscription.matches(client):
            names += subscription.metrics
            interval_ms = min(interval_ms, subscription.interval_ms)
    metrics = (ALL_METRICS,) if ALL_METRICS in names else java_set_order(names)
    return Requested(metrics, interval_ms, subscription_id_of(metrics, interval_ms, instance_id))


def subscription_id_of(metrics: Collection[str], interval_ms: int, instance_id: bytes) -> int:
    """Return Kafka's id of a subscription, a signed integer of 32 bits. `metrics` is in the order of Java's set."""
    text = f"[{', '.join(metrics)}]{interval_ms}"
    halves = int.from_bytes(instance_id[:8], "big") ^ int.from_bytes(instance_id[8:], "big")
    mixed = crc32c(text.encode("utf-8", "surrogatepass")) ^ (halves >> 32) ^ (halves & 0xFFFFFFFF)
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed


def java_set_order(names: Iterable[str], *, is_copy: bool = False) -> tuple[str, ...]:
    """Return distinct names in the order in which a Java `HashSet` yields them.

    The set grew as they were added one by one, or `is_copy`: it was made from a collection, with room for all of them.
    """
    distinct = dict.fromkeys(names)
    buckets = _LEAST_BUCKETS
    while (len(distinct) * 4 // 3 + 1 > buckets) if is_copy else (len(distinct) > buckets * 3 // 4):
        buckets *= 2

    def bucket(name: str) -> int:
        code = _java_hash(name)
        return (code ^ (code >> 16)) & (buckets - 1)

    return tuple(sorted(distinct, key=bucket))


def _java_hash(text: str) -> int:
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code
