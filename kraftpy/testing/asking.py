"""Sends one request to one node over a connection of its own, without an event loop."""

from __future__ import annotations

import socket
from typing import Any

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import FrameDecoder, decode_response_header, encode_request
from kraftpy.protocol.schema import decode

_MAX_ANSWER_BYTES = 64 << 20


def ask(address: tuple[str, int], key: ApiKey, version: int, request: object, *, timeout: float) -> Any:
    """Return the decoded answer. Raises OSError if the node is unreachable, closes, or is silent for `timeout` s."""
    decoder = FrameDecoder(_MAX_ANSWER_BYTES)
    with socket.create_connection(address, timeout) as connection:
        connection.sendall(encode_request(key, version, 1, "kraftpy-testing", request))
        while True:
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the node closed the connection")
            for frame in decoder.feed(data):
                _, body = decode_response_header(key, version, frame)
                return decode(APIS[key].response, body, version)
