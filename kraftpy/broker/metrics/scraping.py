"""Makes a page of metrics from the node's state, in slices of the event loop.

Each source is a generator that pauses often; once `_SLICE_S` are used up, others get the loop. A page is made once for
all that ask at the same time, and again only after `_FRESH_S`: scrapes in a tight loop cost a share of the node, not
all of it. The rest of a page are the metrics of the process and of the collectors that were registered
(`kraftpy.metrics.registry`), which prometheus-client writes. A source or collector with an error is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from time import thread_time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import exposition as prometheus
from prometheus_client.openmetrics import exposition as openmetrics

from kraftpy.broker.metrics import coordinators, own, partitions, throughput
from kraftpy.broker.metrics.ends import Ends
from kraftpy.broker.metrics.loop_watch import LoopWatch, event_loop
from kraftpy.broker.metrics.quorum import QuorumWatch, controller, quorum
from kraftpy.metrics.catalogue import ALIASES, RESERVED
from kraftpy.metrics.families import END, OPEN_METRICS, Page
from kraftpy.metrics.histograms import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kraftpy.broker.metrics.node import Node

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.005
_FRESH_S: Final = 1.0
_PAUSE_S: Final = 0.002
"""After each slice: a page is not urgent, so it takes at most some 70 % of the time that it finds free."""

Chunks = list[bytes]


class Scraper:
    """Makes the pages of one node."""

    def __init__(self, node: Node, loop_watch: LoopWatch, quorum_watch: QuorumWatch, state: Callable[[], int]) -> None:
        self._node = node
        self._ends = Ends(node)
        self._sources: dict[str, Callable[[Page], Iterator[None]]] = {
            "topics' traffic": lambda page: throughput.topic_traffic(node, page),
            "requests": lambda page: throughput.request_times(node, page),
            "connections": lambda page: throughput.connections(node, page),
            "quotas": lambda page: throughput.quotas(node, page),
            "logs": lambda page: partitions.logs(node, page),
            "replicas": lambda page: partitions.replicas(node, page),
            "topics": lambda page: partitions.topics(node, page),
            "groups": lambda page: coordinators.groups(node, page, self._ends),
            "share groups": lambda page: coordinators.share_groups(node, page),
            "transactions": lambda page: coordinators.transactions(node, page),
            "controller": lambda page: controller(node, page, quorum_watch),
            "quorum": lambda page: quorum(node, page, loop_watch),
            "event loop": lambda page: event_loop(node, page, loop_watch),
            "node": lambda page: own.this_node(node, page, state()),
        }
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)
        self._failed = 0
        self._took = Histogram()
        self._making: asyncio.Lock = asyncio.Lock()
        self._made: tuple[float, Page, list[Metric]] | None = None
        self._longest_s = 0.0

    async def page(self, content_type: str, *, as_confluent: bool = False) -> Chunks:
        """Return the page in a format, and perhaps with the names of Confluent's rules."""
        async with self._making:
            now = asyncio.get_running_loop().time()
            if self._made is None or now - self._made[0] >= _FRESH_S:
                page, more = await self._make()
                self._made = asyncio.get_running_loop().time(), page, more
        _, page, more = self._made
        return await self._text(page, more, content_type, as_confluent)

    async def _make(self) -> tuple[Page, list[Metric]]:
        page = Page()
        self._ends.begin()
        spent = 0.0
        for name, source in self._sources.items():
            try:
                spent += await self._in_slices(source(page))
            except Exception as error:
                self._left_out(name, error)
        for name, other in ALIASES.items():
            page.alias(name, other)
        self._took.record(int(spent * 1e6))
        own.seconds(page, "kraftpy_scrape_seconds", self._took)
        page.add("kraftpy_scrape_longest_slice_seconds", self._longest_s)
        more = await self._collected()
        page.add("kraftpy_collectors_failed_total", self._failed)
        return page, more

    async def _in_slices(self, steps: Iterator[None]) -> float:
        """Take steps, with pauses; return the processor time that they took, in seconds."""
        spent = slice_s = 0.0
        began_at = thread_time()
        for _ in steps:
            now = thread_time()
            slice_s += now - began_at
            began_at = now
            if slice_s >= _SLICE_S:
                spent += slice_s
                self._longest_s = max(self._longest_s, slice_s)
                await asyncio.sleep(_PAUSE_S)
                slice_s, began_at = 0.0, thread_time()
        slice_s += thread_time() - began_at
        self._longest_s = max(self._longest_s, slice_s)
        await asyncio.sleep(0)
        return spent + slice_s

    async def _collected(self) -> list[Metric]:
        """Return the metrics of the process and of other parts of the node."""
        found: dict[str, Metric] = {metric.name: metric for metric in self._process.collect()}
        for collector in list(self._node.metrics.collectors):
            try:
                for metric in collector.collect():
                    await asyncio.sleep(0)
                    if metric.name not in found and RESERVED.isdisjoint((metric.name, f"{metric.name}_total")):
                        found[metric.name] = metric
            except Exception as error:
                self._left_out(type(collector).__name__, error)
        return list(found.values())

    def _left_out(self, name: str, error: Exception) -> None:
        self._failed += 1
        complaints = self._node.incidents.complaints
        complaints.write(logger, logging.ERROR, "metrics", name, "metrics of %s are left out: %r", name, error)

    async def _text(self, page: Page, more: list[Metric], content_type: str, as_confluent: bool) -> Chunks:
        chunks: Chunks = []

        def steps() -> Iterator[None]:
            for text in page.texts(content_type, as_confluent=as_confluent):
                chunks.append(text.encode())
                yield
            for metric in more:
                if chunk := _written(metric, content_type):
                    chunks.append(chunk)
                yield

        await self._in_slices(steps())
        if content_type == OPEN_METRICS:
            chunks.append(END.encode())
        return chunks


class _One(CollectorRegistry):
    """A registry of one metric that has been collected."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Return the metric."""
        yield self._metric


def _written(metric: Metric, content_type: str) -> bytes:
    """Write a metric that prometheus-client has made."""
    if content_type == OPEN_METRICS:
        text: bytes = openmetrics.generate_latest(_One(metric))  # type: ignore[no-untyped-call]
        return text.removesuffix(END.encode())
    return prometheus.generate_latest(_One(metric))
