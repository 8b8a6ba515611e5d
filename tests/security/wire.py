"""Connections by hand, one request at a time: a `Wire` sends what a test says, a `Session` logs in with PLAIN first."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.protocol.schema import decode
from kraftpy.security.plain import plain_message
from tests.security.certificates import HOST

BOUND_SECONDS = 20.0
USER, PASSWORD = "alice", "correct, =horse \u00e9"
"""The user that logs in unless a test names another."""


class Closed(Exception):
    """The broker has closed the connection."""


class Wire:
    """One connection. Methods that read return None if the broker has closed it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._next_id = 0

    @classmethod
    def to(cls, port: int, host: str = "") -> Wire:
        """Connect to a port of this machine, in clear text; from another of its addresses if one is given."""
        return cls(socket.create_connection((HOST, port), BOUND_SECONDS, (host, 0)))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: ApiKey, version: int, message: object) -> None:
        self._next_id += 1
        self.socket.sendall(encode_request(key, version, self._next_id, "wire", message))

    def send_frame(self, content: bytes) -> None:
        self.socket.sendall(len(content).to_bytes(4, "big") + content)

    def receive(self) -> bytes | None:
        """The next frame."""
        header = self.read(4)
        return None if header is None else self.read(int.from_bytes(header, "big"))

    def read(self, count: int) -> bytes | None:
        found = b""
        while len(found) < count:
            try:
                more = self.socket.recv(count - len(found))
            except (ConnectionError, ssl.SSLError):
                return None
            if not more:
                return None
            found += more
        return found

    def ask(self, key: ApiKey, version: int, message: object) -> Any:
        """Send a request and return its response."""
        self.send(key, version, message)
        frame = self.receive()
        if frame is None:
            return None
        return decode(APIS[key].response, decode_response_header(key, version, frame)[1], version)

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))

    def token(self, token: bytes, version: int = 2) -> Any:
        return self.ask(ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=token))

    def log_in(self, user: str = USER, password: str = PASSWORD) -> Any:
        assert self.handshake("PLAIN").error_code == 0
        return self.token(plain_message(user, password))

    def is_served(self) -> bool:
        self.send(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        return self.receive() is not None

    def is_closed(self) -> bool:
        return self.receive() is None


class Session:
    """One client's connection, whose requests are answered. Without a user it does not log in."""

    def __init__(self, address: tuple[str, int], user: str | None = None, password: str = "") -> None:
        self._wire = Wire(socket.create_connection(address, BOUND_SECONDS))
        if user is not None:
            self.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"))
            answer = self.ask(
                ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=plain_message(user, password))
            )
            assert not answer.error_code, answer

    def ask(self, key: ApiKey, message: Any, version: int | None = None) -> Any:
        """Send a request, in the newest version unless one is given, and return its response. Raises Closed."""
        version = APIS[key].last if version is None else version
        return decode(APIS[key].response, memoryview(self.ask_bytes(key, message, version)), version)

    def ask_bytes(self, key: ApiKey, message: Any, version: int) -> bytes:
        """Send a request and return the body of its response. Raises Closed."""
        self._wire.send(key, version, message)
        frame = self._wire.receive()
        if frame is None:
            raise Closed
        _, body = decode_response_header(key, version, frame)
        return bytes(body)

    def close(self) -> None:
        self._wire.socket.close()
