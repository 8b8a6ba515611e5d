"""The metrics of range readers. All readers of one client id share them in a process.

Readers are many and live shortly (one for each task of a load), and what they have done together is what matters. Their
groups are named as a consumer's: reader-metrics, reader-node-metrics and reader-fetch-manager-metrics. They count for
as long as one of the readers is kept, or `metrics_of` is.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakValueDictionary

from kraftpy.client.metrics import MOST_TOPICS, ClientMetrics, Metrics, Putter, Sampled
from kraftpy.protocol.apis import ApiKey

_known: Final[WeakValueDictionary[str, ReaderMetrics]] = WeakValueDictionary()
_lock = threading.Lock()


class ReaderMetrics(ClientMetrics):
    """The metrics of all range readers of one client id."""

    def __init__(self, client_id: str) -> None:
        super().__init__("reader", client_id, threading.Lock())
        self._records, self._bytes = Sampled(), Sampled()
        self._topics: dict[str, tuple[Sampled, Sampled]] = {}

    def fetched(self, topic: str, records: int, size: int, now_ms: float) -> None:
        """Count an answer: the records in its batches, and its bytes."""
        with self._guard:
            known = self._topics.get(topic)
            if known is None:
                known = Sampled(), Sampled()
                if len(self._topics) < MOST_TOPICS:
                    self._topics[topic] = known
            for of_records, of_bytes in ((self._records, self._bytes), known):
                of_records.record(records, now_ms)
                of_bytes.record(size, now_ms)

    def values(self, now_ms: float) -> Metrics:
        """Return every value as of now."""
        found = super().values(now_ms)
        tags, group = (("client-id", self.client_id),), "reader-fetch-manager-metrics"
        put, fetches = Putter(found, group, tags), self.latency(ApiKey.FETCH)
        put.meter("fetch", fetches, now_ms, of_counts=True)
        put.times("fetch-latency", fetches, now_ms)
        put.times("fetch-size", self._bytes, now_ms)
        put.meter("records-consumed", self._records, now_ms)
        put.meter("bytes-consumed", self._bytes, now_ms)
        for topic, (records, size) in list(self._topics.items()):
            put = Putter(found, group, (*tags, ("topic", topic)))
            put.meter("records-consumed", records, now_ms)
            put.meter("bytes-consumed", size, now_ms)
        return found


def metrics_of(client_id: str) -> ReaderMetrics:
    """Return the metrics that the readers of a client id share in this process."""
    with _lock:
        found = _known.get(client_id)
        if found is None:
            found = _known[client_id] = ReaderMetrics(client_id)
        return found
