"""HTTP for monitors: GET and HEAD of a few paths, one request a connection.

h11 reads and writes HTTP/1.1; this is the shell around it. A stranger on this port costs little: at most
`_MOST_CONNECTIONS` at a time (one more closes the oldest whose request has not been admitted yet, or is refused),
requests of at most `_MOST_REQUEST_BYTES` without a body, `_REQUEST_S` for a request to arrive, with the TLS handshake,
and `_ANSWER_S` for the rest, with the login. Each connection ends after its answer.

With a certificate, connections have TLS (`security.tls`); they count from the moment they are accepted. With a login,
requests need a user's name and password, and are answered with 401 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

import h11

from kraftpy.broker.containment import Tasks
from kraftpy.broker.descriptors import MONITORS
from kraftpy.broker.security.certificate import Certificate
from kraftpy.broker.security.tls import Handshakes, TlsLayer

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = MONITORS
_MOST_REQUEST_BYTES: Final = 16 * 1024
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 60.0
_WRITTEN_AT_ONCE: Final = 64 * 1024
_RECEIVED_AT_ONCE: Final = 16 * 1024
_CHALLENGE: Final = 'Basic realm="kraftpy", charset="UTF-8"'


class Request(NamedTuple):
    """The parts of a request that matter."""

    method: str
    path: str
    """Without the query."""
    query: str
    accept: str
    authorization: bytes
    """The header of that name; empty if there is none."""


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: list[bytes]


Answering = Callable[[Request], Awaitable[Answer]]
Admitting = Callable[[Request, str], Awaitable[bool]]
"""Decides whether a request from a host is answered."""


class HttpServer:
    """Accepts monitors on one socket."""

    def __init__(
        self, answer: Answering, tasks: Tasks, admits: Admitting | None = None, certificate: Certificate | None = None
    ) -> None:
        """`admits` is None if every request is answered, and `certificate` if there is no TLS."""
        self.answer = answer
        self.tasks = tasks
        self.admits = admits
        self.buffer = memoryview(bytearray(_RECEIVED_AT_ONCE))
        """Plain bytes just received; shared, because they are read at once."""
        self._certificate = certificate
        self._handshakes = Handshakes()
        self._encrypted = memoryview(bytearray(_RECEIVED_AT_ONCE if certificate is not None else 0))
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to serve; return the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, host, port, backlog=_MOST_CONNECTIONS)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of a socket that was accepted."""
        connection = _Connection(self)
        if self._certificate is None:
            return connection
        return TlsLayer(
            connection,
            self._certificate.server,
            self._handshakes,
            self._encrypted,
            authenticate=lambda layer: None,
            failed=connection.complain,
        )

    def close(self) -> None:
        """Stop, and end every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def opened(self, connection: _Connection) -> bool:
        """Take a connection, if need be in place of one whose request has not been admitted."""
        if len(self._connections) >= _MOST_CONNECTIONS:
            idle = next((each for each in self._connections if not each.is_admitted), None)
            if idle is None:
                return False
            self._connections.pop(idle)
            idle.abort()
        self._connections[connection] = None
        return True

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)


class _Connection(asyncio.BufferedProtocol):
    """One request and its answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._request: Request | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._received = 0
        self._task: asyncio.Task[None] | None = None
        self._host = "unknown"
        self.is_admitted = False
        """True once the request has arrived, and proves a user if it has to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request, if there is room."""
        self._transport = cast("asyncio.Transport", transport)
        peer = self._transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._host = peer[0]
        if not self._server.opened(self):
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(_REQUEST_S, self.abort)

    def complain(self, reason: str) -> None:
        """Log that TLS has failed."""
        complaints = self._server.tasks.incidents.complaints
        complaints.write(logger, logging.WARNING, "TLS of monitors", self._host, "monitor %s: %s", self._host, reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return room for what is received."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read the request; whatever comes after it is not read."""
        assert self._transport is not None
        data = bytes(self._server.buffer[:nbytes])
        self._received += nbytes
        if self._task is not None or self._received > 2 * _MOST_REQUEST_BYTES:
            self._transport.pause_reading()
            if self._task is None:
                self.abort()
            return
        try:
            self._http.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._answer_with(_plain(error.error_status_hint, "bad request"))

    def _read(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                headers = dict(reversed(list(event.headers)))  # of several with one name, the first counts
                accept, authorization = (headers.get(name, b"") for name in (b"accept", b"authorization"))
                path, _, query = event.target.decode("latin-1").partition("?")
                method = event.method.decode("ascii")
                self._request = Request(method, path, query, accept.decode("latin-1"), authorization)
            elif isinstance(event, h11.Data):
                self._answer_with(_plain(413, "a request has no body here"))
                return
            elif isinstance(event, h11.EndOfMessage):
                self._answer_with(None)
                return
            else:  # the peer has closed
                self.abort()
                return

    def _answer_with(self, answer: Answer | None) -> None:
        if self._task is not None or self._deadline is None:
            return
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(_ANSWER_S, self.abort)
        self.is_admitted = self._server.admits is None
        try:
            self._task = self._server.tasks.create_task(self._answer(answer), name="answer to a monitor")
        except RuntimeError:  # the node ends
            self.abort()

    async def _answer(self, answer: Answer | None) -> None:
        try:
            if answer is None:
                assert self._request is not None
                if self._request.method not in ("GET", "HEAD"):
                    answer = _plain(405, "only GET and HEAD are served")
                elif self._server.admits is not None and not await self._server.admits(self._request, self._host):
                    answer = _plain(401, "a user's name and password are needed")
                else:
                    self.is_admitted = True
                    answer = await self._server.answer(self._request)
            await self._send(answer)
        finally:
            if self._transport is not None:
                self._transport.close()

    async def _send(self, answer: Answer) -> None:
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(sum(map(len, answer.body)))),
            ("cache-control", "no-store"),
            ("connection", "close"),
        ]
        if answer.status == 405:
            headers.append(("allow", "GET, HEAD"))
        if answer.status == 401:
            headers.append(("www-authenticate", _CHALLENGE))
        self._write(h11.Response(status_code=answer.status, headers=headers))
        if self._request is None or self._request.method != "HEAD":
            for chunk in answer.body:
                for start in range(0, len(chunk), _WRITTEN_AT_ONCE):
                    await self._drained.wait()
                    self._write(h11.Data(data=chunk[start : start + _WRITTEN_AT_ONCE]))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        """The monitor does not read: wait."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """The monitor reads again."""
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer, and forget the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.closed(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.abort()


def _plain(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", [f"{text}\n".encode()])
