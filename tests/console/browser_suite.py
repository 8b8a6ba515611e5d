"""The console in a real browser: every page and every change, against three nodes of which one is killed.

`make test-console` runs it: Debian's Chromium, driven by Playwright's library, and axe-core. Not a part of `make test`.
Pages are looked at in light and dark, wide and narrow; nothing may be reported by the content security policy, asked of
another host, or found by axe to be serious or critical. Screenshots go to `build/console/`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright, expect, sync_playwright

from kraftpy.client import BlockingAdmin
from kraftpy.console.app import ROUTES
from kraftpy.console.routing import Change
from kraftpy.testing import Cluster
from tests.console.browser_changes import CHANGES, produce
from tests.console.browser_window import OFFENCES, Watched
from tests.console.served import Served, served
from tests.console.signing_provider import CLIENT, signing_provider
from tests.console.stocked_cluster import USERS, stocked_cluster

CHROMIUM = os.environ.get("KRAFTPY_CHROMIUM", "/usr/bin/chromium")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": WIDE},
    "dark": {"color_scheme": "dark", "viewport": WIDE},
    "narrow": {"color_scheme": "light", "viewport": NARROW},
    "narrow-dark": {"color_scheme": "dark", "viewport": NARROW},
}
PAGES: dict[str, list[dict[str, str]]] = {
    "/": [{}],
    "/brokers": [{}],
    "/broker": [{"id": "1"}, {"id": "default"}, {"id": "1", "settings": "all"}],
    "/topics": [{}, {"internal": "yes", "sort": "-partitions"}, {"find": "nothing"}],
    "/topic": [{"name": "orders"}, {"name": "orders", "settings": "all"}, {"name": "no-such-topic"}],
    "/topic/records": [{"name": "orders", "before": "offset", "number": "10"}, {"name": "to-delete", "before": "end"}],
    "/topics/new": [{}],
    "/messages": [
        {},
        {"topic": "orders"},
        {"topic": "orders", "from": "earliest", "jsonpath": '$.customer.name == "Ada"'},
    ],
    "/message": [{"topic": "orders", "partition": "0", "offset": "0"}],
    "/messages/new": [{"topic": "orders"}],
    "/groups": [{}],
    "/group": [{"id": "billing"}, {"id": "shipping"}, {"id": "packing"}],
    "/group/explain": [{"id": "shipping", "seconds": "0"}],
    "/group/reset": [{"id": "shipping", "to": "earliest"}],
    "/transactions": [{}],
    "/transaction": [{"id": "payments-1"}],
    "/transactions/hanging": [{"topic": "payments"}],
    "/users": [{}],
    "/acls": [{}],
    "/quotas": [{}],
    "/books": [{"audit": "audit"}],
    "/chaos": [{}],
}
"""The queries with which each page is looked at."""
PARTS = {"/messages/tail", "/messages/download", "/message/raw", "/chaos/report"}
"""Routes that are not pages of the console: a part of one, downloads, and reports that chaos runs have written."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with stocked_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    properties = cluster.client_properties("console")
    settings = {
        **{name: text for name, text in properties.items() if name != "bootstrap.servers"},
        "kraftpy.console.sign.in": "password",
        "kraftpy.console.operators": "User:alice",
    }
    runs = tmp_path_factory.mktemp("runs")
    (runs / "nodes-seed-1").mkdir()
    (runs / "nodes-seed-1" / "report.html").write_text('<title>A run</title><span class="verdict good">right</span>')
    directory = tmp_path_factory.mktemp("console")
    with served(cluster.bootstrap_servers, directory, settings, "--chaos-runs", str(runs)) as running:
        yield running
        assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
    yield browser
    browser.close()


Windows = Callable[..., Watched]


@pytest.fixture
def window(chromium: Browser, console: Served) -> Iterator[Windows]:
    """Opens windows of browsers of their own."""
    opened: list[BrowserContext] = []

    def make(**look: Any) -> Watched:
        context = chromium.new_context(**{**LOOKS["light"], **look})
        context.set_default_timeout(20_000)
        context.add_init_script(OFFENCES)
        opened.append(context)
        watched = Watched(context.new_page(), console.url)
        watched.watch()
        return watched

    yield make
    for context in opened:
        context.close()


@pytest.fixture
def alice(window: Windows) -> Watched:
    watched = window()
    watched.sign_in("alice", USERS["alice"])
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Overview")
    return watched


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[BlockingAdmin]:
    with BlockingAdmin(**cluster.client_options("alice")) as made:
        yield made


# --- signing in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", LOOKS)
def test_the_sign_in_page(window: Windows, look: str) -> None:
    watched = window(**LOOKS[look])
    watched.open("/topics")
    assert watched.page.url.endswith("/sign-in?next=%2Ftopics")
    expect(watched.page.get_by_label("Name")).to_be_focused()
    watched.check_accessible()
    watched.page.get_by_label("Name").fill("alice")
    watched.page.get_by_label("Password").fill("wrong")
    watched.page.get_by_role("button", name="Sign in").click()
    expect(watched.page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    watched.check_accessible()
    watched.shoot(f"sign-in-{look}")
    watched.check()


def test_one_signs_in_and_out(window: Windows) -> None:
    watched = window()
    watched.open("/topic", {"name": "orders"})
    watched.page.get_by_label("Name").fill("alice")
    watched.page.get_by_label("Password").fill(USERS["alice"])
    watched.page.keyboard.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("orders")
    cookies = {each["name"]: each for each in watched.page.context.cookies()}
    (session,) = (each for name, each in cookies.items() if "session" in name)
    assert (session["httpOnly"], session["sameSite"], session["path"]) == (True, "Lax", "/")
    assert watched.page.evaluate("document.cookie") == ""
    watched.page.get_by_role("button", name="Sign out").click()
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    watched.page.go_back()
    watched.page.reload()
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    watched.check()


def test_one_signs_in_at_another_site(window: Windows, cluster: Cluster, tmp_path: Path) -> None:
    """The provider is on localhost, the console on 127.0.0.1: two sites for a browser."""
    properties = cluster.client_properties("console")
    with signing_provider() as provider:
        settings = {
            **{name: text for name, text in properties.items() if name != "bootstrap.servers"},
            "kraftpy.console.sign.in": "password,oidc",
            "kraftpy.console.oidc.issuer": provider.url,
            "kraftpy.console.oidc.client.id": CLIENT,
            "kraftpy.console.oidc.operators": "kafka-operators",
        }
        with served(cluster.bootstrap_servers, tmp_path, settings) as console:
            page = window().page
            page.goto(f"{console.url}/topics?find=orders")
            page.get_by_role("link", name="Sign in with the identity provider").click()
            page.get_by_role("link", name="I am Olga").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
            assert page.url == f"{console.url}/topics?find=orders"
            expect(page.get_by_text("olga")).to_be_visible()
            expect(page.get_by_text("operator", exact=True)).to_be_visible()
            page.get_by_role("button", name="Sign out").click()
            provider.claims = {"sub": "mallory", "groups": ["everyone"]}
            page.get_by_role("link", name="Sign in with the identity provider").click()
            page.get_by_role("link", name="I am Olga").click()
            expect(page.get_by_role("alert")).to_contain_text("have no role in this console")
            assert page.evaluate("offences") == []


def test_another_site_can_neither_frame_nor_post(window: Windows, alice: Watched) -> None:
    """A page of another origin, with the cookie of an operator in its browser."""
    page = alice.page.context.new_page()
    page.route(
        "http://evil.test/**",
        lambda route: route.fulfill(body=EVIL.replace("CONSOLE", alice.url), content_type="text/html"),
    )
    page.goto("http://evil.test/")
    frame = page.frames[-1]
    assert "Overview" not in (frame.content() if frame is not page.main_frame else "")
    with page.expect_navigation():
        page.get_by_role("button").click()
    assert "nothing was done" in page.inner_text("main")
    alice.open("/topics")
    expect(alice.page.get_by_role("link", name="to-delete", exact=True)).to_be_visible()
    page.close()


EVIL = """<!doctype html><iframe src="CONSOLE/"></iframe>
<form method="post" action="CONSOLE/topic/delete">
<input name="name" value="to-delete"><input name="typed" value="to-delete">
<button>Win a prize</button></form>"""


# --- every page -------------------------------------------------------------------------------------------------------


def test_every_route_is_looked_at() -> None:
    assert {each.path for each in ROUTES if not isinstance(each, Change)} == {*PAGES, *PARTS}
    assert {each.path for each in ROUTES if isinstance(each, Change)} == set(CHANGES)


@pytest.mark.parametrize("look", LOOKS)
def test_every_page(window: Windows, look: str) -> None:
    watched = window(**LOOKS[look])
    watched.sign_in("alice", USERS["alice"])
    _look_at_all(watched, look)


def _look_at_all(watched: Watched, look: str) -> None:
    problems = []
    for path, queries in PAGES.items():
        for number, query in enumerate(queries):
            try:
                watched.open(path, query, status=404 if query.get("name") == "no-such-topic" else 200)
                watched.check_accessible()
                watched.check()
            except AssertionError as error:
                problems.append(f"{path} {query}: {error}")
            watched.shoot(f"{path.strip('/').replace('/', '-') or 'overview'}{number or ''}-{look}")
    assert problems == [], "\n".join(problems)


def test_pages_work_without_scripts(window: Windows) -> None:
    watched = window(java_script_enabled=False)
    watched.sign_in("alice", USERS["alice"])
    for path, queries in PAGES.items():
        address = f"{watched.url}{path}?{urlencode(queries[0])}"
        answer = watched.page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        expect(watched.page.get_by_role("heading", level=1)).to_be_visible()


def test_a_viewer_is_shown_no_change(window: Windows) -> None:
    watched = window()
    watched.sign_in("vera", USERS["vera"])
    expect(watched.page.get_by_text("viewer", exact=True)).to_be_visible()
    for path in ("/", "/topics", "/messages?topic=orders", "/topic?name=orders"):
        answer = watched.page.goto(f"{watched.url}{path}")
        assert answer is not None
        assert answer.status == 200, (path, watched.page.inner_text("main"))
        assert watched.page.locator("form[method=post]").count() == 1, "that of the sign-out"
    answer = watched.page.goto(f"{watched.url}/topics/new")
    assert answer is not None
    assert answer.status == 403
    watched.shoot("viewer")


# --- the keyboard -----------------------------------------------------------------------------------------------------

FOCUS = """() => { const e = document.activeElement, s = getComputedStyle(e);
  if (e !== document.body && window.reached) reached.add(e);
  return {tag: e.tagName, text: (e.innerText || e.value || e.name || '').trim().slice(0, 60), id: e.id,
          outline: parseFloat(s.outlineWidth) > 0 && s.outlineStyle !== 'none', body: e === document.body} }"""
FOCUSABLE = """() => [...document.querySelectorAll(
    'a[href],button,input:not([type=hidden]),select,textarea,summary,[tabindex="0"]')]
  .filter(e => e.checkVisibility() && !e.disabled && !e.closest('details:not([open]) > :not(summary)')).length"""


def test_the_keyboard_reaches_everything_and_shows_where_it_is(alice: Watched) -> None:
    for path, queries in PAGES.items():
        alice.open(path, {**queries[0], "live": "off"})
        count = alice.page.evaluate(FOCUSABLE)
        most = min(count, 80)
        alice.page.evaluate("window.reached = new Set()")
        hidden = []
        for _ in range(most + 2):
            alice.page.keyboard.press("Tab")
            found = alice.page.evaluate(FOCUS)
            if not found["body"] and not found["outline"]:
                hidden.append(found)
        assert hidden == [], (path, hidden)
        assert alice.page.evaluate("reached.size") >= most, (path, count)


def test_a_topic_is_made_and_deleted_by_keyboard_only(window: Windows, admin: BlockingAdmin) -> None:
    watched = window()
    keys = watched.page.keyboard
    watched.open("/")
    expect(watched.page.get_by_label("Name")).to_be_focused()
    keys.type("alice")
    keys.press("Tab")
    keys.type(USERS["alice"])
    keys.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Overview")
    keys.press("Tab")
    expect(watched.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(watched.page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    keys.press("Enter")
    expect(watched.page.locator("main")).to_be_focused()
    _tab_to(watched, "Topics", backwards=True)
    keys.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Topics")
    _tab_to(watched, "Create a topic")
    keys.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Create a topic")
    _tab_to(watched, "name")
    keys.type("by-keyboard")
    keys.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("by-keyboard")
    assert "by-keyboard" in admin.list_topics()
    _tab_to(watched, "typed")
    keys.type("by-keyboard")
    keys.press("Enter")
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert "by-keyboard" not in admin.list_topics()
    watched.check()


def _tab_to(watched: Watched, text: str, *, backwards: bool = False) -> None:
    """Press Tab until the focus is on something with this text, name or id."""
    for _ in range(120):
        watched.page.keyboard.press("Shift+Tab" if backwards else "Tab")
        found = watched.page.evaluate(FOCUS)
        if text in (found["text"], found["id"]):
            return
    raise AssertionError(f"no way to {text} by Tab")


# --- live pages -------------------------------------------------------------------------------------------------------


def test_a_page_renews_itself_and_keeps_the_focus(alice: Watched) -> None:
    alice.open("/")
    alice.page.evaluate("document.getElementById('live').marked = true; document.getElementById('pause').focus()")
    deadline = time.monotonic() + 30
    while alice.page.evaluate("document.getElementById('live').marked"):
        assert time.monotonic() < deadline
        alice.page.wait_for_timeout(200)
    assert alice.page.evaluate("document.activeElement.id") == "pause"
    alice.page.get_by_role("link", name="Pause updates").click()
    assert "live=off" in alice.page.url
    alice.check()


def test_messages_appear_as_they_come(alice: Watched) -> None:
    alice.open("/messages", {"topic": "orders", "from": "live"})
    rows = alice.page.locator("table.messages tbody tr td.when")
    expect(rows.nth(3)).to_be_visible(timeout=30_000)
    alice.shoot("live-tail", full=False)
    alice.check()


def test_a_renewed_page_of_a_session_that_is_over_goes_to_the_sign_in(alice: Watched) -> None:
    alice.open("/group", {"id": "billing"})
    alice.page.context.clear_cookies()
    alice.page.wait_for_url("**/sign-in?next=%2Fgroup%3Fid%3Dbilling", timeout=30_000)
    alice.check()


def test_downloads(alice: Watched) -> None:
    alice.open("/messages", {"topic": "orders", "from": "earliest", "limit": "20"})
    with alice.page.expect_download() as download:
        alice.page.get_by_role("link", name="Download as JSON lines").click()
    assert download.value.suggested_filename == "orders.jsonl"
    assert '"customer' in Path(download.value.path()).read_text()


def test_what_a_producer_sends_is_shown_as_text(alice: Watched) -> None:
    hostile = "<script>document.title='evil'</script><img src=x onerror=alert(1)>{{7*7}}"
    produce(alice, hostile)
    for query in ({"topic": "orders", "from": "newest"}, {"topic": "orders", "from": "newest", "values": "text"}):
        alice.open("/messages", query)
        expect(alice.page.get_by_text("document.title").first).to_be_visible()
    alice.open("/messages", {"topic": hostile}, status=400)
    alice.open("/topics", {"find": hostile})
    assert alice.page.title() != "evil"
    alice.check()


# --- every change, while a node is killed -----------------------------------------------------------------------------


def test_every_change_while_a_node_is_killed(alice: Watched, admin: BlockingAdmin, cluster: Cluster) -> None:
    """The node dies after the fourth change; the others, and all pages, go on with two."""
    for number, (path, change) in enumerate(CHANGES.items()):
        if number == 4:
            cluster.kill(3)
        change(alice, admin)
        assert path in alice.posted, path
    assert alice.posted - {"/sign-in"} == set(CHANGES)
    alice.open("/brokers")
    expect(alice.page.get_by_role("row").filter(has_text="fenced")).to_be_visible(timeout=60_000)
    alice.open("/")
    expect(alice.page.get_by_role("link", name=re.compile("[Bb]roker 3")).first).to_be_visible()
    alice.check_accessible()
    alice.shoot("node-killed", full=False)
    for path, queries in PAGES.items():
        if queries[0].get("id") not in ("shipping",):
            alice.open(path, queries[0])
            alice.check()
    alice.open("/broker", {"id": "3"})
    cluster.start(3)
    alice.open("/brokers")
    expect(alice.page.get_by_role("row").filter(has_text="fenced")).to_have_count(0, timeout=60_000)
    alice.check()
