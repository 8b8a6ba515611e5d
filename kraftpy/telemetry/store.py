"""The last values that each client instance pushed, bounded in memory and time, in the form of Prometheus.

    store = ClientValues(max_bytes)
    store.keep(instance_id, labels, points, now_ms, expiry_ms)      # a push
    store.collect()                                                 # what a metrics endpoint shows, from any thread

Clients push the growth of counters, which is added up here. A gauge that is missing from a push is dropped. An instance
is kept until its expiry after its last push, also while it is not connected, so that its counters go on when it
connects to this broker again; beyond `max_bytes`, the instances whose last push is longest ago are dropped.

Names are `kafka_client_` and the client's, without `org.apache.kafka.`, with `_` for what Prometheus does not allow; so
no client can push a value under a name of the broker's own. A name that clients push as a gauge and as a counter is
shown as what the first one pushed.

A push replaces an instance's values as a whole, so `collect` needs no lock. It takes some 10 us per value: call it in a
thread.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.telemetry.otlp import MAX_POINTS, Point

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "kafka_client_"
_COMMON: Final = "org.apache.kafka."
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_]+")
_VALUE_BYTES: Final = 400
"""What a value takes besides its texts."""
_INSTANCE_BYTES: Final = 1_000

Attributes = tuple[tuple[str, str], ...]


class _Value(NamedTuple):
    value: float
    is_monotonic: bool
    description: str


class _Kept(NamedTuple):
    """The values of one instance; never changed, only replaced."""

    labels: dict[str, str]
    values: Mapping[tuple[str, Attributes], _Value]
    size: int
    expires_at: int


class ClientValues:
    """The values of all instances."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._instances: OrderedDict[bytes, _Kept] = OrderedDict()
        self.held_bytes = 0
        """An estimate of the memory in use."""

    def __len__(self) -> int:
        return len(self._instances)

    def keep(
        self, instance_id: bytes, labels: Mapping[str, str], points: Iterable[Point], now: int, expiry_ms: int
    ) -> None:
        """Take over what an instance pushed. `labels` are added to each of its values."""
        before = self._instances.get(instance_id)
        values: dict[tuple[str, Attributes], _Value] = {}
        if before is not None:
            values.update((key, value) for key, value in before.values.items() if value.is_monotonic)
        for point in points:
            key = (point.name, point.attributes)
            value, known = point.value, values.get(key)
            if point.is_delta:
                former = known or (None if before is None else before.values.get(key))
                value += 0.0 if former is None else former.value
            if known is not None or len(values) < MAX_POINTS:
                values[key] = _Value(value, point.is_monotonic, point.description)
        size = _INSTANCE_BYTES + sum(_size(*key) + len(value.description) for key, value in values.items())
        self.drop(instance_id)
        self._instances[instance_id] = _Kept(dict(labels), values, size, now + expiry_ms)
        self.held_bytes += size
        while self.held_bytes > self._max_bytes and self._instances:
            self.drop(next(iter(self._instances)))

    def drop(self, instance_id: bytes) -> None:
        """Drop what an instance pushed."""
        kept = self._instances.pop(instance_id, None)
        if kept is not None:
            self.held_bytes -= kept.size

    def expire(self, now: int) -> None:
        """Drop the instances that have not pushed for too long."""
        for instance_id in [each for each, kept in self._instances.items() if kept.expires_at <= now]:
            self.drop(instance_id)

    def collect(self) -> Iterator[Metric]:
        """Yield the values as metric families; needs prometheus_client."""
        from prometheus_client import Metric

        families: dict[str, Metric] = {}
        seen: set[tuple[str, Attributes]] = set()
        for kept in list(self._instances.values()):
            for (name, attributes), (value, is_monotonic, description) in kept.values.items():
                family_name = shown_name(name)
                if is_monotonic:
                    family_name = family_name.removesuffix("_total")
                kind = "counter" if is_monotonic else "gauge"
                family = families.get(family_name)
                if family is None:
                    family = families[family_name] = Metric(family_name, description or name, kind)
                elif family.type != kind:
                    continue
                labels = {_label(key): text for key, text in attributes} | kept.labels
                identity = (family_name, tuple(sorted(labels.items())))
                if identity not in seen:  # two names may become the same one
                    seen.add(identity)
                    family.add_sample(family_name + "_total" if is_monotonic else family_name, labels, value)
        yield from families.values()


def shown_name(name: str) -> str:
    """Return the name under which a client's metric is shown."""
    return PREFIX + _NOT_ALLOWED.sub("_", name.removeprefix(_COMMON)).strip("_")


def _label(name: str) -> str:
    label = _NOT_ALLOWED.sub("_", name).strip("_")
    return label if label and not label[0].isdigit() else f"attribute_{label}"


def _size(name: str, attributes: Attributes) -> int:
    return _VALUE_BYTES + len(name) + sum(150 + len(key) + len(text) for key, text in attributes)
