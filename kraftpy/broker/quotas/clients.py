"""Measures each request, and makes connections of clients above their quotas wait (KIP-13, 124, 219, 599).

A request's answer is sent at once and tells the client how long to wait; for that long, its connection is neither read
nor served (`Connection.mute`). Other connections do not wait. If several quotas are exceeded, the longest wait counts.

    producer_byte_rate        bytes of Produce requests, counted when they are answered
    consumer_byte_rate        bytes of records in answers to Fetch; an answer above the limit is replaced by an empty
                              one, and does not count. Records of ShareFetch count, but are sent: they are acquired
    request_percentage        time on the event loop, in percent of one second for each second, without the time spent
                              waiting or in other threads; a wait lasts at most one sample. Encoding the answer counts
                              towards later requests. Produce with acks=0 is exempt, as it has no answer
    controller_mutation_rate  partitions created and deleted: tokens of a bucket (`quotas.buckets`)

The first three are measured with a leaky bucket (`quotas.rates`).

Exempt: requests on connections that have proved to be another broker's, and those a broker sends to itself.

Limits: at most `MOST_COUNTERS` counters of each kind. Counters that are as good as new are dropped first, then the
least recently used ones. Without quotas of users and client ids, a request costs one check, and nothing is counted.

As in Kafka, each broker counts separately; here that includes mutations, which in Kafka the controller counts.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, ItemsView, Iterator
from hashlib import sha256
from time import perf_counter_ns
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from kraftpy.broker.encoded_answers import Encoded
from kraftpy.broker.request import RequestContext
from kraftpy.config import BrokerConfig
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.quotas.buckets import TokenBucket
from kraftpy.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from kraftpy.quotas.limits import Limit, Limits
from kraftpy.quotas.rates import Rate, burst_seconds

MOST_COUNTERS: Final = 10_000
"""The most counters of each kind, which take some 4 MB."""
_MOST_FOUND: Final = 10_000
_LONGEST_FOUND: Final = 256
"""The most characters of a user and a client id for which a limit that was found is kept."""
_LONGEST_KEY: Final = 256
"""Counters of users and client ids with more characters are found by a hash."""
_PERCENT_OF_NS: Final = 100 / 1e9
_FIRST_METADATA_WITH_THROTTLE: Final = 3

T = TypeVar("T")
C = TypeVar("C", bound="_Forgettable")
_Key = tuple[str, str | bytes | None, str | bytes | None]


class _Forgettable(Protocol):
    def is_as_new(self, now: float) -> bool:
        """Return whether this equals a new one, so that it can be dropped."""


class _Counters(Generic[C]):
    """Counters by key, user and client id, in the order of their last use."""

    def __init__(self, make: Callable[[], C], now: Callable[[], int], most: int) -> None:
        self._make = make
        self._now = now
        self._most = most
        self._counters: dict[_Key, C] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def __bool__(self) -> bool:
        return len(self) > 0

    def items(self) -> ItemsView[_Key, C]:
        """Return the counters with their keys."""
        return self._counters.items()

    def of(self, key: _Key) -> C:
        """Return the counter of a key, creating it if necessary."""
        counters = self._counters
        found = counters.pop(key, None)
        if found is None:
            found = self._make()
            if len(counters) >= self._most:
                self._make_room()
        counters[key] = found
        return found

    def _make_room(self) -> None:
        """Drop counters that equal new ones, and the oldest quarter of the rest if that frees too little.

        Clients may make up client ids, so this frees room for many of them at once.
        """
        now = self._now()
        kept = {key: counter for key, counter in self._counters.items() if not counter.is_as_new(now)}
        most_kept = self._most * 3 // 4
        for key in list(kept)[: max(0, len(kept) - most_kept)]:
            del kept[key]
        self._counters = kept


class ClientQuotaManager:
    """The quotas of users and client ids on one broker."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, limits: Callable[[], Limits], *, most_counters: int = MOST_COUNTERS
    ) -> None:
        """`limits` returns the current quotas."""
        self._limits = limits
        self._clock = clock
        self._samples, self._sample_ms = config.quota_window_num, config.quota_window_size_seconds * 1000
        self._window_s = burst_seconds(self._samples, self._sample_ms)
        bucket_samples, bucket_ms = (
            config.controller_quota_window_num,
            config.controller_quota_window_size_seconds * 1000,
        )
        self._rates: _Counters[Rate] = _Counters(lambda: Rate(self._samples, self._sample_ms), self._now, most_counters)
        self._buckets: _Counters[TokenBucket] = _Counters(
            lambda: TokenBucket(bucket_samples, bucket_ms), self._now, most_counters
        )
        self._found: dict[tuple[str, str, str], Limit | None] = {}
        self._found_in: tuple[Limits | None, int] = (None, 0)

    @property
    def in_use(self) -> bool:
        """True if some user or client id has a quota."""
        return self._limits().of_clients

    def usage(self) -> Iterator[tuple[str, str | None, str | None, float, int]]:
        """Yield what clients with quotas of bytes and time use: (quota, user, client id, limit, milliseconds to wait).

        None stands for any user or client id. Names that are too long to be kept are left out.
        """
        now = self._now()
        for (key, user, client_id), rate in list(self._rates.items()):
            if not isinstance(user, bytes) and not isinstance(client_id, bytes) and rate.limit > 0:
                yield key, user, client_id, rate.limit, rate.wait_ms(rate.limit, now)

    def meter(self) -> Meter:
        """Return a meter for a request that has just arrived."""
        return Meter(self)

    def limit(self, user: str, client_id: str, key: str) -> Limit | None:
        """Return a client's limit for a key; None if it has none."""
        limits = self._limits()
        if self._found_in != (limits, limits.changes) or len(self._found) >= _MOST_FOUND:
            self._found.clear()
            self._found_in = limits, limits.changes
        if len(user) + len(client_id) > _LONGEST_FOUND:
            return limits.of_client(user, client_id, key)
        place = user, client_id, key
        if place not in self._found:
            self._found[place] = limits.of_client(user, client_id, key)
        return self._found[place]

    def record(self, limit: Limit | None, key: str, amount: float) -> int:
        """Count some usage; return how many milliseconds the client has to wait for it."""
        if limit is None:
            return 0
        rate, now = self._rates.of(_key(key, limit)), self._now()
        is_time = key == REQUEST_PERCENTAGE
        rate.record(amount, limit.value, now, forgives=is_time)
        wait_ms = rate.wait_ms(limit.value, now)
        return min(wait_ms, self._sample_ms) if is_time else wait_ms

    def may_exceed(self, limit: Limit | None, key: str, amount: float) -> bool:
        """Return whether more than the quota ever allows at once may be used now, with a wait afterwards."""
        if limit is None:
            return True
        rate = self._rates.of(_key(key, limit))
        return amount > limit.value * self._window_s and not rate.wait_ms(limit.value, self._now())

    def most_in_window(self, limit: Limit | None) -> int | None:
        """Return the most bytes in an answer that cause no wait if nothing was used before; None without a limit."""
        if limit is None:
            return None
        return max(1, int(limit.value * self._window_s))

    def take(self, limit: Limit | None, count: float, *, strict: bool) -> tuple[bool, int]:
        """Take tokens for a change of partitions; return whether it is allowed, and the milliseconds to wait after it.

        With `strict`, nothing is allowed or taken while the bucket is overdrawn.
        """
        if limit is None:
            return True, 0
        bucket, now = self._buckets.of(_key(CONTROLLER_MUTATION_RATE, limit)), self._now()
        if strict:
            wait_ms = bucket.wait_ms(limit.value, now)
            if wait_ms > 0:
                return False, wait_ms
            bucket.take(count, limit.value, now)
            return True, 0
        bucket.take(count, limit.value, now)
        return True, bucket.wait_ms(limit.value, now)

    def _now(self) -> int:
        return self._clock.monotonic_ms()


def _key(key: str, limit: Limit) -> _Key:
    """Return what a counter is found by; long names take no more memory than short ones."""
    return key, _short(limit.user), _short(limit.client_id)


def _short(name: str | None) -> str | bytes | None:
    if name is None or len(name) <= _LONGEST_KEY:
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).digest()


class Meter:
    """The usage of one request. Runs the request, and measures its time on the event loop."""

    __slots__ = ("_began_ns", "_context", "_manager", "_recorded_ns", "_spent_ns", "_wait_ms")

    def __init__(self, manager: ClientQuotaManager) -> None:
        self._manager = manager
        self._context: RequestContext | None = None
        self._spent_ns = self._recorded_ns = 0
        self._began_ns = 0
        self._wait_ms = 0

    # --- time --------------------------------------------------------------------------------

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a request to its end. The time that it takes after its answer is known counts, but causes no wait."""
        try:
            return cast("T", await _Timed(work, self))
        finally:
            if self._context is not None and self._recorded_ns:
                self._record_time()

    def begin(self) -> None:
        """Note that the request runs from now on."""
        self._began_ns = perf_counter_ns()

    def end(self) -> None:
        """Note that the request waits or has ended."""
        self._spent_ns += perf_counter_ns() - self._began_ns
        self._began_ns = 0

    def _record_time(self) -> int:
        spent_ns = self._spent_ns + (perf_counter_ns() - self._began_ns if self._began_ns else 0)
        unrecorded_ns, self._recorded_ns = spent_ns - self._recorded_ns, spent_ns
        return self._manager.record(self._limit(REQUEST_PERCENTAGE), REQUEST_PERCENTAGE, unrecorded_ns * _PERCENT_OF_NS)

    # --- for handlers ------------------------------------------------------------------------

    def most_fetch_bytes(self) -> int | None:
        """Return the most bytes of records that an answer to Fetch should have; None if there is no such limit."""
        return self._manager.most_in_window(self._limit(CONSUMER_BYTE_RATE))

    def must_wait_to_fetch(self, count: int) -> bool:
        """Count the bytes of an answer to Fetch; if they are too many, uncount them and return True.

        The answer must then be empty. The client's time is checked now as well, with the same effect. A batch larger
        than the quota ever allows at once is sent as soon as the client need not wait: otherwise it could never be
        read.
        """
        limit = self._limit(CONSUMER_BYTE_RATE)
        may_exceed = self._manager.may_exceed(limit, CONSUMER_BYTE_RATE, count)
        time_ms, bytes_ms = self._record_time(), self._manager.record(limit, CONSUMER_BYTE_RATE, count)
        self._wait_ms = max(self._wait_ms, time_ms, bytes_ms)
        must_wait = time_ms > 0 or (bytes_ms > 0 and not may_exceed)
        if must_wait:
            self._manager.record(limit, CONSUMER_BYTE_RATE, -count)
        return must_wait

    def may_mutate(self, partitions: int, *, strict: bool) -> bool:
        """Count partitions to create or delete; return False, only if `strict`, if there have been too many."""
        may, wait_ms = self._manager.take(self._limit(CONTROLLER_MUTATION_RATE), partitions, strict=strict)
        self._wait_ms = max(self._wait_ms, wait_ms)
        return may

    def did_not_mutate(self, partitions: int) -> None:
        """Uncount partitions that were not created or deleted after all."""
        self._manager.take(self._limit(CONTROLLER_MUTATION_RATE), -partitions, strict=False)

    # --- the end of a request ----------------------------------------------------------------

    def of(self, context: RequestContext) -> Meter | None:
        """Count for the client of this request from now on; return None if the request is exempt."""
        if context.connection is None or context.connection.proved_broker is not None:
            return None
        self._context = context
        return self

    def settle(self, response: Any, frame_bytes: int) -> Any:
        """Put the time to wait into the answer, and mute the connection for that long; return the answer to send."""
        context = self._context
        if context is None or context.connection is None:
            return response
        key = context.api_key
        wait_ms = self._wait_ms
        if key == ApiKey.PRODUCE:
            wait_ms = self._manager.record(self._limit(PRODUCER_BYTE_RATE), PRODUCER_BYTE_RATE, frame_bytes)
        elif key == ApiKey.SHARE_FETCH:
            count = sum(len(partition.records or b"") for topic in response.responses for partition in topic.partitions)
            wait_ms = self._manager.record(self._limit(CONSUMER_BYTE_RATE), CONSUMER_BYTE_RATE, count)
        if response is not None and not self._recorded_ns:
            wait_ms = max(wait_ms, self._record_time())
        if wait_ms <= 0:
            return response
        context.connection.mute(wait_ms / 1000)
        if isinstance(response, Encoded):
            if context.api_version >= _FIRST_METADATA_WITH_THROTTLE:  # the throttle time is the first field then
                return Encoded(wait_ms.to_bytes(4, "big") + response.body[4:])
        elif response is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = wait_ms
        return response

    def _limit(self, key: str) -> Limit | None:
        context = self._context
        assert context is not None
        return self._manager.limit(context.principal.name, context.client_id, key)


class _Timed:
    """Awaits a coroutine, and tells a meter when it runs and when it waits."""

    __slots__ = ("_meter", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], meter: Meter) -> None:
        self._work = work
        self._meter = meter

    def __await__(self) -> Generator[Any, Any, Any]:
        meter, work = self._meter, self._work
        thrown: BaseException | None = None
        while True:
            meter.begin()
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                return done.value
            finally:
                meter.end()
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # such as a cancellation: raise it inside the coroutine
                thrown = error
