"""Samples what has to be watched over time: the event loop's lag and idleness, and rates of the metadata log.

A timer of 100 ms says how late the loop is. Once a second the loop's thread tells how much processor time it has used:
the rest is idle, or waited for a processor. Costs some 0.1 % of a processor.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.metrics.families import Page
from kraftpy.metrics.histograms import WINDOW_S, Histogram

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node

_PAUSE_S: Final = 0.1
_SAMPLES: Final = 60
_QUANTILES: Final = {"0.50": 0.5, "0.95": 0.95, "0.99": 0.99, "0.999": 0.999}
_US: Final = 1e6


class _Sample(NamedTuple):
    """One second."""

    at: float
    processor_s: float
    max_lag_s: float
    last_index: int
    commits: int
    commit_us: int
    max_commit_ms: float


class LoopWatch:
    """The last minute of a node's event loop and metadata log. `node.metadata.latency` measures for it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.lag = Histogram()
        """Microseconds by which timers were late."""
        self._latency = node.metadata.latency = Histogram()
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES + 1)
        self._max_lag_s = 0.0
        self.last_turn_at = 0.0
        """When the loop last ran the timer."""

    async def run(self) -> None:
        """Watch forever."""
        loop = asyncio.get_running_loop()
        window_until = loop.time() + WINDOW_S
        self._sample(loop.time())
        while True:
            due = loop.time() + _PAUSE_S
            await asyncio.sleep(_PAUSE_S)
            now = self.last_turn_at = loop.time()
            late = max(0.0, now - due)
            self.lag.record(int(late * _US))
            self._max_lag_s = max(self._max_lag_s, late)
            if now - self._samples[-1].at >= 1.0:
                self._sample(now)
            if now >= window_until:
                window_until = now + WINDOW_S
                self.lag.begin_window()
                self._latency.begin_window()

    def _sample(self, now: float) -> None:
        latency = self._latency
        last_index = self._node.metadata.applied_index
        longest = latency.quantiles((1.0,))[0] / 1000
        sample = _Sample(now, time.thread_time(), self._max_lag_s, last_index, latency.count, latency.total, longest)
        self._samples.append(sample)
        self._max_lag_s = 0.0

    def _span(self) -> tuple[_Sample, _Sample, float]:
        first, last = self._samples[0], self._samples[-1]
        return first, last, last.at - first.at

    @property
    def idle_share(self) -> float:
        """The share of the last minute in which the loop's thread used no processor."""
        if len(self._samples) < 2:
            return 1.0
        first, last, seconds = self._span()
        return min(1.0, max(0.0, 1.0 - (last.processor_s - first.processor_s) / seconds))

    @property
    def max_lag_s(self) -> float:
        """The longest lag in the last minute."""
        return max([self._max_lag_s, *(each.max_lag_s for each in self._samples)])

    @property
    def entries_per_second(self) -> float:
        """Entries of the metadata log applied a second, over the last minute."""
        if len(self._samples) < 2:
            return 0.0
        first, last, seconds = self._span()
        return max(0, last.last_index - first.last_index) / seconds

    @property
    def commit_latency_avg_ms(self) -> float:
        """The mean time of a command that was submitted here, over the last minute; 0 if there was none."""
        first, last = self._samples[0], self._samples[-1]
        count = last.commits - first.commits
        return (last.commit_us - first.commit_us) / count / 1000 if count else 0.0

    @property
    def commit_latency_max_ms(self) -> float:
        """The longest such time, over the last five minutes."""
        return self._samples[-1].max_commit_ms


def event_loop(node: Node, page: Page, watch: LoopWatch) -> Iterator[None]:
    """Add the event loop's lag and idleness."""
    yield
    found = watch.lag.quantiles(tuple(_QUANTILES.values()))
    quantiles = {name: value / _US for name, value in zip(_QUANTILES, found, strict=True)}
    page.summary("kraftpy_event_loop_lag_seconds", "", quantiles, watch.lag.count, watch.lag.total / _US)
    page.add("kraftpy_event_loop_lag_max_seconds", watch.max_lag_s)
    idle = watch.idle_share
    page.add("kafka_network_socketserver_networkprocessoravgidle_percent", idle, 'networkProcessor="0"')
    page.add("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", idle)
