"""The parts of a request's time, by API, as Kafka's RequestMetrics have them (`RequestChannel.Request`).

    RequestQueueTimeMs   from its last byte's arrival until it is served; requests behind another one of the same
                         connection wait here (a client that sends many at once makes them wait)
    LocalTimeMs          the event loop's time for it: decoding, the handler, encoding
    RemoteTimeMs         all that the handler waited for: followers, a sync of the disk, more records, another thread
    ThrottleTimeMs       how long a quota then silences the connection
    ResponseQueueTimeMs  always 0: an answer is sent in the turn in which it is ready
    ResponseSendTimeMs   until the socket has taken the answer; a client that does not read makes it long
    TotalTimeMs          from its arrival until its answer is sent

In Kafka, a sync counts as local time, because it blocks the thread; here it is waited for. Fetch counts as `Fetch`, and
as `FetchConsumer` or `FetchFollower` besides, as in Kafka. A request that closes its connection has no times.

A `Timing` measures one request: it is awaited in place of the coroutine that answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from typing import Any, Final

from kraftpy.metrics.histograms import WINDOW_S, Histogram
from kraftpy.protocol.apis import APIS, ApiKey

PARTS: Final = (
    "request_queue",
    "local",
    "remote",
    "throttle",
    "response_queue",
    "response_send",
    "total",
)
_FETCH: Final = "Fetch"
_FETCH_CONSUMER: Final = "FetchConsumer"
_FETCH_FOLLOWER: Final = "FetchFollower"
_UNKNOWN: Final = "Unknown"
_US: Final = 1_000_000
UNKNOWN_VERSION: Final = -1
"""Stands for all versions that are not served: a client may name any."""


class ApiTimes:
    """The times of one API's requests."""

    __slots__ = (*PARTS, "errors", "name", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        """Kafka's name for it, such as `Produce`."""
        self.versions: dict[int, int] = {}
        """How many requests of each version there were."""
        self.errors: dict[int, int] = {}
        """How many answers had each error code; one answer may have several."""
        self.request_queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.throttle = Histogram()
        self.response_queue = Histogram()
        self.response_send = Histogram()
        self.total = Histogram()

    def histograms(self) -> list[Histogram]:
        """Return the distributions, in the order of `PARTS`."""
        return [getattr(self, part) for part in PARTS]


class RequestTimes:
    """The times of all requests of a node."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.bytes_in = 0
        """Bytes of requests that were answered, without their sizes."""
        self._by_name: dict[str, ApiTimes] = {}
        self._by_head: dict[bytes, tuple[ApiTimes, int]] = {}
        self._now = now
        self._window_until = now() + WINDOW_S

    def timing(self, frame: bytearray, arrived_at: float, work: Coroutine[Any, Any, Any]) -> Timing:
        """Return what to await in place of `work`, which answers a frame that arrived at this (monotonic) time."""
        head = bytes(frame[:4])
        times, version = self._by_head.get(head) or self._first(head)
        self.bytes_in += len(frame)
        return Timing(self, times, version, arrived_at, work)

    def _first(self, head: bytes) -> tuple[ApiTimes, int]:
        """Look up an API and its version. Only served ones are remembered: a client may name any."""
        key, version = int.from_bytes(head[:2], "big"), int.from_bytes(head[2:], "big")
        found = APIS.get(key)
        if found is None:
            return self.of(_UNKNOWN), UNKNOWN_VERSION
        times = self.of(name_of(found.key))
        if not found.first <= version <= found.last:
            return times, UNKNOWN_VERSION
        self._by_head[head] = times, version
        return times, version

    def of(self, name: str) -> ApiTimes:
        """Return the times of requests with this name, which is an API's, or one of the two kinds of Fetch."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = ApiTimes(name)
        return found

    def all(self) -> list[ApiTimes]:
        """Return the times by API, sorted by name. Begins a new window of the quantiles, if it is time."""
        now = self._now()
        if now >= self._window_until:
            self._window_until = now + WINDOW_S
            for times in self._by_name.values():
                for histogram in times.histograms():
                    histogram.begin_window()
        return [self._by_name[name] for name in sorted(self._by_name)]


class Timing:
    """Answers one request, and measures when it runs and when it waits."""

    __slots__ = (
        "_answered_at",
        "_arrived_at",
        "_began_at",
        "_times",
        "_version",
        "_work",
        "is_follower",
        "ran",
        "requests",
    )

    def __init__(
        self,
        requests: RequestTimes,
        times: ApiTimes,
        version: int,
        arrived_at: float,
        work: Coroutine[Any, Any, Any],
    ) -> None:
        self.requests = requests
        self._times = times
        self._version = version
        self._arrived_at = arrived_at
        self._work = work
        self._began_at = self._answered_at = 0.0
        self.ran = 0.0
        """How long it has run, in seconds."""
        self.is_follower = False
        """It is a follower's Fetch."""

    def __await__(self) -> Generator[Any, Any, Any]:
        work, thrown = self._work, None
        began_at = self._began_at = monotonic()
        while True:
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                self._answered_at = now = monotonic()
                self.ran += now - began_at
                return done.value
            self.ran += monotonic() - began_at
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # such as a cancellation: raise it inside the coroutine
                thrown = error
            began_at = monotonic()

    @property
    def name(self) -> str:
        """The name of its API."""
        return self._times.name

    def count_error(self, code: int) -> None:
        """Count an error code of the answer; 0 is one too, as in Kafka."""
        errors = self._times.errors
        errors[code] = errors.get(code, 0) + 1

    def sent(self, now: float, throttled_s: float) -> None:
        """Count the request: its answer is sent, and its connection is then silenced for this long."""
        times = self._times
        version = self._version
        times.versions[version] = times.versions.get(version, 0) + 1
        self._record(times, now, throttled_s)
        if times.name == _FETCH:
            kind = self.requests.of(_FETCH_FOLLOWER if self.is_follower else _FETCH_CONSUMER)
            kind.versions[version] = kind.versions.get(version, 0) + 1
            self._record(kind, now, throttled_s)

    def _record(self, times: ApiTimes, now: float, throttled_s: float) -> None:
        arrived_at, began_at, answered_at, ran = self._arrived_at, self._began_at, self._answered_at, self.ran
        times.request_queue.record(int((began_at - arrived_at) * _US))
        times.local.record(int(ran * _US))
        times.remote.record(int((answered_at - began_at - ran) * _US))
        times.throttle.record(int(throttled_s * _US))
        times.response_queue.record(0)
        times.response_send.record(int((now - answered_at) * _US))
        times.total.record(int((now - arrived_at) * _US))


def name_of(key: ApiKey) -> str:
    """Return Kafka's name of an API, such as `OffsetCommit`."""
    return "".join(word.capitalize() for word in key.name.split("_"))
