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

Every request is counted. The first `ALL_MEASURED` of an API in one version are measured, and then each
`MEASURED_EVERY`th, which stands for as many: measuring takes some 5 us of the processor (Kafka measures all, but takes
its quantiles from a sample). A `Timing` is awaited in place of the coroutine that answers the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from struct import Struct
from struct import error as struct_error
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from kraftpy.metrics.error_counts import Errors, count_errors
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
_HEAD: Final = Struct(">hh")
ALL_MEASURED: Final = 64
MEASURED_EVERY: Final = 16
UNKNOWN_VERSION: Final = -1
"""Stands for all versions that are not served: a client may name any."""

T = TypeVar("T")


class Served(Protocol):
    """The connection on which a request is served."""

    arrived_at: float
    """When the request had arrived, in monotonic time."""
    counted: CountedRequests | None
    timing: Timing | None


class ApiTimes:
    """The times of one API's requests."""

    __slots__ = (*PARTS, "errors", "name", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        """Kafka's name for it, such as `Produce`."""
        self.versions: dict[int, int] = {}
        """How many requests of each version there were; up to date after `RequestTimes.all`."""
        self.errors: Errors = defaultdict(int)
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


class CountedRequests:
    """The requests of one API in one version."""

    __slots__ = ("_times", "count", "followers", "name", "version")

    def __init__(self, times: ApiTimes, version: int) -> None:
        self._times = times
        self.name = times.name
        self.version = version
        self.count = 0
        """How many there were."""
        self.followers = 0
        """How many of them were Fetch requests of followers."""

    def count_errors(self, answer: object) -> None:
        """Count the error codes in an answer."""
        count_errors(answer, self._times.errors)

    def note_follower(self, served: Served) -> None:
        """Count the request that is being served as a follower's Fetch."""
        self.followers += 1
        if served.timing is not None:
            served.timing.is_follower = True

    def timing(self, requests: RequestTimes, arrived_at: float, work: Coroutine[Any, Any, Any]) -> Timing:
        """Return what measures one of them."""
        weight = 1 if self.count <= ALL_MEASURED else MEASURED_EVERY
        return Timing(requests, self._times, weight, arrived_at, work)


class RequestTimes:
    """The times of all requests of a node."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._by_name: dict[str, ApiTimes] = {}
        self._by_head: dict[tuple[int, int], CountedRequests] = {}
        self._unserved: dict[str, CountedRequests] = {}
        self._now = now
        self._window_until = now() + WINDOW_S

    def counted(self, frame: bytearray, served: Served, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Count a request, and return what to await in place of `work`, which answers it."""
        try:
            head = _HEAD.unpack_from(frame)
        except struct_error:  # it is too short for a request, as whoever decodes it will say
            return work
        counted = self._by_head.get(head) or self._first(*head)
        counted.count = count = counted.count + 1
        served.counted = counted
        if count > ALL_MEASURED and count % MEASURED_EVERY:
            return work
        served.timing = timing = counted.timing(self, served.arrived_at, work)
        return timing

    def _first(self, key: int, version: int) -> CountedRequests:
        """Look up an API and its version. Only served ones are remembered: a client may name any."""
        found = APIS.get(key)
        name = _UNKNOWN if found is None else name_of(found.key)
        if found is None or not found.first <= version <= found.last:
            if name not in self._unserved:
                self._unserved[name] = CountedRequests(self.of(name), UNKNOWN_VERSION)
            return self._unserved[name]
        counted = self._by_head[key, version] = CountedRequests(self.of(name), version)
        return counted

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
        for counted in (*self._by_head.values(), *self._unserved.values()):
            self.of(counted.name).versions[counted.version] = counted.count
            if counted.name == _FETCH:
                self.of(_FETCH_FOLLOWER).versions[counted.version] = counted.followers
                self.of(_FETCH_CONSUMER).versions[counted.version] = counted.count - counted.followers
        return [self._by_name[name] for name in sorted(self._by_name)]


class Timing:
    """Answers one request, and measures when it runs and when it waits."""

    __slots__ = (
        "_answered_at",
        "_arrived_at",
        "_began_at",
        "_requests",
        "_times",
        "_weight",
        "_work",
        "is_follower",
        "ran",
    )

    def __init__(
        self,
        requests: RequestTimes,
        times: ApiTimes,
        weight: int,
        arrived_at: float,
        work: Coroutine[Any, Any, Any],
    ) -> None:
        """`weight`: how many requests it stands for."""
        self._requests = requests
        self._times = times
        self._weight = weight
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

    def sent(self, now: float, throttled_s: float) -> None:
        """Record the times: the answer is sent, and the connection is then silenced for this long."""
        self._record(self._times, now, throttled_s)
        if self._times.name == _FETCH:
            kind = _FETCH_FOLLOWER if self.is_follower else _FETCH_CONSUMER
            self._record(self._requests.of(kind), now, throttled_s)

    def _record(self, times: ApiTimes, now: float, throttled_s: float) -> None:
        arrived_at, began_at, answered_at, weight = self._arrived_at, self._began_at, self._answered_at, self._weight
        times.request_queue.record(int((began_at - arrived_at) * _US), weight)
        times.local.record(int(self.ran * _US), weight)
        times.remote.record(int((answered_at - began_at - self.ran) * _US), weight)
        times.throttle.record(int(throttled_s * _US), weight)
        times.response_queue.record(0, weight)
        times.response_send.record(int((now - answered_at) * _US), weight)
        times.total.record(int((now - arrived_at) * _US), weight)


def name_of(key: ApiKey) -> str:
    """Return Kafka's name of an API, such as `OffsetCommit`."""
    return "".join(word.capitalize() for word in key.name.split("_"))
