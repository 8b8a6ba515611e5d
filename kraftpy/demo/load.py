"""Produce the events with our own client, and ask the broker how many its log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kraftpy.client import (
    Admin,
    Delivery,
    KafkaError,
    NewTopic,
    OffsetAndTimestamp,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from kraftpy.demo.flights import Event

_REPORT_EVERY = 2_000


async def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A new topic on a new broker, whose records are kept however old they say they are. Raises KafkaError.

    Retention goes by the records' own times: under the default of seven days, events of 2013 would be deleted as soon
    as the broker looks.
    """
    config = {"retention.ms": "-1"}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name=topic, num_partitions=partitions, replication_factor=1, config=config)]
        )


async def load(bootstrap: str, topic: str, events: Iterable[Event], advance: Callable[[int], None]) -> int:
    """Produce every event with its own time as the record's timestamp; how many the broker acknowledged.

    The producer is idempotent, so a retry writes nothing twice. `advance` is told of acknowledgements as they come.
    Raises KafkaError where an event could not be delivered.
    """
    acknowledged = 0
    reported = 0
    failures: list[KafkaError] = []

    def delivered(delivery: Delivery) -> None:
        nonlocal acknowledged, reported
        try:
            delivery.result()
        except KafkaError as error:
            failures.append(error)
            return
        acknowledged += 1
        if acknowledged - reported >= _REPORT_EVERY:
            advance(acknowledged - reported)
            reported = acknowledged

    async with Producer(bootstrap_servers=bootstrap, compression_type="lz4", linger_ms=20) as producer:
        for event in events:
            if failures:
                break
            sent = await producer.send(topic, event.value, event.key, timestamp_ms=event.time_ms)
            sent.add_done_callback(delivered)
        await producer.flush()
    advance(acknowledged - reported)
    if failures:
        raise failures[0]
    return acknowledged


async def records_in_log(bootstrap: str, topic: str) -> int:
    """End offsets less start offsets, over all partitions: the records of a topic without transactions or gaps."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        [info] = await admin.describe_topics([topic])
        partitions = [TopicPartition(topic, each.partition) for each in info.partitions]
        ends = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        starts = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    return sum(_offset(ends[where]) - _offset(starts[where]) for where in partitions)


def _offset(found: OffsetAndTimestamp | None) -> int:
    assert found is not None, "a log has a start and an end"
    return found.offset
