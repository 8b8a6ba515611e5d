"""One client's connection: bytes in, frames, answers out in the order asked.

One task per connection takes the frames in turn, so a long poll delays what was sent behind it on the same
connection, as in Kafka. The socket is read straight into the frame once its size is known, so a large Produce is
copied once, by the kernel; the frame is ours and writable, which is what lets the log stamp a batch in place.

Invariants: at most `socket.request.max.bytes` is ever allocated for one frame, only after its size was checked, and no
faster than twice what has arrived; reading pauses while `_QUEUED_FRAMES` frames or `_QUEUED_BYTES` wait, and the next
request waits while the peer does not read its answers. So a connection holds at most the request being served, one
more, the queue, and one answer more than `_HELD_BYTES`, of which slices of files are no part.

Answers are held until the event loop comes around, which it does as soon as a request has to wait or none is left:
a client that sends ahead gets one packet for many answers, and a system call is what an answer costs most.

A long answer comes in pieces, which go to the socket in one call (`writev`) without being joined. Pieces that are
slices of a log's file go by `sendfile`, from the page cache to the socket: this process never holds them, however
slowly the peer reads. Their file stays open until they are sent, and is released whatever ends the connection. Where
the transport is no plain socket, or the file none of the operating system's, they are copied piece by piece.

A malformed frame closes this connection and no other. Left out: TLS and SASL.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import cast

from kraftpy.broker.containment import Tasks
from kraftpy.log.results import LogSlice
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

Part = Buffer | LogSlice
Response = bytes | bytearray | list[Part]
"""A whole response with its size; in pieces where some of them are long."""
Answer = Callable[[bytearray, "Connection"], Awaitable[Response | None]]
"""From a frame (without its size) to the whole response with its size, or None where none is due."""

RECEIVE_BUFFER_BYTES = 256 * 1024
"""What one system call may bring: many small requests, or a large part of a large one."""
_FIRST_ALLOCATION_BYTES = 1 << 20
"""Larger than the frames of ordinary clients, so that those are never moved."""
_QUEUED_FRAMES = 64
_QUEUED_BYTES = 1 << 20
_HELD_BYTES = 64 * 1024
LONG_BYTES = 16 * 1024
"""From here on a piece of an answer is worth a place of its own in a system call: to join it would cost more."""
_MOST_PIECES = 512
_TRANSFER_BYTES = 1 << 20
"""How much of a file goes in one call, which others wait for."""
_COPIED_BYTES = 1 << 18
_SIZE = Struct(">i")
_SIZE_BYTES = _SIZE.size


class Connection(asyncio.BufferedProtocol):
    """The broker's end of one connection.

    `answer` turns a frame into a response; `closed` is called once, when the connection is gone. `receive_buffer` is
    that of all connections of one event loop: asyncio fills it and has it cut into frames before it is another's turn.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        tasks: Tasks,
        max_frame_bytes: int,
        receive_buffer: memoryview,
        opened: Callable[[Connection], bool],
        closed: Callable[[Connection], None],
    ) -> None:
        self._answer = answer
        self._tasks = tasks
        self._max_frame_bytes = max_frame_bytes
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._receive_buffer = receive_buffer
        self._rest = b""  # the beginning of a frame's size
        self._partial: bytearray | None = None
        self._partial_bytes = 0
        self._partial_size = 0
        self._frames: deque[bytearray] = deque()
        self._queued_bytes = 0
        self._frame_arrived: asyncio.Future[None] | None = None
        self._held: list[bytes | bytearray] = []
        self._held_bytes = 0
        self._writable: asyncio.Future[None] | None = None
        self._descriptor = -1
        self._reading_paused = False
        self._task: asyncio.Task[None] | None = None
        self.client_host = ""
        self.broker_claim = ""
        """What the other end says of itself, if it says to be a broker (`broker_proof`)."""
        self.proved_broker: tuple[int, int] | None = None
        """The broker and the epoch that it has proved with that claim."""
        self.last_active_at = 0.0
        self.is_serving = False
        """A request is being answered: however long that takes, the connection is not idle."""

    # --- what asyncio tells us ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving, unless the broker has too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        if transport.get_extra_info("sslcontext") is None and (socket := transport.get_extra_info("socket")):
            self._descriptor = socket.fileno()
        peer = transport.get_extra_info("peername")
        self.client_host = f"/{peer[0]}" if isinstance(peer, tuple) else "/unknown"
        self.last_active_at = asyncio.get_running_loop().time()
        if not self._opened(self):
            self._transport.abort()
            return
        serving = self._serve()
        try:
            self._task = self._tasks.create_task(serving, name=f"connection {peer}")
        except RuntimeError:  # the broker has failed, and takes down all it had begun: nothing can be begun any more
            serving.close()
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the frame being received, or the buffer of all."""
        if self._partial is not None:
            # It grows here and not in buffer_updated, where the caller still holds it.
            if self._partial_bytes == len(self._partial):
                room = min(self._partial_size, 2 * self._partial_bytes) - self._partial_bytes
                self._partial.extend(bytes(room))
            return memoryview(self._partial)[self._partial_bytes :]
        if not self._rest:
            return self._receive_buffer
        self._receive_buffer[: len(self._rest)] = self._rest
        return self._receive_buffer[len(self._rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what arrived into frames."""
        self.last_active_at = asyncio.get_running_loop().time()
        if self._partial is not None:
            self._partial_bytes += nbytes
            if self._partial_bytes == self._partial_size:
                self._queue(self._partial)
                self._partial = None
            return
        try:
            self._cut_frames(self._receive_buffer[: len(self._rest) + nbytes])
        except ProtocolError as error:
            self.fail(error)

    def pause_writing(self) -> None:
        """The peer does not read: hold the next request back."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop whatever this connection was waiting for."""
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()
        self._closed(self)

    # --- frames ------------------------------------------------------------------------------

    def _cut_frames(self, received: memoryview) -> None:
        position, received_bytes = 0, len(received)
        while received_bytes - position >= _SIZE_BYTES:
            (size,) = _SIZE.unpack_from(received, position)
            if not 0 <= size <= self._max_frame_bytes:
                raise ProtocolError(
                    f"a request of {size} bytes; socket.request.max.bytes allows {self._max_frame_bytes}"
                )
            start = position + _SIZE_BYTES
            position = start + size
            if position > received_bytes:
                self._partial = bytearray(min(size, _FIRST_ALLOCATION_BYTES))
                self._partial_size = size
                self._partial_bytes = received_bytes - start
                self._partial[: self._partial_bytes] = received[start:]
                position = received_bytes
                break
            self._queue(bytearray(received[start:position]))
        self._rest = bytes(received[position:])

    def _queue(self, frame: bytearray) -> None:
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        if self._frame_arrived is not None and not self._frame_arrived.done():
            self._frame_arrived.set_result(None)
        is_full = len(self._frames) >= _QUEUED_FRAMES or self._queued_bytes >= _QUEUED_BYTES
        if is_full and not self._reading_paused and self._transport is not None:
            self._transport.pause_reading()
            self._reading_paused = True

    async def _next_frame(self) -> bytearray:
        while not self._frames:
            self._frame_arrived = asyncio.get_running_loop().create_future()
            await self._frame_arrived
        frame = self._frames.popleft()
        self._queued_bytes -= len(frame)
        has_room = len(self._frames) < _QUEUED_FRAMES // 2 and self._queued_bytes < _QUEUED_BYTES
        if self._reading_paused and has_room and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        return frame

    # --- answers -----------------------------------------------------------------------------

    async def _serve(self) -> None:
        transport, loop = self._transport, asyncio.get_running_loop()
        assert transport is not None
        try:
            while not transport.is_closing():
                frame = await self._next_frame()
                self.is_serving = True
                response = await self._answer(frame, self)
                del frame  # a large request is not kept for as long as its answer is not read
                if isinstance(response, list):
                    await self._send_pieces(response)
                elif response is not None:
                    self._send(response)
                del response
                if self._writable is not None:
                    await self._writable
                self.is_serving = False
                self.last_active_at = loop.time()
        except ProtocolError as error:
            self.fail(error)
        except Exception:
            # A mistake of ours in one handler: loud in the log, and only this client pays. The log and the journal
            # are changed by their own code, which either finishes or leaves no trace.
            logger.exception("connection %s: closed after an unexpected error", self.client_host)
            transport.abort()

    def _send(self, response: bytes | bytearray) -> None:
        """Write now what is long, and the rest when the event loop comes around."""
        if len(response) >= _HELD_BYTES:
            self._write_held()
            self._write(response)
            return
        if not self._held:
            asyncio.get_running_loop().call_soon(self._write_held)
        self._held.append(response)
        self._held_bytes += len(response)
        if self._held_bytes >= _HELD_BYTES:
            self._write_held()

    def _write_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._write(held[0] if len(held) == 1 else b"".join(held))

    def _write(self, data: Buffer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _send_pieces(self, pieces: list[Part]) -> None:
        """Send an answer in pieces, behind what is held; slices of files are released, whatever becomes of it."""
        try:
            if len(pieces) == 1 and isinstance(pieces[0], bytes):
                self._send(pieces[0])
                return
            self._write_held()
            together: list[Buffer] = []
            for piece in pieces:
                if isinstance(piece, LogSlice):
                    self._write_pieces(together)
                    together = []
                    await self._send_slice(piece)
                else:
                    together.append(piece)
            self._write_pieces(together)
        finally:
            for piece in pieces:
                if isinstance(piece, LogSlice):
                    piece.release()

    def _write_pieces(self, pieces: list[Buffer]) -> None:
        """Give the socket what it takes in one call, and the transport the rest."""
        transport = self._transport
        if transport is None or transport.is_closing() or not pieces:
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

    async def _send_slice(self, piece: LogSlice) -> None:
        """Send a stretch of a file. Returns when all of it is with the kernel, or the connection is closing."""
        transport, position, end = self._transport, piece.position, piece.position + piece.length
        assert transport is not None
        fileno: Callable[[], int] | None = getattr(piece.file, "fileno", None)
        if self._descriptor < 0 or fileno is None:
            await self._copy_slice(piece)
            return
        while position < end and not transport.is_closing():
            sent = 0
            if not transport.get_write_buffer_size():
                try:
                    sent = os.sendfile(self._descriptor, fileno(), position, min(end - position, _TRANSFER_BYTES))
                except BlockingIOError:
                    pass
                except ConnectionError:
                    self.abort()
                    return
                except OSError as error:
                    self._give_up(f"cannot send a slice of a log: {error}")
                    return
                else:
                    if not sent:
                        self._give_up(f"a log's file ends at {position}, {end - position} bytes early")
                        return
            position += sent
            if position < end:
                await (asyncio.sleep(0) if sent else self._until_writable())

    async def _until_writable(self) -> None:
        """Wait for the peer to read: on a descriptor of our own, for the loop gives away no transport's."""
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        descriptor = os.dup(self._descriptor)
        try:
            loop.add_writer(descriptor, _resolve, writable)
            await writable
        finally:
            loop.remove_writer(descriptor)
            os.close(descriptor)

    async def _copy_slice(self, piece: LogSlice) -> None:
        for position in range(piece.position, piece.position + piece.length, _COPIED_BYTES):
            wanted = min(_COPIED_BYTES, piece.position + piece.length - position)
            data = piece.file.read(position, wanted)
            if len(data) < wanted:
                self._give_up(f"a log's file ends at {position + len(data)}, early")
                return
            self._write(data)
            if self._writable is not None:
                await self._writable

    def _give_up(self, reason: str) -> None:
        """Close in the middle of an answer: what was promised cannot be sent."""
        logger.warning("connection %s: closed: %s", self.client_host, reason)
        self.abort()

    def fail(self, error: ProtocolError) -> None:
        """Close because of what the peer sent; what was asked before that is answered."""
        self._write_held()
        logger.warning("connection %s: closed: %s", self.client_host, error)
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """Close from our side, at once."""
        if self._transport is not None:
            self._transport.abort()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
