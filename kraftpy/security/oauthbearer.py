"""SASL's mechanism OAUTHBEARER (RFC 7628; KIP-255): the messages of both ends, without I/O.

    client                                                   server
    n,a=alice,^Aauth=Bearer eyJ..^Akey=value^A^A       ->
                                                       <-    an empty message, or {"status":"invalid_token"}
    ^A                                                 ->    only after a refusal, which then ends the authentication

The client does not learn why a token is refused. The identity to act as must be absent or the token's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.json_web_tokens import Header, InvalidToken, Verified, read_header
from kraftpy.security.sasl import Step

MECHANISM: Final = "OAUTHBEARER"
_END: Final = "\x01"
_HEAD: Final = re.compile(r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\Z")
_PAIR: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)\Z")
_BEARER: Final = re.compile(r"(\w+) +([-_.a-zA-Z0-9]+)\Z", re.ASCII)
_REFUSAL: Final = '{"status":"invalid_token"}'


def first_message(token: str, extensions: Mapping[str, str]) -> bytes:
    """Return a client's message. Raises ValueError for characters that it cannot carry."""
    pairs = "".join(f"{name}={value}{_END}" for name, value in extensions.items())
    message = f"n,,{_END}auth=Bearer {token}{_END}{pairs}{_END}"
    if not _BEARER.match(f"Bearer {token}") or not all(_is_extension(*each) for each in extensions.items()):
        raise ValueError("the token, or an extension of it, has characters that OAUTHBEARER does not allow")
    return message.encode("ascii")


def last_message() -> bytes:
    """Return a client's answer to a refusal."""
    return _END.encode()


def _is_extension(name: str, value: str) -> bool:
    return name != "auth" and _PAIR.match(f"{name}={value}") is not None


def refusal_of(answer: bytes) -> str | None:
    """Return the status with which a server refused a token; None if it accepted the token."""
    if not answer:
        return None
    try:
        status = json.loads(answer)["status"]
    except (ValueError, KeyError, TypeError, RecursionError):
        status = None
    return status if isinstance(status, str) and status.isprintable() and len(status) < 100 else "refused"


def parse_first(message: bytes) -> tuple[str, str]:
    """Return a client's token and the identity to act as, "" for none. Raises InvalidCredentials."""
    try:
        head, *pairs = message.decode("ascii").split(_END)
    except UnicodeDecodeError:
        raise InvalidCredentials("Invalid OAUTHBEARER client first message: it is not ASCII") from None
    match = _HEAD.match(head)
    if match is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise InvalidCredentials("Invalid OAUTHBEARER client first message")
    values: dict[str, str] = {}
    for pair in pairs[:-2]:
        found = _PAIR.match(pair)
        if found is None or found[1] in values:
            raise InvalidCredentials("Invalid OAUTHBEARER client first message: a malformed pair")
        values[found[1]] = found[2]
    bearer = _BEARER.match(values.get("auth", ""))
    if bearer is None or bearer[1].lower() != "bearer":
        raise InvalidCredentials("Invalid OAUTHBEARER client first message: there is no bearer token")
    return bearer[2], (match[1] or "").replace("=2C", ",").replace("=3D", "=")


class OauthBearerExchange:
    """The server's end: one token, and one more message if the token is refused.

    `verify` returns the name that a token proves, or raises InvalidToken. `prepare` returns what to await before
    `verify` gets a token with this header; None if nothing.
    """

    def __init__(self, verify: Callable[[str], Verified], prepare: Callable[[Header], Awaitable[None] | None]) -> None:
        self._verify = verify
        self._prepare = prepare
        self._refused: InvalidToken | None = None

    def prepare(self, token: bytes) -> Awaitable[None] | None:
        """Return what to await until the key that a token names is there; None if nothing."""
        if self._refused is not None:
            return None
        try:
            return self._prepare(read_header(parse_first(token)[0]))
        except InvalidCredentials:
            return None

    def evaluate(self, token: bytes) -> Step:
        """Check the client's token; after a refusal, end the authentication."""
        if self._refused is not None:
            raise AuthenticationFailed(_REFUSAL) from self._refused
        text, identity = parse_first(token)
        try:
            name, lifetime_ms = self._verify(text)
        except InvalidToken as refused:
            self._refused = refused
            return Step(_REFUSAL.encode())
        if identity not in ("", name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        return Step(b"", name, lifetime_ms)
