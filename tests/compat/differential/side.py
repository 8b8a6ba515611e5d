"""One cluster as its clients see it: connections by client and node, and requests that are not compared."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Any

from both import Body, build
from of_kafka import APIS
from peer_clusters import PeerCluster
from plain_answers import Names, in_minutes
from worlds import OPEN, listener_of, user_of

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.protocol.schema import Struct, decode
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, ScramClient, salted_password

PATIENCE = 2.5
"""The seconds after which a cluster that has said nothing counts as silent."""
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """The outcome of a request: "answered", "closed", "silent", or a description of bytes that are no answer."""

    outcome: str
    message: Struct | None = None
    version: int = 0
    """The version in which the message came: that of ApiVersions may be 0."""


class Side:
    """The connections to one cluster."""

    def __init__(self, index: int, cluster: PeerCluster, world: str = OPEN) -> None:
        self.index = index
        self._world = world
        self.cluster = cluster
        self.names = Names(cluster.ports, cluster.controller_ports, cluster.directory)
        self._connections: dict[tuple[str, int], socket.socket] = {}

    def send(self, client: str, node: int, frame: bytes) -> None:
        """Send a frame; over a new connection if the cluster has closed the last one."""
        try:
            self.connection(client, node).sendall(frame)
        except OSError:
            self.drop(client, node)
            self.connection(client, node).sendall(frame)

    def connection(self, client: str, node: int) -> socket.socket:
        if (client, node) not in self._connections:
            made = self._connect(client, node)
            if (user := user_of(self._world, client)) is not None:
                _log_in(made, user)
            self._connections[client, node] = made
        return self._connections[client, node]

    def log_in(self, client: str, login: ScramLogin) -> str:
        """Connect a client anew with a login by SCRAM; return what came of it, with the session's length."""
        self.drop(client, 1)
        made = self._connect(client, 1)
        try:
            outcome = login.make(made)
        except EOFError:
            outcome = "closed"
        if outcome.startswith("NONE"):
            self._connections[client, 1] = made
        else:
            made.close()
        return outcome

    def _connect(self, client: str, node: int) -> socket.socket:
        listener = listener_of(self._world, client)
        ports = self.cluster.ports if listener is None else self.cluster.more_ports[listener]
        made = socket.create_connection(("127.0.0.1", ports[node - 1]), CONNECT_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def drop(self, client: str, node: int) -> None:
        with contextlib.suppress(KeyError):
            self._connections.pop((client, node)).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def frame(self, client: str, node: int, seconds: float) -> bytes | str:
        """Return the next frame that arrives, without its size, or the reason that none came."""
        connection = self.connection(client, node)
        connection.settimeout(seconds)
        try:
            return _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
        except (EOFError, ConnectionError):
            self.drop(client, node)
            return "closed"
        except TimeoutError:
            self.drop(client, node)
            return "silent"

    def quiet(self, api: str, body: Body, version: int, node: int = 1) -> Any:
        """Return the answer to a request that is not compared."""
        key = ApiKey[api.upper()]
        self.send(
            "quiet",
            node,
            encode_request(key, version, 1, "differ", build(APIS[key].request, body, version, self.index)),
        )
        frame = self.frame("quiet", node, 4 * PATIENCE)
        if isinstance(frame, str):
            raise EOFError(f"{self.cluster.kind}, node {node}, {api}: {frame}")
        return decode(APIS[key].response, decode_response_header(key, version, frame)[1], version, exact=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScramLogin:
    """A login by SCRAM, of a user or by a delegation token."""

    mechanism: str
    name: str
    password: str
    is_by_token: bool = True

    def make(self, connection: socket.socket) -> str:
        """Log in; return the last error, and for a login that succeeds the session's length. Raises EOFError."""
        mechanism = MECHANISMS[self.mechanism]
        client = ScramClient(mechanism, self.name, "a-nonce", is_by_token=self.is_by_token)
        _step(connection, ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=self.mechanism))
        first = _step(connection, ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=client.first()))
        if first.error_code:
            return ErrorCode(first.error_code).name
        salt, iterations = client.challenged(first.auth_bytes)
        proof = client.final(salted_password(mechanism, self.password, salt, iterations))
        last = _step(connection, ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=proof))
        if last.error_code:
            return ErrorCode(last.error_code).name
        client.verify(last.auth_bytes)
        return f"NONE for {in_minutes(last.session_lifetime_ms)}"


def _log_in(connection: socket.socket, user: str) -> None:
    """Log in with PLAIN; a user's password is its name."""
    _step(connection, ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"))
    answer = _step(connection, ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=plain_message(user, user)))
    assert not answer.error_code, answer


def _step(connection: socket.socket, key: ApiKey, request: Struct) -> Any:
    connection.settimeout(CONNECT_SECONDS)
    connection.sendall(encode_request(key, 1, 0, "differ", request))
    frame = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    return decode(APIS[key].response, decode_response_header(key, 1, frame)[1], 1)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def parse(key: int, version: int | None, correlation: int | None, frame: bytes) -> Heard:
    """Return what a frame is as the answer to a request. A version or correlation id of None is not known."""
    if version is None or key not in APIS:
        return Heard(outcome=f"answer {frame[4:34].hex()}")
    is_other = correlation is not None and struct.unpack_from(">i", frame)[0] != correlation
    problem = "an answer to another request" if is_other else ""
    for used in (version, 0) if key == ApiKey.API_VERSIONS else (version,):
        try:
            body = decode_response_header(key, used, frame)[1]
            message: Struct = decode(APIS[key].response, body, used)
        except Exception as error:
            problem = problem or str(error)
        else:
            return Heard(outcome=problem or "answered", message=message, version=used)
    return Heard(outcome=f"undecodable: {problem} {frame[:100].hex()}")
