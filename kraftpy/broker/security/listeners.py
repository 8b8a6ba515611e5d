"""The security of this broker's client listeners: their contexts, and what stands between a socket and a connection."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kraftpy.broker.containment import Complaints
from kraftpy.broker.security.authentication import Authentication
from kraftpy.broker.security.certificate import Certificate
from kraftpy.broker.security.jwks import Jwks
from kraftpy.broker.security.tls import Handshakes, TlsLayer
from kraftpy.broker.security.token_logins import TokenCredentials
from kraftpy.broker.startup import StartupError
from kraftpy.config.security import OAUTHBEARER, OauthbearerSettings, SaslSettings, TlsSettings
from kraftpy.config.settings import shortened
from kraftpy.security.distinguished_names import subject_of
from kraftpy.security.json_web_tokens import InvalidToken, Verified, verify, verify_unsecured
from kraftpy.security.oauthbearer import OauthBearerExchange
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.security.sasl import MechanismServer, PlainServer, SaslServer, ScramExchange
from kraftpy.security.scram import MECHANISMS, NONCE_BYTES
from kraftpy.tls import TlsError

if TYPE_CHECKING:
    from kraftpy.broker.connection import Answer, Connection
    from kraftpy.config import BrokerConfig
    from kraftpy.metadata.image import Image
    from kraftpy.ports import Clock

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_LOOK_SECONDS = 5.0
_FAILED = "Failed authentication with %s (%s)"


class SecureListeners:
    """The listeners that are not PLAINTEXT. Raises StartupError if their keys or certificates cannot be used."""

    def __init__(self, config: BrokerConfig, clock: Clock, complaints: Complaints, image: Callable[[], Image]) -> None:
        """`image` returns the metadata of now, which has the credentials of SCRAM and the delegation tokens."""
        self._image = image
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._tokens: TokenCredentials | None = None
        if config.delegation_token_secret_key:
            self._tokens = TokenCredentials(config.delegation_token_secret_key, self._secret, clock, image)
        self._sasl = {each.listener: each.sasl for each in config.secured if each.sasl is not None}
        self._jwks = {
            each.listener: Jwks(each.listener, each.sasl.oauthbearer)
            for each in config.secured
            if each.sasl is not None and each.sasl.oauthbearer is not None and each.sasl.oauthbearer.url is not None
        }
        if self._jwks and not all(map(find_spec, ("jwt", "cryptography"))):
            raise StartupError("sasl.enabled.mechanisms: OAUTHBEARER needs PyJWT: install kraftpy[security]")
        self._complaints = complaints
        self._handshakes = Handshakes()
        self._receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._served: dict[str, Certificate] = {}
        for security in config.secured:
            if security.tls is not None:
                try:
                    self._served[security.listener] = Certificate(security.listener, security.tls)
                except TlsError as error:
                    text = f"listeners: {security.listener} is {security.protocol}: {error}"
                    raise StartupError(text) from None

    def protocol(self, listener: str, connection: Connection, serve: Answer) -> asyncio.BaseProtocol:
        """Return what a socket accepted on this listener talks to, in front of the connection.

        `serve` answers the requests of a client that is known.
        """
        sasl = self._sasl.get(listener)
        if sasl is not None:
            exchange = functools.partial(self._exchange, listener, sasl)
            server = SaslServer(sasl.mechanisms, exchange, sasl.reauthenticate_ms)
            stage = Authentication(server, serve, self._failed, failure_delay_ms=sasl.failure_delay_ms)
            connection.answer_with(stage.answer)
            connection.limit_frames(sasl.most_receive_bytes)
        served = self._served.get(listener)
        if served is None:
            return connection
        tls = served.tls

        def authenticate(layer: TlsLayer) -> None:
            if sasl is None:
                connection.principal = principal_of(layer.peer_certificate, tls)

        return TlsLayer(
            connection,
            served.context,
            self._handshakes,
            self._receive_buffer,
            authenticate=authenticate,
            failed=functools.partial(self._tls_failed, connection),
        )

    def _exchange(self, listener: str, sasl: SaslSettings, mechanism: str) -> MechanismServer:
        """Begin an exchange of a mechanism."""
        if mechanism == "PLAIN":
            return PlainServer(sasl.logins[mechanism].users)
        if sasl.oauthbearer is not None and mechanism == OAUTHBEARER:
            return self._oauthbearer(listener, sasl.oauthbearer)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        scram = MECHANISMS[mechanism]
        return ScramExchange(
            scram,
            lambda name: self._image().credentials.of(name, scram.code),
            self._secret,
            nonce,
            None if self._tokens is None else self._tokens.of_mechanism(scram),
        )

    def _oauthbearer(self, listener: str, settings: OauthbearerSettings) -> OauthBearerExchange:
        rules, jwks = settings.rules, self._jwks.get(listener)
        if jwks is None:
            return OauthBearerExchange(lambda token: verify_unsecured(token, rules, self._clock.now()), lambda _: None)

        def verified(token: str) -> Verified:
            if jwks.keys is None:
                raise InvalidToken("there are no keys yet")
            return verify(token, jwks.keys, rules, self._clock.now())

        return OauthBearerExchange(verified, jwks.prepare)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops by name; each must be kept running until it is cancelled."""
        keys = {f"keys of {listener}": jwks.run for listener, jwks in self._jwks.items()}
        return {"certificates": self.renew_certificates, **keys}

    async def renew_certificates(self) -> None:
        """Take over changed files of keys and certificates, for connections from then on."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for served in self._served.values():
                await asyncio.to_thread(served.renew)

    def _tls_failed(self, connection: Connection, reason: str) -> None:
        self._failed(connection, reason, reason.partition(":")[0])  # one of a few texts of ours

    def _failed(self, connection: Connection, reason: str, kind: str = "SASL") -> None:
        host = connection.client_host
        self._complaints.write(logger, logging.WARNING, kind, host, _FAILED, host, shortened(reason))


def principal_of(certificate: bytes | None, tls: TlsSettings) -> Principal:
    """Return the principal that a client's certificate (DER) stands for. Raises ValueError if no rule matches it."""
    if certificate is None:
        return ANONYMOUS
    return Principal(USER, tls.principal_rules.apply(subject_of(certificate)))
