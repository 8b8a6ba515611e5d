"""One connection to one broker: pipelined requests, answers matched by correlation id, versions agreed on at the start.

`send` returns a future at once and creates no task. A request that times out closes the connection (the answers behind
it would be late too), and every request still open fails with NETWORK_EXCEPTION.

ApiVersions is asked first, in its newest version. A broker that does not know that version answers UNSUPPORTED_VERSION
in the form of version 0, and is asked again in the best version it knows (KIP-511). Every API then uses the highest
common version.

If the session of a login expires, the first request in the last part of its lifetime waits until the client has
authenticated again on this connection, and so do the requests behind it (KIP-368).

A response may have `ResponseLimit.bytes`, plus the bytes that a fetch asked for: a fetch answer holds at least one
batch, however large. A larger response is refused as soon as its size is read, and closes the connection.

Left out: brokers before 0.10 (which have no ApiVersions), waiting for the socket to drain before writing
more: the callers' own limits (in-flight requests, buffer memory) bound what is queued.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import kraftpy
from kraftpy.client.metrics import ClientMetrics
from kraftpy.client.options import DEFAULT_RECEIVE_BYTES
from kraftpy.client.runtime import Runtime
from kraftpy.client.security import PLAINTEXT, Login, Security
from kraftpy.protocol.apis import API_VERSIONS, APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, FrameTooLarge, KafkaError, ProtocolError
from kraftpy.protocol.frames import FrameDecoder, decode_response_header, encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.protocol.schema import decode

MAX_RESPONSE_BYTES = 2**31 - 1
"""The largest response the protocol can express."""

VersionRanges = Mapping[int, tuple[int, int]]
"""API key to the broker's lowest and highest version."""


class UnsupportedVersion(KafkaError):
    """The broker and this client share no suitable version of an API."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, text)


class ResponseTooLarge(KafkaError):
    """A broker announced a response above the limit. Asking again would not help."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, text)


class BrokerUnreachable(KafkaError):
    """No connection could be opened."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, text)


class TlsFailed(KafkaError):
    """The two ends do not trust each other, or have no version or cipher in common. A retry would not help."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, f"SSL handshake with {name} failed: {error}")


class ResponseLimit(NamedTuple):
    """The largest response that is accepted, and the setting that limits it."""

    bytes: int = DEFAULT_RECEIVE_BYTES
    """The limit for any response; a fetch may return as many bytes as it asks for in addition."""
    setting: str = "receive_message_max_bytes"

    def in_all(self, asked: int) -> int:
        """Return the largest frame that a connection accepts if its largest fetch asked for `asked` bytes."""
        return min(self.bytes + asked, MAX_RESPONSE_BYTES)

    def exceeded(self, name: str, size: int, allowed: int) -> ResponseTooLarge:
        """Return the error for a broker that announced `size` bytes when only `allowed` are accepted."""
        return ResponseTooLarge(
            f"{name} announced a response of {size} bytes; at most {allowed} are accepted "
            f"({self.setting}={self.bytes} plus what a fetch asks for)"
        )


def bytes_asked(message: object) -> int:
    """Return how many bytes of records a request asks for: `max_bytes` of a Fetch or ShareFetch, else 0."""
    return getattr(message, "max_bytes", 0)


def choose_version(theirs: VersionRanges, key: ApiKey, *, low: int = 0, high: int = 0x7FFF) -> int:
    """Return the highest version of `key` from `low` to `high` that both sides speak. Raises `UnsupportedVersion`."""
    first, last = API_VERSIONS[key]
    offered = theirs.get(key)
    if offered is None:
        raise UnsupportedVersion(f"the broker does not offer {key.name}")
    best = min(offered[1], last, high)
    worst = max(offered[0], first, low)
    if best < worst:
        raise UnsupportedVersion(
            f"no common version of {key.name}: the broker has {offered[0]}-{offered[1]}, "
            f"this client supports {max(first, low)}-{min(last, high)}"
        )
    return best


@cache
def response_class(key: ApiKey) -> type[Any]:
    """Return the class that an answer to `key` is decoded to."""
    return APIS[key].response


def hello(software: tuple[str, str] | None = None) -> ApiVersionsRequest:
    """Build the request that opens a connection. `software` is a name and version; None stands for kraftpy's own."""
    name, version = ("kraftpy", kraftpy.__version__) if software is None else software
    return ApiVersionsRequest(client_software_name=name, client_software_version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A broker's answer to `hello`: its API versions and its cluster's features."""

    error: ErrorCode
    versions: VersionRanges
    features_epoch: int = -1
    """Rises with every change of `features`; -1 if the broker does not report it."""
    features: Mapping[str, int] = field(default_factory=dict)
    """The cluster's features at their finalized levels (KIP-584)."""


def read_hello(frame: memoryview | bytes, version: int) -> Hello:
    """Read the answer to `hello`."""
    _, body = decode_response_header(ApiKey.API_VERSIONS, version, frame)
    error = ErrorCode.of(int.from_bytes(body[:2], "big", signed=True))
    if error is ErrorCode.UNSUPPORTED_VERSION:
        try:
            answer = decode(ApiVersionsResponse, body, 0)  # KIP-511: such an answer has the form of version 0
        except ProtocolError:
            return Hello(error=error, versions={})  # some brokers get that wrong; all of them understand version 0
    else:
        answer = decode(ApiVersionsResponse, body, version, exact=False)
    return Hello(
        error=error,
        versions={api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
        features_epoch=answer.finalized_features_epoch,
        features={feature.name: feature.max_version_level for feature in answer.finalized_features},
    )


class _Waiting(NamedTuple):
    """A request that has not been answered yet."""

    key: ApiKey
    version: int
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle
    sent_ms: float


class Connection(asyncio.Protocol):
    """An open connection. Create it with `Connection.open`."""

    def __init__(
        self,
        *,
        name: str,
        client_id: str,
        runtime: Runtime,
        request_timeout_ms: float,
        software: tuple[str, str] | None = None,
        limit: ResponseLimit = ResponseLimit(),  # noqa: B008 - immutable
        metrics: ClientMetrics | None = None,
    ) -> None:
        self.name = name
        self._metrics = metrics
        self._limit = limit
        self._bytes_asked = 0
        self._software = software
        self.versions: VersionRanges = {}
        self.features_epoch = -1
        self.features: Mapping[str, int] = {}
        self.throttled_until_ms = 0.0  # the broker asked not to be sent anything until then (KIP-219)
        self._client_id = client_id
        self._runtime = runtime
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(limit.in_all(0))
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._error: KafkaError | None = None
        self._raw_hello: asyncio.Future[bytes] | None = None
        self._login: Login | None = None
        self._renew_at_ms: float | None = None
        """The time at which to renew the login's session; None if it does not end."""
        self._held: list[bytes] | None = None
        """Requests that wait for a renewal; None if no renewal is in progress."""
        self._renewing: asyncio.Task[None] | None = None

    # --- opening and closing --------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        client_id: str,
        request_timeout_ms: float,
        setup_timeout_ms: float,
        software: tuple[str, str] | None = None,
        limit: ResponseLimit = ResponseLimit(),  # noqa: B008 - immutable
        security: Security = PLAINTEXT,
        metrics: ClientMetrics | None = None,
    ) -> Connection:
        """Connect, agree on versions, and log in; `software` is as in `hello`, and `metrics` count the requests.

        Raises `BrokerUnreachable` or another `KafkaError`.
        """
        name = f"{host}:{port}"
        connection: Connection | None = None
        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                connection = await runtime.connect(
                    lambda: cls(
                        name=name,
                        client_id=client_id,
                        runtime=runtime,
                        request_timeout_ms=request_timeout_ms,
                        software=software,
                        limit=limit,
                        metrics=metrics,
                    ),
                    host,
                    port,
                    *(() if security.tls is None else (security.tls,)),
                )
                await connection._agree()
                if security.login is not None:
                    await connection._log_in(security.login)
        except TimeoutError as late:
            if connection is not None:
                connection.close()
            raise BrokerUnreachable(f"{name} did not answer within {setup_timeout_ms:g} ms") from late
        except ssl.SSLError as failed:
            raise TlsFailed(name, failed) from failed
        except OSError as failed:
            raise BrokerUnreachable(f"cannot connect to {name}: {failed}") from failed
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    async def _agree(self) -> None:
        version = API_VERSIONS[ApiKey.API_VERSIONS][1]
        answer = await self._ask_versions(version)
        if answer.error is ErrorCode.UNSUPPORTED_VERSION:
            theirs = answer.versions.get(ApiKey.API_VERSIONS, (0, 0))
            answer = await self._ask_versions(min(theirs[1], version - 1))
        if answer.error is not ErrorCode.NONE:
            raise KafkaError(answer.error, f"{self.name} refused ApiVersions: {answer.error.meaning}")
        self.versions = answer.versions
        self.features_epoch, self.features = answer.features_epoch, answer.features

    async def _log_in(self, login: Login) -> None:
        from kraftpy.client.login import log_in, renewed_after_ms  # here: most connections do not need it

        exchange = log_in(login, self.name.rpartition(":")[0])
        answer: Any = None
        try:
            while True:
                step = exchange.send(answer)
                if callable(step):
                    answer = await asyncio.to_thread(step)
                else:
                    answer = await self._send(*step, self.version(step[0]), self._request_timeout_ms, self._write)
        except StopIteration as done:
            after_ms = renewed_after_ms(done.value, self._runtime.random())
            self._login = login
            self._renew_at_ms = None if after_ms is None else self._runtime.monotonic_ms() + after_ms

    async def _log_in_again(self, login: Login) -> None:
        """Renew the session, and then send the requests that wait for it."""
        try:
            await self._log_in(login)
        except KafkaError as failed:
            self.close(failed)
        except Exception as failed:
            text = f"re-authentication with {self.name} failed: {type(failed).__name__}: {failed}"
            self.close(KafkaError(ErrorCode.NETWORK_EXCEPTION, text))
        held, self._held = self._held or [], None
        if self._error is None:
            for frame in held:
                self._write(frame)

    async def _ask_versions(self, version: int) -> Hello:
        """Send ApiVersions. The answer is read by hand because its form depends on its error."""
        waiter = self._raw_hello = self._loop.create_future()
        asked = hello(self._software)
        self._write(encode_request(ApiKey.API_VERSIONS, version, self._take_id(), self._client_id, asked))
        try:
            return read_hello(await waiter, version)
        except ProtocolError as bad:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} does not speak Kafka: {bad}") from bad
        finally:
            self._raw_hello = None

    @property
    def closed(self) -> bool:
        """True once nothing can be sent any more."""
        return self._error is not None

    def close(self, error: KafkaError | None = None) -> None:
        """Close at once; open requests fail with `error`. A second call does nothing."""
        if self._error is None:
            self._error = error or KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the connection to {self.name} was closed")
            if self._transport is not None:
                self._transport.abort()
            self._fail_all()
            if self._renewing is not None:
                self._renewing.cancel()

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        if self._transport is not None:
            await asyncio.wait([self._lost])

    # --- requests -------------------------------------------------------------------------------------------------

    def version(self, key: ApiKey, *, low: int = 0, high: int = 0x7FFF) -> int:
        """Return the version to use for `key`. Raises `UnsupportedVersion`."""
        return choose_version(self.versions, key, low=low, high=high)

    def send(self, key: ApiKey, message: Any, version: int, *, timeout_ms: float | None = None) -> asyncio.Future[Any]:
        """Send `message`; the future gives the answer or a `KafkaError`.

        Raises `KafkaError` if the connection is closed.
        """
        wait_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        return self._send(key, message, version, wait_ms, self._write_in_session)

    def _send(
        self, key: ApiKey, message: Any, version: int, wait_ms: float, write: Callable[[bytes], None]
    ) -> asyncio.Future[Any]:
        if self._error is not None:
            raise self._error
        correlation_id = self._take_id()
        frame = encode_request(key, version, correlation_id, self._client_id, message)
        if (asked := bytes_asked(message)) > self._bytes_asked:
            self._bytes_asked = asked
            self._decoder.max_frame_bytes = self._limit.in_all(asked)
        future: asyncio.Future[Any] = self._loop.create_future()
        timer = self._loop.call_later(wait_ms / 1000, self._timed_out, key, wait_ms)
        now_ms = 0.0
        if self._metrics is not None:
            now_ms = self._runtime.monotonic_ms()
            self._metrics.sent(self.name, len(frame), now_ms)
        self._waiting[correlation_id] = _Waiting(key, version, future, timer, now_ms)
        write(frame)
        return future

    def send_without_answer(self, key: ApiKey, message: Any, version: int) -> None:
        """Send a request that the broker never answers: Produce with acks=0."""
        if self._error is not None:
            raise self._error
        frame = encode_request(key, version, self._take_id(), self._client_id, message)
        if self._metrics is not None:
            self._metrics.sent(self.name, len(frame), self._runtime.monotonic_ms())
        self._write_in_session(frame)

    async def request(
        self, key: ApiKey, message: Any, *, low: int = 0, high: int = 0x7FFF, timeout_ms: float | None = None
    ) -> Any:
        """Send a request and wait for its answer. The version is the best one from `low` to `high`."""
        return await self.send(key, message, self.version(key, low=low, high=high), timeout_ms=timeout_ms)

    @property
    def in_flight(self) -> int:
        """The number of requests not yet answered."""
        return len(self._waiting)

    def _take_id(self) -> int:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id

    def _write_in_session(self, frame: bytes) -> None:
        """Write a request, after renewing the session if it is time to."""
        if self._held is not None:
            self._held.append(frame)
        elif self._renew_at_ms is None or self._runtime.monotonic_ms() < self._renew_at_ms:
            self._write(frame)
        else:
            assert self._login is not None
            self._held = [frame]
            self._renewing = self._loop.create_task(self._log_in_again(self._login))

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None, "written to before it was open"
        self._transport.write(frame)

    def _timed_out(self, key: ApiKey, wait_ms: float) -> None:
        text = f"{self.name} did not answer {key.name} within {wait_ms:g} ms"
        self.close(KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))

    def _fail_all(self) -> None:
        error = self._error
        assert error is not None, "only after an error is set"
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.timer.cancel()
            if not entry.future.done():
                entry.future.set_exception(error)
        if self._raw_hello is not None and not self._raw_hello.done():
            self._raw_hello.set_exception(error)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the socket is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._metrics is not None:
            self._metrics.opened(self._runtime.monotonic_ms())

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open requests: the socket is closed."""
        if self._metrics is not None:
            self._metrics.ended(self._runtime.monotonic_ms())
        if self._error is None:
            why = f": {exc}" if exc is not None else ""
            if isinstance(exc, ssl.SSLError):
                self._error = TlsFailed(self.name, exc)  # with TLS 1.3, a client learns here that it is not trusted
            else:
                self._error = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.name} closed the connection{why}")
            self._fail_all()
        if not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Split the received bytes into answers."""
        try:
            for frame in self._decoder.feed(data):
                self._answered(frame)
        except FrameTooLarge as large:
            self.close(self._limit.exceeded(self.name, large.size, large.limit))
        except ProtocolError as bad:
            self.close(KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.name} sent an unreadable frame: {bad}"))

    def _answered(self, frame: memoryview | bytes) -> None:
        if self._raw_hello is not None and not self._raw_hello.done():
            self._raw_hello.set_result(bytes(frame))
            return
        if len(frame) < 4:
            raise ProtocolError("an answer without a correlation id")
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        entry = self._waiting.pop(correlation_id, None)
        if entry is None:
            raise ProtocolError(f"an answer to {correlation_id}, which was never sent")
        entry.timer.cancel()
        if entry.future.done():  # the caller no longer waits
            return
        try:
            _, body = decode_response_header(entry.key, entry.version, frame)
            answer = decode(response_class(entry.key), body, entry.version, exact=False)
        except ProtocolError as bad:
            text = f"{self.name} answered {entry.key.name} v{entry.version} unreadably: {bad}"
            entry.future.set_exception(KafkaError(ErrorCode.CORRUPT_MESSAGE, text))
            raise
        throttle_ms = getattr(answer, "throttle_time_ms", 0)
        if self._metrics is not None:
            now_ms = self._runtime.monotonic_ms()
            self._metrics.answered(self.name, entry.key, now_ms - entry.sent_ms, len(frame), throttle_ms, now_ms)
        if throttle_ms > 0:
            self.throttled_until_ms = self._runtime.monotonic_ms() + throttle_ms
        entry.future.set_result(answer)
