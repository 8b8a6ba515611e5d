"""The console's pages of messages: places, filters, forms, bounds, the live tail, downloads, and producing one."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import confluent_kafka
import msgpack
import pytest

from kraftpy.client import Admin, NewTopic, Producer, TopicPartition
from kraftpy.console import reading
from kraftpy.console.decoding import Decoder
from kraftpy.console.pages import messages
from kraftpy.console.reading import Wanted
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import Browser

_numbers = itertools.count()
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"&"
START_MS = 1_700_000_000_000


async def _topic(bootstrap: str, partitions: int = 1, **settings: str) -> str:
    name = f"console.messages-{next(_numbers)}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        config = {setting.replace("_", "."): value for setting, value in settings.items()}
        await admin.create_topics([NewTopic(name=name, num_partitions=partitions, replication_factor=1, config=config)])
    return name


@pytest.fixture
async def orders(kraftpy_server: EmbeddedBroker) -> str:
    """Thirty records in three partitions, one a second: number N is in partition N % 3 at offset N // 3."""
    topic = await _topic(kraftpy_server.bootstrap, 3)
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for number in range(30):
            await producer.send(
                topic,
                json.dumps({"number": number, "who": {"name": f"user {number % 5}"}}).encode(),
                key=f"key-{number}".encode(),
                partition=number % 3,
                timestamp_ms=START_MS + 1_000 * number,
                headers=[("trace", f"t{number}".encode()), ("raw", b"\xff\x01"), ("none", None)],
            )
        await producer.flush()
    return topic


def numbers(source: str) -> list[int]:
    """The numbers of the orders in a page, in its order."""
    return [int(each) for each in re.findall(r"<summary><code>\{ &#34;number&#34;: (\d+)", source)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, list(range(29, -1, -1))),
        ({"limit": 4}, [29, 28, 27, 26]),
        ({"from": "earliest"}, list(range(30))),
        ({"from": "offset", "offset": 8}, list(range(24, 30))),
        ({"from": "offset", "offset": 8, "partition": 1}, [25, 28]),
        ({"from": "offset", "offset": 99}, []),
        ({"from": "time", "time": START_MS + 27_000}, [27, 28, 29]),
        ({"from": "time", "time": "2023-11-14T22:13:48+00:00"}, [28, 29]),
        ({"from": "time", "time": "1s"}, []),
        ({"partition": 2, "limit": 3}, [29, 26, 23]),
        ({"key": "key-17"}, [17]),
        ({"key": "key-1"}, [1]),
        ({"find": "USER 3", "from": "earliest"}, [3, 8, 13, 18, 23, 28]),
        ({"find": "t29"}, [29]),
        ({"find": "KEY-12"}, [12]),
        ({"find": "TRACE", "limit": 2}, [29, 28]),
        ({"jsonpath": '$.who.name == "user 4"'}, [29, 24, 19, 14, 9, 4]),
        ({"jsonpath": "$.number >= 28", "from": "earliest"}, [28, 29]),
        ({"jsonpath": "$..name", "limit": 1}, [29]),
        ({"jsonpath": "$.none"}, []),
        ({"jsonpath": "$.number < 9", "find": "user 1", "partition": 0}, [6]),
    ],
)
async def test_messages_are_found(browser: Browser, orders: str, query: dict[str, Any], expected: list[int]) -> None:
    text = await browser.get("/messages", topic=orders, **query)
    assert browser.status == 200, text
    assert numbers(browser.source) == expected
    assert ("No message matches." in text) is (not expected)
    assert f"{len(expected)} shown;" in text


async def test_keys_headers_and_places_are_shown(browser: Browser, orders: str) -> None:
    text = await browser.get("/messages", topic=orders, key="key-17")
    assert " 2 5 key-17 { " in text
    assert "trace: t17 raw: 0xff01 none: null" in text
    text = await browser.get("/message", topic=orders, partition=2, offset=5)
    assert "Key text key-17" in text
    assert '{ "number": 17, "who": { "name": "user 2" } }' in text
    assert "raw 0xff01" in text
    assert "has no record at offset 99" in await browser.get("/message", topic=orders, partition=2, offset=99)
    assert browser.status == 404
    assert "has no partition 7" in await browser.get("/message", topic=orders, partition=7, offset=0)
    response = await browser.client.get("/message/raw", params={"topic": orders, "partition": 2, "offset": 5})
    assert response.content == b'{"number": 17, "who": {"name": "user 2"}}'
    assert response.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"from": "nowhere"}, "from is not one of"),
        ({"from": "offset"}, "offset is missing"),
        ({"from": "time", "time": "yesterday"}, "is not a time"),
        ({"limit": 501}, "limit is not between"),
        ({"partition": 9}, "has no partition 9"),
        ({"jsonpath": "number"}, "begins with $"),
        ({"values": "xml"}, "is not a form"),
        ({"values": "avro"}, "needs the writer's schema"),
        ({"at": "nonsense"}, "at is not a list"),
    ],
)
async def test_what_cannot_be_read_is_said(browser: Browser, orders: str, query: dict[str, Any], problem: str) -> None:
    assert problem in await browser.get("/messages", topic=orders, **query)
    assert browser.status in (400, 404)


async def test_reading_goes_on_where_it_stopped(browser: Browser, orders: str) -> None:
    seen = []
    query: dict[str, Any] = {"topic": orders, "from": "earliest", "limit": 7}
    path = "/messages"
    for _ in range(10):
        await browser.get(path, **query)
        seen += numbers(browser.source)
        following = re.search(r'href="(/messages\?[^"]*)" rel="next"', browser.source)
        if following is None:
            break
        path, query = following[1].replace("&amp;", "&"), {}
    assert sorted(seen) == list(range(30))
    assert len(seen) == 30


# Forms and hostile contents -------------------------------------------------------------------------------------------


async def test_values_are_shown_in_the_form_that_is_asked_for(browser: Browser, kraftpy_server: EmbeddedBroker) -> None:
    topic = await _topic(kraftpy_server.bootstrap)
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for value in (msgpack.packb({"kind": "packed"}), b"\x06abc", b"plain", None, b"\xfe\xff"):
            await producer.send_and_wait(topic, value)
    text = await browser.get("/messages", topic=topic, **{"from": "earliest"})
    for form in ("msgpack", "text", "null", "hex"):
        assert f'<span class="tag">{form}</span>' in browser.source
    assert "fe ff" in text
    schema = '{"type": "record", "name": "a", "fields": [{"name": "word", "type": "string"}]}'
    text = await browser.get("/messages", topic=topic, values="avro", schema=schema, jsonpath='$.word == "abc"')
    assert '{ "word": "abc" }' in text
    assert "1 shown;" in text
    assert "not Avro" in await browser.get("/message", topic=topic, partition=0, offset=2, values="avro", schema=schema)
    assert "1 shown;" in await browser.get("/messages", topic=topic, jsonpath='$.kind == "packed"')


async def test_hostile_records_are_escaped_and_bounded(browser: Browser, kraftpy_server: EmbeddedBroker) -> None:
    topic = await _topic(kraftpy_server.bootstrap, message_timestamp_after_max_ms=str(2**63 - 1))
    evil = EVIL.encode()
    hostile = [
        evil,
        json.dumps({EVIL: EVIL}).encode(),
        b'["\\ud800"]',
        b"[" * 100_000,
        b"\x00\x1b[31m" * 10,
        b"x" * 900_000,
        "\u202e\u0000".encode() * 100,
        msgpack.packb({EVIL: [EVIL]}),
    ]
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for value in hostile:
            await producer.send_and_wait(
                topic, value, key=evil, headers=[(EVIL, evil), *((f"h{number}", b"") for number in range(50))]
            )
        await producer.send_and_wait(topic, b"late", timestamp_ms=2**62)
    for path, query in (
        ("/messages", {"from": "earliest"}),
        ("/messages", {"from": "earliest", "find": EVIL}),
        ("/messages", {"from": "earliest", "key": EVIL}),
        *(("/message", {"partition": 0, "offset": offset}) for offset in range(9)),
        ("/messages/tail", {"at": "0:0"}),
    ):
        await browser.get(path, topic=topic, **query)
        assert browser.status == 200, (path, query)
        assert "<script>alert" not in browser.source
        assert "<img src=x" not in browser.source
        assert "31 more" in browser.source or path == "/message"
        assert len(browser.source) < 1_500_000
    assert "[31m" in browser.source
    text = await browser.get("/message", topic=topic, partition=0, offset=5)
    assert "878.9 KiB" in text


# Bounds ---------------------------------------------------------------------------------------------------------------


async def test_a_read_stops_at_each_of_its_bounds(
    browser: Browser, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_RECORDS", 4)
    parts = {TopicPartition(orders, number): 0 for number in range(3)}
    everything = Wanted(begin=parts, end=dict.fromkeys(parts, 10), most=500, values=Decoder("text"))
    read = browser.console.reader.read
    found = await read(everything)
    assert (found.scanned, len(found.records), found.stopped_by) == (30, 30, "")
    assert found.positions == dict.fromkeys(parts, 10)
    for bound, why in (
        ({"most_scanned": 1}, "were looked at"),
        ({"most_bytes": 1}, "MiB were looked at"),
        ({"most_seconds": 0.0}, "0 s have passed"),
        ({"most": 7}, "7 records were found"),
    ):
        found = await read(replace(everything, **bound))
        assert why in found.stopped_by, bound
        assert len(found.records) <= 30
        rest = await read(replace(everything, begin=found.positions))
        assert {each.record.offset * 3 + each.record.partition for each in (*found.records, *rest.records)} == set(
            range(30)
        )
    found = await read(replace(everything, values=Decoder("json")))
    assert not any(each.value.has_document for each in found.records)  # they take many times the memory of their bytes
    found = await read(replace(everything, newest=True, most=2))
    assert [each.record.offset for each in found.records] == [9, 9]


async def test_records_of_transactions_are_shown_once_they_are_committed(
    browser: Browser, kraftpy_server: EmbeddedBroker
) -> None:
    topic = await _topic(kraftpy_server.bootstrap)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kraftpy_server.bootstrap, "transactional.id": f"{topic}-writer"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"undone")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    assert "0 shown;" in await browser.get("/messages", topic=topic)
    text = await browser.get("/messages", topic=topic, uncommitted="yes")
    assert "2 shown;" in text
    assert "undone" in text
    assert "open" in text
    text = await browser.get("/transactions")
    assert "1 open" in text
    assert f"{topic}-writer Ongoing" in text
    text = await browser.get("/transaction", id=f"{topic}-writer")
    assert "State Ongoing" in text
    assert f"{topic} 0" in text
    assert "0 found in" in await browser.get("/transactions/hanging", topic=topic, minutes=0)
    producer.commit_transaction(30)
    assert "1 shown;" in await browser.get("/messages", topic=topic)
    assert "0 open No transaction is open." in await browser.get("/transactions")


# Live tail, download, produce -----------------------------------------------------------------------------------------


async def test_the_live_tail_shows_what_comes_the_newest_first(
    browser: Browser, orders: str, kraftpy_server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await browser.get("/messages", topic=orders, find="user", **{"from": "live"})
    following = re.search(r'hx-get="([^"]*)" hx-trigger="load delay:1s"', browser.source)
    assert following is not None
    assert numbers(browser.source) == []
    assert "at=0%3A10%2C1%3A10%2C2%3A10" in following[1]
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for number in (100, 101, 102):
            value = json.dumps({"number": number, "who": "user" if number != 101 else "nobody"}).encode()
            await producer.send_and_wait(orders, value, partition=0, timestamp_ms=START_MS + number * 1_000)
    await browser.get(following[1].replace("&amp;", "&"))
    assert numbers(browser.source) == [102, 100]
    again = re.search(r'hx-get="([^"]*)"', browser.source)
    assert again is not None
    assert "at=0%3A13%2C1%3A10%2C2%3A10" in again[1]
    assert "shown=2" in again[1]
    assert browser.source.index("hx-get") < browser.source.index("<summary>")
    await browser.get(again[1].replace("&amp;", "&"))
    assert numbers(browser.source) == []
    monkeypatch.setattr(messages, "MOST_TAILED", 2)
    assert "2 messages were shown. Continue" in await browser.get(again[1].replace("&amp;", "&"))
    assert "hx-get" not in browser.source


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"from": "earliest", "jsonpath": "$.number < 3"}, [0, 1, 2]),
        ({"limit": 2}, [28, 29]),
        ({"from": "earliest", "limit": 4}, None),
        ({"from": "offset", "offset": 9}, [27, 28, 29]),
    ],
)
async def test_messages_are_downloaded_as_json_lines(
    browser: Browser, orders: str, query: dict[str, Any], expected: list[int] | None
) -> None:
    response = await browser.client.get("/messages/download", params={"topic": orders, **query})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert f"{orders}.jsonl" in response.headers["content-disposition"]
    rows = [json.loads(line) for line in response.text.splitlines()]
    found = sorted(json.loads(row["value"])["number"] for row in rows)
    assert found == expected if expected is not None else len(found) == 4
    assert rows[0].keys() == {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
    assert {"name": "raw", "value_base64": "/wE="} in rows[0]["headers"]


async def test_one_message_is_produced(browser: Browser, kraftpy_server: EmbeddedBroker) -> None:
    topic = await _topic(kraftpy_server.bootstrap, 2)
    text = await browser.post(
        "/messages/produce", topic=topic, partition=1, key="k", value='{"a":\r\n1}', headers="trace: abc\nother: x: y"
    )
    assert "The message was produced." in text
    assert "Partition 1, offset 0" in text
    assert "trace abc other x: y" in text
    assert '{ "a": 1 }' in text
    text = await browser.post("/messages/produce", topic=topic, key="ff00", value="00 01", form="hex", partition=1)
    assert "00000000 00 01" in text
    text = await browser.post("/messages/produce", topic=topic, key="k", tombstone="yes", partition=1)
    assert re.search(r"Value null .* Show null Headers", text)
    for fields, problem in (
        ({"value": "xy", "form": "hex"}, "value is not hex"),
        ({"headers": "x"}, "not of the form name: value"),
        ({"partition": 9}, "9"),
        ({"value": "x" * 1_500_000}, "MESSAGE_TOO_LARGE"),
    ):
        text = await browser.post("/messages/produce", **{"topic": topic, **fields})
        assert (browser.status, problem in text) == (400, True), text
    await browser.post("/messages/produce", topic="no.such.topic.here", value="x")
    assert browser.status == 400
    async with Admin(bootstrap_servers=kraftpy_server.bootstrap) as admin:
        assert "no.such.topic.here" not in await admin.list_topics()
