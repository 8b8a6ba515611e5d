"""The console's cookies, and the tokens that prove that a form came from the console's own page.

Three cookies, none of which a script can read:
- the session's id. `SameSite=Lax`, so that a link from elsewhere opens a page; changes are protected by their token.
- a visitor's: a random number, before there is a session. It binds the form of the sign-in page to one browser.
- the way to a provider: while a user signs in there, the number that `state`, `nonce` and the verifier are made from.

The last two are signed, and are not kept here, so that strangers cost no memory. The key is made at each start.

Over TLS, their names begin with `__Host-`, so that browsers refuse them from any other host or path. Names contain the
port, because browsers send a cookie to every port of its host.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from itsdangerous import BadSignature, URLSafeTimedSerializer

VISITOR_SECONDS: Final = 43_200
WAY_SECONDS: Final = 600
MOST_COOKIE_CHARACTERS: Final = 3_000
_NUMBER_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser without a session."""

    number: str = field(repr=False)
    csrf_token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A user's way to an identity provider and back (RFC 6749, RFC 7636). `repr` shows no secrets."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    destination: str
    """The path to open after the sign-in."""


class Cookies:
    """Makes and reads the values of the cookies."""

    def __init__(self, *, is_secure: bool, port: int) -> None:
        self.is_secure = is_secure
        prefix = f"{'__Host-' if is_secure else ''}kraftpy-console"
        self.session, self.visitor, self.way = (f"{prefix}-{each}-{port}" for each in ("session", "visitor", "way"))
        self._key = secrets.token_bytes(32)
        self._visitors = URLSafeTimedSerializer(self._key, salt="visitor")
        self._ways = URLSafeTimedSerializer(self._key, salt="way")

    def new_visitor(self) -> tuple[Visitor, str]:
        """Return a new visitor and the cookie's value."""
        number = secrets.token_urlsafe(_NUMBER_BYTES)
        return self._visitor(number), str(self._visitors.dumps(number))

    def find_visitor(self, cookies: Mapping[str, str]) -> Visitor | None:
        """Return the visitor with these cookies, if one of them is genuine."""
        number = _read(self._visitors, cookies.get(self.visitor), VISITOR_SECONDS)
        return self._visitor(number) if isinstance(number, str) else None

    def new_way(self, destination: str) -> tuple[Way, str]:
        """Return a new way to a provider and the cookie's value."""
        number = secrets.token_urlsafe(_NUMBER_BYTES)
        return self._way(number, destination), str(self._ways.dumps([number, destination]))

    def find_way(self, cookies: Mapping[str, str]) -> Way | None:
        """Return the way with these cookies, if one of them is genuine."""
        match _read(self._ways, cookies.get(self.way), WAY_SECONDS):
            case [str() as number, str() as destination]:
                return self._way(number, destination)
        return None

    def header(self, name: str, value: str, *, seconds: int | None = None) -> str:
        """Return the value of Set-Cookie; `seconds` is None for a cookie that ends with the browser, 0 deletes it."""
        age = "" if seconds is None else f"; Max-Age={seconds}"
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{age}{'; Secure' if self.is_secure else ''}"

    def _visitor(self, number: str) -> Visitor:
        return Visitor(number, self._derived("csrf", number))

    def _way(self, number: str, destination: str) -> Way:
        return Way(
            state=self._derived("state", number),
            nonce=self._derived("nonce", number),
            verifier=self._derived("verifier", number),
            destination=destination,
        )

    def _derived(self, purpose: str, number: str) -> str:
        return hmac.new(self._key, f"{purpose} {number}".encode(), hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Return whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _read(serializer: URLSafeTimedSerializer, value: str | None, seconds: int) -> object:
    if value is None or len(value) > MOST_COOKIE_CHARACTERS:
        return None
    try:
        found: object = serializer.loads(value, max_age=seconds)
    except BadSignature:
        return None
    return found
