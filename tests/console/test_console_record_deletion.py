"""The console's deletion of a topic's records before an offset: its preview, what it deletes, and what it refuses."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import AsyncIterator, Callable

import pytest

from kraftpy.client import Admin, NewTopic, OffsetSpec, Producer, TopicPartition
from kraftpy.console.cluster import now_ms
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import Browser, browsing
from tests.console.guarded_app import audit_lines

_numbers = itertools.count()
HALF_HOUR_MS = 1_800_000


@pytest.fixture
async def producer(kraftpy_server: EmbeddedBroker) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as made:
        yield made


@pytest.fixture
async def topic(admin: Admin, producer: Producer) -> str:
    """A topic with ten records in partition 0, four in partition 1, and none in partition 2."""
    name = f"console.records-{next(_numbers)}"
    await admin.create_topics([NewTopic(name=name, num_partitions=3, replication_factor=1)])
    for partition, number in ((0, 10), (1, 4)):
        for _ in range(number):
            await producer.send_and_wait(name, b"x", partition=partition)
    return name


async def first_offsets(admin: Admin, topic: str) -> list[int]:
    asked = {TopicPartition(topic, number): OffsetSpec.EARLIEST for number in range(3)}
    found = await admin.list_offsets(asked)
    return [place.offset for _, place in sorted(found.items()) if place is not None]


def form_of(browser: Browser) -> dict[str, str]:
    """The fields of the preview's form, as a browser sends them."""
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', browser.source)
    return {name: html.unescape(value) for name, value in hidden if name in ("name", "topic_id", "plan")}


async def test_what_the_preview_shows_is_deleted(browser: Browser, admin: Admin, topic: str) -> None:
    text = await browser.get("/topic/records", name=topic, before="offset", number=7)
    assert "11 offsets of 2 partitions would be deleted" in text
    assert "0 7 3 7 0 10 " in text
    assert "1 4 0 4 nearest 0 4 " in text
    assert "2 0 0 0 nearest 0 0 " in text
    assert await first_offsets(admin, topic) == [0, 0, 0]
    form = form_of(browser)
    with audit_lines() as lines:
        text = await browser.post("/topic/records/delete", **form, typed=topic)
    assert "The records were deleted." in text
    assert browser.location == f"/topic?name={topic}&done=records%20deleted"
    assert await first_offsets(admin, topic) == [7, 4, 0]
    (line,) = lines
    assert (line["operation"], line["resource_type"], line["resource"]) == ("DELETE", "TOPIC", topic)
    assert (line["details"], line["decision"]) == ({"plan": "[[0,7],[1,4]]"}, "ALLOWED")
    assert "There is nothing to delete." in await browser.get("/topic/records", name=topic, before="offset", number=7)
    assert "Delete these records" not in browser.source


async def test_one_partition_alone(browser: Browser, admin: Admin, topic: str) -> None:
    text = await browser.get("/topic/records", name=topic, before="offset", number=1, partition=1)
    assert "1 offset of 1 partition would be deleted" in text
    await browser.post("/topic/records/delete", **form_of(browser), typed=topic)
    assert await first_offsets(admin, topic) == [0, 1, 0]


async def test_records_that_come_after_the_preview_are_kept(
    browser: Browser, admin: Admin, producer: Producer, topic: str
) -> None:
    assert "14 offsets of 2 partitions" in await browser.get("/topic/records", name=topic, before="end")
    form = form_of(browser)
    await producer.send_and_wait(topic, b"new", partition=0)
    await producer.send_and_wait(topic, b"new", partition=2)
    await browser.post("/topic/records/delete", **form, typed=topic)
    assert await first_offsets(admin, topic) == [10, 4, 0]


async def test_records_older_than_a_time(browser: Browser, admin: Admin, producer: Producer, topic: str) -> None:
    later_ms = now_ms() + HALF_HOUR_MS
    for partition in range(2):
        await producer.send_and_wait(topic, b"later", partition=partition, timestamp_ms=later_ms)
    assert "There is nothing to delete." in await browser.get("/topic/records", name=topic, before="time", number="1d")
    text = await browser.get("/topic/records", name=topic, before="time", number=str(later_ms))
    assert "14 offsets of 2 partitions" in text
    await browser.post("/topic/records/delete", **form_of(browser), typed=topic)
    assert await first_offsets(admin, topic) == [10, 4, 0]
    text = await browser.get("/topic/records", name=topic, before="time", number=str(later_ms + 1))
    assert "2 offsets of 2 partitions" in text, "without a later record, all are older"


async def test_nothing_is_deleted_unless_the_topic_s_name_is_typed(browser: Browser, admin: Admin, topic: str) -> None:
    await browser.get("/topic/records", name=topic, before="end")
    form = form_of(browser)
    for typed in ("", topic[:-1], topic + " "):
        assert "nothing was deleted" in await browser.post("/topic/records/delete", **form, typed=typed)
        assert browser.status == 400
    await browser.post("/topic/records/delete", **form, typed=topic, csrf_token="wrong")
    assert browser.status == 403
    assert await first_offsets(admin, topic) == [0, 0, 0]


async def test_a_topic_that_was_created_anew_keeps_its_records(
    browser: Browser, admin: Admin, producer: Producer, topic: str
) -> None:
    await browser.get("/topic/records", name=topic, before="end")
    form = form_of(browser)
    await admin.delete_topics([topic])
    await admin.create_topics([NewTopic(name=topic, num_partitions=3, replication_factor=1)])
    await producer.send_and_wait(topic, b"of the new topic", partition=0)
    text = await browser.post("/topic/records/delete", **form, typed=topic)
    assert "created anew since the preview: nothing was deleted" in text
    assert browser.status == 409
    assert await first_offsets(admin, topic) == [0, 0, 0]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"before": "elsewhere"}, 400, "before is not one of offset, time, end"),
        ({"before": "offset"}, 400, "number is missing"),
        ({"before": "offset", "number": "-1"}, 400, "number is not between 0"),
        ({"before": "time", "number": "soon"}, 400, "'soon' is not a time"),
        ({"before": "end", "partition": "3"}, 404, "has no partition 3"),
        ({"before": "end", "name": "no.such.topic"}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_what_cannot_be_previewed_is_said(
    browser: Browser, topic: str, query: dict[str, str], status: int, words: str
) -> None:
    assert words in await browser.get("/topic/records", **{"name": topic, **query})
    assert browser.status == status


@pytest.mark.parametrize("plan", ["", "x", "[]", "{}", "[[0]]", "[[0,-1]]", "[[-1,5]]", "[[0,9e99]]", "[" * 100_000,
                                  f"[[0,{1 << 63}]]", f"[[{1 << 31},0]]"])  # fmt: skip
async def test_a_plan_of_nobody_s_preview_is_refused(browser: Browser, admin: Admin, topic: str, plan: str) -> None:
    await browser.get("/topic/records", name=topic, before="end")
    await browser.post("/topic/records/delete", **{**form_of(browser), "plan": plan}, typed=topic)
    assert browser.status == 400
    assert await first_offsets(admin, topic) == [0, 0, 0]


async def test_what_the_cluster_would_refuse_is_said_at_once_and_after_all(
    browser: Browser, admin: Admin, producer: Producer, topic: str
) -> None:
    compacted = f"{topic}-compacted"
    await admin.create_topics(
        [NewTopic(name=compacted, num_partitions=3, replication_factor=1, config={"cleanup.policy": "compact"})]
    )
    await producer.send_and_wait(compacted, b"v", key=b"k", partition=0)
    assert "cleanup.policy=compact" in await browser.get("/topic/records", name=compacted, before="end")
    assert browser.status == 409
    assert "Delete records" in await browser.get("/topic", name=topic)
    await browser.get("/topic/records", name=topic, before="end")
    form = {**form_of(browser), "name": compacted, "plan": "[[0,1]]"}
    (info,) = await admin.describe_topics([compacted])
    form["topic_id"] = info.topic_id.hex()
    text = await browser.post("/topic/records/delete", **form, typed=compacted)
    assert "cleanup.policy=compact" in text
    assert "nothing was deleted" in text
    assert browser.status == 409
    assert await first_offsets(admin, compacted) == [0, 0, 0]


async def test_an_internal_topic_keeps_its_records(browser: Browser, admin: Admin, topic: str) -> None:
    await admin.alter_group_offsets(f"{topic}.group", {TopicPartition(topic, 1): 1})
    assert "Delete records" not in await browser.get("/topic", name="__consumer_offsets")
    assert "is internal" in await browser.get("/topic/records", name="__consumer_offsets", before="end")
    assert browser.status == 409


async def test_a_failure_says_what_was_deleted_all_the_same(
    browser: Browser, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await browser.get("/topic/records", name=topic, before="offset", number=99)
    form = form_of(browser)
    text = await browser.post("/topic/records/delete", **{**form, "plan": "[[0,10],[1,99]]"}, typed=topic)
    assert "the topic has lost records since the preview. The records of partition 0 were deleted" in text
    assert browser.status == 409
    assert await first_offsets(admin, topic) == [10, 0, 0]

    async def late(before: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "records not deleted")

    monkeypatch.setattr(browser.console.cluster.admin, "delete_records", late)
    assert "records not deleted" in await browser.post(
        "/topic/records/delete", **{**form, "plan": "[[1,4]]"}, typed=topic
    )
    assert browser.status == 503


async def test_partitions_without_a_leader_are_shown(
    start_broker: Callable[..., EmbeddedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    async with browsing(broker.bootstrap) as browser, Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(name="half", num_partitions=2, replication_factor=1)])
        async with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for partition in range(2):
                await producer.send_and_wait("half", b"x", partition=partition)
        cluster = browser.console.cluster
        places = cluster.places

        async def without_one(asked: list[TopicPartition]) -> object:
            return {name: extent for name, extent in (await places(asked)).items() if name.partition == 0}

        monkeypatch.setattr(cluster, "places", without_one)
        text = await browser.get("/topic/records", name="half", before="end")
        assert "1 offset of 1 partition would be deleted" in text
        assert "no leader answers" in text
        assert form_of(browser)["plan"] == "[[0,1]]"
