"""The server's side of SASL on one connection: which mechanism, whose turn it is, and how long the session lasts.

    INITIAL -> VERSIONS_TOLD -> AUTHENTICATE -> COMPLETE | FAILED

It knows the protocol's rules and no bytes of it: `security.authentication` of the broker decodes requests, asks this
what to do, and encodes the answers. Times are monotonic milliseconds; a credential's end is one, too.

A session that expires is renewed on the same connection by the same mechanism and the same principal (KIP-368).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.plain import check_plain
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.security.scram import Mechanism, ScramCredential, ScramServer

_LEAST_BETWEEN_RENEWALS_MS: Final = 1_000


class IllegalState(Exception):
    """The request does not belong here. The message is Kafka's."""


class Step(NamedTuple):
    """What a mechanism answers to a token; `name` is set when it is done."""

    token: bytes
    name: str | None = None
    expires_at_ms: float | None = None
    """When the credential ends; None if it does not."""


class MechanismServer(Protocol):
    """One exchange of one mechanism."""

    def evaluate(self, token: bytes) -> Step:
        """Take the client's next token. Raises AuthenticationFailed."""


class PlainServer:
    """PLAIN: one token."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def evaluate(self, token: bytes) -> Step:
        """Check the name and the password."""
        return Step(b"", check_plain(token, self._passwords))


class ScramExchange:
    """SCRAM: two tokens."""

    def __init__(
        self, mechanism: Mechanism, look_up: Callable[[str], ScramCredential | None], secret: bytes, nonce: str
    ) -> None:
        self._server = ScramServer(mechanism, look_up, secret, nonce)
        self._is_challenged = False

    def evaluate(self, token: bytes) -> Step:
        """Challenge the client, then check its proof."""
        if not self._is_challenged:
            challenge = self._server.first(token)
            self._is_challenged = True
            return Step(challenge)
        return Step(self._server.final(token), self._server.name)


class State(Enum):
    """Where a connection is."""

    INITIAL = auto()
    VERSIONS_TOLD = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslServer:
    """SASL on one connection. `make` begins an exchange of a mechanism."""

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
        """The proved identity, once the state is COMPLETE; during a renewal, the one that has been proved before."""
        self.has_requests = False
        """Whether tokens travel in SaslAuthenticate requests, rather than bare."""
        self.expires_at_ms: float | None = None
        """When the session ends."""
        self._make = make
        self._reauthenticate_ms = reauthenticate_ms
        self._mechanism = ""
        self._proved_with = ""
        """The mechanism of the proved identity; empty while there is none."""
        self._exchange: MechanismServer | None = None
        self._renewal_began_at_ms: float | None = None

    @property
    def is_renewing(self) -> bool:
        """True while a client that is known authenticates again."""
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
        """Return whether a SaslHandshake begins a renewal now: the session expires, and the last was not just now."""
        began = self._renewal_began_at_ms
        return self.expires_at_ms is not None and (began is None or now_ms - began >= _LEAST_BETWEEN_RENEWALS_MS)

    def handshake(self, mechanism: str, *, has_requests: bool, now_ms: float) -> bool:
        """Begin an exchange; return False if the listener does not have the mechanism, which fails the connection."""
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

    def evaluate(self, token: bytes, now_ms: float) -> tuple[bytes, int]:
        """Take a token; return the answer, and for how many milliseconds the session lasts (0 for ever, or not done).

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
        self.state = State.COMPLETE
        return step.token, self._begin_session(step.expires_at_ms, now_ms)

    def _begin_session(self, credential_ends_at_ms: float | None, now_ms: float) -> int:
        limit = self._reauthenticate_ms.get(self._mechanism, 0)
        lifetimes = [float(limit)] if limit > 0 else []
        if credential_ends_at_ms is not None:
            lifetimes.append(credential_ends_at_ms - now_ms)
        if not lifetimes:
            self.expires_at_ms = None
            return 0
        lifetime = max(0, int(min(lifetimes)))
        self.expires_at_ms = now_ms + lifetime
        return lifetime

    def has_expired(self, now_ms: float) -> bool:
        """Return whether the session has ended, so that nothing but a renewal is served."""
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms
