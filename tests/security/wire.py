"""A connection by hand, which logs in with PLAIN and asks one request at a time."""

from __future__ import annotations

import socket
from typing import Any

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.protocol.schema import decode
from kraftpy.security.plain import plain_message

BOUND_SECONDS = 20.0


class Closed(Exception):
    """The broker has closed the connection."""


class Session:
    """One client's connection. Without a user it does not log in."""

    def __init__(self, address: tuple[str, int], user: str | None = None, password: str = "") -> None:
        self._socket = socket.create_connection(address, BOUND_SECONDS)
        self._next_id = 0
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
        self._next_id += 1
        self._socket.sendall(encode_request(key, version, self._next_id, "session", message))
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        _, body = decode_response_header(key, version, frame)
        return bytes(body)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            try:
                more = self._socket.recv(count - len(found))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed
            found += more
        return found

    def close(self) -> None:
        self._socket.close()
