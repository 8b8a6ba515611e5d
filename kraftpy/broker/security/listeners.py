"""The security of this broker's client listeners: their contexts, and what stands between a socket and a connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from kraftpy.broker.containment import Complaints
from kraftpy.broker.security.tls import Handshakes, TlsLayer
from kraftpy.broker.startup import StartupError
from kraftpy.config.security import ListenerSecurity, TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import subject_of
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.tls import TlsError, server_context

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.config import BrokerConfig

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_FAILED = "Failed authentication with %s (%s)"


class SecureListeners:
    """The listeners that are not PLAINTEXT. Raises StartupError if their keys or certificates cannot be used."""

    def __init__(self, config: BrokerConfig, complaints: Complaints) -> None:
        self._complaints = complaints
        self._handshakes = Handshakes()
        self._receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._contexts: dict[str, tuple[ssl.SSLContext, TlsSettings]] = {}
        for security in config.secured:
            if security.tls is not None:
                self._contexts[security.listener] = _context(security, security.tls), security.tls

    def protocol(self, listener: str, connection: Connection) -> asyncio.BaseProtocol:
        """Return what a socket accepted on this listener talks to, in front of the connection."""
        if listener not in self._contexts:
            return connection
        context, tls = self._contexts[listener]

        def authenticate(layer: TlsLayer) -> None:
            connection.principal = principal_of(layer.peer_certificate, tls)

        def failed(reason: str) -> None:
            host, kind = connection.client_host, reason.partition(":")[0]
            self._complaints.write(logger, logging.WARNING, kind, host, _FAILED, host, shortened(reason))

        return TlsLayer(
            connection,
            context,
            self._handshakes,
            self._receive_buffer,
            authenticate=authenticate,
            failed=failed,
        )


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
