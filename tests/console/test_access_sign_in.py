"""Signing in with a name and a password: sessions, cookies, guessing, and where one goes from there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kraftpy.console.access import AccessSettings
from kraftpy.console.access.attempts import MOST_KEPT, OF_ADDRESS, OF_USER, OF_USER_AT_ADDRESS, Attempts, network_of
from kraftpy.console.access.kept import CHECK_SECONDS
from kraftpy.console.access.sessions import MOST_OF_USER, MOST_SESSIONS, Session, Sessions
from kraftpy.console.access.users import Proof, Role, SignedIn, User
from kraftpy.security.principal import parse_principal
from tests.console.guarded_app import CLUSTER, App, Browser, Clock, eventually, passwords_app, with_passwords

SESSION = "__Host-kraftpy-console-session-8443"


async def test_strangers_see_nothing_but_the_sign_in_page() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    for path, destination in (
        ("/", "/sign-in"),
        ("/topic?name=a%26b&x=1", "/sign-in?next=%2Ftopic%3Fname%3Da%2526b%26x%3D1"),
        ("/no-such-page", "/sign-in?next=%2Fno-such-page"),
    ):
        answer = await browser.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, destination)
    answer = await browser.post("/delete", data={"name": "a"}, headers=browser.from_here)
    assert (answer.status_code, answer.headers["Location"], app.deleted) == (303, "/sign-in", [])
    hx = {"HX-Request": "true", "HX-Current-URL": f"{browser.origin}/topic?name=a#x"}
    part = await browser.get("/messages/tail?topic=a", headers=hx)
    assert (part.status_code, part.headers["HX-Redirect"]) == (401, "/sign-in?next=%2Ftopic%3Fname%3Da")
    evil = {"HX-Request": "true", "HX-Current-URL": "https://evil.example//evil.example/"}
    assert (await browser.get("/", headers=evil)).headers["HX-Redirect"] == "/sign-in"
    for url in ("http://[", "x" * 5_000, "\\evil", ""):
        evil = {"HX-Request": "true", "HX-Current-URL": url}
        assert (await browser.get("/", headers=evil)).headers["HX-Redirect"] == "/sign-in"
    assert (await browser.get("/static/console.css")).status_code == 200
    assert (await browser.get("/static/../")).status_code != 200


@pytest.mark.parametrize(("name", "role"), [("alice", "operator"), ("vera", "viewer")])
async def test_the_settings_name_the_operators(name: str, role: str) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    answer = await browser.sign_in(name, f"{name}'s", next="/topic?name=a")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topic?name=a")
    assert (await browser.me())[:2] == (name, role)
    assert (await browser.get("/sign-in?next=/topic")).headers["Location"] == "/topic"


@pytest.mark.parametrize(
    ("name", "password"),
    [("alice", "wrong"), ("alice", ""), ("nobody", "alice's"), ("", ""), ("ALICE", "alice's"), ("alice\0", "alice's")],
)
async def test_a_wrong_password_and_an_unknown_name_look_alike(name: str, password: str) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    answer = await browser.sign_in(name, password)
    assert answer.status_code == 403
    assert "The name or the password is wrong." in answer.text
    assert len(app.access.sessions) == 0
    assert SESSION not in browser.cookies


async def test_a_sign_in_needs_the_token_of_the_browser_s_own_page() -> None:
    app, passwords = passwords_app()
    browser, mallory = Browser(app), Browser(app)
    foreign = await mallory.token()
    await browser.token()
    for form in ({}, {"csrf_token": foreign}, {"csrf_token": ""}):
        given = {"name": "alice", "password": "alice's", **form}
        assert (await browser.post("/sign-in", data=given, headers=browser.from_here)).status_code == 403
    evil = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    given = {"name": "alice", "password": "alice's", "csrf_token": await browser.token()}
    assert (await browser.post("/sign-in", data=given, headers=evil)).status_code == 403
    assert passwords.tried == 0


async def test_a_forged_cookie_of_a_visitor_is_no_visitor_s() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    await browser.get("/sign-in")
    name = app.access.cookies.visitor
    genuine = browser.cookies[name]
    other = passwords_app()[0].access.cookies.new_visitor()[1]
    for forged in (genuine[:-1], genuine[1:], other, "", "x" * 10_000, "a.b.c"):
        assert app.access.cookies.find_visitor({name: forged}) is None
    assert app.access.cookies.find_visitor({name: genuine}) is not None


def cookies_of(answer: Any) -> dict[str, str]:
    """The cookies that an answer sets, each with its attributes."""
    return {each.partition("=")[0]: each.partition("=")[2] for each in answer.headers.get_list("set-cookie")}


async def test_cookies_are_hidden_from_scripts_and_sent_over_tls_only() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    found = cookies_of(await browser.get("/sign-in")) | cookies_of(await browser.sign_in("alice", "alice's"))
    assert set(found) == {SESSION, "__Host-kraftpy-console-visitor-8443"}
    for cookie in found.values():
        _, *attributes = cookie.split("; ")
        assert {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"} <= set(attributes)
        assert not any(each.startswith("Domain") for each in attributes)
    assert "Max-Age" not in found[SESSION]


async def test_without_tls_cookies_have_no_secure_name() -> None:
    app, _ = passwords_app(is_tls=False, host="127.0.0.1", port=8080)
    browser = Browser(app, host="127.0.0.1:8080", scheme="http")
    found = cookies_of(await browser.sign_in("alice", "alice's"))
    assert "kraftpy-console-session-8080" in found
    assert "Secure" not in found["kraftpy-console-session-8080"]
    assert (await browser.me())[0] == "alice"


async def test_a_session_has_an_id_that_nobody_chose() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    browser.cookies.set(SESSION, "chosen", domain="console.example")
    await browser.sign_in("alice", "alice's")
    (cookie,) = (each.value for each in browser.cookies.jar if each.name == SESSION and each.value != "chosen")
    assert cookie is not None
    assert re.fullmatch(r"[\w-]{43}", cookie)
    stranger = Browser(app)
    stranger.cookies.set(SESSION, "chosen", domain="console.example")
    assert (await stranger.get("/")).status_code == 303


async def test_a_sign_in_ends_the_session_that_the_browser_had() -> None:
    app, _ = passwords_app()
    victim, mallory = Browser(app), Browser(app)
    await mallory.sign_in("vera", "vera's")
    planted = mallory.cookies[SESSION]
    token = await victim.token()
    victim.cookies.set(SESSION, planted, domain="console.example", path="/")
    form = {"csrf_token": token, "name": "alice", "password": "alice's"}
    answer = await victim.post("/sign-in", data=form, headers=victim.from_here)
    assert cookies_of(answer)[SESSION].partition(";")[0] != planted
    assert (await mallory.get("/")).status_code == 303
    assert [each.user.name for each in app.access.sessions._sessions.values()] == ["alice"]


async def test_a_session_ends_at_the_sign_out() -> None:
    app, _ = passwords_app()
    browser, thief = Browser(app), Browser(app)
    await browser.sign_in("alice", "alice's")
    thief.cookies = browser.cookies.copy() if hasattr(browser.cookies, "copy") else browser.cookies
    token = (await browser.me())[2]
    assert (await browser.get("/sign-out")).status_code in (404, 405)
    assert (await browser.post("/sign-out", headers=browser.from_here)).status_code == 403
    kept = browser.cookies[SESSION]
    assert (await browser.post("/sign-out", data={"csrf_token": token}, headers=browser.from_here)).status_code == 303
    assert SESSION not in browser.cookies
    browser.cookies.set(SESSION, kept, domain="console.example")
    assert (await browser.get("/")).status_code == 303
    assert len(app.access.sessions) == 0


async def test_a_session_ends_when_it_is_idle_or_old() -> None:
    app, _ = passwords_app(idle_seconds=100.0, most_seconds=250.0)
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    for _ in range(2):
        app.clock.now += 99
        await browser.me()
    app.clock.now += 99
    assert (await browser.get("/")).status_code == 303  # 297 s after its begin
    await browser.sign_in("alice", "alice's")
    app.clock.now += 60
    assert (await browser.get("/", headers={"HX-Request": "true"})).status_code == 200
    app.clock.now += 60
    assert (await browser.get("/")).status_code == 303
    assert len(app.access.sessions) == 0


async def test_a_user_whose_password_no_longer_holds_is_out() -> None:
    app, passwords = passwords_app()
    browser = Browser(app)
    await browser.sign_in("alice", "alice's")
    passwords.is_reachable = False
    app.clock.now += CHECK_SECONDS
    await browser.me()
    await eventually(lambda: passwords.tried == 2)
    await browser.me()
    passwords.is_reachable = True
    passwords.users["alice"] = "another"
    app.clock.now += CHECK_SECONDS
    await browser.get("/")
    await eventually(lambda: len(app.access.sessions) == 0)
    assert (await browser.get("/")).status_code == 303


def sessions_of(ended: list[Session] | None = None) -> Sessions:
    told: list[Session] = [] if ended is None else ended
    return Sessions(Clock(), idle_seconds=100, most_seconds=1_000, ended=told.append)


def signed_in(name: str) -> SignedIn:
    return SignedIn(
        user=User(name=name, role=Role.VIEWER, proof=Proof.PASSWORD), client_options={"sasl_password": "secret"}
    )


def test_sessions_are_bounded() -> None:
    ended: list[Session] = []
    sessions = sessions_of(ended)
    first = sessions.begin(signed_in("someone"))
    for _ in range(MOST_OF_USER + 5):
        sessions.begin(signed_in("vera"))
    assert len(sessions) == MOST_OF_USER + 1
    assert sessions.find(first.id) is first
    for number in range(MOST_SESSIONS):
        sessions.begin(signed_in(str(number)))
    assert len(sessions) == MOST_SESSIONS
    assert first.is_over
    assert len(ended) == 5 + MOST_OF_USER + 1


def test_no_secret_is_in_the_text_of_a_session() -> None:
    session = sessions_of().begin(signed_in("vera"))
    for secret in ("secret", session.id, session.csrf_token):
        assert secret not in repr(session)
    assert "alice's" not in repr(with_passwords(client_options={**CLUSTER, "sasl_password": "alice's"}))


# --- guessing ---------------------------------------------------------------------------------------------------------


async def test_guessing_a_password_is_slowed_down() -> None:
    app, passwords = passwords_app()
    browser = Browser(app)
    for _ in range(OF_USER_AT_ADDRESS.burst):
        assert (await browser.sign_in("alice", "wrong")).status_code == 403
    refused = await browser.sign_in("alice", "alice's")
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= OF_USER_AT_ADDRESS.seconds + 1
    assert passwords.tried == OF_USER_AT_ADDRESS.burst
    assert (await browser.sign_in("bob", "bob's")).status_code == 303
    elsewhere = Browser(app, address="192.0.2.8")
    assert (await elsewhere.sign_in("alice", "alice's")).status_code == 303
    app.clock.now += OF_USER_AT_ADDRESS.seconds
    assert (await Browser(app).sign_in("alice", "alice's")).status_code == 303


async def test_one_address_may_try_only_so_many_names() -> None:
    app, passwords = passwords_app()
    for number in range(OF_ADDRESS.burst):
        assert (await Browser(app).sign_in(f"user{number}", "x")).status_code == 403
    assert (await Browser(app).sign_in("vera", "vera's")).status_code == 429
    assert passwords.tried == OF_ADDRESS.burst


async def test_many_addresses_guess_no_faster() -> None:
    app, _ = passwords_app()
    for number in range(OF_USER.burst):
        assert (await Browser(app, address=f"198.51.100.{number}").sign_in("alice", "x")).status_code == 403
    assert (await Browser(app, address="203.0.113.1").sign_in("alice", "x")).status_code == 429


async def test_those_who_know_their_password_may_sign_in_often() -> None:
    app, _ = passwords_app()
    for _ in range(3 * OF_ADDRESS.burst):
        assert (await Browser(app).sign_in("alice", "alice's")).status_code == 303


async def test_a_cluster_that_cannot_be_asked_locks_nobody_out() -> None:
    app, passwords = passwords_app()
    passwords.is_reachable = False
    for _ in range(2 * OF_USER_AT_ADDRESS.burst):
        assert (await Browser(app).sign_in("alice", "alice's")).status_code == 503
    passwords.is_reachable = True
    assert (await Browser(app).sign_in("alice", "alice's")).status_code == 303


def test_attempts_are_kept_in_bounded_memory() -> None:
    attempts = Attempts(Clock())
    for number in range(MOST_KEPT + 100):
        assert attempts.begin(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", f"user{number}") == 0
    assert len(attempts) == 3 * MOST_KEPT


async def test_names_take_little_memory() -> None:
    attempts = Attempts(Clock())
    attempts.begin("192.0.2.1", "x" * 1_000_000)
    counts = (attempts._addresses, attempts._pairs, attempts._users)
    assert max(len(key) for each in counts for key in each._counts) < 500
    app, passwords = passwords_app()
    browser = Browser(app)
    assert (await browser.sign_in("%" * 20_000, "x")).status_code == 413
    assert passwords.tried == 0


def test_an_address_of_ipv6_counts_by_its_network() -> None:
    assert network_of("2001:db8:0:1::5") == network_of("2001:db8:0:1:ffff::1%eth0") == "2001:db8:0:1::/64"
    assert network_of("2001:db8:0:2::5") != network_of("2001:db8:0:1::5")
    assert network_of("::ffff:192.0.2.7") == network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("") == ""


async def test_proxies_headers_do_not_change_the_address() -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    for number in range(OF_USER_AT_ADDRESS.burst + 1):
        token = await browser.token()
        headers = {**browser.from_here, "X-Forwarded-For": f"10.0.0.{number}", "Forwarded": f"for=10.0.0.{number}"}
        form = {"csrf_token": token, "name": "alice", "password": "x"}
        answer = await browser.post("/sign-in", data=form, headers=headers)
    assert answer.status_code == 429


# --- where one goes from there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "destination",
    [
        "https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
        "javascript:alert(1)", "evil.example", " /topic", "/a\r\nSet-Cookie: x=y", "/a\nb", "/%0d%0a\n", "/a b", "",
        "https:evil.example", "/" + "a" * 3_000, "///evil.example", "/é",
    ],
)  # fmt: skip
async def test_a_sign_in_leads_only_to_pages_of_the_console(destination: str) -> None:
    app, _ = passwords_app()
    browser = Browser(app)
    answer = await browser.sign_in("alice", "alice's", next=destination)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert set(cookies_of(answer)) == {SESSION, app.access.cookies.visitor}
    assert (await browser.get("/sign-in", params={"next": destination})).headers["Location"] == "/"


async def test_names_are_escaped_in_the_page() -> None:
    app, _ = passwords_app()
    page = await Browser(app).get("/sign-in", params={"next": '/"><script>alert(1)</script>'})
    assert "<script" not in page.text
    assert "&lt;script&gt;" in page.text


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1", "kafka.example", "::", "127.evil.example"])
def test_a_console_beyond_this_machine_needs_a_sign_in(host: str) -> None:
    with pytest.raises(ValueError, match="needs a sign-in"):
        AccessSettings(host=host)
    with pytest.raises(ValueError, match="needs a sign-in"):
        AccessSettings(host=host, allow_changes=True)
    AccessSettings(host=host, has_passwords=True, client_options=CLUSTER)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_a_console_on_this_machine_needs_none(host: str) -> None:
    AccessSettings(host=host)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"allow_changes": True}, "name the operators instead"),
        ({"client_options": {}}, "SASL_PLAINTEXT or SASL_SSL"),
        ({"client_options": {"security_protocol": "SSL"}}, "SASL_PLAINTEXT or SASL_SSL"),
        ({"mechanism": "GSSAPI"}, "mechanism"),
        ({"url": "ftp://x"}, "https"),
        ({"url": "https://user@x"}, "https"),
        ({"url": "https://x/console"}, "has a path"),
    ],
)
def test_settings_that_make_no_sense_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        with_passwords(**more)


def test_operators_are_principals() -> None:
    assert parse_principal("User:alice") in with_passwords().operators
    assert App(with_passwords()).access.passwords is not None
