"""Signs users in at an OpenID Connect provider: the code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core).

`state` binds the way back to the browser that set out, the verifier binds the code to this console, and `nonce` binds
the token to this sign-in. The token's signature, algorithm, issuer, audience and times are checked like those of
clients' tokens (`kraftpy.security.json_web_tokens`): asymmetric algorithms only, and only the keys in the provider's
JWKS.

The provider's description must name the issuer that is configured, and every URL in it must be https (http for a
provider on this machine). Description and keys are asked for again after `FRESH_SECONDS`, keys also if a token names an
unknown one, but not more often than every `LEAST_SECONDS`. `MOST_AT_ONCE` requests run at the same time. Requests run
in threads, with the bounds of `kraftpy.endpoints`.

Raises `NotSignedIn`, with a text for the user that quotes nothing; the reason goes to the log.

Left out: signing out at the provider, refreshing tokens, userinfo: a role is what the token says at the sign-in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from kraftpy.console.access.cookies import Way, same
from kraftpy.console.access.settings import EVERYONE, OidcSettings, check_provider_url
from kraftpy.console.access.users import Proof, Role, SignedIn, User
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.security.json_web_tokens import (
    MOST_JWKS_BYTES,
    InvalidToken,
    JwksError,
    KeySet,
    TokenRules,
    claims_of,
    parse_jwks,
    read_header,
    verify,
)

logger = logging.getLogger(__name__)

FRESH_SECONDS: Final = 3_600.0
LEAST_SECONDS: Final = 10.0
MOST_AT_ONCE: Final = 4
MOST_ANSWER_BYTES: Final = 256 * 1024
MOST_CODE_CHARACTERS: Final = 4_096
MOST_NAME_CHARACTERS: Final = 255
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_UNREACHABLE: Final = "The identity provider cannot be asked. The console's log says why."
_REFUSED: Final = "The identity provider's answer cannot be trusted. The console's log says why."


class NotSignedIn(Exception):
    """A sign-in at the provider did not succeed. The message is for the user."""


@dataclass(frozen=True, slots=True)
class _Description:
    """The provider's endpoints, its keys, and the time until which they are fresh."""

    endpoints: Mapping[str, str]
    posts_secret: bool
    """True if the provider takes the client's secret in the form only."""
    keys: KeySet
    asked_at: float


class Provider:
    """One provider. `ask` is `kraftpy.endpoints.fetch`; `now` gives seconds since 1970."""

    def __init__(
        self,
        settings: OidcSettings,
        clock: Callable[[], float],
        *,
        ask: Callable[..., bytes] = fetch,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._ask = ask
        self._now = now
        self._description: _Description | None = None
        self._lock = asyncio.Lock()
        self._running = 0

    async def url(self, way: Way, return_url: str) -> str:
        """Return the URL at the provider where a user's sign-in begins."""
        description = await self._described()
        challenge = urlsafe_b64encode(hashlib.sha256(way.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": return_url,
            "scope": " ".join(self._settings.scopes),
            "state": way.state,
            "nonce": way.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = description.endpoints["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def signed_in(self, way: Way, answer: Mapping[str, str], return_url: str) -> SignedIn:
        """Return the user whom the provider has sent back with an answer in the URL's query."""
        if not same(answer.get("state", ""), way.state):
            logger.warning("a sign-in was refused: its state is not that of the browser")
            raise NotSignedIn("This sign-in did not begin in this browser, or too long ago. Begin again.")
        if (issuer := answer.get("iss")) is not None and issuer != self._settings.issuer:  # RFC 9207
            logger.warning("a sign-in was refused: the answer is of another issuer")
            raise NotSignedIn(_REFUSED)
        code = answer.get("code", "")
        if "error" in answer or not code or len(code) > MOST_CODE_CHARACTERS:
            logger.warning("a sign-in was refused by the provider: %r", answer.get("error", "no code")[:100])
            raise NotSignedIn("The identity provider did not sign you in.")
        description = await self._described()
        token = await self._token(description, code, way, return_url)
        if _names_unknown_key(token, description.keys):
            description = await self._described(is_key_missing=True)
        return self._user(self._claims(token, description.keys, way))

    async def _token(self, description: _Description, code: str, way: Way, return_url: str) -> str:
        """Exchange a code for a user's token."""
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": return_url,
            "code_verifier": way.verifier,
            "client_id": settings.client_id,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if settings.client_secret is not None and description.posts_secret:
            form["client_secret"] = settings.client_secret
        elif settings.client_secret is not None:
            del form["client_id"]
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        answer = await self._asked(
            description.endpoints["token_endpoint"], MOST_ANSWER_BYTES, headers=headers, body=urlencode(form)
        )
        token = _object(answer).get("id_token")
        if not isinstance(token, str):
            logger.warning("a sign-in was refused: the provider answered without an id_token")
            raise NotSignedIn(_REFUSED)
        return token

    def _claims(self, token: str, keys: KeySet, way: Way) -> Mapping[str, Any]:
        """Return the claims of a token that is genuine, for this console, and for this sign-in."""
        settings = self._settings
        rules = TokenRules(issuer=settings.issuer, audience=(settings.client_id,), sub_claim_name=settings.name_claim)
        try:
            verify(token, keys, rules, int(self._now() * 1000))
            claims = claims_of(token)
            if not isinstance(claims.get("nonce"), str) or not same(claims["nonce"], way.nonce):
                raise InvalidToken("a token of another sign-in (nonce)")
            is_for_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
            if claims.get("azp", None if is_for_several else settings.client_id) != settings.client_id:
                raise InvalidToken("a token that was given to another client (azp)")
        except InvalidToken as error:
            logger.warning("a sign-in was refused: %s", error)
            raise NotSignedIn(_REFUSED) from None
        return claims

    def _user(self, claims: Mapping[str, Any]) -> SignedIn:
        settings = self._settings
        name = str(claims[settings.name_claim]).strip()
        if len(name) > MOST_NAME_CHARACTERS or not name.isprintable():
            logger.warning("a sign-in was refused: the name is too long or has control characters")
            raise NotSignedIn(_REFUSED)
        roles = roles_of(claims, settings.role_claim)
        if roles & settings.operators:
            role = Role.OPERATOR
        elif roles & settings.viewers or EVERYONE in settings.viewers:
            role = Role.VIEWER
        else:
            logger.warning("a sign-in was refused: %r has no role in %s", name, settings.role_claim)
            raise NotSignedIn("You are known to the identity provider, but have no role in this console.")
        return SignedIn(user=User(name=name, role=role, proof=Proof.OIDC))

    async def _described(self, *, is_key_missing: bool = False) -> _Description:
        """Return the provider's description and keys, asking for them if they are not fresh."""
        async with self._lock:
            known = self._description
            if known is not None:
                age = self._clock() - known.asked_at
                if age < (LEAST_SECONDS if is_key_missing else FRESH_SECONDS):
                    return known
            self._description = await self._describe()
            return self._description

    async def _describe(self) -> _Description:
        issuer = self._settings.issuer
        described = _object(
            await self._asked(f"{issuer.rstrip('/')}/.well-known/openid-configuration", MOST_ANSWER_BYTES)
        )
        endpoints = {name: described.get(name) for name in _ENDPOINTS}
        try:
            if described.get("issuer") != issuer:
                raise ValueError("its description is of another issuer")
            for name, url in endpoints.items():
                if not isinstance(url, str):
                    raise ValueError(f"its description has no {name}")
                check_provider_url(name, url)
            keys = parse_jwks(await self._asked(str(endpoints["jwks_uri"]), MOST_JWKS_BYTES))
        except (ValueError, JwksError) as error:
            logger.warning("nobody can sign in at %s: %s", issuer, error)
            raise NotSignedIn(_REFUSED) from None
        methods = described.get("token_endpoint_auth_methods_supported")
        return _Description(
            {name: str(url) for name, url in endpoints.items()},
            isinstance(methods, list) and "client_secret_post" in methods and "client_secret_basic" not in methods,
            keys,
            self._clock(),
        )

    async def _asked(self, url: str, most_bytes: int, **more: Any) -> bytes:
        if self._running >= MOST_AT_ONCE:
            raise NotSignedIn("Too many people are signing in. Try again in a moment.")
        self._running += 1
        try:
            return await asyncio.to_thread(self._ask, url, most_bytes, trusted=self._settings.trusted, **more)
        except (EndpointError, OSError) as error:
            logger.warning("nobody can sign in at %s: %s", self._settings.issuer, error)
            raise NotSignedIn(_UNREACHABLE) from None
        finally:
            self._running -= 1


def roles_of(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the values of a role claim: a text or a list of texts; dots lead into nested claims, as in Keycloak."""
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    listed = value if isinstance(value, list) else [value]
    return frozenset(each for each in listed if isinstance(each, str))


def _names_unknown_key(token: str, keys: KeySet) -> bool:
    """Return whether a token names a key that the provider did not have."""
    try:
        header = read_header(token)
    except InvalidToken:
        return False
    return header.key_id is not None and keys.find(header) is None


def _object(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        logger.warning("a sign-in was refused: the provider's answer is not a JSON object")
        raise NotSignedIn(_REFUSED)
    return found
