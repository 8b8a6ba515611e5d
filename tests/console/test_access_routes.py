"""The console's own routes behind its access control: each of them, found in the routing table."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from kraftpy.console.access import AccessSettings
from kraftpy.console.app import ROUTES, console_app
from kraftpy.console.audited import AUDITED
from kraftpy.console.cluster import Cluster
from kraftpy.console.routing import OPERATOR, VIEWER, Change
from tests.console.guarded_app import CLUSTER, Browser, Passwords, audit_lines, with_passwords
from tests.console.test_access_headers import check_headers

SIGN_IN = {"/sign-in", "/sign-out"}
NO_CLUSTER = {"bootstrap_servers": "127.0.0.1:9"}


class Shell:
    """The console's application, in the form of `guarded_app.App`."""

    def __init__(self, settings: AccessSettings, **replaced: Any) -> None:
        self.starlette: Starlette = console_app(Cluster(NO_CLUSTER), access=settings, **replaced)


def with_users() -> Shell:
    return Shell(with_passwords(), passwords=Passwords({"alice": "alice's", "vera": "vera's"}))


def routes_of(shell: Shell) -> list[tuple[str, str]]:
    """Every method and path that the application answers."""
    found = []
    for route in shell.starlette.routes:
        if isinstance(route, Mount):
            assert route.path == "/static"
            continue
        assert isinstance(route, Route)
        assert "{" not in route.path
        found += [(method, route.path) for method in route.methods or ()]
    return found


def changing(shell: Shell) -> list[str]:
    return [path for method, path in routes_of(shell) if method not in ("GET", "HEAD") and path not in SIGN_IN]


def test_all_changes_are_sent_by_post() -> None:
    assert {each.path for each in ROUTES if isinstance(each, Change)} == set(changing(with_users()))
    for each in ROUTES:
        assert each.method == ("POST" if isinstance(each, Change) else "GET")
        assert each.role in (OPERATOR, VIEWER)
        assert each.role == OPERATOR or not isinstance(each, Change)


def test_the_audit_log_knows_every_change() -> None:
    assert set(AUDITED) == set(changing(with_users()))


async def check_refused(shell: Shell, browser: Browser, token: str, statuses: set[int]) -> None:
    """Try every change."""
    for path in changing(shell):
        form = {"csrf_token": token, "name": "orders", "typed": "orders", "topic": "orders", "id": "1"}
        answer = await browser.post(path, data=form, headers=browser.from_here)
        assert answer.status_code in statuses, path
        check_headers(answer, is_secure=browser.origin.startswith("https"))


async def test_strangers_reach_no_route() -> None:
    shell = with_users()
    browser = Browser(shell)  # type: ignore[arg-type]
    for method, path in routes_of(shell):
        if path in SIGN_IN:
            continue
        answer = await browser.request(method, path, headers=browser.from_here)
        assert (answer.status_code, answer.headers["Location"].partition("?")[0]) == (303, "/sign-in"), path
        check_headers(answer)
    for path in ("/docs", "/openapi.json", "/%2e%2e/", "//evil.example", "/.git/config", "/topic/../static/x"):
        answer = await browser.get(path)
        assert answer.status_code in (303, 404)
        assert "127.0.0.1" not in answer.text
    assert "127.0.0.1" not in (await browser.put("/sign-in", headers=browser.from_here)).text


async def test_a_viewer_changes_nothing() -> None:
    shell = with_users()
    browser = Browser(shell)  # type: ignore[arg-type]
    assert (await browser.sign_in("vera", "vera's")).status_code == 303
    (session,) = shell.starlette.state.access.sessions._sessions.values()
    with audit_lines() as lines:
        await check_refused(shell, browser, session.csrf_token, {403})
        for each in ROUTES:
            if each.role == OPERATOR and not isinstance(each, Change):
                assert (await browser.get(each.path)).status_code == 403, each.path
    assert [line["decision"] for line in lines] == ["DENIED"] * len(changing(shell))


async def test_an_operator_without_the_token_changes_nothing() -> None:
    shell = with_users()
    browser = Browser(shell)  # type: ignore[arg-type]
    assert (await browser.sign_in("alice", "alice's")).status_code == 303
    with audit_lines() as lines:
        await check_refused(shell, browser, "wrong", {403})
    assert {line["reason"] for line in lines} == {"wrong CSRF token"}


@pytest.mark.parametrize("allow_changes", [False, True])
async def test_without_a_sign_in_no_change_works_without_a_token(allow_changes: bool) -> None:
    shell = Shell(AccessSettings(port=8080, allow_changes=allow_changes))
    browser = Browser(shell, host="127.0.0.1:8080", scheme="http")  # type: ignore[arg-type]
    await check_refused(shell, browser, "", {403})
    assert (await browser.get("/sign-in")).status_code == 404


async def test_an_operator_s_changes_are_audited_even_if_they_fail() -> None:
    shell = with_users()
    browser = Browser(shell)  # type: ignore[arg-type]
    await browser.sign_in("alice", "alice's")
    (session,) = shell.starlette.state.access.sessions._sessions.values()
    form = {"csrf_token": session.csrf_token, "name": "orders", "typed": "another"}
    with audit_lines() as lines:
        answer: httpx.Response = await browser.post("/topic/delete", data=form, headers=browser.from_here)
    assert answer.status_code == 400
    (line,) = lines
    assert (line["operation"], line["resource_type"], line["resource"]) == ("DELETE", "TOPIC", "orders")
    assert "details" not in line
    assert (line["principal"], line["status"], line["request"]) == ("User:alice", 400, "POST /topic/delete")
    await shell.starlette.state.access.close()
    await shell.starlette.state.console.clusters.close()


async def test_a_password_is_not_in_the_audit_log() -> None:
    shell = with_users()
    browser = Browser(shell)  # type: ignore[arg-type]
    await browser.sign_in("alice", "alice's")
    (session,) = shell.starlette.state.access.sessions._sessions.values()
    secrets = {"password": "swordfish", "value": "swordfish", "key": "swordfish", "headers": "swordfish"}
    form = {
        "csrf_token": session.csrf_token,
        "name": "bob",
        "mechanism": "NONE",
        "setting": "ssl.key.password",
        **secrets,
    }
    with audit_lines() as lines:
        for path in ("/users/set", "/topic/alter", "/messages/produce"):
            assert (await browser.post(path, data=form, headers=browser.from_here)).status_code >= 400
    assert [line["resource"] for line in lines] == ["bob", "bob", ""]
    assert lines[0]["details"] == {"mechanism": "NONE"}
    assert lines[1]["details"] == {"setting": "ssl.key.password"}
    assert not any("swordfish" in str(line) for line in lines)
    await shell.starlette.state.console.clusters.close()


def test_no_detail_is_a_secret() -> None:
    for path, audited in AUDITED.items():
        assert not {"password", "key", "headers", "csrf_token", "typed", "settings"} & set(audited.details)
        assert "value" not in audited.details or path == "/quotas/set"


def test_settings_of_tests_name_a_cluster_that_is_not_there() -> None:
    assert CLUSTER["bootstrap_servers"] == NO_CLUSTER["bootstrap_servers"]
