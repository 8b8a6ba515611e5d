"""Headers of every answer, errors, and lines of the audit log."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from kraftpy.console.access import AccessSettings
from kraftpy.console.access.audit import REFUSED_SIGN_IN_LINES
from tests.console.guarded_app import App, Browser, audit_lines, passwords_app

LOOPBACK = {"host": "127.0.0.1:8080", "scheme": "http", "address": "127.0.0.1"}


def check_headers(answer: httpx.Response, *, is_secure: bool = True) -> None:
    policy = dict(each.split(" ", 1) for each in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    for unsafe in ("unsafe", "*", "http", "data:", "blob:"):
        assert unsafe not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert ("Strict-Transport-Security" in answer.headers) is is_secure
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        assert answer.headers["Cache-Control"] == "no-store"


async def test_every_answer_has_the_headers(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    answers = [
        await browser.get("/"),
        await browser.get("/sign-in"),
        await browser.get("/static/console.css"),
        await browser.get("/static/no-such-file"),
        await browser.post("/sign-in"),
        await browser.get("/", headers={"Host": "evil.example"}),
        await browser.sign_in("alice", "wrong"),
        await browser.sign_in("alice", "alice's"),
        await browser.get("/"),
        await browser.get("/no-such-page"),
        await browser.post("/delete"),
        await browser.request("FROB", "/delete"),
        await browser.get("/fail"),
    ]
    for answer in answers:
        check_headers(answer)
    assert {answer.status_code for answer in answers} == {200, 303, 403, 404, 421, 500}
    assert "Cache-Control" not in answers[2].headers
    assert answers[3].headers["Cache-Control"] == "no-store"


async def test_only_over_tls_browsers_are_told_to_stay_with_it() -> None:
    check_headers(await Browser(App(AccessSettings()), **LOOPBACK).get("/"), is_secure=False)
    app, _ = passwords_app(is_tls=False, url="https://kafka.example")
    check_headers(await Browser(app, host="kafka.example").get("/sign-in"))


async def test_an_unexpected_error_costs_one_answer_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    with audit_lines() as lines:
        answer = await browser.get("/fail?a=%0d%0ab")
        form = {"csrf_token": (await browser.me())[2]}
        failed = await browser.post("/fail", data=form, headers=browser.from_here)
    for each in (answer, failed):
        assert each.status_code == 500
        assert "swordfish" not in each.text
        check_headers(each)
    assert [(line["status"], line["request"]) for line in lines] == [(500, "POST /fail")]
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 2
    assert (await browser.me())[0] == "alice"


async def test_a_change_has_a_line_in_the_audit_log() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    with audit_lines() as lines:
        await browser.sign_in("alice", "alice's")
        await browser.delete_topic("orders")
        form = {"csrf_token": "wrong", "name": "orders", "password": "secret"}
        await browser.post("/delete?password=secret", data=form, headers=browser.from_here)
        form = {"csrf_token": (await browser.me())[2]}
        await browser.post("/sign-out", data=form, headers=browser.from_here)
    usual = {
        "decision": "ALLOWED", "principal": "User:alice", "host": "192.0.2.7", "listener": "console",
        "resource_type": None, "resource": None, "client_id": "kraftpy-console", "proof": "password",
        "role": "operator", "status": 303,
    }  # fmt: skip
    deleted = {"resource_type": "TOPIC", "resource": "orders", "request": "POST /delete"}
    assert lines == [
        {**usual, "operation": "SIGN_IN", "request": "POST /sign-in"},
        {**usual, **deleted, "operation": "DELETE", "status": 204},
        {
            **usual, "decision": "DENIED", "operation": None, "request": "POST /delete", "status": 403,
            "reason": "wrong CSRF token",
        },
        {**usual, "operation": "SIGN_OUT", "request": "POST /sign-out"},
    ]  # fmt: skip


HOSTILE = 'x"}\n{"decision": "ALLOWED"} \x1b[2J‮\u2028' + "y" * 5_000


async def test_nothing_that_a_browser_sends_makes_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    with audit_lines() as lines:  # which are one line of ASCII each
        await browser.sign_in(HOSTILE, "x")
        await browser.sign_in("alice", "alice's")
        await browser.delete_topic(HOSTILE)
        token = (await browser.me())[2]
        await browser.post("/a%0a%22%1b%e2%80%ae", headers={"X-CSRF-Token": token, **browser.from_here})
    assert [line["decision"] for line in lines] == ["DENIED", "ALLOWED", "ALLOWED", "ALLOWED"]
    assert lines[0]["principal"].startswith('User:x"}\n{"decision')
    assert all(len(str(value)) < 2_000 for line in lines for value in line.values())
    await browser.get("/fail%0a%1b[2J")
    assert all("\x1b" not in record.getMessage() for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records if not record.exc_info)


async def test_guessing_does_not_fill_the_audit_log() -> None:
    app, _ = passwords_app()
    with audit_lines() as lines:
        for number in range(REFUSED_SIGN_IN_LINES + 20):
            await Browser(app, address=f"198.51.100.{number}").sign_in(f"user{number}", "x")
        assert len(lines) == REFUSED_SIGN_IN_LINES
        assert lines[-1]["is_truncated"]
        app.clock.now += 60
        await Browser(app).sign_in("alice", "wrong")
        assert len(lines) == REFUSED_SIGN_IN_LINES + 1
        await Browser(app).sign_in("alice", "alice's")
        assert lines[-1]["decision"] == "ALLOWED"


@pytest.mark.parametrize("name", ["Content-Security-Policy", "Cache-Control", "Set-Cookie"])
async def test_no_header_comes_from_a_request(name: str) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    usual: Any = (await browser.get("/sign-in")).headers.get_list(name)
    for value in (f"x\r\n{name}: evil", f"x%0d%0a{name}:%20evil", f"/%0d%0a{name}:%20evil"):
        answer = await browser.get("/sign-in", params={"next": value})
        assert answer.headers.get_list(name) in (usual, [])
        assert "evil" not in str(answer.headers)
