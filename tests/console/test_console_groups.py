"""The console's pages of groups of all four kinds, of users and of quotas, with a real broker."""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
from collections.abc import Callable

import pytest
from broker_wire import BOUND_SECONDS, ask, connect

from kraftpy.client import Admin, Consumer, NewTopic, Producer, ShareConsumer, TopicPartition
from kraftpy.console.pages import groups
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import Browser, browsing

_numbers = itertools.count()
EVIL = "<script>alert('x')</script>\"&/?#"


@pytest.fixture
async def topic(admin: Admin, kraftpy_server: EmbeddedBroker) -> str:
    """A topic with ten records in each of two partitions."""
    name = f"console.groups-{next(_numbers)}"
    await admin.create_topics([NewTopic(name=name, num_partitions=2, replication_factor=1)])
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for number in range(20):
            await producer.send(name, b"x", partition=number % 2)
        await producer.flush()
    return name


@pytest.fixture
async def idle(admin: Admin, topic: str) -> str:
    """A group without members that has read three records of one partition and none of the other."""
    name = f"{topic}.idle"
    await admin.alter_group_offsets(name, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0})
    return name


# The pages of groups --------------------------------------------------------------------------------------------------


async def test_a_group_is_shown_with_its_offsets_and_its_lag_over_time(
    browser: Browser, topic: str, idle: str, admin: Admin
) -> None:
    await browser.console.history.take()
    await admin.alter_group_offsets(idle, {TopicPartition(topic, 0): 5})
    await browser.console.history.take()
    text = await browser.get("/groups", find=idle)
    assert f"{idle} classic – Empty 15" in text or f"{idle} classic consumer Empty 15" in text  # noqa: RUF001
    text = await browser.get("/group", id=idle)
    assert "Lag 15 Members 0" in text
    assert f"{topic} 0 5 0 10 5" in text
    assert f"{topic} 1 0 0 10 10" in text
    plot = re.search(r'<path class="line" d="(M[^"]*)"', browser.source)
    assert plot is not None
    assert plot[1].count("L") >= 1
    assert 'aria-label="Lag: now 15 records, at most 17"' in browser.source


async def test_a_group_that_nobody_reads_for_is_a_problem(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker()  # of its own: the overview names few groups, and only some of those of other tests
    async with Admin(bootstrap_servers=broker.bootstrap) as admin, browsing(broker.bootstrap) as browser:
        await admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)])
        async with Producer(bootstrap_servers=broker.bootstrap) as producer:
            await (await producer.send("t", b"x"))
        await admin.alter_group_offsets("idle", {TopicPartition("t", 0): 0})
        await browser.console.history.take()
        await browser.console.history.take()
        assert "Group idle has 1 record to read, and no member" in await browser.get("/")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_and_their_partitions_are_shown(
    browser: Browser, topic: str, kraftpy_server: EmbeddedBroker, protocol: str
) -> None:
    name = f"{topic}.{protocol}"
    async with Consumer(
        topic,
        bootstrap_servers=kraftpy_server.bootstrap,
        group_id=name,
        group_protocol=protocol,
        client_id=EVIL,
        auto_offset_reset="earliest",
    ) as consumer:
        async with asyncio.timeout(BOUND_SECONDS):
            while len(consumer.assignment()) < 2:
                await consumer.getmany(timeout_ms=100)
        await consumer.commit()
        text = await browser.get("/group", id=name)
        assert f"Kind {protocol}" in text
        assert "Members 1" in text
        assert f"{topic}-0 {topic}-1" in text
        assert EVIL in text
        assert "<script>alert" not in browser.source
        assert "has a member: stop it before" in await browser.get("/group/reset", id=name, to="earliest")
        assert browser.status == 409


async def test_a_share_group_is_shown_and_reset(
    browser: Browser, topic: str, admin: Admin, kraftpy_server: EmbeddedBroker
) -> None:
    name = f"{topic}.share"
    await browser.post("/group/alter", id=name, setting="share.auto.offset.reset", value="earliest")
    async with ShareConsumer(topic, bootstrap_servers=kraftpy_server.bootstrap, group_id=name) as consumer:
        seen = 0
        async with asyncio.timeout(BOUND_SECONDS):
            while seen < 20:
                seen += len(await consumer.getmany(timeout_ms=100))
        text = await browser.get("/group", id=name)
        assert "Kind share" in text
        assert "Members 1" in text
        assert "Start offsets and lag" in text
        assert "share.auto.offset.reset" in text
        assert "earliest this group" in text
    await admin.alter_share_group_offsets(name, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 10})
    text = await browser.get("/group/reset", id=name, to="latest", topic=topic, partition=0)
    assert f"{topic} 0 4 10 +6" in text
    assert "The offsets were reset." in await browser.post("/group/reset/apply", id=name, plan=plan_of(browser))
    offsets = await admin.list_share_group_offsets(name)
    assert offsets[TopicPartition(topic, 0)].start_offset == 10


async def test_a_streams_group_is_shown(browser: Browser, topic: str, kraftpy_server: EmbeddedBroker) -> None:
    name = f"{topic}.streams"
    request = StreamsGroupHeartbeatRequest(
        group_id=name,
        member_id="member-1",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        topology=Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=[topic])]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    with connect(kraftpy_server.bootstrap) as connection:
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                answer = ask(connection, ApiKey.STREAMS_GROUP_HEARTBEAT, 0, request)
                if answer.error_code == ErrorCode.NONE:
                    break
                await asyncio.sleep(0.1)
        text = await browser.get("/group", id=name)
        assert "Kind streams" in text
        assert "Members 1" in text
        assert f"{name} streams" in await browser.get("/groups", kind="streams", find=name)


async def test_a_group_is_explained(browser: Browser, idle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = await browser.get("/group/explain", id=idle, seconds=0)
    assert "1 cause" in text
    assert f"no consumer with group.id={idle} runs" in text
    assert "no-members" in text
    assert "seconds is not between" in await browser.get("/group/explain", id=idle, seconds=31)
    monkeypatch.setattr(groups, "MOST_EXPLAINED", 0)
    assert "other groups are being watched" in await browser.get("/group/explain", id=idle, seconds=0)
    assert browser.status == 503


async def test_a_group_that_does_not_exist(browser: Browser) -> None:
    assert "group 'no such group' does not exist" in await browser.get("/group", id="no such group")
    assert browser.status == 404


async def test_names_of_groups_may_hold_anything(browser: Browser, admin: Admin, topic: str) -> None:
    name = f"{EVIL}{topic}"
    await admin.alter_group_offsets(name, {TopicPartition(topic, 0): 1})
    await browser.get("/groups", find=name)
    assert "<script>alert" not in browser.source
    link = re.search(r'<th scope="row"><a href="(/group\?id=[^"]*)"', browser.source)
    assert link is not None
    text = await browser.get(html.unescape(link[1]))
    assert name in text
    assert "<script>alert" not in browser.source
    assert "The group was deleted." in await browser.post("/group/delete", id=name, typed=name)


# Changes --------------------------------------------------------------------------------------------------------------


def plan_of(browser: Browser) -> str:
    """The plan in the form of a preview."""
    found = re.search(r'name="plan" value="([^"]*)"', browser.source)
    assert found is not None
    return html.unescape(found[1])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [10, 10]),
        ({"to": "shift", "number": "-2"}, [1, 0]),
        ({"to": "offset", "number": "7"}, [7, 7]),
        ({"to": "time", "number": "1d"}, [0, 0]),
        ({"to": "latest", "partition": "0"}, [10, 0]),
    ],
)
async def test_offsets_are_reset_after_a_preview(
    browser: Browser, admin: Admin, topic: str, idle: str, query: dict[str, str], expected: list[int]
) -> None:
    if "partition" in query:
        query = {**query, "topic": topic}
    text = await browser.get("/group/reset", id=idle, **query)
    assert f"{topic} 0 3 {expected[0]}" in text
    assert [each.offset for each in (await admin.list_group_offsets(idle)).values()] == [3, 0]
    assert "The offsets were reset." in await browser.post("/group/reset/apply", id=idle, plan=plan_of(browser))
    offsets = await admin.list_group_offsets(idle)
    assert [offsets[TopicPartition(topic, number)].offset for number in (0, 1)] == expected


async def test_an_outdated_or_forged_plan_is_refused(browser: Browser, admin: Admin, topic: str, idle: str) -> None:
    await browser.get("/group/reset", id=idle, to="latest")
    plan = plan_of(browser)
    await admin.alter_group_offsets(idle, {TopicPartition(topic, 0): 4})
    assert "have changed since the preview" in await browser.post("/group/reset/apply", id=idle, plan=plan)
    for forged in ("", "x", "[]", "[" * 5_000, '[["a"]]', json.dumps([[topic, 0, 4, -3]]), '{"a": 1}'):
        await browser.post("/group/reset/apply", id=idle, plan=forged)
        assert browser.status == 400, forged
    await browser.post("/group/reset/apply", id=idle, plan=json.dumps([["no.such.topic", 0, None, 3]]))
    assert browser.status == 409
    assert (await admin.list_group_offsets(idle))[TopicPartition(topic, 0)].offset == 4
    for query, problem in (
        ({"to": "moon"}, "to is not one of"),
        ({"to": "offset"}, "number is missing"),
        ({"to": "time", "number": "soon"}, "is not a time"),
        ({"to": "earliest", "topic": "no.such.topic"}, "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        assert problem in await browser.get("/group/reset", id=idle, **query)


async def test_a_group_s_settings_are_changed_and_it_is_deleted(browser: Browser, admin: Admin, idle: str) -> None:
    await browser.post("/group/alter", id=idle, setting="consumer.session.timeout.ms", value="50000")
    assert "50000 this group" in await browser.get("/group", id=idle)
    await browser.post("/group/alter", id=idle, setting="consumer.session.timeout.ms", restore="yes")
    assert "50000" not in await browser.get("/group", id=idle)
    assert "nothing was deleted" in await browser.post("/group/delete", id=idle, typed="x")
    assert "The group was deleted." in await browser.post("/group/delete", id=idle, typed=idle)
    assert idle not in [each.group_id for each in await admin.list_groups()]


# Users and quotas -----------------------------------------------------------------------------------------------------


async def test_users_get_passwords_and_lose_them(browser: Browser, admin: Admin) -> None:
    name = f"user-{next(_numbers)}"
    text = await browser.post("/users/set", name=name, password="secret", mechanism="SCRAM-SHA-256", iterations=5_000)
    assert "The password was set." in text
    assert f"{name} SCRAM-SHA-256 5,000" in text
    assert "secret" not in browser.source
    await browser.post("/users/set", name=name, password="secret")
    assert (await admin.describe_scram_users([name]))[name].keys() == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    for fields, problem in (
        ({"password": "x" * 5_000}, "more than 4,096 bytes"),
        ({"mechanism": "PLAIN"}, "mechanism is not one of"),
        ({"iterations": "1"}, "iterations is not between"),
        ({"password": ""}, "password is missing"),
    ):
        assert problem in await browser.post("/users/set", **{"name": name, "password": "p", **fields})
    assert "nothing was deleted" in await browser.post("/users/delete", name=name, typed="x")
    assert "credentials were deleted" in await browser.post("/users/delete", name=name, typed=name)
    assert name not in await admin.describe_scram_users()


async def test_quotas_are_set_and_removed(browser: Browser, admin: Admin) -> None:
    name = f"{EVIL}-{next(_numbers)}"
    fields = {"user": name, "client-id-default": "yes", "quota": "producer_byte_rate"}
    text = await browser.post("/quotas/set", **fields, value="1000")
    assert f"client-id <default> user {name} producer_byte_rate 1,000" in text
    assert "<script>alert" not in browser.source
    assert "The quota was removed." in await browser.post("/quotas/set", **fields, remove="yes")
    assert name not in await browser.get("/quotas")
    for wrong, problem in (
        ({"value": "x"}, "not a number"),
        ({"value": "nan"}, "not a number above 0"),
        ({"value": "-1"}, "not a number above 0"),
        ({"value": "1", "quota": "no_such_rate"}, "no_such_rate"),
        ({"value": "1", "user": "", "client-id-default": ""}, "name a user"),
    ):
        assert problem in await browser.post("/quotas/set", **{**fields, **wrong})
        assert browser.status == 400


async def test_without_an_authorizer_the_page_of_acls_says_so(browser: Browser) -> None:
    assert "No Authorizer is configured" in await browser.get("/acls")
    assert browser.status == 200
