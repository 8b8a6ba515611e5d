"""The security of this node's listeners: their TLS contexts, and the layers between a socket and a connection.

A connection to a controller listener counts as a link of another node until its first bytes show that it is a client's
(`metadata.link`): both have the same TLS, and each its own form of SASL.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import ssl
from collections.abc import Callable, Coroutine, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.containment import Complaints
from kraftpy.broker.security.authentication import Authentication
from kraftpy.broker.security.authorizer import Authorizer
from kraftpy.broker.security.certificate import Certificate
from kraftpy.broker.security.jwks import Jwks
from kraftpy.broker.security.tls import Handshakes, Inner, TlsLayer
from kraftpy.broker.security.token_logins import TokenCredentials
from kraftpy.broker.startup import StartupError
from kraftpy.config.security import (
    GSSAPI,
    OAUTHBEARER,
    ListenerSecurity,
    OauthbearerSettings,
    SaslSettings,
    TlsSettings,
)
from kraftpy.config.settings import ConfigError, shortened
from kraftpy.security.distinguished_names import subject_of
from kraftpy.security.json_web_tokens import InvalidToken, Verified, verify, verify_unsecured
from kraftpy.security.oauthbearer import OauthBearerExchange
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.security.sasl import MechanismServer, PlainServer, SaslServer, ScramExchange
from kraftpy.security.scram import MECHANISMS, NONCE_BYTES, ScramCredential
from kraftpy.tls import TlsError

if TYPE_CHECKING:
    from kraftpy.broker.connection import Answer, Connection
    from kraftpy.broker.dynamic_settings import DynamicSettings
    from kraftpy.broker.peers import Outgoing
    from kraftpy.broker.security.kerberos import Kerberos
    from kraftpy.config import BrokerConfig
    from kraftpy.metadata.image import Image
    from kraftpy.ports import Clock

    class Metadata(Protocol):
        """The metadata with users' credentials."""

        @property
        def image(self) -> Image:
            """The current metadata."""

        def credential_of(self, name: str, mechanism: int) -> ScramCredential | None:
            """Return a user's credential on controller listeners."""

    class Broker(Protocol):
        """The parts of a broker that its listeners need."""

        clock: Clock
        complaints: Complaints
        links: Any
        authorizer: Authorizer | None
        settings: DynamicSettings
        outgoing: Outgoing

        @property
        def config(self) -> BrokerConfig:
            """The settings."""

        @property
        def metadata(self) -> Metadata:
            """The metadata with users' credentials."""


logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_LOOK_SECONDS = 2.0
_REFUSED = "Validation of dynamic config update of SSLFactory failed: the log of the broker says why."
_FAILED = "Failed authentication with %s (%s)"


class SecureListeners:
    """The listeners that are not PLAINTEXT. Raises StartupError if their keys or certificates cannot be used."""

    def __init__(self, broker: Broker) -> None:
        """Set up the security of the broker's links and of its connections to others too: they take it from here."""
        config, metadata, clock = broker.config, broker.metadata, broker.clock
        self._authorizer = broker.authorizer
        self._metadata = metadata
        self._clock = clock
        self._controllers = frozenset(config.controller_listener_names)
        self._between_brokers = config.inter_broker_listener
        self._elsewhere = frozenset(each.listener for each in config.secured if each.is_elsewhere)
        self._secret = secrets.token_bytes(32)
        self._tokens: TokenCredentials | None = None
        if config.delegation_token_secret_key:
            key = config.delegation_token_secret_key
            self._tokens = TokenCredentials(key, self._secret, clock, lambda: metadata.image)
        own = [each for each in config.secured if not each.is_elsewhere]
        self._sasl = {each.listener: each.sasl for each in own if each.sasl is not None}
        self._jwks = {
            name: Jwks(name, sasl.oauthbearer)
            for name, sasl in self._sasl.items()
            if sasl.oauthbearer is not None and sasl.oauthbearer.url is not None
        }
        if self._jwks and not all(map(find_spec, ("jwt", "cryptography"))):
            raise StartupError("sasl.enabled.mechanisms: OAUTHBEARER needs PyJWT: install kraftpy[security]")
        self._kerberos = _kerberos_of(self._sasl)
        self._complaints = broker.complaints
        self._handshakes = Handshakes()
        self._receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._have_changed = asyncio.Event()
        """Settings of certificates have, and were not looked at since."""
        self._wanted = _tls_of(config)
        self._called = _called_by(config)
        self._certificates: dict[str, Certificate] = {}
        self._unusable: dict[str, TlsError] = {}
        """Listeners whose certificate in the file of settings cannot be used; the metadata may have another."""
        for each in broker.settings.static.secured:
            if each.tls is not None:
                self._begin(each, each.tls)
        broker.settings.then(self.configure)
        broker.outgoing.contexts = self.context_for
        if broker.links is not None:
            broker.links.secure(config, self)

    def _begin(self, security: ListenerSecurity, tls: TlsSettings) -> None:
        """Make the certificate with which a listener starts. Raises StartupError.

        Connections to controllers come before the metadata, so that another certificate cannot be in there.
        """
        try:
            self._certificates[security.listener] = self._certificate(security.listener, tls)
        except TlsError as error:
            if security.is_elsewhere or security.listener in self._controllers:
                raise StartupError(f"listeners: {security.listener} is {security.protocol}: {error}") from None
            logger.error("%s has no certificate yet: %s", security.listener, error)
            self._unusable[security.listener] = error

    def _certificate(self, listener: str, tls: TlsSettings) -> Certificate:
        is_served, is_called = listener not in self._elsewhere, listener in self._called
        return Certificate(
            listener,
            tls,
            is_served=is_served,
            is_called=is_called,
            is_between_brokers=listener == self._between_brokers,
        )

    def context_for(self, listener: str) -> ssl.SSLContext:
        """Return the context for a connection to this listener of another node. Raises TlsError."""
        if (error := self._unusable.get(listener)) is not None:
            raise TlsError(str(error))
        return self._certificates[listener].client

    def protocol(self, listener: str, connection: Connection, serve: Answer) -> asyncio.BaseProtocol:
        """Return the protocol for a socket accepted on this listener: the layers in front of the connection.

        `serve` answers the requests of a client that has logged in.
        """
        self.demand_login(listener, connection, serve)

        def known(principal: Principal) -> None:
            connection.principal = principal

        layer = self.layer(listener, connection, known, lambda: connection.client_host)
        return connection if layer is None else layer

    def demand_login(self, listener: str, connection: Connection, serve: Answer) -> None:
        """Have a client log in before `serve` answers its requests, if the listener has SASL."""
        sasl = self._sasl.get(listener)
        if sasl is None:
            return
        stage = Authentication(
            self.sasl_of(listener, sasl), serve, self._failed, failure_delay_ms=sasl.failure_delay_ms
        )
        connection.answer_with(stage.answer)
        connection.limit_frames(sasl.most_receive_bytes)

    def admit(self, listener: str, connection: Connection, principal: Principal) -> None:
        """Prepare a client's connection on a controller listener; `principal` is the name in its certificate."""
        connection.principal = principal
        self.demand_login(listener, connection, connection.answer)

    def may_be_node(self, principal: Principal, host: str) -> bool:
        """Return whether a principal at an address may be a node of the cluster."""
        if self._authorizer is None:
            return True
        return self._authorizer.may_act_for_cluster(principal, host)

    def layer(
        self, listener: str, inner: Inner, known: Callable[[Principal], None], host: Callable[[], str]
    ) -> TlsLayer | None:
        """Return the TLS layer around a connection, or None if the listener has no TLS.

        `known` gets the name in the peer's certificate, if the listener has no SASL; `host` returns the peer's address.
        """
        assert listener not in self._unusable, "it is served once it has a certificate"
        served = self._certificates.get(listener)
        if served is None:
            return None
        tls, has_sasl = served.tls, listener in self._sasl

        def authenticate(layer: TlsLayer) -> None:
            if not has_sasl:
                known(principal_of(layer.peer_certificate, tls))

        return TlsLayer(
            inner,
            served.server,
            self._handshakes,
            self._receive_buffer,
            authenticate=authenticate,
            failed=lambda reason: self.failed_from(host(), reason, reason.partition(":")[0]),  # one of our few texts
        )

    def sasl_settings(self, listener: str) -> SaslSettings | None:
        """Return the SASL settings of a listener; None if it has no SASL."""
        return self._sasl.get(listener)

    def sasl_of(self, listener: str, sasl: SaslSettings) -> SaslServer:
        """Return the server's side of SASL for a client's connection."""
        exchange = functools.partial(self._exchange, listener, sasl, self._tokens)
        return SaslServer(sasl.mechanisms, exchange, sasl.reauthenticate_ms)

    def sasl_of_node(self, listener: str, sasl: SaslSettings) -> SaslServer:
        """Return the server's side of SASL for a link, which takes no delegation tokens: these stand for users."""
        exchange = functools.partial(self._exchange, listener, sasl, None)
        return SaslServer(sasl.mechanisms, exchange, sasl.reauthenticate_ms)

    def _exchange(
        self, listener: str, sasl: SaslSettings, tokens: TokenCredentials | None, mechanism: str
    ) -> MechanismServer:
        """Begin a mechanism's exchange."""
        if mechanism == "PLAIN":
            return PlainServer(sasl.logins[mechanism].users)
        if sasl.oauthbearer is not None and mechanism == OAUTHBEARER:
            return self._oauthbearer(listener, sasl.oauthbearer)
        if mechanism == GSSAPI:
            assert self._kerberos is not None
            return self._kerberos.exchange(listener)
        metadata, scram = self._metadata, MECHANISMS[mechanism]
        early = listener in self._controllers
        return ScramExchange(
            scram,
            lambda name: (metadata.credential_of if early else metadata.image.credentials.of)(name, scram.code),
            self._secret,
            secrets.token_urlsafe(NONCE_BYTES),
            None if tokens is None else tokens.of_mechanism(scram),
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

    def configure(self, config: BrokerConfig) -> None:
        """Use changed settings of certificates for new connections, soon."""
        self._wanted = _tls_of(config)
        self._have_changed.set()

    async def check(self, config: BrokerConfig) -> None:
        """Check that the certificates of other settings could be used. Raises ConfigError.

        Only the log says what is wrong with a file: a client must not find out which files this machine has.
        """
        for listener, tls in _tls_of(config).items():
            certificate = self._certificates.get(listener)
            if certificate is None or tls == certificate.tls:
                continue
            try:
                await asyncio.to_thread(certificate.check, tls)
            except TlsError as error:
                why = shortened(str(error))  # as the peer: each reason gets its own line
                text = "%s refuses a new certificate: %s"
                self._complaints.write(logger, logging.ERROR, "certificates", why, text, listener, why)
                raise ConfigError(_REFUSED) from None

    async def renew_certificates(self) -> None:
        """Look for changed settings and files of certificates every few seconds, and use them for new connections."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._have_changed.wait(), _LOOK_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Use the certificates of the current settings and files for new connections."""
        self._have_changed.clear()
        for listener, certificate in self._certificates.items():
            await asyncio.to_thread(certificate.change, self._wanted[listener])
            await asyncio.to_thread(certificate.renew)

    async def begin(self) -> None:
        """Use the certificates in the metadata, which this node knows by now. Raises StartupError if one is missing."""
        for listener in [*self._unusable]:
            try:
                tls = self._wanted[listener]
                self._certificates[listener] = await asyncio.to_thread(self._certificate, listener, tls)
            except TlsError as error:
                raise StartupError(f"listeners: {listener}: {error}") from None
            logger.warning("%s has the certificate in the metadata", listener)
            del self._unusable[listener]
        await self.renew()

    def _failed(self, connection: Connection, reason: str) -> None:
        self.failed_from(connection.client_host, reason)

    def failed_from(self, host: str, reason: str, kind: str = "SASL") -> None:
        """Log that a peer has failed to authenticate."""
        self._complaints.write(logger, logging.WARNING, kind, host, _FAILED, host, shortened(reason))


def _tls_of(config: BrokerConfig) -> dict[str, TlsSettings]:
    """Return the settings of TLS of listeners, by name: this node's own, and the one of controllers elsewhere."""
    return {each.listener: each.tls for each in config.secured if each.tls is not None}


def _called_by(config: BrokerConfig) -> frozenset[str]:
    """Return the names of the listeners to which this node opens connections on other nodes."""
    if config.is_alone:
        return frozenset()
    called = set(config.controller_listener_names[:1])
    return frozenset(called | {config.inter_broker_listener} if config.is_broker else called)


def _kerberos_of(listeners: Mapping[str, SaslSettings]) -> Kerberos | None:
    """Return the Kerberos service of the listeners with GSSAPI; None if no listener has it. Raises StartupError."""
    settings = {name: sasl.gssapi for name, sasl in listeners.items() if sasl.gssapi is not None}
    if not settings:
        return None
    from kraftpy.broker.security.kerberos import Kerberos  # here: most brokers do not need it

    return Kerberos(settings)


def principal_of(certificate: bytes | None, tls: TlsSettings) -> Principal:
    """Return the principal of a client's certificate in DER, if it has one. Raises ValueError if no rule matches."""
    if certificate is None:
        return ANONYMOUS
    return Principal(USER, tls.principal_rules.apply(subject_of(certificate)))
