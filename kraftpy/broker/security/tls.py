"""TLS between a socket and a connection: a protocol to asyncio, and a transport to the connection.

asyncio's own TLS keeps 256 KiB for each connection, reports a connection only after its handshake, and does all
handshakes that arrive together without a pause. Here a connection counts as soon as it is accepted. Bytes are received
into a buffer that all connections share, and are decrypted straight into the frame being received. Handshakes take
turns (`Handshakes`), so that other clients never wait for more than a few.

A handshake must end within `HANDSHAKE_SECONDS`; bytes that are not TLS end the connection after the alert. The peer may
not renegotiate. A peer that closes its socket without TLS's close_notify counts as disconnected.

Invariants: the connection is made and lost exactly once, with the socket; no plain byte is read or written before the
handshake is done; while the connection does not read, at most one buffer of encrypted bytes is held.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

HANDSHAKE_SECONDS: Final = 10.0
_ALERT_SECONDS: Final = 1.0
"""How long a peer may keep sending after an alert before its connection is aborted."""
_TURN_SECONDS: Final = 0.005
"""How long handshakes may occupy the event loop at a time."""
_HANDSHAKE_READ_BYTES: Final = 16 * 1024
_PIECE_BYTES: Final = 256 * 1024
"""How many bytes are encrypted in one call."""


class Inner(Protocol):
    """The interface of a connection towards the TLS layer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the socket is closed."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return room for plain bytes."""

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were written to the buffer."""

    def eof_received(self) -> bool | None:
        """Note that the peer sends no more; return True to keep the socket open."""

    def pause_writing(self) -> None:
        """Hold back answers."""

    def resume_writing(self) -> None:
        """Send answers again."""


class Handshakes:
    """The handshakes of one event loop, which take turns."""

    def __init__(self) -> None:
        self._waiting: deque[TlsLayer] = deque()
        self._is_scheduled = False

    def enter(self, layer: TlsLayer) -> None:
        """Have the layer take the next step of its handshake soon."""
        self._waiting.append(layer)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._is_scheduled = False
        now = asyncio.get_running_loop().time
        until = now() + _TURN_SECONDS
        try:
            while self._waiting and now() < until:
                self._waiting.popleft().step()
        finally:
            self._schedule()  # also after an unexpected error in a step, which costs only that connection


class TlsLayer(asyncio.BufferedProtocol):
    """The TLS layer of one accepted socket: `connection` sends and receives through it once the handshake is done.

    The connection is made as soon as the socket is accepted, so that it counts, idles and ends like any other.
    `authenticate` is called with the layer after the handshake, and may raise ValueError; `failed` logs the reason for
    which the handshake or the connection failed.
    """

    def __init__(
        self,
        connection: Inner,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        receive_buffer: memoryview,
        *,
        authenticate: Callable[[TlsLayer], None],
        failed: Callable[[str], None],
    ) -> None:
        self._connection: Inner | None = connection
        """None once the connection is lost."""
        self._handshakes = handshakes
        self._receive_buffer = receive_buffer
        self._authenticate, self._failed = authenticate, failed
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        """None once the connection is lost."""
        self._socket: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._is_waiting_for_turn = False
        self._is_open = False
        """True once the handshake is done."""
        self._is_over = False
        """True once nothing is sent or received any more."""
        self._is_paused = False
        self._is_draining = False

    # --- what asyncio calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, unless the connection is refused."""
        assert self._connection is not None
        self._socket = cast("asyncio.Transport", transport)
        self._connection.connection_made(cast("asyncio.BaseTransport", TlsTransport(self, self._socket)))
        if not self._is_over:
            reason = f"the TLS handshake is not complete after {HANDSHAKE_SECONDS:g} s"
            self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, self._fail, reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared buffer; only a little of it before the handshake is done."""
        return self._receive_buffer if self._is_open else self._receive_buffer[:_HANDSHAKE_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Process encrypted bytes."""
        if self._is_over:
            return
        self._incoming.write(self._receive_buffer[:nbytes])
        if self._is_open:
            self._drain()
        elif not self._is_waiting_for_turn:
            self._is_waiting_for_turn = True
            self._socket.pause_reading()
            self._handshakes.enter(self)

    def eof_received(self) -> bool:
        """Let asyncio close the socket, unless the connection still needs it."""
        return self._is_open and not self._is_over and self._is_needed()

    def _is_needed(self) -> bool:
        return self._connection is not None and bool(self._connection.eof_received())

    def pause_writing(self) -> None:
        """Tell the connection that the peer does not read."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection that the peer reads again."""
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, and free everything at once.

        OpenSSL's tens of kilobytes would wait for the garbage collector in a cycle of this layer and the connection;
        they would add up meanwhile, and leave holes in the heap.
        """
        self._is_over = True
        self._forget_deadline()
        connection, self._connection, self._tls = self._connection, None, None
        self._authenticate = self._failed = _nothing
        if connection is not None:
            connection.connection_lost(exc)

    # --- the handshake -----------------------------------------------------------------------

    def step(self) -> None:
        """Take the next step of the handshake."""
        self._is_waiting_for_turn = False
        if self._is_over:
            return
        try:
            self._take_step()
        except Exception:
            self.abort()
            raise

    def _take_step(self) -> None:
        assert self._tls is not None, "it is not over"
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            self._socket.resume_reading()
            return
        except (ssl.SSLError, OSError, ValueError) as error:
            self._send_encrypted()  # the alert
            self._fail(f"TLS handshake failed: {_reason(error)}")
            return
        self._forget_deadline()
        self._send_encrypted()
        try:
            self._authenticate(self)
        except ValueError as error:
            self._fail(f"the name in the certificate cannot be used: {error}")
            return
        self._is_open = True
        if not self._is_paused:
            self._socket.resume_reading()
        self._drain()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _fail(self, reason: str) -> None:
        """Close because of an error of the peer, or its silence."""
        if self._is_over:
            return
        self._is_over = True
        self._forget_deadline()
        self._failed(reason)
        if self._socket.is_closing():
            return
        # With unread bytes, closing at once would reset the connection, and the peer might not see the alert.
        with suppress(OSError):  # it may be gone
            self._socket.write_eof()
        self._socket.resume_reading()
        asyncio.get_running_loop().call_later(_ALERT_SECONDS, self._socket.abort)

    # --- bytes -------------------------------------------------------------------------------

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate as DER; None if it has not shown one, or the connection is lost."""
        return None if self._tls is None else self._tls.getpeercert(binary_form=True)

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS object of the standard library, for further details such as the cipher; None once it is lost."""
        return self._tls

    def set_connection(self, connection: Inner) -> None:
        """Replace the connection that sends and receives through this layer."""
        self._connection = connection

    def pause(self) -> None:
        """Stop passing bytes to the connection."""
        self._is_paused = True
        if self._is_open:
            self._socket.pause_reading()

    def resume(self) -> None:
        """Pass bytes to the connection again, held ones first."""
        if self._is_paused and not self._is_over:
            self._is_paused = False
            if not self._is_open:
                return
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._drain()
        if not self._is_paused and not self._is_over:
            self._socket.resume_reading()

    def _drain(self) -> None:
        """Decrypt the bytes that have arrived into the connection's buffers."""
        if self._is_draining or self._tls is None:
            return
        read = self._tls.read
        self._is_draining = True
        try:
            while not self._is_paused and not self._is_over:
                connection = self._connection  # a link may be replaced by a client's connection meanwhile
                assert connection is not None, "it is not over"
                room = connection.get_buffer(-1)
                count = cast("int", read(len(room), cast("Any", room)))
                del room  # a buffer with a view of it cannot grow
                if not count:
                    self._peer_closed()
                    return
                connection.buffer_updated(count)
        except ssl.SSLWantReadError:
            if self._outgoing.pending:  # the answer to a key update
                self._send_encrypted()
        except ssl.SSLZeroReturnError:
            self._peer_closed()
        except (ssl.SSLError, OSError) as error:
            self._send_encrypted()
            self._fail(f"TLS failed: {_reason(error)}")
        finally:
            self._is_draining = False

    def _peer_closed(self) -> None:
        """Close after the peer's close_notify, at once or when the connection does."""
        if self._is_needed():
            self._socket.pause_reading()
        else:
            self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._is_over or not self._is_open or self._tls is None:
            return
        left = memoryview(data).cast("B")
        try:
            while left:
                sent = self._tls.write(left[:_PIECE_BYTES])
                self._send_encrypted()
                left = left[sent:]
        except (ssl.SSLError, OSError) as error:
            self._fail(f"TLS failed: {_reason(error)}")

    def _send_encrypted(self) -> None:
        if self._outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())

    def close(self) -> None:
        """Close once everything written is sent, with TLS's close_notify."""
        if self._is_over or self._tls is None:
            return
        self._is_over = True
        with suppress(ssl.SSLError, OSError):  # raised because the peer's answer, which is not needed, is missing
            self._tls.unwrap()
        self._send_encrypted()
        self._socket.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_over = True
        self._socket.abort()


class TlsTransport:
    """The transport that a connection writes to, with the interface of asyncio's."""

    def __init__(self, layer: TlsLayer, socket: asyncio.Transport) -> None:
        self._layer = layer
        self._socket = socket
        self.write = layer.write
        self.close = layer.close
        self.abort = layer.abort
        self.pause_reading = layer.pause
        self.resume_reading = layer.resume
        self.set_protocol = layer.set_connection
        self.is_closing = socket.is_closing
        self.get_write_buffer_size = socket.get_write_buffer_size
        self.set_write_buffer_limits = socket.set_write_buffer_limits

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `ssl_object` or `sslcontext`, as asyncio's TLS transports do, or else a detail of the socket."""
        if name in ("ssl_object", "sslcontext"):
            tls = self._layer.ssl_object
            if tls is None:
                return default
            return tls if name == "ssl_object" else tls.context
        return self._socket.get_extra_info(name, default)


def _nothing(_: object) -> None:
    """Do nothing: the connection is lost."""


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason for a failure, in words that quote nothing from the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    return str(getattr(error, "reason", None) or type(error).__name__).lower().replace("_", " ")
