"""The sending half of a client connection: writes responses to the socket, in order and with few system calls.

While more requests are queued, responses are held until the event loop comes around, which it does as soon as a request
has to wait: a pipelining client gets one packet for many responses, and the system call is the main cost of a response.

A long response comes in pieces, which go to the socket in one call (`writev`) without being joined. Pieces that are
slices of a log's file go by `sendfile`, from the page cache to the socket: this process never holds them, however
slowly the peer reads. If the transport is not a plain socket, or the file is not one of the operating system, they are
copied piece by piece.

Invariants: bytes leave in the order of the calls; at most one response more than `_HELD_BYTES` is held or unread, not
counting slices of files; responses that the peer does not read are charged to its connection for as long as it is
waited for; a slice's file stays open until it is sent, and is released however sending ends.

Left out: closing the connection. A response that cannot be sent in full raises `SendFailed`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.broker.request_memory import Holder, RequestMemory
from kraftpy.log.results import LogSlice
from kraftpy.ports import Buffer

if TYPE_CHECKING:
    from kraftpy.metrics.traffic import SentBytes

Part = Buffer | LogSlice
Response = bytes | bytearray | list[Part]
"""A whole response with its size prefix, or a list of pieces if some of them are long."""

LONG_BYTES = 16 * 1024
"""A piece of a response at least this long gets an entry of its own in `writev`: joining it would cost more."""
_HELD_BYTES = 64 * 1024
_MOST_PIECES = 512
_TRANSFER_BYTES = 1 << 20
"""How much of a file is sent in one call, during which other connections wait."""
_COPIED_BYTES = 1 << 18
_LITTLE_BYTES = 8
"""How much of a slice is copied when the peer's socket is full."""
_READ_PROGRESS_BYTES = 64 * 1024
"""How much a peer has to read of an answer within `connections.max.idle.ms`."""


class SendFailed(Exception):
    """A response was sent only in part, so the connection has to be closed. The message is the reason."""


class ResponseWriter:
    """Writes the responses of one connection. While `requests`, its queue of frames, has some, short ones are held.

    The methods that wait for the peer are given the connection, to charge it with what the peer does not read; no
    reference to it is kept, so that it is freed as soon as it ends.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        memory: RequestMemory,
        requests: deque[bytearray],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._memory = memory
        self._requests = requests
        self._descriptor = -1
        if transport.get_extra_info("sslcontext") is None and (socket := transport.get_extra_info("socket")):
            self._descriptor = socket.fileno()
        self.counted: SentBytes | None = None
        """Counts what is sent; None if there are no metrics."""
        self._held: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._is_over = False
        self.writable: asyncio.Future[None] | None = None
        """Done once the peer reads again; None while it reads."""
        self.unread_since: float | None = None
        """When the peer was found not to be reading its responses; None while it reads."""
        self.unread_bytes = 0
        """How many bytes were unread at that time."""
        self._unread_mark = (0, 0.0)  # bytes still unread at its last noticeable progress, and when that was

    def pause(self) -> None:
        """Note that the peer does not read."""
        self.writable = self._loop.create_future()

    def resume(self) -> None:
        """Note that the peer reads again, or is gone."""
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)
        self.writable = None

    def drop(self) -> None:
        """Drop the held responses: nothing can be sent any more."""
        self._is_over = True
        self._held, self._held_bytes = [], 0

    # --- unread responses --------------------------------------------------------------------

    def unread_now(self) -> int:
        """Return how many bytes the socket has not taken yet, because the peer does not read."""
        return self._transport.get_write_buffer_size()

    def are_stuck(self, now: float, idle_seconds: float) -> bool:
        """Return whether the peer has read hardly anything of its responses for that long. Notes its progress."""
        if self.unread_since is None:
            return False
        unread, marked_at = self._unread_mark
        left = self.unread_now()
        if left <= unread - _READ_PROGRESS_BYTES:
            self._unread_mark = left, now
            return False
        return now - marked_at > idle_seconds

    async def until_read(self, connection: Holder) -> None:
        """Wait until the peer has read most of its responses, which are charged to the connection meanwhile."""
        if self._is_over or self.writable is None:
            return
        self._unread_is(self.unread_now())
        self._memory.charge(connection, self.unread_bytes)
        await self.writable
        self._memory.discharge(connection, self.unread_bytes)
        self.unread_since = None

    def _unread_is(self, unread_bytes: int) -> None:
        now = self._loop.time()
        self.unread_since, self.unread_bytes, self._unread_mark = now, unread_bytes, (unread_bytes, now)

    # --- short responses ---------------------------------------------------------------------

    def send(self, response: bytes | bytearray) -> None:
        """Write now if the response is long or no request is queued; otherwise when the event loop comes around."""
        if len(response) >= _HELD_BYTES:
            self.write_held()
            self._write(response)
        elif self._requests:
            if not self._held:
                self._loop.call_soon(self.write_held)
            self._held.append(response)
            self._held_bytes += len(response)
            if self._held_bytes >= _HELD_BYTES:
                self.write_held()
        elif self._held:
            self._held.append(response)
            self.write_held()
        else:
            self._write(response)

    def write_held(self) -> None:
        """Write the held responses."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._write(held[0] if len(held) == 1 else b"".join(held))

    def _write(self, data: Buffer) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    # --- responses in pieces -----------------------------------------------------------------

    async def send_pieces(self, pieces: list[Part], connection: Holder) -> None:
        """Send a response in pieces, behind what is held. Slices of files are released in any case.

        Raises SendFailed if a slice cannot be sent in full.
        """
        try:
            if len(pieces) == 1 and isinstance(pieces[0], bytes):
                self.send(pieces[0])
                return
            self.write_held()
            together: list[Buffer] = []
            for piece in pieces:
                if isinstance(piece, LogSlice):
                    self._write_pieces(together)
                    together = []
                    await self._send_slice(piece, pieces, connection)
                else:
                    together.append(piece)
            self._write_pieces(together)
        finally:
            for piece in pieces:
                if isinstance(piece, LogSlice):
                    piece.release()

    def _write_pieces(self, pieces: list[Buffer]) -> None:
        """Give the socket as much as it takes in one call, and the rest to the transport."""
        transport = self._transport
        if transport.is_closing() or not pieces:
            return
        sent = 0
        if self._descriptor >= 0 and len(pieces) <= _MOST_PIECES and not transport.get_write_buffer_size():
            try:
                sent = os.writev(self._descriptor, pieces)
            except BlockingIOError:
                pass
            except OSError:
                transport.abort()
                return
        for piece in pieces:
            if sent < len(piece):
                transport.write(memoryview(piece)[sent:])
            sent = max(0, sent - len(piece))

    async def _send_slice(self, piece: LogSlice, pieces: list[Part], connection: Holder) -> None:
        """Send a stretch of a file. Returns when the kernel has all of it, or when the connection is closing.

        `pieces` are those of the whole response: they are charged while the peer is waited for.
        """
        transport, position, end = self._transport, piece.position, piece.position + piece.length
        fileno: Callable[[], int] | None = getattr(piece.file, "fileno", None)
        if self._descriptor < 0 or fileno is None:
            await self._copy_slice(piece, connection)
            return
        while position < end and not transport.is_closing():
            sent = 0
            if not transport.get_write_buffer_size():
                try:
                    sent = os.sendfile(self._descriptor, fileno(), position, min(end - position, _TRANSFER_BYTES))
                except BlockingIOError:
                    pass
                except ConnectionError:
                    transport.abort()
                    return
                except OSError as error:
                    raise SendFailed(f"cannot send a slice of a log: {error}") from error
                else:
                    if not sent:
                        raise SendFailed(f"a log's file ends at {position}, {end - position} bytes early")
            position += sent
            if self.counted is not None:
                self.counted.from_files += sent
            if position == end:
                return
            if sent:
                await asyncio.sleep(0)
                continue
            kept = sum(len(each) for each in pieces if not isinstance(each, LogSlice))
            self._unread_is(kept)
            self._memory.charge(connection, kept)
            try:
                little = await self._send_little(piece, position, end)
            finally:
                self._memory.discharge(connection, kept)
                self.unread_since = None
            if not little:
                raise SendFailed(f"a log's file ends at {position}, {end - position} bytes early")
            position += little

    async def _send_little(self, piece: LogSlice, position: int, end: int) -> int:
        """Send a few bytes through the transport, which waits for the peer to read; return how many were sent.

        Waiting on the socket itself would take a descriptor of our own, because the loop does not give out a
        transport's.
        """
        transport = self._transport
        data = piece.file.read(position, min(_LITTLE_BYTES, end - position))
        transport.set_write_buffer_limits(high=0)  # so that none of them is left when this resumes
        try:
            transport.write(data)
            if self.writable is not None:
                await self.writable
        finally:
            transport.set_write_buffer_limits()
        return len(data)

    async def _copy_slice(self, piece: LogSlice, connection: Holder) -> None:
        for position in range(piece.position, piece.position + piece.length, _COPIED_BYTES):
            wanted = min(_COPIED_BYTES, piece.position + piece.length - position)
            data = piece.file.read(position, wanted)
            if len(data) < wanted:
                raise SendFailed(f"a log's file ends at {position + len(data)}, early")
            self._write(data)
            if self.writable is not None:
                await self.until_read(connection)
