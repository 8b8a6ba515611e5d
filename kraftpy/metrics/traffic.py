"""The traffic of a node's partitions, by topic, as Kafka's BrokerTopicMetrics count it.

A topic's counters go when the last partition of it leaves this node, and come back as new ones; the sums over all
topics never go back.
"""

from __future__ import annotations

from typing import Final

from kraftpy.metrics.histograms import Histogram
from kraftpy.protocol.errors import ErrorCode

_TOO_LARGE: Final = frozenset((int(ErrorCode.MESSAGE_TOO_LARGE), int(ErrorCode.RECORD_LIST_TOO_LARGE)))
_CLIENTS_TRY_AGAIN: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
    )
)
"""Errors that Kafka does not count as failed requests (`ReplicaManager`): other metrics show their causes."""
COUNTED: Final = (
    "bytes_in",
    "messages_in",
    "bytes_out",
    "replication_bytes_in",
    "bytes_rejected",
    "produce_requests",
    "fetch_requests",
    "share_fetch_requests",
    "failed_produce_requests",
    "failed_fetch_requests",
)
"""The counters of each topic."""


class TopicTraffic:
    """The counters of one topic on this node."""

    __slots__ = (*COUNTED, "partitions")

    def __init__(self) -> None:
        self.partitions = 0
        """How many of the topic's partitions are open here."""
        self.bytes_in = 0
        """Bytes of batches that were appended as the leader."""
        self.messages_in = 0
        self.bytes_out = 0
        """Bytes of records in answers to consumers."""
        self.replication_bytes_in = 0
        """Bytes of batches that were copied from the leader."""
        self.bytes_rejected = 0
        """Bytes of batches that were refused because they were too large."""
        self.produce_requests = 0
        """Batches that were to be appended, one for each partition of a request."""
        self.fetch_requests = 0
        """Partitions that were read, for consumers and followers."""
        self.share_fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0


class Traffic:
    """The counters of all topics."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self._gone = dict.fromkeys(COUNTED, 0)
        self.sync_times = Histogram()
        """Durations of rounds of syncs."""
        self.replication_bytes_out = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.failed_isr_updates = 0
        self.unknown_produce_requests = 0
        """Batches for partitions that are not led here."""
        self.unknown_fetch_requests = 0
        """Reads of partitions that are not here."""

    def opened(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic, of which a partition is opened here."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicTraffic()
        found.partitions += 1
        return found

    def closed(self, topic: str) -> None:
        """Note that a partition of a topic has left this node."""
        found = self.topics.get(topic)
        if found is None:
            return
        found.partitions -= 1
        if not found.partitions:
            del self.topics[topic]
            for name in COUNTED:
                self._gone[name] += getattr(found, name)

    def produced(self, topic: TopicTraffic | None, error_code: int, batch_bytes: int) -> None:
        """Count a batch that a client sent for a partition of a topic; None if the partition is not led here."""
        if topic is None:
            self.unknown_produce_requests += 1
            return
        topic.produce_requests += 1
        if not error_code:
            return
        if error_code in _TOO_LARGE:
            topic.bytes_rejected += batch_bytes
        elif error_code not in _CLIENTS_TRY_AGAIN:
            topic.failed_produce_requests += 1

    def fetched(self, topic: TopicTraffic | None, error_code: int, records_bytes: int, *, is_follower: bool) -> None:
        """Count a partition in an answer to Fetch; `topic` is None if the partition is not here."""
        if is_follower:
            self.replication_bytes_out += records_bytes
        if topic is None:
            self.unknown_fetch_requests += 1
            return
        topic.fetch_requests += 1
        if not is_follower:
            topic.bytes_out += records_bytes
        if error_code not in _CLIENTS_TRY_AGAIN:
            topic.failed_fetch_requests += 1

    def total(self, name: str) -> int:
        """Return a counter of `COUNTED` over all topics, since the start."""
        total = self._gone[name]
        for each in self.topics.values():
            total += getattr(each, name)
        return total


class SentBytes:
    """Bytes that were sent to clients, by the way they went."""

    __slots__ = ("from_files", "in_all")

    def __init__(self) -> None:
        self.in_all = 0
        """Bytes of answers, with their sizes."""
        self.from_files = 0
        """The part of them that went from the page cache to the socket (`sendfile`)."""
