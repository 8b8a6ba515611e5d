"""The metrics of a producer's batches, in Kafka's groups producer-metrics and producer-topic-metrics.

A batch counts each time it is sent, as in Kafka: one that is sent again counts as `record-retry` besides.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.client.metrics import MOST_TOPICS, NOTHING, ClientMetrics, Metrics, Putter, Sampled
from kraftpy.client.producer.accumulator import Batch
from kraftpy.protocol.apis import ApiKey


class _Topic:
    """The batches of one topic."""

    __slots__ = ("encoded", "failed", "records", "retried", "share")

    def __init__(self) -> None:
        self.records, self.encoded, self.share = Sampled(), Sampled(), Sampled()
        self.retried, self.failed = Sampled(), Sampled()


class ProducerMetrics(ClientMetrics):
    """The metrics of one producer."""

    def __init__(self, client_id: str, buffer_bytes: int) -> None:
        super().__init__("producer", client_id)
        self._buffer_bytes = buffer_bytes
        self._topics: dict[str, _Topic] = {}
        self._all = _Topic()
        self._queued_ms, self._per_request, self._splits = Sampled(), Sampled(), Sampled()
        self.free_bytes: Callable[[], int] = lambda: buffer_bytes
        self.waiting: Callable[[], int] = int
        """How many calls of `send` wait for memory."""
        self.in_flight: Callable[[], int] = int
        """How many Produce requests are not answered yet."""
        self.metadata_age_s: Callable[[], float] = lambda: NOTHING

    def sending(self, batches: list[Batch], now_ms: float) -> None:
        """Count the batches of a request, which are encoded."""
        total = 0
        for batch in batches:
            encoded = batch.encoded
            if encoded is None:
                continue
            count = len(batch.records)
            total += count
            self._queued_ms.record(now_ms - batch.created_ms, now_ms)
            for each in (self._all, self._topic(batch.partition.topic)):
                each.records.record(count, now_ms)
                each.encoded.record(len(encoded), now_ms)
                each.share.record(len(encoded) / batch.size_bytes, now_ms)
        self._per_request.record(total, now_ms)

    def retried(self, batch: Batch, now_ms: float) -> None:
        """Count a batch that is sent again."""
        for each in (self._all, self._topic(batch.partition.topic)):
            each.retried.record(len(batch.records), now_ms)

    def split(self, now_ms: float) -> None:
        """Count a batch that was too large for the broker, and was divided."""
        self._splits.record(1, now_ms)

    def given_up(self, batch: Batch, now_ms: float) -> None:
        """Count a batch that was not delivered."""
        for each in (self._all, self._topic(batch.partition.topic)):
            each.failed.record(len(batch.records), now_ms)

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            found = _Topic()
            if len(self._topics) < MOST_TOPICS:
                self._topics[name] = found
        return found

    def values(self, now_ms: float) -> Metrics:
        """Return every value as of now."""
        found = super().values(now_ms)
        tags = (("client-id", self.client_id),)
        put, all_ = Putter(found, "producer-metrics", tags), self._all
        put.times("batch-size", all_.encoded, now_ms)
        put("compression-rate-avg", all_.share.average(now_ms))
        put.times("record-queue-time", self._queued_ms, now_ms)
        put.times("request-latency", self.latency(ApiKey.PRODUCE), now_ms)
        put.times("produce-throttle-time", self.throttled.get(ApiKey.PRODUCE, Sampled()), now_ms)
        put("records-per-request-avg", self._per_request.average(now_ms))
        put.meter("record-send", all_.records, now_ms)
        put.meter("record-retry", all_.retried, now_ms)
        put.meter("record-error", all_.failed, now_ms)
        put.meter("batch-split", self._splits, now_ms)
        put("requests-in-flight", self.in_flight())
        put("buffer-total-bytes", self._buffer_bytes)
        put("buffer-available-bytes", self.free_bytes())
        put("waiting-threads", self.waiting())
        put("metadata-age", self.metadata_age_s())
        for name, topic in list(self._topics.items()):
            put = Putter(found, "producer-topic-metrics", (*tags, ("topic", name)))
            put.meter("record-send", topic.records, now_ms)
            put.meter("record-retry", topic.retried, now_ms)
            put.meter("record-error", topic.failed, now_ms)
            put.meter("byte", topic.encoded, now_ms)
            put("compression-rate", topic.share.average(now_ms))
        return found
