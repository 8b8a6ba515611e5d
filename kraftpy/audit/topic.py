"""The audit topic: tallies as records, compacted by key.

Reading keeps the last record of each key, in offset order. Publishing waits until all records are acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kraftpy.audit.counts import BadTally, Tally, latest, parse_tally
from kraftpy.client import BlockingAdmin, BlockingProducer, KafkaError, NewTopic, UnknownTopic
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import iter_records, split_batches
from kraftpy.types import TopicPartition

DEFAULT_TOPIC = "audit"
RETENTION_MS = 30 * 86_400_000
"""How long tallies are kept in a topic that this module creates."""


def create_topic(bootstrap_servers: str, topic: str, **options: Any) -> None:
    """Create the audit topic if it does not exist. `options` are those of any client. Raises KafkaError."""
    config = {"cleanup.policy": "compact,delete", "retention.ms": str(RETENTION_MS)}
    with BlockingAdmin(bootstrap_servers=bootstrap_servers, **options) as admin:
        try:
            admin.create_topics([NewTopic(name=topic, num_partitions=1, config=config)])
        except KafkaError as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def publish(bootstrap_servers: str, topic: str, tallies: Iterable[Tally], **options: Any) -> None:
    """Write tallies and wait for their acknowledgement. `options` are those of any client. Raises KafkaError."""
    with BlockingProducer(bootstrap_servers=bootstrap_servers, **options) as producer:
        producer.send_many(topic, ((tally.key(), tally.value()) for tally in tallies))


def read(bootstrap_servers: str, topic: str, **options: Any) -> tuple[list[Tally], int]:
    """Return the last tally of each key, none without a topic, and the number of records that are not tallies.

    `options` are those of any client.
    """
    found: list[Tally] = []
    bad = 0
    with RangeReader(bootstrap_servers, **{"default_api_timeout_ms": 30_000, **options}) as broker:
        try:
            partitions = [TopicPartition(topic, each.partition) for each in broker.topics([topic])[topic].partitions]
        except UnknownTopic:
            return [], 0
        starts, ends = broker.earliest(partitions), broker.latest(partitions)
        for where in partitions:
            for key, value in _records(broker, where, starts[where], ends[where]):
                if value is None:
                    continue
                try:
                    found.append(parse_tally(key, value))
                except BadTally:
                    bad += 1
    return latest(found), bad


def _records(
    broker: RangeReader, where: TopicPartition, start: int, end: int
) -> Iterator[tuple[bytes | None, bytes | None]]:
    for chunk in broker.read(where, start, end):
        for header, batch in split_batches(chunk.records, allow_partial=True):
            if header.is_control:
                continue
            for record in iter_records(batch):
                if chunk.start_offset <= record.offset < chunk.end_offset:
                    yield record.key, record.value
