"""Tokens for logins by OAUTHBEARER, of clients and of nodes: fetched from their source, and shared by connections.

A token comes from a function of the application, or from the source that settings name (`config.token_sources`). All
connections of a client share a token until four fifths of its lifetime have passed, and so do those of a node; a token
without a known expiry is fetched for each login. If a new token cannot be had, the old one is used until it expires.
Fetching blocks, so logins do it in a thread.

Left out: allow lists of a client's URLs, because the application chooses the URL itself.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from kraftpy.client.assertions import CLIENT_ASSERTION, GRANT, UnusableAssertion, assertion_of
from kraftpy.client.options import flag, whole
from kraftpy.config.settings import ConfigError
from kraftpy.config.token_sources import TokenSource, token_source
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.security.json_web_tokens import MOST_TOKEN_BYTES, expiry_ms_of

if TYPE_CHECKING:
    from kraftpy.client.options import ClientOptions
    from kraftpy.security.jaas import Login as JaasLogin

TokenProvider = Callable[[], str]
"""Returns a token. Called in a thread, for one login at a time."""

_USED_SHARE: Final = 0.8
_RETRY_MS: Final = 10_000
"""How long a token is used on, before another one is asked for again, when that has failed."""
_MOST_ANSWER_BYTES: Final = 2 * MOST_TOKEN_BYTES
_MOST_SECONDS: Final = {
    "sasl_oauthbearer_assertion_claim_exp_seconds": 86_400,
    "sasl_oauthbearer_assertion_claim_nbf_seconds": 3_600,
}
"""The largest values of these options, as in Kafka."""
_FLAGS: Final = ("sasl_oauthbearer_assertion_claim_jti_include", "sasl_oauthbearer_header_urlencode")


class _Token(NamedTuple):
    text: str
    used_until_ms: float
    end_ms: float


class Tokens:
    """A client's tokens. `get` returns a token, and its lifetime in seconds unless only the token itself tells it."""

    def __init__(
        self, get: Callable[[], tuple[str, float | None]], now_ms: Callable[[], float] = lambda: time.time() * 1000
    ) -> None:
        self._get = get
        self._now_ms = now_ms
        self._turn = threading.Lock()
        self._token: _Token | None = None

    def token(self) -> str:
        """Return a token that has not expired. Blocks. Raises KafkaError."""
        with self._turn:
            now_ms = self._now_ms()
            if self._token is None or now_ms >= self._token.used_until_ms:
                try:
                    self._token = self._fetched(now_ms)
                except KafkaError:
                    if self._token is None or now_ms >= self._token.end_ms:
                        raise
                    self._token = self._token._replace(used_until_ms=now_ms + _RETRY_MS)
            return self._token.text

    def _fetched(self, now_ms: float) -> _Token:
        text, seconds = self._get()
        end_ms = expiry_ms_of(text) if seconds is None else now_ms + seconds * 1000
        if end_ms is None:
            return _Token(text, now_ms, now_ms)
        return _Token(text, now_ms + _USED_SHARE * (end_ms - now_ms), end_ms)


def tokens_of(options: ClientOptions, jaas: JaasLogin | None) -> Tokens:
    """Return the source of tokens that the options name. Raises ValueError, which names the option."""
    provider, url = options.sasl_oauthbearer_token_provider, options.sasl_oauthbearer_token_endpoint_url
    if provider is not None and url is not None:
        raise ValueError("sasl_oauthbearer_token_provider and sasl_oauthbearer_token_endpoint_url exclude each other")
    if provider is not None:
        if not callable(provider):
            raise ValueError("sasl_oauthbearer_token_provider must be a function that returns a token")
        return Tokens(lambda: (_provided(provider), None))
    if url is None:
        raise ValueError("sasl_oauthbearer_token_provider or sasl_oauthbearer_token_endpoint_url must be given")
    parts = urlsplit(url)
    is_endpoint = parts.scheme in ("https", "http") and parts.hostname and "@" not in parts.netloc
    if parts.scheme != "file" and not is_endpoint:
        raise ValueError("sasl_oauthbearer_token_endpoint_url must be an https, http or file URL")
    for name, high in _MOST_SECONDS.items():
        whole(name, getattr(options, name), high=high)
    for name in _FLAGS:
        flag(name, getattr(options, name))
    given = {} if jaas is None else jaas.options
    try:
        found = token_source(
            lambda name: getattr(options, name.replace(".", "_")), lambda name: name.replace(".", "_"), given
        )
    except ConfigError as error:
        raise ValueError(str(error)) from None
    assert found is not None, "there is a URL"
    source = replace(found, is_url_encoded=options.sasl_oauthbearer_header_urlencode)
    return Tokens(functools.partial(_from, source))


@functools.lru_cache(maxsize=64)
def tokens_from(source: TokenSource) -> Tokens:
    """Return the tokens of a source, which all connections of this process to other nodes share."""
    return Tokens(functools.partial(_from, source))


def _from(source: TokenSource) -> tuple[str, float | None]:
    """Get a token; return it, and its lifetime in seconds if the source tells it. Raises KafkaError."""
    if source.is_file:
        return _checked(_fetched(source.url).decode(errors="replace").strip()), None
    url, headers, form = source.url, dict[str, str](), {"grant_type": "client_credentials"}
    if source.assertion is None:
        headers["Authorization"] = f"Basic {_basic(source)}"
    else:
        try:
            assertion = assertion_of(source.assertion, time.time())
        except UnusableAssertion as error:
            raise _failure(str(error)) from None
        if source.is_for_assertion:
            form = {"grant_type": GRANT, "assertion": assertion}
        else:
            form |= {"client_assertion_type": CLIENT_ASSERTION, "client_assertion": assertion}
            form |= {"client_id": source.client_id} if source.client_id else {}
    body = urlencode({**form, **({"scope": source.scope} if source.scope else {})})
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    answer: Any
    try:
        answer = json.loads(_fetched(url, headers=headers, body=body, trusted=source.trusted))
        token, seconds = answer["access_token"], answer.get("expires_in")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _failure(f"{url} answered without an access_token") from None
    is_known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 2**31
    return _checked(token), float(seconds) if is_known else None


def _basic(source: TokenSource) -> str:
    """Return a client's id and secret as an HTTP header has them."""
    shown = (source.client_id, source.secret)
    return b64encode(":".join(map(quote_plus, shown) if source.is_url_encoded else shown).encode()).decode()


def _provided(provider: TokenProvider) -> str:
    try:
        token = provider()
    except KafkaError:
        raise
    except Exception as error:
        raise _failure(f"the token provider failed: {type(error).__name__}") from error
    return _checked(token)


def _fetched(url: str, **how: Any) -> bytes:
    try:
        return fetch(url, _MOST_ANSWER_BYTES, **how)
    except EndpointError as error:
        raise _failure(str(error), is_final=error.is_refusal) from None


def _checked(token: object) -> str:
    """Return the token if a login can carry it. Raises KafkaError, which does not quote it."""
    if not isinstance(token, str) or not token or len(token) > MOST_TOKEN_BYTES:
        raise _failure("the token is not a text, or is empty or too long")
    return token


def _failure(reason: str, *, is_final: bool = True) -> KafkaError:
    code = ErrorCode.SASL_AUTHENTICATION_FAILED if is_final else ErrorCode.NETWORK_EXCEPTION
    return KafkaError(code, f"no token for OAUTHBEARER: {reason}")
