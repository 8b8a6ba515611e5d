"""Logs requests that take longer than `kraftpy.slow.request.ms`, and where their time went.

    WARNING ...: slow request: PRODUCE 13 of User:anna, client app-1 at /10.0.0.7, 2 topics: 812 ms, of which
    3 ms on the event loop, 806 ms in produce > _committed > Watch.wait

The time begins when the request is taken from its connection. Each wait is ascribed to the functions that waited,
the innermost last. The time that a Fetch may wait for records does not count, nor do the waits of JoinGroup and
SyncGroup for other members. One line per API and client host is written in a minute.

Coroutines of compiled modules (decision 49) have neither code nor frame: the names of their types tell the functions,
and the garbage collector tells what they await.

Without the setting, nothing is measured.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Awaitable, Generator
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kraftpy.broker.containment import Complaints
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import decode_request_header
from kraftpy.protocol.schema import decode

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection

T = TypeVar("T")
_PACKAGE: Final = str(Path(__file__).parent.parent)
_PACKAGE_NAME: Final = f"{__name__.partition('.')[0]}."
_COMPILED: Final = "_gen"
"""The last characters of the names that the compiler gives to the types of coroutines."""
_FUTURE, _COROUTINE = "FutureIter", "coroutine_wrapper"
"""The names of the types that iterate over a future, and over a coroutine, for what awaits it."""

logger = logging.getLogger(__name__)

_WAITS_FOR_OTHERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
_WAITS_FOR_RECORDS: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
_MOST_ELEMENTS: Final = 1_000
_MOST_BYTES: Final = 1 << 20
_MOST_PLACES: Final = 20
_SHOWN_PLACES: Final = 3
_SHOWN_CALLS: Final = 3
_TOPICS: Final = ("topics", "topic_data", "topic_names", "resources")
"""The fields of requests that list topics, or what stands for them."""


class SlowRequests:
    """The measurement of one broker's requests; `slow_ms` below 0 turns it off."""

    def __init__(self, slow_ms: int, complaints: Complaints) -> None:
        self._slow_ms = slow_ms
        self._complaints = complaints

    def watched(self, work: Awaitable[T], frame: bytearray, connection: Connection) -> Awaitable[T]:
        """Return the work on a request, measured if that is wanted."""
        return work if self._slow_ms < 0 else _Watched(self, work, frame, connection)

    def report(self, frame: bytearray, connection: Connection, total: float, running: float, waits: _Waits) -> None:
        """Log a request whose time is known, in seconds, if it was slow."""
        if 1000 * total < self._slow_ms:
            return
        try:
            header, body = decode_request_header(frame)
        except ProtocolError:
            return
        key, version, client_id = header.api_key, header.api_version, header.client_id
        if key not in APIS or version not in APIS[key]:
            return
        api = APIS[key]
        if api.key in _WAITS_FOR_OTHERS and 1000 * running < self._slow_ms:
            return
        try:
            if len(frame) > _MOST_BYTES and api.key != ApiKey.PRODUCE:
                raise ProtocolError("too long to be decoded once more")
            request: Any = decode(api.request, body, version, max_elements=_MOST_ELEMENTS, exact=False)
        except ProtocolError:
            request = None
        if api.key in _WAITS_FOR_RECORDS and request is not None and 1000 * total - request.max_wait_ms < self._slow_ms:
            return
        lists = [getattr(request, name, None) for name in _TOPICS]
        topics = next((f", {len(each)} topics" for each in lists if isinstance(each, list)), "")
        ways = sorted(waits.items(), key=lambda item: -item[1])[:_SHOWN_PLACES]
        spent = "".join(f", {1000 * seconds:.0f} ms in {place}" for place, seconds in ways)
        self._complaints.write(
            logger,
            logging.WARNING,
            f"slow {api.key.name}",
            connection.client_host,
            "slow request: %s %d of %s, client %s at %s%s: %.0f ms, of which %.0f ms on the event loop%s",
            api.key.name,
            version,
            str(connection.principal),
            client_id or "",
            connection.client_host,
            topics if request is not None else ", many topics",
            1000 * total,
            1000 * running,
            spent,
        )


_Waits = dict[str, float]


class _Watched(Awaitable[T]):
    """Awaits the work on a request, and notes when it runs and when it waits."""

    __slots__ = ("_connection", "_frame", "_slow", "_work")

    def __init__(self, slow: SlowRequests, work: Awaitable[T], frame: bytearray, connection: Connection) -> None:
        self._slow = slow
        self._work = work
        self._frame = frame
        self._connection = connection

    def __await__(self) -> Generator[Any, Any, T]:
        work: Any = self._work.__await__()
        began = resumed = perf_counter()
        running = 0.0
        waits: _Waits = {}
        thrown: BaseException | None = None
        try:
            while True:
                resumed = perf_counter()
                try:
                    waits_for = work.send(None) if thrown is None else work.throw(thrown)
                except StopIteration as done:
                    result: T = done.value
                    return result
                finally:
                    paused = perf_counter()
                    running += paused - resumed
                thrown = None
                place = _place(self._work)
                try:
                    yield waits_for
                except BaseException as error:  # such as a cancellation: raise it inside the work
                    thrown = error
                if place in waits or len(waits) < _MOST_PLACES:
                    waits[place] = waits.get(place, 0.0) + perf_counter() - paused
        finally:
            self._slow.report(self._frame, self._connection, perf_counter() - began, running, waits)


def _place(work: Any) -> str:
    """Return the innermost functions of this package that wait, the innermost last."""
    calls: list[str] = []
    while work is not None:
        code = getattr(work, "cr_code", None) or getattr(work, "gi_code", None)
        name = _name_of_compiled(work)
        if code is not None and code.co_filename.startswith(_PACKAGE) and code.co_name != "__await__":
            calls.append(code.co_qualname)
        elif name and not name.endswith("__await__"):
            calls.append(name)
        work = _awaited_by_compiled(work) if name else _inner(work)
    return " > ".join(calls[-_SHOWN_CALLS:]) or "a wait"


def _inner(work: Any) -> Any:
    """Return what a coroutine, generator or measuring wrapper awaits; None if it waits for a future."""
    awaited = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None) or getattr(work, "_work", None)
    frame = getattr(work, "gi_frame", None)
    if awaited is None and frame is not None:
        awaited = frame.f_locals.get("work")  # a wrapper's `__await__`, such as that of a quota's meter
    return awaited


def _name_of_compiled(work: Any) -> str:
    """Return the function whose compiled coroutine this is, or "" if it is none.

    The coroutines of `Meter.run` have the type `run_Meter_gen`.
    """
    kind = type(work)
    is_one = kind.__name__.endswith(_COMPILED) and kind.__module__.startswith(_PACKAGE_NAME)
    return _function_named(kind.__module__, kind.__name__.removesuffix(_COMPILED)) if is_one else ""


@cache
def _function_named(module: str, name: str) -> str:
    """Return the qualified name of a function; the name that is given ends in its class, if it has one."""
    known = vars(sys.modules[module]).items()
    owners = [each for each, what in known if isinstance(what, type) and name.endswith(f"_{each}")]
    owner = max(owners, key=len, default="")
    return f"{owner}.{name[: -len(owner) - 1]}" if owner else name


def _awaited_by_compiled(work: Any) -> Any:
    """Return what a compiled coroutine awaits; None if it waits for a future."""
    return next((each for each in _referents(work) if not _is_of(each, _FUTURE) and _waits(each)), None)


def _waits(work: Any) -> bool:
    """Return whether this is a coroutine, generator or iterator of a future that has begun and not ended."""
    is_suspended: bool | None = getattr(work, "cr_suspended", getattr(work, "gi_suspended", None))
    if is_suspended is not None:
        return is_suspended
    if _is_of(work, _FUTURE):
        return bool(gc.get_referents(work))
    return bool(_name_of_compiled(work)) and any(map(_waits, _referents(work)))


def _referents(work: Any) -> list[Any]:
    """Return what a compiled coroutine refers to: its arguments, its variables and all that it has awaited."""
    found: list[Any] = []
    for each in reversed(gc.get_referents(work)):
        found += gc.get_referents(each) if _is_of(each, _COROUTINE) else [each]
    return found


def _is_of(work: Any, name: str) -> bool:
    return type(work).__name__ == name
