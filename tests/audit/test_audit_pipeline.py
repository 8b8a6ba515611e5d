"""A pipeline with its tiers counted, and a mistake planted in the middle of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.audit import topic as audit_topic
from kraftpy.audit.counting import count_log
from kraftpy.audit.counts import Tally
from kraftpy.audit.interceptor import AuditInterceptor
from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingProducer, Consumer, NewTopic, Producer
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

BrokerFactory = Callable[..., EmbeddedBroker]

MINUTE = 60_000
START = 1_372_896_000_000  # 4 July 2013
RECORDS = 600  # one a minute: 60 windows


def run(server: str, *arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*map(str, arguments)], env={"KRAFTPY_BOOTSTRAP_SERVERS": server})
    assert result.exit_code == status, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    name = f"audited-{secrets.token_hex(4)}"
    create(kraftpy_server, name)
    return name


def create(server: EmbeddedBroker, name: str) -> None:
    """A topic that keeps records of 2013."""
    with BlockingAdmin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=2, config={"retention.ms": "-1"})])


async def produce(server: EmbeddedBroker, topic: str, audit: str, *, count: int = RECORDS) -> None:
    with AuditInterceptor(bootstrap_servers=server.bootstrap, tier="producer", topic=audit) as counting:
        async with Producer(bootstrap_servers=server.bootstrap, interceptors=[counting]) as producer:
            for n in range(count):
                await producer.send(topic, b"%d" % n, b"%d" % n, timestamp_ms=START + n * MINUTE)


async def relay(source: EmbeddedBroker, target: EmbeddedBroker, topic: str, audit: str, spoil: Any) -> None:
    """Copies records from broker to broker, unchanged except that `spoil` says how often a value is sent."""
    with AuditInterceptor(bootstrap_servers=source.bootstrap, tier="consumer", topic=audit) as counting:
        async with (
            Consumer(
                topic, bootstrap_servers=source.bootstrap, auto_offset_reset="earliest", interceptors=[counting]
            ) as consumer,
            Producer(bootstrap_servers=target.bootstrap) as producer,
        ):
            seen = 0
            while seen < RECORDS:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        seen += 1
                        for _ in range(spoil(int(record.value or b""))):
                            await producer.send(topic, record.value, record.key, timestamp_ms=record.timestamp_ms)


def test_a_dropped_and_a_duplicated_record_are_found(
    topic: str, kraftpy_server: EmbeddedBroker, start_broker: BrokerFactory, tmp_path: Path
) -> None:
    """One record of the 25th window is dropped, one of the 42nd sent twice: the total is right, the books are not."""
    offline = start_broker()
    create(offline, topic)
    audit = f"{topic}-audit"
    asyncio.run(produce(kraftpy_server, topic, audit))
    asyncio.run(relay(kraftpy_server, offline, topic, audit, lambda n: {243: 0, 411: 2}.get(n, 1)))
    live = kraftpy_server.bootstrap
    [counted] = rows(run(live, "audit", "count", topic, "--audit-topic", audit))
    assert counted == {"topic": topic, "windows": 60, "records": RECORDS}
    run(offline.bootstrap, "audit", "count", topic, "--audit-topic", audit, "--audit-server", live, "--tier", "offline")

    command = ("audit", "books", "--audit-topic", audit, "--tiers", "producer,log,consumer,offline")
    plot = tmp_path / "books.png"
    found = rows(run(live, *command, "--plot", plot, status=1))
    assert [(row["tier"], row["window"], row["difference"], row["verdict"]) for row in found] == [
        ("offline", "2013-07-04T04:00Z", -1, "lost"),
        ("offline", "2013-07-04T06:50Z", 1, "duplicated"),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    summary = rows(run(live, *command, "--summary", status=1))
    assert [(row["tier"], row["records"], row["lost"], row["duplicated"]) for row in summary] == [
        ("producer", RECORDS, 0, 0),
        ("log", RECORDS, 0, 0),
        ("consumer", RECORDS, 0, 0),
        ("offline", RECORDS, 1, 1),
    ]


def test_a_load_is_a_tier(topic: str, kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    audit, server = f"{topic}-audit", kraftpy_server.bootstrap
    asyncio.run(produce(kraftpy_server, topic, audit, count=50))
    for _ in range(2):
        loading = ("load", topic, "--table", tmp_path / "table", "--audit-tier", "load", "--audit-topic", audit)
        run(server, *loading, "--max-records-per-partition", 10)
    found = rows(run(server, "audit", "books", topic, "--audit-topic", audit, "--all"))
    assert {row["verdict"] for row in found} == {"balanced"}
    assert sum(row["count"] for row in found if row["tier"] == "load") == 50


def test_the_books_of_nothing(kraftpy_server: EmbeddedBroker) -> None:
    said = run(kraftpy_server.bootstrap, "audit", "books", "--audit-topic", "no-such-topic", status=1)
    assert "no-such-topic has no counts for these topics and windows" in said.output


def test_what_is_no_tally_is_passed_over(topic: str, kraftpy_server: EmbeddedBroker) -> None:
    server, audit = kraftpy_server.bootstrap, f"{topic}-audit"
    audit_topic.create_topic(server, audit)
    audit_topic.create_topic(server, audit)
    tally = Tally(tier="log", source="s", topic="t", window_ms=600_000, start_ms=0, count=1, counted_at_ms=1)
    audit_topic.publish(server, audit, [tally])
    with BlockingProducer(bootstrap_servers=server) as producer:
        producer.send(audit, b"noise", b"k")
        producer.send(audit, None, b"k")
    assert audit_topic.read(server, audit) == ([tally], 1)
    said = run(server, "audit", "books", "--audit-topic", audit, "--all")
    assert "1 record(s)" in said.output


def count(server: EmbeddedBroker, topic: str, **options: Any) -> dict[int, int]:
    """The number of records in the log by window, whose number counts from START."""
    with RangeReader(server.bootstrap) as broker:
        told = count_log(broker, [topic], tier="log", window_ms=10 * MINUTE, now_ms=0, **options)
    found: dict[int, int] = {}
    for tally in told:
        number = (tally.start_ms - START) // (10 * MINUTE)
        found[number] = found.get(number, 0) + tally.count
    return dict(sorted(found.items()))


def fill(server: EmbeddedBroker, topic: str, count: int) -> None:
    with BlockingProducer(bootstrap_servers=server.bootstrap) as producer:
        for n in range(count):
            producer.send(topic, b"", partition=0, timestamp_ms=START + n * MINUTE)


def test_a_log_is_counted_from_and_to(topic: str, kraftpy_server: EmbeddedBroker) -> None:
    fill(kraftpy_server, topic, 45)
    assert count(kraftpy_server, topic) == {0: 10, 1: 10, 2: 10, 3: 10, 4: 5}
    begin, end = START + 10 * MINUTE, START + 30 * MINUTE
    assert count(kraftpy_server, topic, from_ms=begin, to_ms=end) == {1: 10, 2: 10}
    assert count(kraftpy_server, topic, from_ms=START + 100 * MINUTE) == {}


def test_windows_that_retention_has_begun_to_delete_are_left_out(topic: str, kraftpy_server: EmbeddedBroker) -> None:
    fill(kraftpy_server, topic, 45)
    with BlockingAdmin(bootstrap_servers=kraftpy_server.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    assert count(kraftpy_server, topic) == {2: 10, 3: 10, 4: 5}


def test_a_count_is_corrected_when_records_are_gone(topic: str, kraftpy_server: EmbeddedBroker) -> None:
    fill(kraftpy_server, topic, 15)
    known = [
        Tally(
            tier="log",
            source=f"{topic}-0",
            topic=topic,
            window_ms=10 * MINUTE,
            start_ms=START + 50 * MINUTE,
            count=3,
            counted_at_ms=0,
        )
    ]
    assert count(kraftpy_server, topic, known=known) == {0: 10, 1: 5, 5: 0}
