"""The metrics of a client, under the names of Kafka's Java clients.

    for name, value in producer.metrics().items():
        print(name.group, name.name, name.tags, value)

Each client counts its requests as they are sent and answered; the producer and the consumer count batches besides.
Nothing is done for a single record, so that measuring costs next to nothing (`bench/client_metrics.py`).

As in Kafka, averages, maxima and rates are of the last 30 to 60 s (two windows), and NaN if there was nothing; those
whose name ends in `-total` count from the client's start. Latencies are in ms.

`of_this_process` has the metrics of all clients, which `kraftpy.client.exposition` shows to Prometheus. They may be
read from any thread. Clients that share a `ClientMetrics` from several threads pass a lock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple
from weakref import WeakSet

from kraftpy.protocol.apis import ApiKey

NOTHING: Final = float("nan")
WINDOW_MS: Final = 30_000.0
"""Kafka's metrics.sample.window.ms; there are two windows (metrics.num.samples)."""
MOST_TOPICS: Final = 10_000
"""The most topics, or brokers, of one client that have metrics of their own."""

_live: Final[WeakSet[ClientMetrics]] = WeakSet()
_numbers = itertools.count(1)
_lock = threading.Lock()


class MetricName(NamedTuple):
    """The name of a value, as Java's `MetricName` has it."""

    group: str
    """Such as producer-metrics."""
    name: str
    """Such as record-send-rate."""
    tags: tuple[tuple[str, str], ...]
    """Such as (("client-id", "a"), ("topic", "b"))."""


Metrics = dict[MetricName, float]


class _Window(NamedTuple):
    """Values recorded from a time on."""

    start_ms: float
    size: int
    total: float
    most: float


_NO_WINDOW = _Window(-1e18, 0, 0.0, NOTHING)


class Sampled:
    """Values over the last two windows, and their count and sum since the start."""

    __slots__ = ("_before", "_count", "_most", "_start_ms", "_total", "_until_ms", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._before = _NO_WINDOW
        self._start_ms = self._until_ms = -1e18
        self._count, self._total, self._most = 0, 0.0, NOTHING

    def record(self, value: float, now_ms: float) -> None:
        """Take in a value."""
        if now_ms >= self._until_ms:
            self._before = _Window(self._start_ms, self._count, self._total, self._most)
            self._start_ms, self._until_ms = now_ms, now_ms + WINDOW_MS
            self._count, self._total, self._most = 0, 0.0, value
        self.count += 1
        self.total += value
        self._count += 1
        self._total += value
        if value > self._most:
            self._most = value

    def _windows(self, now_ms: float) -> list[_Window]:
        both = (self._before, _Window(self._start_ms, self._count, self._total, self._most))
        return [each for each in both if each.size and now_ms - each.start_ms < 2 * WINDOW_MS]

    def average(self, now_ms: float) -> float:
        """Return the average of the last windows."""
        windows = self._windows(now_ms)
        return sum(each.total for each in windows) / sum(each.size for each in windows) if windows else NOTHING

    def most(self, now_ms: float) -> float:
        """Return the largest value of the last windows."""
        return max((each.most for each in self._windows(now_ms)), default=NOTHING)

    def rate(self, now_ms: float) -> float:
        """Return how much was recorded in a second."""
        return self._per_second(sum(each.total for each in self._windows(now_ms)), now_ms)

    def count_rate(self, now_ms: float) -> float:
        """Return how often something was recorded in a second."""
        return self._per_second(sum(each.size for each in self._windows(now_ms)), now_ms)

    def _per_second(self, amount: float, now_ms: float) -> float:
        windows = self._windows(now_ms)
        # As in Kafka, a client that has just started does not show what it did in its first moments as a rate.
        elapsed_ms = max(now_ms - windows[0].start_ms, WINDOW_MS) if windows else WINDOW_MS
        return amount / elapsed_ms * 1000


class Node:
    """The traffic with one broker's address."""

    __slots__ = ("latency", "received", "sent", "throttled")

    def __init__(self) -> None:
        self.sent = Sampled()
        """The bytes of each request."""
        self.received = Sampled()
        """The bytes of each answer."""
        self.latency = Sampled()


class ClientMetrics:
    """The metrics that every client has: requests and connections, in all, by API and by broker."""

    def __init__(self, kind: str, client_id: str, lock: AbstractContextManager[object] | None = None) -> None:
        """`kind` begins the names of groups: producer, consumer, admin-client, ..."""
        self.kind = kind
        self.client_id = client_id
        self.number = next(_numbers)
        """Tells apart the clients of one process, which may have the same id."""
        self.nodes: dict[str, Node] = {}
        """By host:port."""
        self.node_ids: Mapping[str, int] = {}
        """The brokers' ids by host:port, as far as they are known."""
        self.latencies: dict[ApiKey, Sampled] = {}
        self.throttled: dict[ApiKey, Sampled] = {}
        self.created, self.closed = Sampled(), Sampled()
        self._guard: AbstractContextManager[object] = lock or nullcontext()
        with _lock:
            _live.add(self)

    def retire(self) -> None:
        """Leave `of_this_process`: the client is closed."""
        with _lock:
            _live.discard(self)

    # --- what connections report ----------------------------------------------------------------------------------

    def opened(self, now_ms: float) -> None:
        """Count a connection."""
        with self._guard:
            self.created.record(1, now_ms)

    def ended(self, now_ms: float) -> None:
        """Count the end of a connection."""
        with self._guard:
            self.closed.record(1, now_ms)

    def sent(self, address: str, size: int, now_ms: float) -> None:
        """Count a request of `size` bytes."""
        with self._guard:
            node = self.nodes.get(address)
            if node is None:
                if len(self.nodes) >= MOST_TOPICS:
                    return
                node = self.nodes[address] = Node()
            node.sent.record(size, now_ms)

    def answered(
        self, address: str, key: ApiKey, latency_ms: float, size: int, throttle_ms: float, now_ms: float
    ) -> None:
        """Count an answer of `size` bytes."""
        with self._guard:
            node = self.nodes.get(address)
            if node is not None:
                node.received.record(size, now_ms)
                node.latency.record(latency_ms, now_ms)
            latency = self.latencies.get(key)
            if latency is None:
                latency = self.latencies[key] = Sampled()
                self.throttled[key] = Sampled()
            latency.record(latency_ms, now_ms)
            if key in _THROTTLED:
                self.throttled[key].record(throttle_ms, now_ms)

    # --- reading --------------------------------------------------------------------------------------------------

    def latency(self, *keys: ApiKey) -> Sampled:
        """Return the latencies of the first of these APIs that was used."""
        return next((self.latencies[key] for key in keys if key in self.latencies), Sampled())

    def values(self, now_ms: float) -> Metrics:
        """Return every value as of now."""
        found: Metrics = {}
        tags = (("client-id", self.client_id),)
        group = f"{self.kind}-metrics"
        nodes = list(self.nodes.items())
        both = [node for _, node in nodes]
        sent, received = [node.sent for node in both], [node.received for node in both]
        put = Putter(found, group, tags)
        put("connection-count", self.created.count - self.closed.count)
        put.meter("connection-creation", self.created, now_ms)
        put.meter("connection-close", self.closed, now_ms)
        put("request-rate", sum(each.count_rate(now_ms) for each in sent))
        put("request-total", sum(each.count for each in sent))
        put("request-size-avg", _average(sent, now_ms))
        put("request-size-max", _most(sent, now_ms))
        put("response-rate", sum(each.count_rate(now_ms) for each in received))
        put("response-total", sum(each.count for each in received))
        put("outgoing-byte-rate", sum(each.rate(now_ms) for each in sent))
        put("outgoing-byte-total", sum(each.total for each in sent))
        put("incoming-byte-rate", sum(each.rate(now_ms) for each in received))
        put("incoming-byte-total", sum(each.total for each in received))
        put("network-io-rate", sum(each.count_rate(now_ms) for each in (*sent, *received)))
        put("network-io-total", sum(each.count for each in (*sent, *received)))
        for address, node in nodes:
            node_id = self.node_ids.get(address)
            named = f"node-{node_id}" if node_id is not None else f"node-{address}"
            put = Putter(found, f"{self.kind}-node-metrics", (*tags, ("node-id", named)))
            put.meter("request", node.sent, now_ms, of_counts=True)
            put("request-size-avg", node.sent.average(now_ms))
            put("request-size-max", node.sent.most(now_ms))
            put.meter("response", node.received, now_ms, of_counts=True)
            put.meter("outgoing-byte", node.sent, now_ms)
            put.meter("incoming-byte", node.received, now_ms)
            put.times("request-latency", node.latency, now_ms)
        return found


_THROTTLED = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH})


class Putter:
    """Puts values of one group and of the same tags."""

    def __init__(self, found: Metrics, group: str, tags: tuple[tuple[str, str], ...]) -> None:
        self._found, self._group, self._tags = found, group, tags

    def __call__(self, name: str, value: float) -> None:
        """Put a value."""
        self._found[MetricName(self._group, name, self._tags)] = float(value)

    def meter(self, name: str, sampled: Sampled, now_ms: float, *, of_counts: bool = False) -> None:
        """Put a rate and a total: of the values, or of how often there was one."""
        self(f"{name}-rate", sampled.count_rate(now_ms) if of_counts else sampled.rate(now_ms))
        self(f"{name}-total", sampled.count if of_counts else sampled.total)

    def times(self, name: str, sampled: Sampled, now_ms: float) -> None:
        """Put an average and a maximum."""
        self(f"{name}-avg", sampled.average(now_ms))
        self(f"{name}-max", sampled.most(now_ms))


def _average(all_: list[Sampled], now_ms: float) -> float:
    windows = [window for each in all_ for window in each._windows(now_ms)]
    return sum(each.total for each in windows) / sum(each.size for each in windows) if windows else NOTHING


def _most(all_: list[Sampled], now_ms: float) -> float:
    return max((window.most for each in all_ for window in each._windows(now_ms)), default=NOTHING)


def of_this_process() -> list[ClientMetrics]:
    """Return the metrics of all clients that are not closed, oldest first."""
    with _lock:
        return sorted(_live, key=lambda each: each.number)
