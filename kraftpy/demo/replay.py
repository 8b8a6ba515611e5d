"""Produce the events in the order of their times, with several producers, and count what the log then holds.

Each of n producers takes every n-th event, so that all of them move through the year together. Each is idempotent and
waits for all in-sync replicas (acks=all): events that a dying node had not acknowledged are sent again, and are in the
log once. A call returns when all its events are acknowledged, so no event of a later call can precede them in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

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

_REPORT_EVERY = 500
_BUFFER_BYTES = 4 << 20  # keeps a producer from running far ahead of the acknowledgements


async def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic, with the cluster's default replication, that keeps its records however old they are.

    Retention is based on the records' own times: under the default of seven days, events of 2013 would be deleted at
    the broker's first check. Raises KafkaError.
    """
    config = {"retention.ms": "-1"}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=topic, num_partitions=partitions, config=config)])


async def replay(
    bootstrap: str,
    topic: str,
    events: Sequence[Event],
    *,
    producers: int,
    interceptors: Sequence[object],
    advance: Callable[[int], None],
) -> int:
    """Produce the events, with their own times as timestamps; return how many were acknowledged.

    `advance` is called as acknowledgements arrive; every producer has the `interceptors`. Raises KafkaError if an event
    could not be delivered.
    """
    shares = [events[number::producers] for number in range(producers)]
    sending = [_send(bootstrap, topic, share, interceptors, advance) for share in shares]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(each, name=f"demo producer {number}") for number, each in enumerate(sending, 1)
            ]
    except BaseExceptionGroup as failures:
        raise _first(failures) from None
    return sum(task.result() for task in running)


def _first(failures: BaseExceptionGroup) -> BaseException:
    """Return one of the exceptions with which several tasks failed."""
    failed = failures.exceptions[0]
    return _first(failed) if isinstance(failed, BaseExceptionGroup) else failed


async def _send(
    bootstrap: str,
    topic: str,
    events: Sequence[Event],
    interceptors: Sequence[object],
    advance: Callable[[int], None],
) -> int:
    """Run one producer; return how many of its events were acknowledged."""
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

    async with Producer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type="lz4",
        linger_ms=20,
        buffer_memory=_BUFFER_BYTES,
        interceptors=interceptors,
    ) as producer:
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
    """Sum end offsets minus start offsets: the number of records in a topic without transactions or gaps."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        [info] = await admin.describe_topics([topic])
        partitions = [TopicPartition(topic, each.partition) for each in info.partitions]
        ends = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        starts = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    return sum(_offset(ends[where]) - _offset(starts[where]) for where in partitions)


def _offset(found: OffsetAndTimestamp | None) -> int:
    assert found is not None, "a log has a start and an end"
    return found.offset
