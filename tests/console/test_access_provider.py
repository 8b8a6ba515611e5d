"""Signing in at an identity provider, and every way in which its answers, or those of attackers, are wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kraftpy.console.access import AccessSettings, OidcSettings
from kraftpy.console.access.provider import LEAST_SECONDS, Provider, roles_of
from kraftpy.endpoints import EndpointError
from tests.console.guarded_app import App, Browser, Clock, audit_lines
from tests.security.tokens import ABSENT, Issuer, encoded, hmac_token, unsecured_token

ISSUER = "https://id.example/realms/kafka"
CLIENT = "kafka console"
SECRET = "c:l&i ent's"
ISSUED = Issuer()


class IdentityProvider:
    """A provider that a test can make lie. `ask` answers in place of `kraftpy.endpoints.fetch`."""

    def __init__(self) -> None:
        self.description: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": "https://id.example/authorize",
            "token_endpoint": "https://id.example/token",
            "jwks_uri": "https://id.example/keys",
        }
        self.keys: tuple[str, ...] = ("rsa", "ec")
        self.challenges: dict[str, str] = {}
        self.claims: dict[str, Any] = {"groups": ["kafka-viewers"]}
        self.nonce = ""
        self.make: Callable[..., str] = ISSUED.token
        self.answer: bytes | None = None
        self.asked: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.is_reachable = True

    def ask(self, url: str, most_bytes: int, *, trusted: Any = None, headers: Any = None, body: str = "") -> bytes:
        self.asked.append(url)
        if not self.is_reachable:
            raise EndpointError(f"{url}: no answer")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps(self.description).encode()
        if url == "https://id.example/keys":
            return ISSUED.jwks(*self.keys)
        assert url == "https://id.example/token"
        form = parse_qs(body)
        self.forms.append({**form, "authorization": [(headers or {}).get("Authorization", "")]})
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"][0].encode()).digest())
        if self.challenges.get(form["code"][0]) != challenge.rstrip(b"=").decode():
            raise EndpointError(f"{url} answered with status 400", is_refusal=True)
        del self.challenges[form["code"][0]]
        if self.answer is not None:
            return self.answer
        usual = {"iss": ISSUER, "aud": CLIENT, "nonce": self.nonce, **self.claims}
        return json.dumps({"access_token": "x", "token_type": "Bearer", "id_token": self.make(**usual)}).encode()

    def authorize(self, url: str, code: str = "a code") -> dict[str, str]:
        """Sign a user in: what the provider's page does with a URL that a browser was sent to."""
        parts = urlsplit(url)
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == "https://id.example/authorize"
        asked = {name: value for name, (value,) in parse_qs(parts.query).items()}
        assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == ("code", "S256", CLIENT)
        self.challenges[code], self.nonce = asked["code_challenge"], asked["nonce"]
        return {"code": code, "state": asked["state"]}


def oidc(**more: Any) -> OidcSettings:
    return OidcSettings(
        **{
            "issuer": ISSUER,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "operators": frozenset({"kafka-operators"}),
            "viewers": frozenset({"kafka-viewers"}),
            **more,
        }
    )


class World:
    """The application, its provider, and a browser."""

    def __init__(self, **more: Any) -> None:
        self.provider = IdentityProvider()
        self.clock = Clock()
        settings = AccessSettings(host="console.example", port=8443, is_tls=True, oidc=oidc(**more))
        assert settings.oidc is not None
        self.app = App(settings, provider=Provider(settings.oidc, self.clock, ask=self.provider.ask))
        self.browser = Browser(self.app)

    async def leave(self, destination: str = "/", browser: Browser | None = None) -> dict[str, str]:
        """Go to the provider, and sign in there; return the query with which it sends the browser back."""
        answer = await (browser or self.browser).get("/sign-in/provider", params={"next": destination})
        assert answer.status_code == 303, answer.text
        return self.provider.authorize(answer.headers["Location"])

    async def sign_in(self, destination: str = "/") -> Any:
        return await self.browser.get("/sign-in/return", params=await self.leave(destination))

    async def refused(self, query: dict[str, str] | None = None) -> str:
        """The page of a sign-in that does not succeed."""
        answer = await self.browser.get("/sign-in/return", params=query or await self.leave())
        assert answer.status_code == 403
        assert len(self.app.access.sessions) == 0
        assert (await self.browser.get("/")).status_code == 303
        return answer.text


@pytest.mark.parametrize(("group", "role"), [("kafka-viewers", "viewer"), ("kafka-operators", "operator")])
async def test_the_provider_signs_in(group: str, role: str) -> None:
    world = World()
    world.provider.claims = {"groups": ["staff", group], "sub": "f81d4fae"}
    with audit_lines() as lines:
        answer = await world.sign_in("/topic?name=a")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topic?name=a")
    assert (await world.browser.me())[:2] == ("f81d4fae", role)
    assert [(each["decision"], each["operation"], each["proof"]) for each in lines] == [("ALLOWED", "SIGN_IN", "oidc")]
    (form,) = world.provider.forms
    pair = base64.b64decode(form["authorization"][0].removeprefix("Basic ")).decode()
    assert pair == "kafka+console:c%3Al%26i+ent%27s"  # RFC 6749, 2.3.1
    assert form["redirect_uri"] == ["https://console.example:8443/sign-in/return"]
    assert "client_secret" not in form
    page = (await Browser(world.app).get("/sign-in?next=/topic")).text
    assert 'href="/sign-in/provider?next=%2Ftopic"' in page
    assert "password" not in page


async def test_a_secret_is_posted_if_the_provider_takes_it_only_so() -> None:
    world = World()
    world.provider.description["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    await world.sign_in()
    (form,) = world.provider.forms
    assert (form["client_secret"], form["client_id"], form["authorization"]) == ([SECRET], [CLIENT], [""])


async def test_a_public_client_has_no_secret() -> None:
    world = World(client_secret=None)
    assert (await world.sign_in()).status_code == 303
    (form,) = world.provider.forms
    assert (form["client_id"], form["authorization"]) == ([CLIENT], [""])


async def test_a_sign_in_ends_in_the_browser_in_which_it_began() -> None:
    world = World()
    mallory = Browser(world.app)
    stolen = await world.leave(browser=mallory)
    assert "did not begin in this browser" in await world.refused(stolen)  # without a cookie
    await world.leave()
    assert "did not begin in this browser" in await world.refused(stolen)  # with one of another sign-in
    assert world.provider.forms == []


@pytest.mark.parametrize("state", ["", "x", "é", "\0", None])
async def test_a_wrong_state_is_refused(state: str | None) -> None:
    world = World()
    query = await world.leave()
    await world.refused({name: value for name, value in {**query, "state": state}.items() if value is not None})
    assert world.provider.forms == []


async def test_a_way_back_is_used_once_and_ends() -> None:
    world = World()
    query = await world.leave()
    answer = await world.browser.get("/sign-in/return", params=query)
    assert answer.status_code == 303
    way = world.app.access.cookies.way
    assert any(each.startswith(f"{way}=;") and "Max-Age=0" in each for each in answer.headers.get_list("set-cookie"))
    again = await Browser(world.app).get("/sign-in/return", params=query)
    assert again.status_code == 403


async def test_an_answer_of_another_issuer_is_refused() -> None:
    world = World()
    await world.refused({**await world.leave(), "iss": "https://other.example"})
    assert world.provider.forms == []
    query = await world.leave()
    assert (await world.browser.get("/sign-in/return", params={**query, "iss": ISSUER})).status_code == 303


@pytest.mark.parametrize("more", [{"error": "access_denied"}, {"code": ""}, {"code": "x" * 5_000}])
async def test_an_answer_without_a_code_is_refused(more: dict[str, str]) -> None:
    world = World()
    page = await world.refused({**await world.leave(), **more, "error_description": "<script>evil</script>"})
    assert "evil" not in page
    assert world.provider.forms == []


async def test_a_code_of_another_sign_in_is_refused_by_the_provider() -> None:
    world = World()
    mallory = Browser(world.app)
    answer = await mallory.get("/sign-in/provider")
    world.provider.authorize(answer.headers["Location"], code="mallory's")
    query = await world.leave()
    await world.refused({**query, "code": "mallory's"})


HOUR = 3_600
WRONG_CLAIMS: dict[str, dict[str, Any]] = {
    "no nonce": {"nonce": ABSENT},
    "another nonce": {"nonce": "x"},
    "a nonce that is no text": {"nonce": 5},
    "another audience": {"aud": "other"},
    "no audience": {"aud": ABSENT},
    "several audiences and no azp": {"aud": [CLIENT, "other"]},
    "another azp": {"azp": "other"},
    "several audiences and another azp": {"aud": [CLIENT, "other"], "azp": "other"},
    "another issuer": {"iss": "https://other.example"},
    "a longer issuer": {"iss": ISSUER + "/"},
    "no issuer": {"iss": ABSENT},
    "expired": {"exp": time.time() - HOUR, "iat": time.time() - 2 * HOUR},
    "no end": {"exp": ABSENT},
    "not yet valid": {"nbf": time.time() + HOUR},
    "no name": {"sub": ABSENT},
    "an empty name": {"sub": " "},
    "a name that is no text": {"sub": ["alice"]},
    "a name with control characters": {"sub": "al\nice"},
    "a long name": {"sub": "a" * 300},
}


@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
async def test_a_token_that_claims_something_else_is_refused(claims: dict[str, Any]) -> None:
    world = World()
    world.provider.claims |= claims
    await world.refused()
    assert len(world.provider.forms) == 1


def with_foreign_key(**claims: Any) -> str:
    return Issuer().token(**claims)


def with_key_inside(**claims: Any) -> str:
    """Signed by a key that the token brings along."""
    mallory = Issuer()
    (described,) = mallory.described("rsa")
    return mallory.token(header={"kid": ABSENT, "jwk": described, "jku": "https://evil.example/keys"}, **claims)


def changed_after_signing(**claims: Any) -> str:
    header, _, signature = ISSUED.token(**claims).split(".")
    at = int(time.time())
    return f"{header}.{encoded({**claims, 'sub': 'root', 'iat': at, 'exp': at + 600})}.{signature}"


FORGERIES: dict[str, Callable[..., str]] = {
    "alg none": lambda **claims: unsecured_token(**claims),
    "alg None": lambda **claims: unsecured_token("None", **claims),
    "alg none with a signature": lambda **claims: unsecured_token(signature="x", **claims),
    "HS256 with the public key": lambda **claims: hmac_token(ISSUED.public_pem("rsa"), {"kid": "rsa"}, **claims),
    "HS256 with the client's secret": lambda **claims: hmac_token(SECRET.encode(), {}, **claims),
    "a foreign key": with_foreign_key,
    "a key in the token": with_key_inside,
    "an unknown key": lambda **claims: ISSUED.token("p384", "ES384", **claims),
    "an algorithm of another key": lambda **claims: ISSUED.token("ec", "ES256", {"kid": "rsa"}, **claims),
    "changed after signing": changed_after_signing,
    "no token": lambda **_: "x",
    "no JSON": lambda **_: "x.y.z",
    "a critical header": lambda **claims: ISSUED.token(header={"crit": ["b64"], "b64": False}, **claims),
}


@pytest.mark.parametrize("make", FORGERIES.values(), ids=FORGERIES)
async def test_a_forged_token_is_refused(make: Callable[..., str]) -> None:
    world = World()
    world.provider.make = make
    world.provider.claims = {"groups": ["kafka-operators"]}
    await world.refused()
    assert len(world.provider.forms) == 1


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"id_token": 5}', b"\xff", b"[" * 100_000])
async def test_an_answer_without_a_token_is_refused(answer: bytes) -> None:
    world = World()
    world.provider.answer = answer
    await world.refused()


@pytest.mark.parametrize("groups", [ABSENT, [], "staff", ["staff"], ["Kafka-Operators"], [["kafka-operators"]], 5, {}])
async def test_a_user_without_a_role_is_not_let_in(groups: Any) -> None:
    world = World()
    world.provider.claims = {"groups": groups}
    assert "have no role in this console" in await world.refused()


async def test_everyone_may_be_a_viewer() -> None:
    world = World(viewers=frozenset({"*"}))
    world.provider.claims = {}
    await world.sign_in()
    assert (await world.browser.me())[:2] == ("alice", "viewer")


def test_a_role_may_be_in_a_nested_claim() -> None:
    claims = {"realm_access": {"roles": ["a", 5, "b"]}, "x.y": "c", "x": {"y": "d"}}
    assert roles_of(claims, "realm_access.roles") == {"a", "b"}
    assert roles_of(claims, "x.y") == {"c"}
    assert roles_of(claims, "x.y.z") == roles_of(claims, "nothing") == frozenset()


async def test_operators_among_the_cluster_s_users_are_none_at_the_provider() -> None:
    """Nobody becomes an operator by having an operator's name at the provider."""
    world = World()
    assert (await world.sign_in()).status_code == 303
    assert (await world.browser.me())[:2] == ("alice", "viewer")


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://other.example"},
        {"issuer": None},
        {"token_endpoint": None},
        {"token_endpoint": 5},
        {"token_endpoint": "http://id.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "file:///etc/keys"},
        {"jwks_uri": "https://user@id.example/keys"},
    ],
)
async def test_a_description_that_cannot_be_trusted_signs_nobody_in(change: dict[str, Any]) -> None:
    world = World()
    world.provider.description |= change
    answer = await world.browser.get("/sign-in/provider")
    assert answer.status_code == 503
    assert "https://id.example/token" not in world.provider.asked


async def test_a_provider_that_does_not_answer_is_said_so() -> None:
    world = World()
    world.provider.is_reachable = False
    answer = await world.browser.get("/sign-in/provider")
    assert answer.status_code == 503
    assert "cannot be asked" in answer.text
    world.provider.is_reachable = True
    assert (await world.sign_in()).status_code == 303


async def test_keys_are_asked_for_again_if_one_is_unknown_but_not_always() -> None:
    world = World()
    world.provider.keys = ("ec",)
    world.provider.make = ISSUED.token
    await world.refused()
    world.provider.keys = ("rsa",)
    await world.refused()
    assert world.provider.asked.count("https://id.example/keys") == 1
    world.clock.now += LEAST_SECONDS
    assert (await world.sign_in()).status_code == 303
    assert world.provider.asked.count("https://id.example/keys") == 2


async def test_the_way_back_is_limited_like_other_attempts() -> None:
    world = World()
    world.provider.claims = {"aud": "other"}
    statuses = set()
    for _ in range(40):
        answer = await world.browser.get("/sign-in/return", params=await world.leave())
        statuses.add("Too many attempts" in answer.text)
    assert statuses == {True, False}
    assert len(world.provider.forms) == 30


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"issuer": "http://id.example"}, "https"),
        ({"issuer": "id.example"}, "https"),
        ({"scopes": ("profile",)}, "openid"),
        ({"client_id": ""}, "client id"),
        ({"operators": frozenset(), "viewers": frozenset()}, "nobody"),
    ],
)
def test_settings_that_make_no_sense_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        oidc(**more)


def test_no_secret_is_in_the_text_of_settings() -> None:
    assert SECRET not in repr(oidc())
    assert oidc(issuer="http://127.0.0.1:8080/realm").issuer
