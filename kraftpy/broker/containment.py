"""Containment: an unexpected error costs what it hit, and never the node.

`Tasks` owns every task of a node. An exception that leaves a task is noted as an incident and the task is over; the
node goes on. Two kinds end the node all the same, because going on would be worse: `DirectoryFailed` (its own disk) and
`Fatal` (its own state). A loop that must not be over is started with `keep_running`, which starts it again.

`Incidents` counts unexpected errors and keeps the last few for those who ask about the node's health. `Complaints` is
for errors that are expected of peers (malformed frames, refused connections). Both write one line a kind and peer a
minute, with the number of those that were left out, so that nobody can fill the log; tracebacks are logged at DEBUG.

Invariants: neither raises; both hold a bounded number of entries, however many peers and kinds there are.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNEXPECTED: Final = "unexpected error"
"""Stands in the line of every incident, for tests and simulations that excuse none."""
QUIET_SECONDS: Final = 60.0
MAX_COMPLAINTS: Final = 1_000
"""Kinds and peers remembered at once; beyond it all peers of a kind share one entry."""
_KEPT_INCIDENTS: Final = 20
_RESTART_SECONDS: Final = 1.0


class Fatal(Exception):
    """This node's own state cannot be trusted any more: it ends, with this message."""


class Incident(NamedTuple):
    """One unexpected error that was survived."""

    what: str
    """The task, request, group or partition that it cost."""
    error: str
    """Type and message of the exception, and where it was raised."""
    at: float
    """The event loop's time, in seconds."""


class Complaints:
    """Writes one line a kind and peer a minute; the next line says how many were left out."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], list[float]] = {}
        """By kind and peer: when a line may be written again, and how many were left out since the last."""

    def write(self, log: logging.Logger, level: int, kind: str, peer: str, message: str, *arguments: object) -> bool:
        """Log `message % arguments` unless the same kind and peer was logged within the last minute.

        Returns whether a line was written. `peer` is a host without its port, or "" where there is none.
        """
        now = _now()
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
        log.log(level, message, *arguments)
        return True

    def _forget(self, now: float) -> None:
        for key in [key for key, (until, _) in self._seen.items() if until <= now]:
            del self._seen[key]


class Incidents:
    """Unexpected errors that this node survived."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._last: deque[Incident] = deque(maxlen=_KEPT_INCIDENTS)
        self.count = 0
        """How many there were since the start."""

    @property
    def last(self) -> list[Incident]:
        """The newest few, oldest first."""
        return list(self._last)

    def note(self, what: str, error: BaseException, *, kind: str = "") -> None:
        """Count an unexpected error and log one line of it.

        `what` names what it cost; `kind` is its kind for the log's limit, `what` itself where it is not given.
        """
        self.count += 1
        said = f"{type(error).__name__}: {error}"[:500]
        where = _raised_at(error)
        self._last.append(Incident(what, f"{said} ({where})", _now()))
        written = self._complaints.write(
            logger, logging.ERROR, f"{kind or what} {where}", "", "%s: %s: %s (%s)", what, UNEXPECTED, said, where
        )
        if written:
            logger.debug("%s", what, exc_info=error)


class Tasks:
    """The tasks of one node, in front of the TaskGroup that owns them. See the module for what it contains."""

    def __init__(self, group: asyncio.TaskGroup, incidents: Incidents, fatal: tuple[type[Exception], ...]) -> None:
        self._group = group
        self._incidents = incidents
        self._fatal: tuple[type[Exception], ...] = (Fatal, *fatal)

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T | None]:
        """Run a coroutine whose unexpected error costs no other: its result is then None.

        Raises RuntimeError if the node is going down.
        """
        contained = self._contained(coroutine, name)
        try:
            task = self._group.create_task(contained, name=name)
        except RuntimeError:
            contained.close()
            coroutine.close()
            raise
        task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before it began was never awaited
        return task

    def keep_running(self, make: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> asyncio.Task[None]:
        """Run a loop that must go on: after an unexpected error it is made again, a second later."""
        return self.create_task(self._again_and_again(make, name), name=name)

    async def _contained(self, coroutine: Coroutine[Any, Any, T], name: str) -> T | None:
        try:
            return await coroutine
        except self._fatal:
            raise
        except Exception as error:
            self._incidents.note(name, error)
            return None

    async def _again_and_again(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            try:
                await make()
            except self._fatal:
                raise
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


def _now() -> float:
    return asyncio.get_running_loop().time()
