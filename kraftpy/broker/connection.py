"""One client connection: bytes in, frames, responses out in the order of the requests.

One task per connection takes the frames one by one, so a long poll delays the requests sent behind it on the same
connection, as in Kafka. A follower's poll ends when another request arrives (`on_next_request`). Once a frame's size is
known, the socket is read straight into it, so a large Produce is copied only once, by the kernel. The frame is ours and
writable, which lets the log stamp a batch in place.

Invariants: at most `socket.request.max.bytes` is ever allocated for one frame, only after its size was checked, and
hardly more than has arrived (twice that while it is small, `_MOST_GROWTH_BYTES` more when it is large). Reading pauses
while `_QUEUED_FRAMES` frames or `_QUEUED_BYTES` wait, and the next request waits while the peer does not read its
responses. So a connection holds at most the request being served, one more, the queue, and what its `ResponseWriter`
holds. `RequestMemory` bounds the sum over all connections; a connection's share is free as soon as it ends.

A peer may close its socket as soon as it has sent its last request, as producers with acks=0 do. The requests that
wait in the queue are served nevertheless, as with Kafka, until the peer refuses an answer. If none waits, the request
that is being served is cancelled, so that no long poll outlives its client.

A connection whose client has exceeded a quota is muted: neither read nor served for a while after its last answer.

A peer that begins a frame must keep sending it, and a peer that sent a request must read the response: `overdue` says
when it has taken too long. After `_SERVED_AT_ONCE` pipelined requests, other connections get their turn.

`ResponseWriter` is the sending half. A malformed frame closes this connection and no other. TLS is a separate layer
(`security.tls`) between the socket and this class.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, cast

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.prompt_wait import PromptWait
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.response_writer import Response, ResponseWriter, SendFailed
from kraftpy.log.timestamps import Trust
from kraftpy.protocol.errors import ProtocolError
from kraftpy.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kraftpy.metrics.registry import NodeMetrics
    from kraftpy.metrics.request_times import CountedRequests, Timing

logger = logging.getLogger(__name__)

Answer = Callable[[bytearray, "Connection"], Awaitable[Response | None]]
"""Turns a frame (without its size) into the whole response with its size, or None if no response is due."""

RECEIVE_BUFFER_BYTES = 256 * 1024
"""The most that one system call reads: many small requests, or a large part of a large one."""
_FIRST_ALLOCATION_BYTES = 16 * 1024
"""The least allocated for a frame that has just begun; four times what has arrived, if that is more."""
_MOST_GROWTH_BYTES = 4 << 20
_SCARCE_READ_BYTES = 16 * 1024
"""The most that one system call reads while memory is short."""
_ZEROS = memoryview(bytes(64 * 1024))
_PROGRESS_BYTES = 1 << 20
"""How much of a large frame has to arrive within `kraftpy.request.receive.timeout.ms`."""
HOARDING_SECONDS = 30.0
"""The usual `request.timeout.ms` of clients: a client gives up on a request that takes longer to arrive."""
_SERVED_AT_ONCE = 16
_SERVED_BYTES = 16 * 1024
"""This many bytes of requests and responses count as one more request towards `_SERVED_AT_ONCE`."""
_MOST_MUTED_SECONDS = 86_400.0
_QUEUED_FRAMES = 64
_QUEUED_BYTES = 1 << 20
_SIZE = Struct(">i")
_SIZE_BYTES = _SIZE.size


class LastAnswer(Exception):
    """The connection ends after this answer, or without one if it is None."""

    def __init__(self, answer: bytes | None) -> None:
        super().__init__()
        self.answer = answer


class Connection(asyncio.BufferedProtocol):
    """The broker's end of one connection.

    `answer` turns a frame into a response; `closed` is called once, when the connection is gone. `receive_buffer` is
    shared by all connections of one event loop: asyncio fills it, and it is cut into frames before the next
    connection's turn.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        tasks: Tasks,
        memory: RequestMemory,
        complaints: Complaints,
        incidents: Incidents,
        max_frame_bytes: int,
        receive_buffer: memoryview,
        opened: Callable[[Connection], bool],
        closed: Callable[[Connection], None],
        metrics: NodeMetrics | None = None,
    ) -> None:
        self._answer = answer
        self._tasks = tasks
        self._memory = memory
        self._complaints = complaints
        self._incidents = incidents
        self._max_frame_bytes = self._most_frame_bytes = max_frame_bytes
        self._opened = opened
        self._closed = closed
        self._metrics = metrics
        self._arrivals: deque[float] | None = None if metrics is None or metrics.requests is None else deque()
        """When each frame in the queue had arrived; None if there are no metrics."""
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self._receive_buffer = receive_buffer
        self._rest = b""  # the first bytes of a frame's size
        self._partial: bytearray | None = None
        self._partial_bytes = 0
        self._partial_size = 0
        self._partial_room = 0  # how far `_partial` may grow now
        self._partial_began_at = 0.0
        self._progress_at = 0.0
        """When the current frame began, or when its last `_PROGRESS_BYTES` had arrived."""
        self._progress_bytes = 0
        self._waits_for_memory_since: float | None = None
        self._frames: deque[bytearray] = deque()
        self._queued_bytes = 0
        self._next_arrival: PromptWait
        self.responses: ResponseWriter
        """The sending half, from `connection_made` on."""
        self._queue_is_full = False
        self._is_over = False
        self._peer_has_left = False
        self._mute_until = 0.0
        self._is_muted = False
        self._task: asyncio.Task[None] | None = None
        self.held_bytes = 0
        self.client_host = ""
        self.listener = ""
        """The listener that accepted it."""
        self.client_port = 0
        self.software = ("unknown", "unknown")
        """Name and version of the client's software, if it has told them (KIP-511)."""
        self.principal = ANONYMOUS
        """The identity that the other end has proved."""
        self.is_by_token = False
        """True if the identity was proved by a delegation token, with which no other tokens can be created."""
        self.broker_claim = ""
        """The other end's claim to be a broker (`broker_proof`); empty if it makes none."""
        self.header_trust = Trust()
        """The record of whether the timestamps in the headers of produced batches were right."""
        self.proved_broker: tuple[int, int] | None = None
        """The broker and the epoch that this claim has proved."""
        self.arrived_at = 0.0
        """When the request that is being answered had arrived, if there are metrics."""
        self.counted: CountedRequests | None = None
        """Counts the request that is being answered, if there are metrics."""
        self.timing: Timing | None = None
        """Measures it, if it is one of those that are measured."""
        self.last_active_at = 0.0
        self.is_serving = False
        """A request is being answered: the connection is not idle, however long that takes."""
        self.on_next_request: Callable[[], None] | None = None
        """Called when a request arrives while another is being answered: a long poll may end early for it."""

    # --- callbacks of asyncio ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving, unless the broker has too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.client_host = f"/{peer[0]}" if isinstance(peer, tuple) else "/unknown"
        self.client_port = peer[1] if isinstance(peer, tuple) else 0
        self._loop = asyncio.get_running_loop()
        self._next_arrival = PromptWait(self._loop)
        self.responses = ResponseWriter(self._transport, self._loop, self._memory, self._frames)
        if self._metrics is not None:
            self.responses.counted = self._metrics.sent
        self.last_active_at = self._loop.time()
        if not self._opened(self):
            self._transport.abort()
            return
        self._memory.join(self)
        serving = self._serve()
        try:
            self._task = self._tasks.create_task(serving, name=f"connection {peer}")
        except RuntimeError:  # the broker has failed and is cancelling its tasks: no new one can start
            serving.close()
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the unfilled rest of the frame being received, or the shared buffer."""
        partial = self._partial
        if partial is not None:
            # Grow it here, not in buffer_updated, during which the caller still holds a view of it.
            while len(partial) < self._partial_room:
                partial += _ZEROS[: self._partial_room - len(partial)]
            return memoryview(partial)[self._partial_bytes :]
        buffer, memory = self._receive_buffer, self._memory
        if memory.held > memory.large_limit:
            buffer = buffer[:_SCARCE_READ_BYTES]
        if not self._rest:
            return buffer
        buffer[: len(self._rest)] = self._rest
        return buffer[len(self._rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what arrived into frames."""
        self.last_active_at = now = self._loop.time()
        if self._partial is not None:
            self._partial_arrived(self._partial, nbytes, now)
        else:
            self._whole_frames_arrived(nbytes, now)
        if self._frames and self._next_arrival.is_awaited:
            self._next_arrival.wake()

    def _whole_frames_arrived(self, nbytes: int, now: float) -> None:
        rest_bytes = len(self._rest)
        try:
            has_begun = self._cut_frames(self._receive_buffer[: rest_bytes + nbytes])
        except ProtocolError as error:
            self.fail(error)
            return
        if has_begun or not rest_bytes:
            self._progress_at = now
        memory = self._memory
        if memory.held > memory.large_limit and not memory.take(self, 0):
            self._wait_for_memory(0)

    def pause_writing(self) -> None:
        """The peer does not read: hold back its next request."""
        self.responses.pause()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.responses.resume()

    def eof_received(self) -> bool:
        """Keep the socket open if requests wait to be served: the peer sends no more."""
        if self._frames:
            self._peer_has_left = True
        return self._peer_has_left

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request being served, and free this connection's buffers."""
        self._drop_buffers()
        if self._task is not None:
            self._task.cancel()
            # Task and connection refer to each other: without this, only the garbage collector frees them.
            self._task = None
        self.responses.resume()
        self._closed(self)

    def _drop_buffers(self) -> None:
        self._is_over = True
        if self._partial is not None:
            self._memory.receiving -= self._partial_room
        self._partial, self._rest = None, b""
        self._frames.clear()
        if self._arrivals is not None:
            self._arrivals.clear()
        self._queued_bytes = 0
        self.responses.drop()
        self._memory.leave(self)

    # --- frames ------------------------------------------------------------------------------

    def _cut_frames(self, received: memoryview) -> bool:
        """Queue the complete frames and begin the incomplete one; return whether there was either."""
        position, received_bytes, memory = 0, len(received), self._memory
        while received_bytes - position >= _SIZE_BYTES:
            (size,) = _SIZE.unpack_from(received, position)
            if not 0 <= size <= self._max_frame_bytes:
                raise ProtocolError(
                    f"a request of {size} bytes; socket.request.max.bytes allows {self._max_frame_bytes}"
                )
            start = position + _SIZE_BYTES
            position = start + size
            if position > received_bytes:
                self._begin_partial(size, received[start:])
                position = received_bytes
                break
            memory.held += size
            self.held_bytes += size
            self._queue(bytearray(received[start:position]))
        self._rest = bytes(received[position:])
        return position > 0

    def _begin_partial(self, size: int, arrived: memoryview) -> None:
        count = len(arrived)
        room = min(size, max(_FIRST_ALLOCATION_BYTES, 4 * count))
        if not self._memory.take(self, room):
            room = min(size, count + _SCARCE_READ_BYTES)
            self._memory.charge(self, room)
        self._memory.receiving += room
        self._partial = bytearray(room)
        self._partial[:count] = arrived
        self._partial_size, self._partial_bytes, self._partial_room = size, count, room
        self._partial_began_at, self._progress_bytes = self.last_active_at, count

    def _partial_arrived(self, partial: bytearray, nbytes: int, now: float) -> None:
        self._partial_bytes += nbytes
        if self._partial_bytes == self._partial_size:
            self._partial = None
            self._memory.receiving -= self._partial_room
            self._memory.frame_is_whole(self)
            self._queue(partial)
            return
        if self._partial_bytes >= self._progress_bytes + _PROGRESS_BYTES:
            self._progress_bytes, self._progress_at = self._partial_bytes, now
        if self._partial_bytes == self._partial_room:
            more = min(self._partial_size - self._partial_room, self._partial_room, _MOST_GROWTH_BYTES)
            if self._memory.take(self, more):
                self._memory.receiving += more
                self._partial_room += more
            else:
                self._wait_for_memory(more)

    def _wait_for_memory(self, count: int) -> None:
        """Stop reading until there is room for `count` more bytes."""
        if self._waits_for_memory_since is None and not self._is_over:
            self._waits_for_memory_since = self._loop.time()
            self._memory.wait(self, count)
            self._pause_or_resume()

    def memory_granted(self) -> None:
        """Resume reading: the memory waited for has been charged."""
        if self._waits_for_memory_since is None:
            return
        now = self._loop.time()
        self._partial_began_at += now - self._waits_for_memory_since
        self._waits_for_memory_since = None
        if self._partial is not None and self._partial_bytes == self._partial_room:
            more = min(self._partial_size - self._partial_room, self._partial_room, _MOST_GROWTH_BYTES)
            self._memory.receiving += more
            self._partial_room += more
        self._pause_or_resume()

    @property
    def has_next_request(self) -> bool:
        """True if a request waits for the one that is being answered."""
        return bool(self._frames)

    @property
    def queued_requests(self) -> int:
        """The number of requests that have arrived and wait to be served."""
        return len(self._frames)

    @property
    def is_receiving(self) -> bool:
        """True if a frame is being received that was too long for one read."""
        return self._partial is not None

    def _queue(self, frame: bytearray) -> None:
        """Queue a frame, which is already charged, to be served."""
        self._frames.append(frame)
        if self._arrivals is not None:
            self._arrivals.append(self.last_active_at)
        self._queued_bytes += len(frame)
        if self.on_next_request is not None:
            self.on_next_request()
        if len(self._frames) >= _QUEUED_FRAMES or self._queued_bytes >= _QUEUED_BYTES:
            self._queue_is_full = True
            self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        if self._transport is None or self._is_over:
            return
        if self._queue_is_full or self._waits_for_memory_since is not None or self._is_muted:
            self._transport.pause_reading()
        else:
            self._progress_at = self._loop.time()
            self._transport.resume_reading()

    def _next_frame(self) -> bytearray:
        frame = self._frames.popleft()
        if self._arrivals is not None:
            self.arrived_at = self._arrivals.popleft()
        self._queued_bytes -= len(frame)
        if self._queue_is_full and len(self._frames) < _QUEUED_FRAMES // 2 and self._queued_bytes < _QUEUED_BYTES:
            self._queue_is_full = False
            self._pause_or_resume()
        return frame

    # --- peers that are too slow -------------------------------------------------------------

    def overdue(self, now: float, receive_seconds: float, idle_seconds: float) -> str | None:
        """Explain why this connection must be closed because a frame or response is stuck; None if it may stay.

        A frame has `receive_seconds` to arrive, and as long again for each MiB of it. The peer must read some of its
        responses within `idle_seconds`. Time during which this side does not read is not counted.
        """
        is_paused = self._queue_is_full or self._waits_for_memory_since is not None or self._is_muted
        if (self._partial is not None or self._rest) and not is_paused and now - self._progress_at > receive_seconds:
            return f"a request that is not complete after {receive_seconds:g} s"
        if self.responses.are_stuck(now, idle_seconds):
            return f"answers that are not read for {idle_seconds:g} s"
        return None

    def hoards(self, now: float) -> str | None:
        """Explain why this connection should be closed if others need its memory: it is too slow to release it soon."""
        if self._partial is not None:
            elapsed = (self._waits_for_memory_since or now) - self._partial_began_at
            if _takes_long(elapsed, self._partial_bytes, self._partial_size):
                return f"{self._partial_bytes} of {self._partial_size} bytes of a request in {elapsed:.1f} s"
        responses = self.responses
        if responses.unread_since is not None:
            elapsed = now - responses.unread_since
            if _takes_long(elapsed, responses.unread_bytes - responses.unread_now(), responses.unread_bytes):
                return f"answers that are not read for {elapsed:.1f} s"
        if self._frames and (self.is_serving or self._is_muted) and now - self.last_active_at > HOARDING_SECONDS:
            return f"{len(self._frames)} requests behind one that waits"
        return None

    def close_hoarder(self, reason: str) -> None:
        """Close, because memory is short and other connections wait for what this one holds."""
        self._drop_buffers()
        self._give_up(f"queued.max.request.bytes is used up: {reason}")

    # --- answers -----------------------------------------------------------------------------

    async def _serve(self) -> None:
        transport, now, memory, responses = self._transport, self._loop.time, self._memory, self.responses
        assert transport is not None
        send, sent = responses.send, responses.counted
        served = 0
        try:
            if self._mute_until:
                await self._stay_muted()
            while not transport.is_closing():
                if not self._frames:
                    if self._peer_has_left:
                        responses.write_held()
                        transport.close()
                        return
                    served = 0
                elif served >= _SERVED_AT_ONCE:
                    served = 0
                    await asyncio.sleep(0)
                    continue
                while not self._frames:
                    await self._next_arrival
                frame = self._next_frame()
                frame_bytes = len(frame)
                self.is_serving = True
                response = await self._answer(frame, self)
                del frame  # a large request is not kept while its response waits to be read
                left = self.held_bytes - frame_bytes
                if left < 0 or memory.has_waiters:
                    memory.discharge(self, frame_bytes)
                else:  # the same, inlined for nearly every request
                    self.held_bytes = left
                    memory.held -= frame_bytes
                served += 1
                if isinstance(response, list):
                    response_bytes = sum(map(len, response))
                    served += response_bytes // _SERVED_BYTES
                    if sent is not None:
                        sent.in_all += response_bytes
                    await responses.send_pieces(response, self)
                elif response is not None:
                    frame_bytes += len(response)
                    if sent is not None:
                        sent.in_all += len(response)
                    send(response)
                if frame_bytes >= _SERVED_BYTES:
                    served += frame_bytes // _SERVED_BYTES
                del response
                if responses.writable is not None:
                    await responses.until_read(self)
                self.is_serving = False
                self.last_active_at = now()
                self.counted = None
                if self.timing is not None:
                    self.timing.sent(self.last_active_at, max(0.0, self._mute_until - self.last_active_at))
                    self.timing = None
                if self._mute_until:
                    await self._stay_muted()
        except ProtocolError as error:
            self.fail(error)
        except LastAnswer as last:
            responses.write_held()
            if last.answer is not None and not transport.is_closing():
                transport.write(last.answer)
            transport.close()
        except SendFailed as failure:
            self._give_up(str(failure))
        except Exception as error:
            # A bug in one handler is logged, and only this client pays for it. The log and the journal are changed by
            # code of their own, which either finishes or leaves no trace.
            self._incidents.note(f"connection {self.client_host} closed", error)
            transport.abort()

    def mute(self, seconds: float) -> None:
        """Read and serve nothing for this long, once the request being served is answered (KIP-219).

        Meanwhile the connection counts as idle, and a peer that leaves is noticed only afterwards.
        """
        self._mute_until = max(self._mute_until, self._loop.time() + seconds)

    async def _stay_muted(self) -> None:
        self.responses.write_held()
        self._is_muted = True
        self._pause_or_resume()
        await asyncio.sleep(min(self._mute_until - self._loop.time(), _MOST_MUTED_SECONDS))
        self._mute_until, self._is_muted = 0.0, False
        self._pause_or_resume()

    @property
    def answer(self) -> Answer:
        """The function that answers requests now."""
        return self._answer

    def answer_with(self, answer: Answer) -> None:
        """Use this function to answer requests from now on."""
        self._answer = answer

    def limit_frames(self, most_bytes: int) -> None:
        """Refuse frames longer than this from now on."""
        self._max_frame_bytes = most_bytes

    def authenticated(self, principal: Principal, *, is_by_token: bool = False) -> None:
        """Set the client's principal; from now on, requests may be as long as `socket.request.max.bytes`."""
        self.principal, self.is_by_token = principal, is_by_token
        self._max_frame_bytes = self._most_frame_bytes

    def _give_up(self, reason: str) -> None:
        """Close in the middle of a response or a request."""
        self._complain(logging.WARNING, "given up", reason)
        self.abort()

    def fail(self, error: ProtocolError) -> None:
        """Close because of what the peer sent; requests before it are answered."""
        self.responses.write_held()
        self._complain(logging.WARNING, "protocol error", error)
        self.abort()

    def close_overdue(self, reason: str) -> None:
        """Close because the peer is too slow."""
        self._give_up(reason)

    def _complain(self, level: int, kind: str, reason: object) -> None:
        host = self.client_host
        self._complaints.write(logger, level, f"connection {kind}", host, "connection %s: closed: %s", host, reason)

    def abort(self) -> None:
        """Close from our side, immediately."""
        if self._transport is not None:
            self._transport.abort()


def _takes_long(elapsed: float, done: int, whole: int) -> bool:
    """Return whether `whole` bytes take too long at the average speed of the first `done`."""
    return elapsed >= 1.0 and whole * elapsed > HOARDING_SECONDS * max(1, done)
