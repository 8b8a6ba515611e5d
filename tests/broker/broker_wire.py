"""A socket and the protocol's own codecs: what a test needs to say exactly what a client would not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.protocol.schema import decode
from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 20.0

StartBroker = Callable[..., EmbeddedBroker]
"""The fixture `start_broker`."""


def connect(bootstrap: str, timeout: float = BOUND_SECONDS) -> socket.socket:
    """A connection whose reads give up after `timeout` seconds."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=BOUND_SECONDS)
    connection.settimeout(timeout)
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """That many bytes. EOFError where the peer closes before."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def read_frame(connection: socket.socket) -> bytes:
    """One response, without its size."""
    return read_exactly(connection, struct.unpack(">i", read_exactly(connection, 4))[0])


def is_closed(connection: socket.socket) -> bool:
    """Wait for the peer to close; False where it says something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def ask(connection: socket.socket, key: ApiKey, version: int, request: Any) -> Any:
    """The response to a request."""
    connection.sendall(encode_request(key, version, 7, "test", request))
    return answer(connection, key, version)


def answer(connection: socket.socket, key: ApiKey, version: int, correlation_id: int = 7) -> Any:
    """The next response, which must be to that request."""
    found, body = decode_response_header(key, version, read_frame(connection))
    assert found == correlation_id
    return decode(APIS[key].response, body, version)


def serves(bootstrap: str) -> None:
    """Assert that the broker answers a new connection."""
    with connect(bootstrap) as connection:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        found = ask(connection, ApiKey.API_VERSIONS, 3, request)
        assert isinstance(found, ApiVersionsResponse)
        assert found.error_code == ErrorCode.NONE


def resident_mb(pid: int) -> float:
    """Megabytes of memory a process has now."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))
