"""SASL's mechanism GSSAPI (RFC 4752), which is Kerberos: the messages of both ends, without the library.

    client                                                   server
    tokens of GSS-API                                  <->   tokens of GSS-API, until both contexts are established
    an empty message, unless its own token was last     ->
                                                       <-    wrapped: the layers that the server has, and a size
    wrapped: the chosen layer, a size, an identity      ->

Only the layer "none" is offered and chosen, as in Kafka: TLS protects a connection.

A client's name is that of its ticket, shortened by rules. The identity to act as must be absent, that name, or the
broker's own: kafka-python and aiokafka send `kafka@<host>` there, and Kafka ignores it.

A step of a context takes time, because it reads keys and looks for replays, so it runs apart from the exchange
(`prepare`); wrapping is fast.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, Protocol

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials
from kraftpy.security.kerberos_names import parse_kerberos_name
from kraftpy.security.sasl import Step

MECHANISM: Final = "GSSAPI"
_NO_LAYER: Final = 1
_HEAD_BYTES: Final = 4
"""One byte for the layers, and three for the size of buffers, which is 0 without a layer."""


class ContextError(Exception):
    """A context cannot be established, or a message does not belong to it. The message is one line."""


class Context(Protocol):
    """One end's security context. Every method raises ContextError."""

    @property
    def is_established(self) -> bool:
        """True if the peer is known and keys are agreed on."""

    @property
    def peer(self) -> str:
        """The principal at the other end, once the context is established."""

    def step(self, token: bytes) -> bytes:
        """Take the peer's token, empty for an initiator's first step; return the answer, empty if none. Blocks."""

    def wrap(self, message: bytes) -> bytes:
        """Sign a message; return it with its signature."""

    def unwrap(self, token: bytes) -> bytes:
        """Check the signature of the peer's message, and return the message."""


def choice_of(offer: bytes) -> bytes:
    """Return a client's answer to the layers that a server offers. Raises AuthenticationFailed."""
    if len(offer) != _HEAD_BYTES or not offer[0] & _NO_LAYER:
        raise AuthenticationFailed("the broker asks for a security layer of GSSAPI, and only TLS is supported")
    return _NO_LAYER.to_bytes(1, "big") + bytes(_HEAD_BYTES - 1)


class _Stage(Enum):
    CONTEXT = auto()
    OFFER = auto()
    CHOICE = auto()


class GssapiExchange:
    """The server's end.

    `name_of` shortens a principal to a name, or raises ValueError; `service` is the primary of the broker's principal.
    `apart` starts a function that blocks, and returns the awaitable for its end.
    """

    def __init__(
        self,
        context: Context,
        name_of: Callable[[str], str],
        service: str,
        apart: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._context = context
        self._name_of = name_of
        self._service = service
        self._apart = apart
        self._stage = _Stage.CONTEXT
        self._answer = b""
        self._failure: ContextError | None = None

    def prepare(self, token: bytes) -> Awaitable[None] | None:
        """Have the context process a token."""
        return self._apart(functools.partial(self._take, token)) if self._stage is _Stage.CONTEXT else None

    def _take(self, token: bytes) -> None:
        try:
            self._answer = self._context.step(token)
        except ContextError as failure:
            self._failure = failure

    def evaluate(self, token: bytes) -> Step:
        """Answer a token; `prepare` has processed it already if it is for the context."""
        try:
            return self._evaluated(token)
        except ContextError as failure:
            raise InvalidCredentials(str(failure)) from failure

    def _evaluated(self, token: bytes) -> Step:
        match self._stage:
            case _Stage.CHOICE:
                return Step(b"", self._chosen(self._context.unwrap(token)))
            case _Stage.OFFER if token:
                raise InvalidCredentials("a token of GSSAPI after the last one")
            case _Stage.CONTEXT:
                if self._failure is not None:
                    raise self._failure
                if self._context.is_established:
                    self._stage = _Stage.OFFER
                if self._answer or not self._context.is_established:
                    return Step(self._answer)
        self._stage = _Stage.CHOICE
        return Step(self._context.wrap(_NO_LAYER.to_bytes(1, "big") + bytes(_HEAD_BYTES - 1)))

    def _chosen(self, message: bytes) -> str:
        """Check the layer and the identity that the client chose; return its name. Raises AuthenticationFailed."""
        if len(message) < _HEAD_BYTES or message[0] != _NO_LAYER:
            raise InvalidCredentials("the client has not chosen the only layer of GSSAPI that was offered, none")
        principal = self._context.peer
        try:
            name = self._name_of(principal)
            identity = message[_HEAD_BYTES:].decode()
        except ValueError as error:
            raise InvalidCredentials(str(error)) from None
        if identity not in ("", name, principal) and not self._is_own(identity):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from its principal"
            )
        return name

    def _is_own(self, identity: str) -> bool:
        """Return whether an identity is the broker's own name, as `service@host` or as a principal."""
        try:
            return parse_kerberos_name(identity).primary == self._service
        except ValueError:
            return False
