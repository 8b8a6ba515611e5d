"""One TCP connection of the simulated network: two endpoints, a flow each way, the transports of their protocols.

`network` decides how a link treats bytes; this module does with them what a kernel does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from chaos.worlds.loop import Process

if TYPE_CHECKING:
    from chaos.worlds.network import Network

WINDOW_BYTES: Final = 1 << 20
_HIGH_WATER: Final = 64 * 1024
_RETRANSMIT_SECONDS: Final = 0.8
_CUT_CHANCE: Final = 0.02
"""The chance that bytes written together are sent in two parts."""


class Socket:
    """The part of a socket that programs ask for its address and its options."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._name

    def fileno(self) -> int:
        """Return -1: nothing can be sent past the transport."""
        return -1

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there is nothing to set."""

    def dup(self) -> Socket:
        """Another handle of it."""
        return self

    def listen(self, backlog: int) -> None:
        """Do nothing: the backlog is unbounded."""

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Flow:
    """One direction of a connection: the bytes in flight, in order."""

    def __init__(self, network: Network, source: Endpoint, target: Endpoint) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.unread_bytes = 0
        self._link = network.link(source.process.host, target.process.host)
        self._held: deque[bytes | BaseException | None] = deque()  # data that a cut holds back
        self._last_arrival = 0.0
        network.flow_began(self)

    def send(self, item: bytes | BaseException | None) -> None:
        """Bytes, the end (None), or a reset."""
        if isinstance(item, bytes):
            self.unread_bytes += len(item)
        if self._link.is_cut or self._held or not self.network.is_up(self.target.process.host):
            self._held.append(item)
            return
        self._launch(item)

    def _launch(self, item: bytes | BaseException | None, later: float = 0.0) -> None:
        loop = self.network.loop
        size = len(item) if isinstance(item, bytes) else 40
        arrival = loop.time() + later + self._link.delay(size)
        self._last_arrival = max(self._last_arrival, arrival)
        loop.call_at(self._last_arrival, self._arrive, item, context=loop.outside)

    def _arrive(self, item: bytes | BaseException | None) -> None:
        process, loop = self.target.process, self.network.loop
        if not self.network.is_up(process.host):
            self._held.append(item)
        elif not process.is_dead:
            process.call_now(self.target.arrived, item)
        elif not isinstance(item, BaseException):  # the machine is back, the process is not: its kernel answers
            delay = self.network.link(process.host, self.source.process.host).delay(40)
            reset = ConnectionResetError(104, "Connection reset by peer")
            loop.call_at(loop.time() + delay, self._reset_source, reset, context=loop.outside)

    def _reset_source(self, reset: BaseException) -> None:
        self.source.process.call_soon(self.source.arrived, reset)

    def read(self, size: int) -> None:
        """The receiver took bytes: there is room for more."""
        self.unread_bytes -= size
        if self.source.wants_room:
            self.source.process.call_soon(self.source.peer_has_read)

    def retransmit(self) -> None:
        """The link is whole again: TCP notices when its timer fires next."""
        held, self._held = self._held, deque()
        later = self.network.random.random() * _RETRANSMIT_SECONDS
        for item in held:
            self._launch(item, later)

    def end(self) -> None:
        """Send nothing more."""
        self.network.flow_ended(self)


class Endpoint:
    """One side of a connection, as its kernel holds it."""

    def __init__(self, network: Network, process: Process, port: int, peer_host: str, peer_port: int) -> None:
        self.network = network
        self.process = process
        self.port = port
        self.peer_name = (peer_host, peer_port)
        self.peer: Endpoint | None = None
        self.transport: Transport | None = None
        self.is_closed = False
        self._outgoing: Flow | None = None
        self._before: list[bytes | BaseException | None] = []
        self._is_known = True
        process.before_death.append(self._process_died)

    def join(self, peer: Endpoint) -> None:
        """The other side."""
        self.peer = peer
        self._outgoing = Flow(self.network, self, peer)

    @property
    def outgoing(self) -> Flow:
        """The flow of the bytes that it sends."""
        assert self._outgoing is not None
        return self._outgoing

    def peer_knows_nothing(self) -> None:
        """The other side never heard that it is connected: it answers what it is sent with a reset."""
        self._is_known = False
        assert self.peer is not None
        self.peer.is_closed = True

    def send(self, data: bytes) -> None:
        """Bytes for the other side."""
        if not self.is_closed:
            self.outgoing.send(data)

    def arrived(self, item: bytes | BaseException | None) -> None:
        """Something came: into the transport, or an answer of the kernel."""
        if self.is_closed:
            if isinstance(item, bytes) and self.peer is not None and not self.peer.is_closed:
                self.outgoing.send(ConnectionResetError(104, "Connection reset by peer"))
            return
        if self.transport is None:
            self._before.append(item)
        else:
            self.transport.arrived(item)

    def attached(self, transport: Transport) -> list[bytes | BaseException | None]:
        """A transport has it now; what came before."""
        self.transport = transport
        before, self._before = self._before, []
        return before

    @property
    def wants_room(self) -> bool:
        """True if bytes wait here because the other side does not read."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def peer_has_read(self) -> None:
        """Flush what waits here: the other side has read something."""
        if self.transport is not None:
            self.transport.flush()

    def finish(self) -> None:
        """Close in an orderly way: the other side reads the end."""
        if not self.is_closed:
            self.is_closed = True
            self.outgoing.send(None)
            self._gone()

    def abort(self) -> None:
        """Close at once: the other side gets a reset."""
        if not self.is_closed:
            self.is_closed = True
            self.outgoing.send(ConnectionResetError(104, "Connection reset by peer"))
            self._gone()

    def _gone(self) -> None:
        if self._process_died in self.process.before_death:
            self.process.before_death.remove(self._process_died)

    def _process_died(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self.network.is_up(self.process.host):  # its kernel says goodbye; unread bytes make that a reset
            is_reset = self.network.random.random() < 0.5
            self.outgoing.send(ConnectionResetError(104, "Connection reset by peer") if is_reset else None)


class Transport(asyncio.Transport):
    """The transport that a protocol gets."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._loop = endpoint.network.loop
        self._protocol: Any = None
        self._buffer = bytearray()
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_closing = False
        self._is_lost = False
        self._is_open = False
        self._unread: deque[bytes | BaseException | None] = deque()
        self._high = _HIGH_WATER

    def begin(self, factory: Callable[[], Any]) -> Any:
        """Make the protocol."""
        self._protocol = factory()
        return self._protocol

    def opened(self) -> None:
        """The protocol knows of the connection: what came before is for it."""
        self._is_open = True
        self._unread.extend(self._endpoint.attached(self))
        self._read_soon()

    # --- asyncio's transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Addresses, and a socket for its options."""
        endpoint = self._endpoint
        if name == "peername":
            return endpoint.peer_name
        if name == "sockname":
            return (endpoint.process.host, endpoint.port)
        if name == "socket":
            return Socket(endpoint.process.host, endpoint.port)
        return default

    def is_closing(self) -> bool:
        """True if it is closed or about to be."""
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        """Hand over to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """The protocol."""
        return self._protocol

    def write(self, data: Any) -> None:
        """Send, or keep until there is room."""
        if self._is_closing or not data:
            return
        flow, size = self._endpoint.outgoing, len(data)
        if not self._buffer and size <= WINDOW_BYTES - flow.unread_bytes:  # as `flush` does it, but at once
            if size == 1 or flow.network.random.random() >= _CUT_CHANCE:
                self._endpoint.send(bytes(data))
                return
            size = flow.network.random.randrange(1, size)
            self._endpoint.send(bytes(data[:size]))
            data = data[size:]
        self._buffer += data
        self.flush()
        if not self._is_writing_paused and len(self._buffer) > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send all of them."""
        self.write(b"".join(list_of_data))

    def flush(self) -> None:
        """Send what there is room for."""
        flow = self._endpoint.outgoing
        while self._buffer and flow.unread_bytes < WINDOW_BYTES:
            size = min(len(self._buffer), WINDOW_BYTES - flow.unread_bytes)
            if size > 1 and self._endpoint.network.random.random() < _CUT_CHANCE:
                size = self._endpoint.network.random.randrange(1, size)
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._endpoint.send(piece)
        if self._is_writing_paused and len(self._buffer) <= self._high // 4:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._buffer and not self._is_lost:
            self._lose(None)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait here for room."""
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the sizes at which writing is resumed and paused."""
        return self._high // 4, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which writing is paused and resumed."""
        self._high = _HIGH_WATER if high is None else high

    def can_write_eof(self) -> bool:
        """Return False: no protocol here needs it."""
        return False

    def pause_reading(self) -> None:
        """Leave what comes in the window."""
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        """Take it again."""
        self._is_reading_paused = False
        self._read_soon()

    def is_reading(self) -> bool:
        """True if it accepts incoming bytes."""
        return not self._is_reading_paused and not self._is_closing

    def close(self) -> None:
        """Close when all is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once."""
        if self._is_lost:
            return
        self._is_closing = True
        self._buffer.clear()
        self._lose(None, is_abort=True)

    def _lose(self, error: BaseException | None, *, is_abort: bool = False) -> None:
        self._is_lost = True
        if is_abort:
            self._endpoint.abort()
        else:
            self._endpoint.finish()
        self._endpoint.outgoing.end()
        self._loop.call_soon(self._protocol.connection_lost, error)

    # --- what comes ---

    def arrived(self, item: bytes | BaseException | None) -> None:
        """Bytes, the end or a reset came over the network."""
        if isinstance(item, BaseException):
            if not self._is_lost:
                self._is_closing = True
                self._buffer.clear()
                self._lose(item)
            return
        self._unread.append(item)
        self._read()

    def _read_soon(self) -> None:
        if self._unread:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        while self._unread and not self._is_reading_paused and not self._is_closing:
            item = self._unread.popleft()
            if isinstance(item, BaseException):
                self.arrived(item)
            elif item is None:
                if not self._protocol.eof_received():
                    self.close()
            else:
                assert self._endpoint.peer is not None
                self._endpoint.peer.outgoing.read(len(item))
                self._hand_over(item)

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        view = memoryview(data)
        while view and not self._is_lost:
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            del buffer
            protocol.buffer_updated(size)
            view = view[size:]
            if self._is_reading_paused and view:
                self._unread.appendleft(bytes(view))  # already counted as read: the window is a little generous
                assert self._endpoint.peer is not None
                self._endpoint.peer.outgoing.unread_bytes += len(view)
                return
