"""HTTP for monitors: GET and HEAD of a few paths, one request a connection.

h11 reads and writes HTTP/1.1; this is the shell around it. A stranger on this port costs little: at most
`_MOST_CONNECTIONS` at a time (one more closes the oldest that has not sent its request yet, or is refused), requests of
at most `_MOST_REQUEST_BYTES` without a body, `_REQUEST_S` for a request to arrive and `_ANSWER_S` for the rest. Each
connection ends after its answer. There is neither TLS nor a login: the port belongs on a network that only monitors
reach (`docs/how-to/monitor.md`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

import h11

from kraftpy.broker.containment import Tasks
from kraftpy.broker.descriptors import MONITORS

_MOST_CONNECTIONS: Final = MONITORS
_MOST_REQUEST_BYTES: Final = 16 * 1024
_REQUEST_S: Final = 10.0
_ANSWER_S: Final = 60.0
_WRITTEN_AT_ONCE: Final = 64 * 1024


class Request(NamedTuple):
    """The parts of a request that matter."""

    method: str
    path: str
    """Without the query."""
    query: str
    accept: str


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: list[bytes]


Answering = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Accepts monitors on one socket."""

    def __init__(self, answer: Answering, tasks: Tasks) -> None:
        self.answer = answer
        self.tasks = tasks
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to serve; return the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=_MOST_CONNECTIONS)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop, and end every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def opened(self, connection: _Connection) -> bool:
        """Admit a connection, if need be in place of one that has not sent its request."""
        if len(self._connections) >= _MOST_CONNECTIONS:
            idle = next((each for each in self._connections if not each.is_answering), None)
            if idle is None:
                return False
            self._connections.pop(idle)
            idle.abort()
        self._connections[connection] = None
        return True

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)


class _Connection(asyncio.Protocol):
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

    @property
    def is_answering(self) -> bool:
        """True once the request has arrived."""
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request, if there is room."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.opened(self):
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(_REQUEST_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """Read the request; whatever comes after it is not read."""
        assert self._transport is not None
        self._received += len(data)
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
                accept = next((value for name, value in event.headers if name == b"accept"), b"")
                path, _, query = event.target.decode("latin-1").partition("?")
                self._request = Request(event.method.decode("ascii"), path, query, accept.decode("latin-1"))
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
                else:
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
