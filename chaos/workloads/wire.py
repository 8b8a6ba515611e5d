"""One connection by hand, for clients that send requests that `kraftpy.client` would not: frames, and answers to them.

Frames arrive in order; None stands for the end of the connection. There is no retry and no negotiation of versions.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import FrameDecoder, decode_response_header, encode_request
from kraftpy.protocol.schema import decode

ANSWER_SECONDS: Final = 2.0
_MAX_ANSWER_BYTES: Final = 64 << 20


class Wire(asyncio.Protocol):
    """One connection: the frames received, and how it ended."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Answers in order; None at the end."""
        self.transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(_MAX_ANSWER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Split the bytes into answers; anything else ends the connection."""
        try:
            for frame in self._decoder.feed(data):
                self.frames.put_nowait(bytes(frame))
        except ProtocolError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that no more bytes follow."""
        self.frames.put_nowait(None)

    def write(self, data: bytes) -> None:
        """Send, unless the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close at once, without notice."""
        if self.transport is not None:
            self.transport.abort()

    async def body(self, key: ApiKey, version: int, request: Any, client_id: str | None) -> bytes:
        """Send a request and return the body of its answer. Raises EOFError or TimeoutError if there is none."""
        self.write(encode_request(key, version, 1, client_id, request))
        async with asyncio.timeout(ANSWER_SECONDS):
            frame = await self.frames.get()
        if frame is None:
            raise EOFError
        return bytes(decode_response_header(key, version, frame)[1])

    async def ask(self, key: ApiKey, version: int, request: Any, client_id: str | None) -> Any:
        """Send a request and return its answer. Raises EOFError or TimeoutError if there is none."""
        return decode(APIS[key].response, memoryview(await self.body(key, version, request, client_id)), version)
