"""The server's side of SASL on one connection: the mechanism, the state of the exchange, and the session's lifetime.

    INITIAL -> VERSIONS_TOLD -> AUTHENTICATE -> COMPLETE | FAILED

`SaslServer` knows the protocol's rules, but not its bytes: the broker's `security.authentication` decodes requests,
calls it, and encodes the answers. Times are monotonic milliseconds.

`evaluate` decides at once. If it needs something that takes time to get, such as a key from another host, `prepare`
returns an awaitable, which the caller awaits before it calls `evaluate`; other connections do not wait.

A session that expires is renewed on the same connection by the same mechanism and the same principal (KIP-368).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.plain import check_plain
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.security.scram import Mechanism, ScramCredential, ScramServer, token_id_of

_LEAST_BETWEEN_RENEWALS_MS: Final = 1_000
_LONGEST_SESSION_MS: Final = 2**42
"""The longest session, 139 years: a token may name any expiry time, and Java clients count in 64-bit nanoseconds."""


class IllegalState(Exception):
    """The request is not allowed in this state. The message is Kafka's."""


class Step(NamedTuple):
    """A mechanism's answer to a token; `name` is set once the exchange is done."""

    token: bytes
    name: str | None = None
    lifetime_ms: float | None = None
    """How long the credential lasts from now; None if it does not end."""
    is_by_token: bool = False
    """True if the name was proved by a delegation token."""
    is_valid: Callable[[], bool] | None = None
    """Returns whether the credential still exists; None if the session does not depend on it."""


class MechanismServer(Protocol):
    """One exchange of one mechanism."""

    def prepare(self, token: bytes) -> Awaitable[None] | None:
        """Return what to await before `evaluate` gets this token; None if nothing. Never raises."""

    def evaluate(self, token: bytes) -> Step:
        """Take the client's next token. Raises AuthenticationFailed."""


class PlainServer:
    """PLAIN: one token."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def prepare(self, token: bytes) -> None:
        """Return None: there is nothing to wait for."""

    def evaluate(self, token: bytes) -> Step:
        """Check the name and the password."""
        return Step(b"", check_plain(token, self._passwords))


class TokenLogin(NamedTuple):
    """The credential of a delegation token, and the user and the lifetime of a login with it."""

    credential: ScramCredential
    owner: str
    lifetime_ms: float


class TokenLogins(Protocol):
    """Delegation tokens as credentials of one mechanism."""

    def prepare(self, token_id: str) -> Awaitable[None] | None:
        """Return what to await before `find` can find this token; None if nothing."""

    def find(self, token_id: str) -> TokenLogin | None:
        """Return the login of a token; None if the token does not exist or has expired."""


class ScramExchange:
    """SCRAM: two tokens. `tokens` are the delegation tokens that may log in; None if these are not enabled."""

    def __init__(
        self,
        mechanism: Mechanism,
        look_up: Callable[[str], ScramCredential | None],
        secret: bytes,
        nonce: str,
        tokens: TokenLogins | None = None,
    ) -> None:
        self._server = ScramServer(mechanism, look_up, secret, nonce, None if tokens is None else self._of_token)
        self._tokens = tokens
        self._is_challenged = False

    def prepare(self, token: bytes) -> Awaitable[None] | None:
        """Derive the credential of the delegation token that the first message names, if any."""
        if self._tokens is None or self._is_challenged:
            return None
        token_id = token_id_of(token)
        return None if token_id is None else self._tokens.prepare(token_id)

    def evaluate(self, token: bytes) -> Step:
        """Challenge the client, then check its proof."""
        if not self._is_challenged:
            challenge = self._server.first(token)
            self._is_challenged = True
            return Step(challenge)
        answer = self._server.final(token)
        if self._tokens is None or not self._server.is_by_token:
            return Step(answer, self._server.name)
        tokens, token_id = self._tokens, self._server.name
        login = tokens.find(token_id)
        if login is None:
            raise InvalidCredentials("the delegation token has expired or was removed")
        is_valid = functools.partial(_is_there, tokens, token_id)
        return Step(answer, login.owner, login.lifetime_ms, is_by_token=True, is_valid=is_valid)

    def _of_token(self, token_id: str) -> ScramCredential | None:
        assert self._tokens is not None
        login = self._tokens.find(token_id)
        return None if login is None else login.credential


def _is_there(tokens: TokenLogins, token_id: str) -> bool:
    return tokens.find(token_id) is not None


class State(Enum):
    """The state of a connection's authentication."""

    INITIAL = auto()
    VERSIONS_TOLD = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslServer:
    """SASL on one connection. `make` begins a mechanism's exchange."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        make: Callable[[str], MechanismServer],
        reauthenticate_ms: Mapping[str, int],
    ) -> None:
        self.mechanisms = list(mechanisms)
        """The mechanisms that the listener has."""
        self.state = State.INITIAL
        self.principal = ANONYMOUS
        """The proved identity, once the state is COMPLETE; during a renewal, the one proved before."""
        self.has_requests = False
        """True if tokens travel in SaslAuthenticate requests, rather than bare."""
        self.is_by_token = False
        """True if the identity was proved by a delegation token."""
        self.expires_at_ms: float | None = None
        """The time at which the session ends; None if it does not."""
        self._make = make
        self._reauthenticate_ms = reauthenticate_ms
        self._mechanism = ""
        self._proved_with = ""
        """The mechanism that proved the identity; empty before that."""
        self._exchange: MechanismServer | None = None
        self._is_valid: Callable[[], bool] | None = None
        self._renewal_began_at_ms: float | None = None

    @property
    def is_renewing(self) -> bool:
        """True while a client that has authenticated before does so again."""
        return bool(self._proved_with) and self.state is not State.COMPLETE

    def versions_asked(self) -> None:
        """Take an ApiVersions request before the handshake. Raises IllegalState if one was answered already."""
        if self.state is not State.INITIAL:
            raise IllegalState(
                "Unexpected ApiVersions request received during SASL authentication state HANDSHAKE_REQUEST"
            )

    def versions_told(self) -> None:
        """Note that ApiVersions was answered without an error."""
        self.state = State.VERSIONS_TOLD

    def may_renew(self, now_ms: float) -> bool:
        """Return whether a SaslHandshake may begin a renewal now: not twice a second, nor if the session has no end."""
        began = self._renewal_began_at_ms
        return self.expires_at_ms is not None and (began is None or now_ms - began >= _LEAST_BETWEEN_RENEWALS_MS)

    def handshake(self, mechanism: str, *, has_requests: bool, now_ms: float) -> bool:
        """Begin an exchange; return False, and fail, if the listener does not have the mechanism."""
        if self.state is State.COMPLETE:
            self._renewal_began_at_ms = now_ms
        self.has_requests = has_requests
        if mechanism not in self.mechanisms:
            self.state = State.FAILED
            return False
        self._mechanism = mechanism
        self.state = State.AUTHENTICATE
        self._exchange = self._make(mechanism) if mechanism == (self._proved_with or mechanism) else None
        return True

    def prepare(self, token: bytes) -> Awaitable[None] | None:
        """Return what to await before `evaluate` gets this token; None if nothing."""
        return None if self._exchange is None else self._exchange.prepare(token)

    def evaluate(self, token: bytes, now_ms: float) -> tuple[bytes, int]:
        """Take a token; return the answer and the session's lifetime in milliseconds (0: it has no end, or not begun).

        Raises AuthenticationFailed with a message for the client.
        """
        try:
            return self._evaluated(token, now_ms)
        except AuthenticationFailed:
            self.state = State.FAILED
            raise

    def _evaluated(self, token: bytes, now_ms: float) -> tuple[bytes, int]:
        if self._exchange is None:
            raise AuthenticationFailed(
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._proved_with}'"
            )
        try:
            step = self._exchange.evaluate(token)
        except InvalidCredentials as invalid:
            again = "re-authentication" if self.is_renewing else "authentication"
            text = (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
            )
            raise AuthenticationFailed(text) from invalid
        if step.name is None:
            return step.token, 0
        principal = Principal(USER, step.name)
        if self._proved_with and principal != self.principal:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication from "
                f"{self.principal.kind}.{self.principal.name}: {principal.kind}.{principal.name}"
            )
        self.principal, self._proved_with, self._exchange = principal, self._mechanism, None
        self.is_by_token, self._is_valid = step.is_by_token, step.is_valid
        self.state = State.COMPLETE
        return step.token, self._begin_session(step.lifetime_ms, now_ms)

    def _begin_session(self, credential_lifetime_ms: float | None, now_ms: float) -> int:
        limit = self._reauthenticate_ms.get(self._mechanism, 0)
        lifetimes = [float(limit)] if limit > 0 else []
        if credential_lifetime_ms is not None:
            lifetimes.append(min(credential_lifetime_ms, _LONGEST_SESSION_MS))
        if not lifetimes:
            self.expires_at_ms = None
            return 0
        lifetime = max(0, int(min(lifetimes)))
        self.expires_at_ms = now_ms + lifetime
        return lifetime

    def has_expired(self, now_ms: float) -> bool:
        """Return whether the session has ended, so that only a renewal is served."""
        if self.expires_at_ms is not None and now_ms >= self.expires_at_ms:
            return True
        return self._is_valid is not None and not self._is_valid()
