"""One connection to a broker, which sends a request and reads its response: a client that costs next to nothing."""

from __future__ import annotations

import socket
import struct
from typing import Any

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.schema import decode

_ANSWER_S = 30.0


class Wire:
    """One connection to one node: a request, then its response."""

    def __init__(self, address: str, *, answer_s: float = _ANSWER_S) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=answer_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def ask(self, key: ApiKey, version: int, message: object) -> Any:
        """Send a request and return its response. Raises OSError if the node is gone."""
        answer = self.exchange(encode_request(key, version, 1, "bench", message))
        _, body = decode_response_header(key, version, answer)
        return decode(APIS[key].response, body, version)

    def exchange(self, frame: bytes) -> bytes:
        """Send an encoded request and return its encoded response. Raises OSError if the node is gone."""
        self._socket.sendall(frame)
        head = self._answers.read(4)
        if len(head) < 4:
            raise ConnectionError("the node has hung up")
        (size,) = struct.unpack(">i", head)
        return self._answers.read(size)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
