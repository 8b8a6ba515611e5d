"""Containment: an unexpected error costs the work it hit, but never the node.

`Tasks` owns every task of a node. An exception that leaves a task is recorded as an incident and ends only that task.
One kind ends the node all the same, because continuing would be worse: `Fatal`, for the node's own state or its own
disk (`DirectoryFailed`). Nothing contains it: `note` and `contained` let it through. A loop that must never end is
started with `keep_running`, which restarts it.

`Incidents` counts unexpected errors and keeps the last few for health checks. `Complaints` is for errors that are
expected of peers (malformed frames, refused connections). Both write at most one line per kind and peer in a minute,
with the number of those left out, so that no peer can fill the log. Tracebacks are logged at DEBUG.

Invariants: neither raises anything but `Fatal`, nor lets text from outside begin a line of the log; both hold a bounded
number of entries, however many peers and kinds there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from kraftpy.ports import Failure, failure_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNEXPECTED: Final = "unexpected error"
"""Part of every incident's log line; tests and simulations that tolerate no incident look for it."""
QUIET_SECONDS: Final = 60.0
MAX_COMPLAINTS: Final = 1_000
"""Kinds and peers remembered at once; beyond that, all peers of a kind share one entry."""
_KEPT_INCIDENTS: Final = 20
_RESTART_SECONDS = 1.0
_SAID_CHARACTERS: Final = 500


class Fatal(Exception):
    """This node's own state or disk can no longer be trusted: the node ends, with this message."""


class DirectoryFailed(Fatal):
    """A log directory failed that this node cannot do without; the message is one line."""


class Incident(NamedTuple):
    """One unexpected error that the node survived."""

    what: str
    """The task, request, group or partition that the error cost."""
    error: str
    """Type and message of the exception, and the place that raised it."""
    at: float
    """The event loop's time, in seconds."""


class Complaints:
    """Writes one line per kind and peer in a minute; the next line says how many were left out."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        """`now` returns seconds; the default is the event loop's time."""
        self.now: Callable[[], float] = now or _now
        self._seen: dict[tuple[str, str], list[float]] = {}
        """By kind and peer: when the next line may be written, and how many were left out since the last."""

    def write(self, log: logging.Logger, level: int, kind: str, peer: str, message: str, *arguments: object) -> bool:
        """Log `message % arguments` unless the same kind and peer was logged within the last minute.

        Returns whether a line was written. `peer` is a host without its port, or "" if there is none.
        """
        now = self.now()
        key = (kind, peer)
        if key not in self._seen and len(self._seen) >= MAX_COMPLAINTS:
            self._forget(now)
            if len(self._seen) >= MAX_COMPLAINTS:
                key = (kind, "")
        seen = self._seen.get(key)
        if seen is not None and now < seen[0]:
            seen[1] += 1
            return False
        left_out = 0 if seen is None else int(seen[1])
        self._seen[key] = [now + QUIET_SECONDS, 0]
        if left_out:
            message += " (%d more like it were not logged)"
            arguments = (*arguments, left_out)
        log.log(level, message, *(_on_one_line(each) if isinstance(each, str) else each for each in arguments))
        return True

    def own(self, log: logging.Logger, kind: str, message: str, *arguments: object) -> bool:
        """Log an expected error of this node itself, such as a full disk; like `write`, but without a peer."""
        return self.write(log, logging.ERROR, kind, "", message, *arguments)

    def _forget(self, now: float) -> None:
        for key in [key for key, (until, _) in self._seen.items() if until <= now]:
            del self._seen[key]


class Incidents:
    """The unexpected errors that this node has survived."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._last: deque[Incident] = deque(maxlen=_KEPT_INCIDENTS)
        self.count = 0
        """Incidents since the node started."""

    @property
    def complaints(self) -> Complaints:
        """The writer of their log lines, also used for errors that are expected of peers."""
        return self._complaints

    @property
    def last(self) -> list[Incident]:
        """The newest incidents, oldest first."""
        return list(self._last)

    @contextlib.contextmanager
    def contained(self, what: str, *, kind: str = "") -> Iterator[None]:
        """Contain an unexpected error of the body and record it with `note`, which raises `Fatal`."""
        try:
            yield
        except Exception as error:
            self.note(what, error, kind=kind)

    def contained_in(self, place: object, what: str) -> contextlib.AbstractContextManager[None]:
        """Contain an error in one of many places, such as a partition; `what` is their common kind."""
        return self.contained(f"{place}: {what}", kind=what)

    def note(self, what: str, error: BaseException, *, kind: str = "") -> None:
        """Count an unexpected error and log one line about it. Raises it if it is `Fatal`.

        `what` names the work that it cost; `kind` is the key of the log's limit, and defaults to `what`.
        """
        if isinstance(error, Fatal):
            raise error
        self.count += 1
        what = _on_one_line(what[:_SAID_CHARACTERS])
        said = _on_one_line(f"{type(error).__name__}: {_text_of(error)}"[:_SAID_CHARACTERS])
        where = _raised_at(error)
        self._last.append(Incident(what, f"{said} ({where})", self._complaints.now()))
        written = self._complaints.write(
            logger, logging.ERROR, f"{kind or what} {where}", "", "%s: %s: %s (%s)", what, UNEXPECTED, said, where
        )
        if written:
            logger.debug("%s", what, exc_info=error)


def contain_callbacks(loop: asyncio.AbstractEventLoop, incidents: Incidents) -> None:
    """Record errors from asyncio's callbacks, and from tasks that are never awaited, as incidents of the node.

    Running out of descriptors for a connection is not an incident: the connection is accepted later.
    """

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        if isinstance(error, OSError) and failure_of(error) is Failure.RESOURCES:
            reason = error.strerror or str(error)
            incidents.complaints.write(logger, logging.WARNING, "out of resources", "", "%s: %s", message, reason)
        elif isinstance(error, Exception) and not isinstance(error, Fatal):
            what = context.get("task") or context.get("future") or context.get("handle") or context.get("protocol")
            name = what.get_name() if isinstance(what, asyncio.Task) else "event loop"
            incidents.note(f"{name}: {message[:_SAID_CHARACTERS]}", error, kind=name)
        else:
            said = message if error is None else f"{message}: {_text_of(error)}"
            incidents.complaints.own(logger, "event loop", "%s", said[:_SAID_CHARACTERS])

    loop.set_exception_handler(handle)


class Tasks:
    """The tasks of one node, in front of the TaskGroup that owns them. The module describes what it contains."""

    def __init__(self, group: asyncio.TaskGroup, incidents: Incidents) -> None:
        self._group = group
        self._incidents = incidents

    @property
    def incidents(self) -> Incidents:
        """The place to record errors that a task contains itself."""
        return self._incidents

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T | None]:
        """Run a coroutine and contain its unexpected errors: the task's result is then None."""
        contained = self._contained(coroutine, name)
        try:
            task = self._group.create_task(contained, name=name)
        except RuntimeError:
            contained.close()
            coroutine.close()
            raise
        task.add_done_callback(lambda _: coroutine.close())  # if cancelled before it began, it was never awaited
        return task

    def keep_running(self, make: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Run a loop that must not end: after an unexpected error it is restarted a second later."""
        return self.create_task(self._again_and_again(make, name), name=name)

    def is_fatal(self, error: Exception) -> bool:
        """Return whether the error ends the node."""
        return isinstance(error, Fatal)

    def survive(self, what: str, error: Exception, *, kind: str = "") -> None:
        """Record an unexpected error as an incident (see `Incidents.note`). Raises it if it ends the node."""
        self.incidents.note(what, error, kind=kind)

    async def _contained(self, coroutine: Coroutine[Any, Any, T], name: str) -> T | None:
        try:
            return await coroutine
        except Exception as error:
            self._incidents.note(name, error)
            return None

    async def _again_and_again(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            try:
                await make()
            except Exception as error:
                self._incidents.note(name, error)
            else:
                return
            await asyncio.sleep(_RESTART_SECONDS)


def _raised_at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "nowhere"
    last = frames[-1]
    return f"{last.name} in {last.filename.rpartition('/')[2]}:{last.lineno}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its message cannot be formatted
        return "without a message"


def _on_one_line(text: str) -> str:
    """Escape text that is not printable, so that it cannot forge lines of the log."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # called from a thread
        return time.monotonic()
