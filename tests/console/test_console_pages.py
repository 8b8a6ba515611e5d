"""The console's pages about the cluster and its topics, with a real broker."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from html.parser import HTMLParser

import pytest

from kraftpy.client import Admin, NewTopic, Producer, ResourceType, TopicPartition
from kraftpy.console.app import ROUTES
from kraftpy.console.console import MENU
from kraftpy.console.routing import Change
from kraftpy.diagnosis.sampling import MetricsEndpoints
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.console.console_browser import Browser, browsing

_numbers = itertools.count()
EVIL = "<script>alert('x')</script>\"&"


@pytest.fixture
async def reader(kraftpy_server: EmbeddedBroker) -> AsyncIterator[Browser]:
    """A browser that may change nothing."""
    async with browsing(kraftpy_server.bootstrap, allows_changes=False) as opened:
        yield opened


@pytest.fixture
async def topic(admin: Admin, kraftpy_server: EmbeddedBroker) -> str:
    """A topic with two partitions and three records in the second one."""
    name = f"console.topic-{next(_numbers)}"
    settings = {"retention.ms": "86400000"}
    await admin.create_topics([NewTopic(name=name, num_partitions=2, replication_factor=1, config=settings)])
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for number in range(3):
            await producer.send_and_wait(name, b"x" * 1_000, partition=1, key=str(number).encode())
    return name


# Contents of the pages ------------------------------------------------------------------------------------------------


async def test_the_overview_shows_the_cluster_s_health_rates_and_disks(
    browser: Browser, topic: str, kraftpy_server: EmbeddedBroker
) -> None:
    text = await browser.get("/")
    assert "Brokers 1" in text
    assert "Offline 0" in text
    assert str(kraftpy_server.data_dir) in text
    assert "The first two samples are being taken." in text
    await browser.console.history.take()
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        await producer.send_and_wait(topic, b"y")
    await browser.console.history.take()
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        await producer.send_and_wait(topic, b"y")
    await browser.console.history.take()
    text = await browser.get("/")
    assert re.search(rf"Busiest topics .* {re.escape(topic)} 2 \d+", text)
    assert '<svg viewBox="0 0 960 170" role="img"' in browser.source


async def test_the_slowest_requests_come_from_the_metrics(
    start_broker: Callable[..., EmbeddedBroker], ports: ReservedPorts
) -> None:
    port = ports.reserve()
    broker = start_broker(settings={"kraftpy.metrics.listener": f"127.0.0.1:{port}"})
    endpoint, silent = f"http://127.0.0.1:{port}/metrics", "http://127.0.0.1:9/metrics"
    async with browsing(broker.bootstrap, endpoints=MetricsEndpoints(urls=[endpoint, silent])) as browser:
        for _ in range(2):
            await browser.console.history.take()
        text = await browser.get("/")
        assert re.search(rf"Metadata {re.escape(endpoint)} [\d.,]+ ms", text)
        assert f"{silent} does not answer" in text


async def test_the_list_of_topics_is_filtered_sorted_and_paged(browser: Browser, topic: str) -> None:
    text = await browser.get("/topics", find=topic.upper())
    assert "1–1 of 1 topics" in text  # noqa: RUF001
    assert f"{topic} 2 1 " in text
    assert "in sync" in text
    await browser.post("/topics/create", name=f"{topic}-b", partitions=5)
    await browser.get("/topics", find=topic, sort="-partitions")
    assert browser.source.index(f"{topic}-b</a>") < browser.source.index(f"{topic}</a>")
    text = await browser.get("/topics", find=topic, rows=1)
    assert "1–1 of 2 topics Next" in text  # noqa: RUF001
    assert "No topic matches." in await browser.get("/topics", find=topic, only="troubled")
    assert "__consumer_offsets" not in await browser.get("/topics", find="__consumer")


async def test_a_topic_is_shown_with_partitions_sizes_and_the_sources_of_settings(browser: Browser, topic: str) -> None:
    text = await browser.get("/topic", name=topic)
    assert "Offsets 3 Size 3." in text
    assert "1 in sync 1 0 1 1 0 3 3 3." in text
    assert "retention.ms" in text
    assert "86400000 this topic" in text
    assert "segment.bytes" not in text
    assert "segment.bytes" in await browser.get("/topic", name=topic, settings="all")


async def test_brokers_and_the_quorum(browser: Browser, kraftpy_server: EmbeddedBroker) -> None:
    text = await browser.get("/brokers")
    assert f"1 {kraftpy_server.bootstrap}" in text
    assert "alive controller" in text
    assert re.search(r"1 leader [\d,]+ 0 ", text)
    assert "metadata.version" in text
    text = await browser.get("/broker", id=1, find="log.dirs")
    assert str(kraftpy_server.data_dir) in text
    assert "the broker's file" in text or "default" in text
    assert "there is no broker 99" in await browser.get("/broker", id=99)
    assert browser.status == 404


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/topic?name=no.such.topic", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/topic", 400, "name is missing"),
        ("/nothing", 404, "Not Found"),
        ("/topics?page=x", 400, "page is not a whole number"),
        ("/topics?page=0", 400, "page is not between"),
        ("/broker?id=-1", 400, "id is not between"),
    ],
)
async def test_what_cannot_be_shown_is_said(browser: Browser, path: str, status: int, text: str) -> None:
    assert text in await browser.get(path)
    assert browser.status == status


async def test_a_cluster_that_does_not_answer_is_a_page_not_a_failure() -> None:
    patience = {"default_api_timeout_ms": 300, "request_timeout_ms": 200}
    async with browsing("127.0.0.1:1", **patience) as browser:
        for path in ("/", "/topics", "/groups", "/brokers", "/messages?topic=a"):
            await browser.get(path)
            assert browser.status == 503, path
            assert "The cluster does not answer" in browser.source


# Changes --------------------------------------------------------------------------------------------------------------


async def test_topics_are_created_altered_and_deleted(browser: Browser, admin: Admin) -> None:
    name = f"console.made-{next(_numbers)}"
    text = await browser.post("/topics/create", name=name, partitions=2, replicas=1, settings="retention.ms=5000\n")
    assert "The topic was created." in text
    (info,) = await admin.describe_topics([name])
    assert len(info.partitions) == 2
    resource = (ResourceType.TOPIC, name)
    assert (await admin.describe_configs([resource]))[resource]["retention.ms"].value == "5000"

    await browser.post("/topic/alter", name=name, setting="retention.ms", value="6000")
    assert "6000 this topic" in await browser.get("/topic", name=name)
    await browser.post("/topic/alter", name=name, setting="retention.ms", value="7000", restore="yes")
    assert "this topic" not in await browser.get("/topic", name=name)

    assert "The partitions were added." in await browser.post("/topic/partitions", name=name, total=5)
    assert "Partitions 5" in await browser.get("/topic", name=name)

    assert "nothing was deleted" in await browser.post("/topic/delete", name=name, typed=name[:-1])
    assert name in await admin.list_topics()
    assert "The topic was deleted." in await browser.post("/topic/delete", name=name, typed=name)
    assert name not in await admin.list_topics()


async def test_a_refused_topic_is_explained_and_its_form_kept(browser: Browser, topic: str) -> None:
    text = await browser.post("/topics/create", name=topic, partitions=3, settings="retention.ms=9")
    assert f"Topic '{topic}' already exists" in text
    assert browser.status == 400
    assert f'value="{topic}"' in browser.source
    assert "retention.ms=9</textarea>" in browser.source
    assert "not of the form name=value" in await browser.post("/topics/create", name="a", settings="x")
    assert "Invalid" in await browser.post("/topic/alter", name=topic, setting="retention.ms", value="long")
    assert browser.status == 400


async def test_a_broker_s_setting_is_changed_and_restored(browser: Browser) -> None:
    await browser.post("/broker/alter", id="default", setting="log.retention.ms", value="777000000")
    assert "777000000 all brokers, while they run" in await browser.get("/broker", id="default")
    await browser.post("/broker/alter", id="default", setting="log.retention.ms", restore="yes")
    assert "777000000" not in await browser.get("/broker", id="default")


async def test_a_console_for_reading_changes_nothing(reader: Browser, admin: Admin, topic: str) -> None:
    assert "read-only" in (await reader.get("/topic", name=topic), reader.source)[1]
    assert "<button" not in reader.source.partition("<main")[2]
    for each in ROUTES:
        if isinstance(each, Change):
            await reader.post(each.path, name=topic, typed=topic, id=topic, topic=topic)
            assert reader.status == 403, each.path
    for path in (
        "/topics/new", f"/messages/new?topic={topic}", "/group/reset?id=a&to=latest",
        f"/topic/records?name={topic}&before=end",
    ):  # fmt: skip
        await reader.get(path)
        assert reader.status == 403, path
    assert topic in await admin.list_topics()


# Safety and form ------------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


def parsed(source: str) -> _Page:
    page = _Page()
    page.feed(source)
    return page


async def test_every_page_keeps_the_rules(browser: Browser, topic: str, admin: Admin) -> None:
    """Nothing inline, nothing from elsewhere; landmarks, headings, captions, scopes, labels and unique ids."""
    await admin.alter_group_offsets(f"{topic}.group", {TopicPartition(topic, 1): 1})
    for path in (
        "/", "/brokers", "/broker?id=1&settings=all", "/topics", "/topics/new", f"/topic?name={topic}&settings=all",
        f"/topic/records?name={topic}&before=end", f"/topic/records?name={topic}&before=offset&number=0",
        "/messages", f"/messages?topic={topic}", f"/messages?topic={topic}&from=live", f"/messages/new?topic={topic}",
        f"/message?topic={topic}&partition=1&offset=0", "/groups", f"/group?id={topic}.group&settings=all",
        f"/group/explain?id={topic}.group&seconds=0", f"/group/reset?id={topic}.group&to=earliest", "/transactions",
        "/transactions/hanging", "/users", "/acls", "/quotas", "/nothing",
    ):  # fmt: skip
        await browser.get(path)
        page = parsed(browser.source)
        assert browser.status in (200, 404), path
        assert "script-src 'self'; style-src 'self'" in browser.headers["content-security-policy"], path
        assert not page.all("style", "iframe", "object", "embed"), path
        assert [script["src"] for script in page.all("script")] == ["/static/htmx.min.js"], path
        for tag, attributes in page.tags:
            assert "style" not in attributes, (path, tag)
            assert not any(name.startswith("on") for name in attributes), (path, tag)
            for name in ("src", "href", "action", "hx-get"):
                assert re.match(r"[/?#]", attributes.get(name) or "/"), (path, tag, attributes)
        assert len(page.all("h1")) == len(page.all("main")) == len(page.all("header")) == 1, path
        assert page.all("html")[0]["lang"] == "en"
        assert len(page.all("caption")) == len(page.all("table")), path
        assert all(each.get("scope") in ("col", "row") for each in page.all("th")), path
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids)), (path, sorted(each for each in ids if ids.count(each) > 1))
        labelled = {each.get("for") for each in page.all("label")}
        for field in page.all("input", "select", "textarea"):
            if field.get("type") != "hidden" and "aria-label" not in field:
                inside = re.search(r"<label[^>]*>[^<]*<[^>]*name=\"" + re.escape(field["name"] or ""), browser.source)
                assert inside or field.get("id") in labelled, (path, field)
        for form in page.all("form"):
            assert form.get("method") in ("get", "post")
        assert browser.source.count('method="post"') == browser.source.count('name="csrf_token"'), path


async def test_the_menu_leads_to_pages(browser: Browser) -> None:
    for path, label in MENU:
        await browser.get(path)
        assert browser.status == 200, path
        assert f'<a href="{path}" aria-current="page">{label}</a>' in browser.source


async def test_names_from_a_query_are_escaped(browser: Browser) -> None:
    for path in ("/topics?find=", "/groups?find=", "/topic?name=", "/group?id=", "/users?find=", "/acls?find=",
                 "/messages?topic=", "/transactions?find=", "/transaction?id=", "/nothing?done="):  # fmt: skip
        await browser.client.get(path + EVIL)
        await browser.get(path.partition("?")[0], **{path.partition("?")[2].rstrip("="): EVIL})
        assert "<script>alert" not in browser.source, path


async def test_static_files_are_served_and_nothing_else(browser: Browser) -> None:
    for path, kind in (
        ("/static/console.css", "text/css"),
        ("/static/htmx.min.js", "javascript"),
        ("/static/htmx.LICENSE.txt", "text/plain"),
        ("/static/icon.svg", "image/svg+xml"),
    ):
        await browser.get(path)
        assert (browser.status, kind in browser.headers["content-type"]) == (200, True), path
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/"):
        await browser.get(path)
        assert browser.status == 404, path


async def test_a_form_is_bounded(browser: Browser) -> None:
    await browser.get("/topics/new")
    await browser.post("/topics/create", name="a", settings="x" * (3 << 20))
    assert browser.status == 413
    response = await browser.client.post(
        "/topics/create",
        content=json.dumps({}),
        headers={"Content-Type": "application/json", "Origin": "http://127.0.0.1"},
    )
    assert response.status_code in (400, 403, 415)
