"""The last values that each client instance pushed, bounded in memory and time, in the form of Prometheus.

    store = ClientValues(max_bytes)
    store.keep(instance_id, labels, points, now_ms, expiry_ms)      # a push
    store.collect()                                                 # for a metrics endpoint, from any thread

Clients push the growth of counters, which is added up here. A gauge that is missing from a push is dropped. An instance
is kept until its expiry after its last push, also while it is not connected, so that its counters go on when it
connects to this broker again; beyond `max_bytes`, the instances whose last push is longest ago are dropped.

Names are `kafka_client_` and the client's, without `org.apache.kafka.`, with `_` for what Prometheus does not allow; so
no client can push a value under a name of the broker's own. A name that clients push as a gauge and as a counter is
shown as what the client that pushed last means by it.

A push replaces an instance's values as a whole, so `collect` needs no lock. It is a generator that does the work for
one name at a time, at most `MOST_SAMPLES` values of it, so that an event loop can do something else in between.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.telemetry.otlp import MAX_POINTS, Point

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "kafka_client_"
MOST_SAMPLES: Final = 4_000
"""Values shown under one name: some 20 ms. Those of the clients that pushed last take precedence."""
_COMMON: Final = "org.apache.kafka."
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_]+")
_VALUE_BYTES: Final = 400
"""The size of a value besides its texts."""
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
    families: Mapping[str, list[tuple[str, Attributes]]]
    """The keys of the values, by the name under which they are shown."""
    size: int
    expires_at: int


class ClientValues:
    """The values of all instances."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._instances: OrderedDict[bytes, _Kept] = OrderedDict()
        self._families: Counter[str] = Counter()
        """The names that values are shown under, with the number of instances that have such values."""
        self.held_bytes = 0
        """An estimate of the memory in use."""
        self.left_out = 0
        """The values that the last `collect` did not show, because there are too many of one name."""

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
        families: dict[str, list[tuple[str, Attributes]]] = {}
        for key, each in values.items():
            name = shown_name(key[0])
            families.setdefault(name.removesuffix("_total") if each.is_monotonic else name, []).append(key)
        self.drop(instance_id)
        self._instances[instance_id] = _Kept(dict(labels), values, families, size, now + expiry_ms)
        self._families.update(families.keys())
        self.held_bytes += size
        while self.held_bytes > self._max_bytes and self._instances:
            self.drop(next(iter(self._instances)))

    def drop(self, instance_id: bytes) -> None:
        """Drop what an instance pushed."""
        kept = self._instances.pop(instance_id, None)
        if kept is not None:
            self.held_bytes -= kept.size
            for name in kept.families:
                self._families[name] -= 1
                if not self._families[name]:
                    del self._families[name]

    def expire(self, now: int) -> None:
        """Drop the instances that have not pushed for too long."""
        for instance_id in [each for each, kept in self._instances.items() if kept.expires_at <= now]:
            self.drop(instance_id)

    def collect(self) -> Iterator[Metric]:
        """Yield the values as metric families; needs prometheus_client."""
        left_out = 0
        for name in list(self._families):
            family, count = self._family(name)
            left_out += count
            if family is not None:
                yield family
        self.left_out = left_out

    def _family(self, name: str) -> tuple[Metric | None, int]:
        """Return the values that are shown under a name, and the number of those left out."""
        from prometheus_client import Metric

        family: Metric | None = None
        seen: set[tuple[tuple[str, str], ...]] = set()
        left_out = 0
        for kept in reversed(list(self._instances.values())):
            keys = kept.families.get(name, ())
            if len(seen) + len(keys) > MOST_SAMPLES:
                left_out += len(keys)
                continue
            for key in keys:
                value, is_monotonic, description = kept.values[key]
                kind = "counter" if is_monotonic else "gauge"
                if family is None:
                    family = Metric(name, description or key[0], kind)
                elif family.type != kind:
                    continue
                labels = {_label(attribute): text for attribute, text in key[1]} | kept.labels
                identity = tuple(sorted(labels.items()))
                if identity not in seen:  # two names may become the same one
                    seen.add(identity)
                    family.add_sample(name + "_total" if is_monotonic else name, labels, value)
        return family, left_out


def shown_name(name: str) -> str:
    """Return the name under which a client's metric is shown."""
    return PREFIX + _NOT_ALLOWED.sub("_", name.removeprefix(_COMMON)).strip("_")


@lru_cache(1_024)
def _label(name: str) -> str:
    label = _NOT_ALLOWED.sub("_", name).strip("_")
    return label if label and not label[0].isdigit() else f"attribute_{label}"


def _size(name: str, attributes: Attributes) -> int:
    return _VALUE_BYTES + len(name) + sum(150 + len(key) + len(text) for key, text in attributes)
