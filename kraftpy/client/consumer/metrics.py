"""The metrics of a consumer: its polls, its fetches by topic and partition, and its part in its group.

Kafka's groups are consumer-metrics, consumer-fetch-manager-metrics and consumer-coordinator-metrics. Records count once
they are decoded for the application. Lags and leads are those at the latest answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kraftpy.client.consumer.partition_state import PartitionReader, Tally
from kraftpy.client.metrics import MOST_TOPICS, NOTHING, ClientMetrics, Metrics, Putter, Sampled
from kraftpy.protocol.apis import ApiKey

_HEARTBEATS = (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT)


class _Topic:
    """The fetched records of one topic."""

    __slots__ = ("bytes", "records", "seen", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.seen = 0
        """The part of the tally that is in `records`."""
        self.records, self.bytes = Sampled(), Sampled()

    def look(self, now_ms: float) -> int:
        """Take in what was decoded since the last look; return how much."""
        count = self.tally.records - self.seen
        if count:
            self.seen += count
            self.records.record(count, now_ms)
        return count


class ConsumerMetrics(ClientMetrics):
    """The metrics of one consumer."""

    def __init__(self, client_id: str, readers: Callable[[], Collection[PartitionReader]]) -> None:
        super().__init__("consumer", client_id)
        self._readers = readers
        self._topics: dict[str, _Topic] = {}
        self._others = _Topic()
        self._records, self._bytes, self._lags, self._leads = Sampled(), Sampled(), Sampled(), Sampled()
        self._between_polls, self._rebalances = Sampled(), Sampled()
        self._polled_ms = self._rebalanced_ms = self._heard_ms = NOTHING
        self.is_member = False
        """True once the consumer has been a member of a group."""

    # --- what the consumer reports --------------------------------------------------------------------------------

    def tally(self, topic: str) -> Tally:
        """Return the count of a topic's decoded records."""
        return self._topic(topic).tally

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= MOST_TOPICS:
                return self._others
            found = self._topics[name] = _Topic()
        return found

    def fetched(self, sizes: dict[str, int], now_ms: float) -> None:
        """Count an answer to a fetch: the bytes of records by topic."""
        self._bytes.record(sum(sizes.values()), now_ms)
        for name, size in sizes.items():
            self._topic(name).bytes.record(size, now_ms)
        self._look(now_ms)

    def _look(self, now_ms: float) -> None:
        count = sum(topic.look(now_ms) for topic in [*self._topics.values(), self._others])
        if count:
            self._records.record(count, now_ms)

    def behind(self, reader: PartitionReader, now_ms: float) -> None:
        """Take in how far a partition's end and beginning are away."""
        if (lag := reader.lag) is not None:
            self._lags.record(lag, now_ms)
        if (lead := reader.lead) is not None:
            self._leads.record(-lead, now_ms)

    def polled(self, now_ms: float) -> None:
        """Count that the application asks for records."""
        if self._polled_ms == self._polled_ms:
            self._between_polls.record(now_ms - self._polled_ms, now_ms)
        self._polled_ms = now_ms

    def rebalancing(self, now_ms: float) -> None:
        """Count that partitions change hands."""
        self.is_member = True
        self._rebalances.record(1, now_ms)
        self._rebalanced_ms = now_ms

    def answered(
        self, address: str, key: ApiKey, latency_ms: float, size: int, throttle_ms: float, now_ms: float
    ) -> None:
        """Count an answer."""
        super().answered(address, key, latency_ms, size, throttle_ms, now_ms)
        if key in _HEARTBEATS:
            self._heard_ms = now_ms

    # --- reading --------------------------------------------------------------------------------------------------

    def values(self, now_ms: float) -> Metrics:
        """Return every value as of now."""
        found = super().values(now_ms)
        tags = (("client-id", self.client_id),)
        put = Putter(found, "consumer-metrics", tags)
        put("last-poll-seconds-ago", (now_ms - self._polled_ms) / 1000)
        put.times("time-between-poll", self._between_polls, now_ms)
        self._put_fetches(found, tags, now_ms)
        if self.latency(ApiKey.OFFSET_COMMIT).count or self.is_member:
            self._put_group(Putter(found, "consumer-coordinator-metrics", tags), now_ms)
        return found

    def _put_fetches(self, found: Metrics, tags: tuple[tuple[str, str], ...], now_ms: float) -> None:
        group, readers = "consumer-fetch-manager-metrics", list(self._readers())
        put, fetches = Putter(found, group, tags), self.latency(ApiKey.FETCH)
        topics = list(self._topics.items())
        waiting = sum(topic.tally.records - topic.seen for _, topic in topics)
        put("records-consumed-rate", self._records.rate(now_ms))
        put("records-consumed-total", self._records.total + waiting)
        put.meter("bytes-consumed", self._bytes, now_ms)
        put.meter("fetch", fetches, now_ms, of_counts=True)
        put.times("fetch-latency", fetches, now_ms)
        put.times("fetch-size", self._bytes, now_ms)
        put.times("fetch-throttle-time", self.throttled.get(ApiKey.FETCH, Sampled()), now_ms)
        put("records-per-request-avg", self._records.average(now_ms))
        put("records-lag-max", self._lags.most(now_ms))
        put("records-lead-min", -self._leads.most(now_ms))
        for name, topic in topics:
            put = Putter(found, group, (*tags, ("topic", name)))
            put("records-consumed-rate", topic.records.rate(now_ms))
            put("records-consumed-total", topic.tally.records)
            put("records-per-request-avg", topic.records.average(now_ms))
            put.meter("bytes-consumed", topic.bytes, now_ms)
            put.times("fetch-size", topic.bytes, now_ms)
        for reader in readers:
            partition = (("topic", reader.name.topic), ("partition", str(reader.name.partition)))
            put = Putter(found, group, (*tags, *partition))
            put("records-lag", NOTHING if reader.lag is None else reader.lag)
            put("records-lead", NOTHING if reader.lead is None else reader.lead)

    def _put_group(self, put: Putter, now_ms: float) -> None:
        commits, heartbeats = self.latency(ApiKey.OFFSET_COMMIT), self.latency(*_HEARTBEATS)
        put("assigned-partitions", len(self._readers()))
        put.meter("commit", commits, now_ms, of_counts=True)
        put.times("commit-latency", commits, now_ms)
        put.meter("heartbeat", heartbeats, now_ms, of_counts=True)
        put("heartbeat-response-time-max", heartbeats.most(now_ms))
        put("last-heartbeat-seconds-ago", (now_ms - self._heard_ms) / 1000)
        for name, key in (("join", ApiKey.JOIN_GROUP), ("sync", ApiKey.SYNC_GROUP)):
            put.meter(name, self.latency(key), now_ms, of_counts=True)
            put.times(f"{name}-time", self.latency(key), now_ms)
        put("rebalance-total", self._rebalances.count)
        put("rebalance-rate-per-hour", self._rebalances.count_rate(now_ms) * 3600)
        put("last-rebalance-seconds-ago", (now_ms - self._rebalanced_ms) / 1000)
