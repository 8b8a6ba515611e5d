"""The console's audit books, with a real audit topic."""

from __future__ import annotations

import itertools
import json

import pytest

from kraftpy.audit.counts import Tally
from kraftpy.client import Admin, NewTopic, Producer
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import browsing

_numbers = itertools.count()
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
EVIL = "<script>alert(1)</script>"


def tally(tier: str, hour: int, count: int, topic: str = "orders") -> Tally:
    return Tally(
        tier=tier, source="s", topic=topic, window_ms=HOUR_MS, start_ms=START_MS + hour * HOUR_MS, count=count,
        counted_at_ms=START_MS,
    )  # fmt: skip


async def _written(bootstrap: str, tallies: list[Tally], *more: tuple[bytes | None, bytes | None]) -> str:
    topic = f"console.audit-{next(_numbers)}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for each in tallies:
            await producer.send(topic, each.value(), key=each.key())
        for key, value in more:
            await producer.send(topic, value, key=key)
        await producer.flush()
    return topic


async def test_the_books_show_what_was_lost_and_duplicated(kraftpy_server: EmbeddedBroker) -> None:
    written = [tally("producer", hour, 100) for hour in range(4)]
    written += [
        tally("log", 0, 7),
        tally("log", 0, 100),
        tally("log", 1, 90),
        tally("log", 2, 103),
        tally("log", 3, 100),
    ]
    topic = await _written(kraftpy_server.bootstrap, written)
    async with browsing(kraftpy_server.bootstrap) as browser:
        text = await browser.get("/books", audit=topic)
        assert "Records were lost or duplicated" in text
        assert "orders log 393 10 3 0" in text
        assert "log 90 producer 100 -10 lost" in text
        assert "log 103 producer 100 +3 duplicated" in text
        assert "1–2 of 2 windows" in text  # noqa: RUF001
        assert browser.source.count("<figure") == 2
        assert "1–8 of 8 windows" in await browser.get("/books", audit=topic, all="yes")  # noqa: RUF001
        text = await browser.get("/books", audit=topic, window=5)
        assert "No counts of windows of 5 minutes There are counts of windows of 60 minutes." in text


async def test_balanced_books_and_none(kraftpy_server: EmbeddedBroker) -> None:
    topic = await _written(kraftpy_server.bootstrap, [tally("producer", 0, 5), tally("log", 0, 5)])
    async with browsing(kraftpy_server.bootstrap) as browser:
        text = await browser.get("/books", audit=topic)
        assert "The books balance" in text
        assert "Every window balances." in text
        assert "There is no topic no.such.audit" in await browser.get("/books", audit="no.such.audit")
        assert browser.status == 200


@pytest.mark.parametrize("number", [2**53, 10**4_000, -(10**4_000)])
async def test_hostile_counts_cost_themselves_alone(kraftpy_server: EmbeddedBroker, number: int) -> None:
    sound = [tally("producer", 0, 5, EVIL), tally("log", 0, 5, EVIL)]
    key = json.dumps(["log", "s", "x", HOUR_MS, number]).encode()
    value = json.dumps({"count": 1, "counted_at_ms": 1, "version": 1}).encode()
    big = json.dumps({"count": abs(number), "counted_at_ms": 1, "version": 1}).encode()
    topic = await _written(
        kraftpy_server.bootstrap,
        sound,
        (key, value),
        (sound[0].key().replace(b"s", b"t"), big),
        (None, b"\xff"),
        (b"x", None),
    )
    async with browsing(kraftpy_server.bootstrap) as browser:
        text = await browser.get("/books", audit=topic, all="yes")
        assert browser.status == 200
        assert f"3 records of {topic} are no counts" in text
        assert f"{EVIL} producer 5" in text
        assert EVIL not in browser.source
