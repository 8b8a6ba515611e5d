"""Frames of any size and in any pieces reach the broker whole."""

from __future__ import annotations

import socket
import struct

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.testing.cluster import EmbeddedBroker

PIECE_BYTES = 700_001


@pytest.mark.parametrize("size_bytes", [70_000, 1 << 20, (1 << 20) + 1, 2 << 20, 5_000_000, 33_333_333])
def test_a_large_frame_is_answered_and_so_is_the_next(kraftpy_server: EmbeddedBroker, size_bytes: int) -> None:
    small = encode_request(ApiKey.API_VERSIONS, 0, 8, "test", ApiVersionsRequest())
    # Bytes behind a request are not looked at, so this one can be as large as one likes.
    large = struct.pack(">i", size_bytes) + small[4:].ljust(size_bytes, b"\0")
    host, port = kraftpy_server.bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rb") as answers:
        data = large + small + large[:100]
        for start in range(0, len(data), PIECE_BYTES):
            connection.sendall(data[start : start + PIECE_BYTES])
        connection.sendall(large[100:])
        for _ in range(3):
            (size,) = struct.unpack(">i", answers.read(4))
            assert answers.read(size)[:4] == struct.pack(">i", 8)
