"""One connection over a plain blocking socket, for fast readers without an event loop.

An answer is received straight into a buffer of its own size, without a copy in between; any part of an answer that a
caller keeps also keeps that buffer alive. Requests may be pipelined: `send` several, then `receive` their answers in
the same order. While the caller works on one answer, the kernel's receive buffer takes in the next.

Any failure closes the connection. Left out: use from two threads at once.
"""

from __future__ import annotations

import random
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from struct import Struct
from typing import Any, TypeVar

from kraftpy.client.connection import (
    BrokerUnreachable,
    Hello,
    ResponseLimit,
    TlsFailed,
    VersionRanges,
    bytes_asked,
    choose_version,
    hello,
    read_hello,
    response_class,
)
from kraftpy.client.metrics import ClientMetrics
from kraftpy.client.security import PLAINTEXT, Login, Security
from kraftpy.protocol.apis import API_VERSIONS, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.schema import decode

RECEIVE_BUFFER_BYTES = 8 << 20
_SIZE = Struct(">i")

K = TypeVar("K")


class BlockingConnection:
    """An open connection. Times out after `request_timeout_ms` without a byte."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        request_timeout_ms: float,
        setup_timeout_ms: float,
        limit: ResponseLimit = ResponseLimit(),  # noqa: B008 - immutable
        security: Security = PLAINTEXT,
        metrics: ClientMetrics | None = None,
    ) -> None:
        self.address = (host, port)
        self.name = f"{host}:{port}"
        self.versions: VersionRanges = {}
        self._client_id = client_id
        self._timeout = request_timeout_ms / 1000
        self._limit = limit
        self._next_id = 0
        self._metrics = metrics
        self._waiting: deque[tuple[int, ApiKey, int, int, float]] = deque()
        self._login = security.login
        self._renew_at: float | None = None
        """The time at which to renew the login's session, on the monotonic clock; None if it does not end."""
        try:
            self._socket = socket.create_connection((host, port), setup_timeout_ms / 1000)
        except OSError as failed:
            raise BrokerUnreachable(f"cannot connect to {self.name}: {failed}") from failed
        if metrics is not None:
            metrics.opened(_now_ms())
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            if security.tls is not None:
                self._socket = security.tls.wrap_socket(self._socket, server_hostname=host)
            self._agree()
            if security.login is not None:
                self._log_in(security.login)
            self._socket.settimeout(self._timeout)
        except ssl.SSLError as failed:
            self.close()
            raise TlsFailed(self.name, failed) from failed
        except OSError as failed:
            self.close()
            raise BrokerUnreachable(f"cannot connect to {self.name}: {failed}") from failed
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        if self._metrics is not None and not self.closed:
            self._metrics.ended(_now_ms())
        self._socket.close()

    @property
    def closed(self) -> bool:
        """True if the connection is closed."""
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """Return the socket's descriptor, so that a selector can wait for it."""
        return self._socket.fileno()

    @property
    def has_bytes(self) -> bool:
        """True if bytes of an answer have been received and decrypted already."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    @property
    def idle(self) -> bool:
        """True if the connection is open and no answer is outstanding."""
        return not self._waiting and not self.closed

    def version(self, key: ApiKey, *, low: int = 0, high: int = 0x7FFF) -> int:
        """Return the version to use for `key`. Raises `UnsupportedVersion`."""
        return choose_version(self.versions, key, low=low, high=high)

    def request(self, key: ApiKey, message: Any, *, low: int = 0, high: int = 0x7FFF) -> Any:
        """Send a request and wait for its answer."""
        self.send(key, message, self.version(key, low=low, high=high))
        return self.receive()

    def send(self, key: ApiKey, message: Any, version: int) -> None:
        """Send a request; `receive` gets its answer. Raises `KafkaError`.

        Renews the login's session first, if it is time to and no answer is outstanding (KIP-368).
        """
        if self._renew_at is not None and not self._waiting and time.monotonic() >= self._renew_at:
            assert self._login is not None
            self._log_in_again(self._login)
        self._next_id += 1
        frame = encode_request(key, version, self._next_id, self._client_id, message)
        self._send(frame)
        now_ms = _now_ms()
        if self._metrics is not None:
            self._metrics.sent(self.name, len(frame), now_ms)
        self._waiting.append((self._next_id, key, version, bytes_asked(message), now_ms))

    def receive(self) -> Any:
        """Return the answer to the oldest unanswered request. Raises `KafkaError`."""
        correlation_id, key, version, asked, sent_ms = self._waiting.popleft()
        frame = self._receive_frame(asked)
        if self._metrics is not None:
            now_ms = _now_ms()
            self._metrics.answered(self.name, key, now_ms - sent_ms, len(frame), 0, now_ms)
        try:
            answered_id, body = decode_response_header(key, version, frame)
            if answered_id != correlation_id:
                raise ProtocolError(f"an answer to {answered_id} where {correlation_id} was due")
            return decode(response_class(key), body, version, exact=False)
        except ProtocolError as bad:
            self.close()
            text = f"{self.name} answered {key.name} v{version} unreadably: {bad}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from bad

    # --- inside ---------------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        version = API_VERSIONS[ApiKey.API_VERSIONS][1]
        answer = self._ask_versions(version)
        if answer.error is ErrorCode.UNSUPPORTED_VERSION:
            theirs = answer.versions.get(ApiKey.API_VERSIONS, (0, 0))
            answer = self._ask_versions(min(theirs[1], version - 1))
        if answer.error is not ErrorCode.NONE:
            raise KafkaError(answer.error, f"{self.name} refused ApiVersions: {answer.error.meaning}")
        self.versions = answer.versions

    def _log_in(self, login: Login) -> None:
        from kraftpy.client.login import log_in, renewed_after_ms  # here: most connections do not need it

        exchange = log_in(login, self.address[0])
        answer: Any = None
        self._renew_at = None
        try:
            while True:
                step = exchange.send(answer)
                answer = step() if callable(step) else self.request(*step)
        except StopIteration as done:
            after_ms = renewed_after_ms(done.value, random.random())
            self._renew_at = None if after_ms is None else time.monotonic() + after_ms / 1000

    def _log_in_again(self, login: Login) -> None:
        try:
            self._log_in(login)
        except BaseException:
            self.close()
            raise

    def _ask_versions(self, version: int) -> Hello:
        self._next_id += 1
        self._send(encode_request(ApiKey.API_VERSIONS, version, self._next_id, self._client_id, hello()))
        try:
            return read_hello(self._receive_frame(0), version)
        except ProtocolError as bad:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} does not speak Kafka: {bad}") from bad

    def _send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError as failed:
            self._broken(failed)

    def _receive_frame(self, asked: int) -> memoryview:
        size, allowed = _SIZE.unpack(self._receive_exactly(4))[0], self._limit.in_all(asked)
        if size > allowed:
            self.close()
            raise self._limit.exceeded(self.name, size, allowed)
        if size < 0:
            self.close()
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} announced an answer of {size} bytes")
        return self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        have = 0
        try:
            while have < count:
                got = self._socket.recv_into(view[have:])
                if not got:
                    self.close()
                    raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.name} closed the connection")
                have += got
        except OSError as failed:
            self._broken(failed)
        return view

    def _broken(self, failed: OSError) -> None:
        self.close()
        if isinstance(failed, ssl.SSLError):
            raise TlsFailed(self.name, failed) from failed
        if isinstance(failed, TimeoutError):
            text = f"{self.name} did not answer within {self._timeout:g} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from failed
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the connection to {self.name} broke: {failed}") from failed


def _now_ms() -> float:
    return time.monotonic() * 1000


def readable(connections: Mapping[K, BlockingConnection], timeout_s: float) -> list[K]:
    """Return the names of connections whose answers have begun to arrive; wait for the first, until time is up."""
    # A selector does not see bytes that TLS has decrypted already.
    found = [name for name, each in connections.items() if each.has_bytes]
    if found:
        return found
    with selectors.DefaultSelector() as selector:
        for name, each in connections.items():
            selector.register(each, selectors.EVENT_READ, name)
        return [key.data for key, _ in selector.select(timeout_s)]
