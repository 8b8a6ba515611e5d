"""Changes come from the console's own pages, from its own session, and from an operator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.console.access import AccessSettings
from kraftpy.console.access.guard import MOST_BODY_BYTES
from tests.console.guarded_app import App, Browser, audit_lines, passwords_app

LOOPBACK = {"host": "127.0.0.1:8080", "scheme": "http", "address": "127.0.0.1"}


@pytest.fixture
def open_app() -> App:
    """One without a sign-in where everyone may change everything."""
    return App(AccessSettings(port=8080, allow_changes=True))


async def test_an_operator_changes_something() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    assert (await browser.sign_in("alice", "alice's")).status_code == 303
    assert (await browser.delete_topic()).status_code == 204
    assert app.deleted == ["orders"]


async def test_a_form_needs_the_token_of_its_own_session() -> None:
    app, _ = passwords_app()
    alice, mallory, visitor = Browser(app), Browser(app), Browser(app)
    await alice.sign_in("alice", "alice's")
    await mallory.sign_in("vera", "vera's")
    tokens = ["", "x", "\0", "é", (await mallory.me())[2], await visitor.token(), (await alice.me())[2][:-1]]
    for token in tokens:
        answer = await alice.post("/delete", data={"name": "a", "csrf_token": token}, headers=alice.from_here)
        assert answer.status_code == 403
    assert (await alice.post("/delete", data={"name": "a"}, headers=alice.from_here)).status_code == 403
    assert app.deleted == []


async def test_the_token_of_a_session_that_has_ended_is_worth_nothing() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    old = (await browser.me())[2]
    out = await browser.post("/sign-out", data={"csrf_token": old}, headers=browser.from_here)
    assert (out.status_code, out.headers["Location"]) == (303, "/sign-in")
    await browser.sign_in("alice", "alice's")
    answer = await browser.post("/delete", data={"name": "a", "csrf_token": old}, headers=browser.from_here)
    assert (answer.status_code, app.deleted) == (403, [])


async def test_the_token_may_be_in_a_header_or_anywhere_in_the_form() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    token = (await browser.me())[2]
    for body, headers, status in (
        ("name=a", {"X-CSRF-Token": token}, 204),
        (f"csrf_token={token}&name=b", {}, 204),
        (f"name=c&csrf_token={token}", {}, 204),
        (f"name=d&csrf_token=x&csrf_token={token}", {}, 403),
        (f"xcsrf_token={token}&name=e", {}, 403),
        (f"name=f&csrf_token={token}", {"X-CSRF-Token": "x"}, 403),
    ):
        given = {"Content-Type": "application/x-www-form-urlencoded", **browser.from_here, **headers}
        assert (await browser.post("/delete", content=body, headers=given)).status_code == status, body
    assert app.deleted == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
async def test_other_bodies_than_forms_carry_no_token(kind: str, open_app: App) -> None:
    browser = Browser(open_app, **LOOPBACK)
    token = (await browser.me())[2]
    headers = {**browser.from_here, **({"Content-Type": kind} if kind else {})}
    answer = await browser.post("/delete", content=f"name=a&csrf_token={token}", headers=headers)
    assert (answer.status_code, open_app.deleted) == (403, [])


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://console.example:8443"},
        {"Origin": "https://console.example"},
        {"Origin": "https://console.example:8443.evil.example"},
        {"Origin": "https://console.example:8443", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://console.example:8443", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_a_change_from_another_origin_is_refused(headers: dict[str, str]) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    token = (await browser.me())[2]
    answer = await browser.post("/delete", data={"name": "a", "csrf_token": token}, headers=headers)
    assert (answer.status_code, app.deleted) == (403, [])
    answer = await browser.post("/sign-out", data={"csrf_token": token}, headers=headers)
    assert answer.status_code == 403
    assert (await browser.me())[0] == "alice"


async def test_a_browser_that_says_nothing_of_its_origin_has_the_token() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    answer = await browser.post("/delete", data={"name": "a", "csrf_token": (await browser.me())[2]})
    assert answer.status_code == 204


async def test_behind_a_proxy_the_origin_is_that_of_the_url() -> None:
    app, _ = passwords_app(is_tls=False, url="https://kafka.example/")
    browser = Browser(app, scheme="https", host="kafka.example")
    assert (await browser.sign_in("alice", "alice's")).status_code == 303
    token = (await browser.me())[2]
    for origin, status in (("https://kafka.example", 204), ("https://other.example", 403)):
        headers = {"Origin": origin, "Host": "10.0.0.1:8443"}
        assert (await browser.post("/delete", data={"csrf_token": token}, headers=headers)).status_code == status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::1", "a b", "", "x@127.0.0.1"]
)
async def test_a_name_that_resolves_to_this_machine_is_not_the_console(host: str, open_app: App) -> None:
    browser = Browser(open_app, **LOOPBACK)
    answer = await browser.get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "|" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:8080"])
async def test_the_console_is_found_under_its_own_names(host: str, open_app: App) -> None:
    assert (await Browser(open_app, **LOOPBACK).get("/", headers={"Host": host})).status_code == 200


async def test_a_console_on_all_addresses_with_a_sign_in_has_any_name() -> None:
    app, _ = passwords_app(host="0.0.0.0", is_tls=False)
    assert (await Browser(app).get("/sign-in", headers={"Host": "kafka-1.example"})).status_code == 200


async def test_other_sites_may_link_to_pages_but_not_load_them() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    for dest, status in (("document", 200), ("image", 403), ("script", 403), ("iframe", 403), ("empty", 403)):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": dest}
        assert (await browser.get("/", headers=headers)).status_code == status


async def test_a_viewer_changes_nothing() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("vera", "vera's")
    assert (await browser.me())[:2] == ("vera", "viewer")
    with audit_lines() as lines:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FROB"):
            token = (await browser.me())[2]
            answer = await browser.request(method, "/delete", headers={"X-CSRF-Token": token, **browser.from_here})
            assert answer.status_code == 403
    assert app.deleted == []
    assert [(line["decision"], line["reason"]) for line in lines] == [("DENIED", "not an operator")] * 6


async def test_without_a_sign_in_the_console_is_read_only() -> None:
    app = App(AccessSettings(port=8080))
    browser = Browser(app, **LOOPBACK)
    assert await browser.me() == ("", "viewer", "")
    for token in ("", "\0", "x"):
        answer = await browser.post("/delete", data={"csrf_token": token}, headers=browser.from_here)
        assert answer.status_code == 403
    assert not browser.cookies
    assert app.deleted == []


async def test_where_everyone_may_change_everything_forms_still_need_their_token(open_app: App) -> None:
    browser, other = Browser(open_app, **LOOPBACK), Browser(open_app, **LOOPBACK)
    assert (await browser.delete_topic("a")).status_code == 204
    foreign = (await other.me())[2]
    for form in ({"name": "b"}, {"name": "b", "csrf_token": foreign}):
        assert (await browser.post("/delete", data=form, headers=browser.from_here)).status_code == 403
    assert open_app.deleted == ["a"]


async def test_a_large_form_is_refused_before_it_is_read_to_the_end(open_app: App) -> None:
    browser = Browser(open_app, **LOOPBACK)
    token = (await browser.me())[2]
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * 65_536

    given = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRF-Token": token, **browser.from_here}
    answer = await browser.post("/delete", content=endless(), headers=given)
    assert (answer.status_code, open_app.deleted) == (413, [])
    assert sent * 65_536 <= MOST_BODY_BYTES + 2 * 65_536
    answer = await browser.post("/delete", content=b"x", headers={**given, "Content-Length": str(MOST_BODY_BYTES + 1)})
    assert answer.status_code == 413


async def test_a_form_that_does_not_arrive_is_not_awaited_for_ever(
    open_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.console.access.guard.MOST_BODY_SECONDS", 0.05)
    browser = Browser(open_app, **LOOPBACK)
    token = (await browser.me())[2]

    async def slow() -> Any:
        yield b"name=a"
        await asyncio.sleep(30)

    answer = await browser.post("/delete", content=slow(), headers={"X-CSRF-Token": token, **browser.from_here})
    assert (answer.status_code, open_app.deleted) == (408, [])


async def test_there_are_no_web_sockets(open_app: App) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "subprotocols": []}
    await open_app.starlette(scope, receive, send)
    assert [each["type"] for each in sent] == ["websocket.close"]
