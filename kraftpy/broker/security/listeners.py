"""The security of this broker's client listeners: their contexts, and what stands between a socket and a connection."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.broker.containment import Complaints
from kraftpy.broker.security.authentication import Authentication
from kraftpy.broker.security.tls import Handshakes, TlsLayer
from kraftpy.broker.startup import StartupError
from kraftpy.config.security import ListenerSecurity, SaslSettings, TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import subject_of
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.security.sasl import MechanismServer, PlainServer, SaslServer, ScramExchange
from kraftpy.security.scram import MECHANISMS, NONCE_BYTES
from kraftpy.tls import TlsError, server_context

if TYPE_CHECKING:
    from kraftpy.broker.connection import Answer, Connection
    from kraftpy.config import BrokerConfig
    from kraftpy.metadata.image import Image

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_FAILED = "Failed authentication with %s (%s)"


class SecureListeners:
    """The listeners that are not PLAINTEXT. Raises StartupError if their keys or certificates cannot be used."""

    def __init__(self, config: BrokerConfig, complaints: Complaints, image: Callable[[], Image]) -> None:
        """`image` returns the metadata of now, which has the credentials of SCRAM."""
        self._image = image
        self._secret = secrets.token_bytes(32)
        self._sasl = {each.listener: each.sasl for each in config.secured if each.sasl is not None}
        self._complaints = complaints
        self._handshakes = Handshakes()
        self._receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._contexts: dict[str, tuple[ssl.SSLContext, TlsSettings]] = {}
        for security in config.secured:
            if security.tls is not None:
                self._contexts[security.listener] = _context(security, security.tls), security.tls

    def protocol(self, listener: str, connection: Connection, serve: Answer) -> asyncio.BaseProtocol:
        """Return what a socket accepted on this listener talks to, in front of the connection.

        `serve` answers the requests of a client that is known.
        """
        sasl = self._sasl.get(listener)
        if sasl is not None:
            server = SaslServer(sasl.mechanisms, functools.partial(self._exchange, sasl), sasl.reauthenticate_ms)
            stage = Authentication(server, serve, self._failed, failure_delay_ms=sasl.failure_delay_ms)
            connection.answer_with(stage.answer)
            connection.limit_frames(sasl.most_receive_bytes)
        if listener not in self._contexts:
            return connection
        context, tls = self._contexts[listener]

        def authenticate(layer: TlsLayer) -> None:
            if sasl is None:
                connection.principal = principal_of(layer.peer_certificate, tls)

        return TlsLayer(
            connection,
            context,
            self._handshakes,
            self._receive_buffer,
            authenticate=authenticate,
            failed=functools.partial(self._tls_failed, connection),
        )

    def _exchange(self, sasl: SaslSettings, mechanism: str) -> MechanismServer:
        """Begin an exchange of a mechanism."""
        if mechanism == "PLAIN":
            return PlainServer(sasl.logins[mechanism].users)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        scram = MECHANISMS[mechanism]
        return ScramExchange(scram, lambda name: self._image().credentials.of(name, scram.code), self._secret, nonce)

    def _tls_failed(self, connection: Connection, reason: str) -> None:
        self._failed(connection, reason, reason.partition(":")[0])  # one of a few texts of ours

    def _failed(self, connection: Connection, reason: str, kind: str = "SASL") -> None:
        host = connection.client_host
        self._complaints.write(logger, logging.WARNING, kind, host, _FAILED, host, shortened(reason))


def _context(security: ListenerSecurity, tls: TlsSettings) -> ssl.SSLContext:
    try:
        return server_context(tls)
    except TlsError as error:
        raise StartupError(f"listeners: {security.listener} is {security.protocol}: {error}") from None


def principal_of(certificate: bytes | None, tls: TlsSettings) -> Principal:
    """Return the principal that a client's certificate (DER) stands for. Raises ValueError if no rule matches it."""
    if certificate is None:
        return ANONYMOUS
    return Principal(USER, tls.principal_rules.apply(subject_of(certificate)))
