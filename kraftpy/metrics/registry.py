"""The metrics of one node: the counters of its hot paths, and the collectors that parts of the node add.

    node.metrics.register(collector)

A collector is an object with `collect() -> Iterable[prometheus_client.Metric]`, as prometheus-client defines it. It is
called on the event loop at each scrape, and others get the loop between two of its metrics: let `collect` be a
generator, and keep each metric to a few thousand samples. An error costs the scrape this collector's metrics, and one
line in the log. A metric whose name is in `catalogue`, or that another collector has, is left out.

A node without `kraftpy.metrics.listener` counts nothing: `traffic`, `requests` and `sent` are None there. Collectors
may be registered all the same, and are never called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kraftpy.metadata.records import Record
    from kraftpy.metrics.request_times import RequestTimes
    from kraftpy.metrics.traffic import SentBytes, Traffic


class Collector(Protocol):
    """A source of metrics besides the node's own."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now, a family each. Called on the event loop."""


class Monitor(Protocol):
    """The listener for monitors, which follows the node's life."""

    @property
    def port(self) -> int:
        """The port on which it listens."""

    def started(self) -> None:
        """Note that the node's start is complete."""

    def stopping(self) -> None:
        """Note that the node begins to stop."""

    def follow(self, records: Sequence[Record] | None) -> None:
        """Look at changes of the metadata; None stands for a snapshot."""

    def close(self) -> None:
        """End the listener."""


class NodeMetrics:
    """The counters and collectors of one node."""

    def __init__(self, *, are_counted: bool) -> None:
        """`are_counted`: there is a listener for metrics."""
        self.traffic: Traffic | None = None
        """Bytes and records by topic."""
        self.requests: RequestTimes | None = None
        """The times of requests, by API."""
        self.sent: SentBytes | None = None
        """Bytes that were sent to clients, by the way they went."""
        self.accepted: Counter[str] = Counter()
        """How many connections each listener has accepted."""
        self.monitor: Monitor | None = None
        """The listener, from the node's start on; None if there is none."""
        self.collectors: list[Collector] = []
        if are_counted:
            from kraftpy.metrics.request_times import RequestTimes
            from kraftpy.metrics.traffic import SentBytes, Traffic

            self.traffic, self.requests, self.sent = Traffic(), RequestTimes(), SentBytes()

    def register(self, collector: Collector) -> None:
        """Show a collector's metrics from now on."""
        self.collectors.append(collector)

    def unregister(self, collector: Collector) -> None:
        """Show a collector's metrics no more. Raises ValueError if it is not registered."""
        self.collectors.remove(collector)

    # --- the node's life, for the listener ---------------------------------------------------

    def started(self) -> None:
        """Note that the node's start is complete."""
        if self.monitor is not None:
            self.monitor.started()

    def stopping(self) -> None:
        """Note that the node begins to stop."""
        if self.monitor is not None:
            self.monitor.stopping()

    def follow(self, records: Sequence[Record] | None) -> None:
        """Let the listener look at changes of the metadata."""
        if self.monitor is not None:
            self.monitor.follow(records)

    def close(self) -> None:
        """End the listener."""
        if self.monitor is not None:
            self.monitor.close()
