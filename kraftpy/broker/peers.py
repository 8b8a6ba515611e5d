"""Requests to other brokers over the inter-broker listener, on one connection to each.

A connection is opened when it is first needed, and again after it was lost. Callers learn of a lost connection by an
error and decide what to do; nothing is retried here. On each connection this broker proves its identity
(`broker_proof`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.config import BrokerConfig
from kraftpy.metadata.image import Image
from kraftpy.protocol.apis import ApiKey
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    import ssl

    from kraftpy.client.connection import Connection, ResponseLimit
    from kraftpy.client.security import Login, Security
    from kraftpy.config.security import ListenerSecurity, SaslSettings


def security_to(
    listener: ListenerSecurity | None, mechanism: str, contexts: Callable[[str], ssl.SSLContext] | None
) -> Security:
    """Return the security of a connection that this node opens to a listener: TLS, and its own login.

    `contexts` returns the current context for a listener (`security.certificate`). Raises BrokerUnreachable if the
    listener's certificate cannot be used.
    """
    from kraftpy.client.connection import BrokerUnreachable
    from kraftpy.client.security import PLAINTEXT, Security

    if listener is None:
        return PLAINTEXT
    from kraftpy.tls import TlsError

    login = None if listener.sasl is None else _login(listener.sasl, mechanism)
    if listener.tls is None:
        return Security(login=login)
    assert contexts is not None
    try:
        return Security(tls=contexts(listener.listener), login=login)
    except TlsError as error:
        raise BrokerUnreachable(str(error)) from error


def _login(sasl: SaslSettings, mechanism: str) -> Login:
    """Return this node's own login on a listener."""
    from kraftpy.client.security import Login

    if sasl.gssapi is not None and mechanism == "GSSAPI":
        from kraftpy.client.kerberos import contexts_with

        contexts = contexts_with(sasl.gssapi.service, sasl.gssapi.principal, sasl.gssapi.keytab)
        return Login(mechanism=mechanism, context=contexts)
    if sasl.tokens is not None and mechanism == "OAUTHBEARER":
        from kraftpy.client.oauthbearer import tokens_from

        return Login(mechanism=mechanism, token=tokens_from(sasl.tokens).token)
    own = sasl.logins[mechanism]
    return Login(mechanism=mechanism, username=own.username or "", password=own.password or "")


def response_limit(config: BrokerConfig) -> ResponseLimit:
    """Return the largest response to accept from a broker, which must have room for one batch of any size allowed."""
    from kraftpy.client.connection import ResponseLimit  # here: a broker that is alone needs none

    return ResponseLimit(max(config.socket_request_max_bytes, ResponseLimit().bytes), "socket.request.max.bytes")


class Outgoing:
    """The security of a broker's connections to others: that of their listener, with its own certificate and login."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.contexts: Callable[[str], ssl.SSLContext] | None = None
        """Returns the current TLS context for a listener; set before any connection is opened (`SecureListeners`)."""

    def security(self) -> Security:
        """Return the security of the next connection. Raises BrokerUnreachable if it cannot be used."""
        config = self._config
        return security_to(
            config.security_of(config.inter_broker_listener), config.inter_broker_mechanism, self.contexts
        )


class Peers:
    """The connections to other brokers, opened on demand."""

    def __init__(
        self, config: BrokerConfig, image: Callable[[], Image], proof: BrokerProof, outgoing: Outgoing
    ) -> None:
        self._config = config
        self._image = image
        self._proof = proof
        self._outgoing = outgoing
        self._connections: dict[BrokerId, tuple[Connection, tuple[str, str]]] = {}
        """Each with the identity that this broker has claimed on it."""
        self._opening: dict[BrokerId, asyncio.Lock] = {}

    async def ask(self, broker_id: BrokerId, key: ApiKey, request: Any, *, low: int = 0, high: int = 0x7FFF) -> Any:
        """Send in the highest version both support, and return the response. Raises KafkaError (NETWORK_EXCEPTION)."""
        connection = await self._connection(broker_id)
        return await connection.send(key, request, connection.version(key, low=low, high=high))

    def close(self) -> None:
        """Close every connection."""
        for connection, _ in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _connection(self, broker_id: BrokerId) -> Connection:
        from kraftpy.client.connection import BrokerUnreachable, Connection  # here: a broker that is alone needs none
        from kraftpy.client.runtime import RealRuntime

        async with self._opening.setdefault(broker_id, asyncio.Lock()):
            connection, said = self._connections.get(broker_id, (None, None))
            software = self._proof.software_for(broker_id)
            if connection is not None and not connection.closed:
                if said == software:
                    return connection
                connection.close()  # this broker's epoch has changed
            broker = self._image().broker(broker_id)
            endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
            if endpoint is None:
                raise BrokerUnreachable(f"broker {broker_id} has no listener {self._config.inter_broker_listener}")
            connection = await Connection.open(
                RealRuntime(),
                endpoint.host,
                endpoint.port,
                client_id=f"broker-{self._config.node_id}-peer",
                request_timeout_ms=self._config.replica_socket_timeout_ms,
                setup_timeout_ms=self._config.replica_socket_timeout_ms,
                software=software,
                limit=response_limit(self._config),
                security=self._outgoing.security(),
            )
            self._connections[broker_id] = connection, software
            return connection
