"""Notices when the event loop stalls, and logs what its thread is doing (`kraftpy.loop.stall.ms`).

A timer of the loop takes the time, a few times a second. A thread looks at that time: if it is too old, a callback has
kept the loop busy, or blocks it. The thread logs the stack of the loop's thread and how long that has run, blocked and
waited for a processor; once more, when the stall is over, how long it was.

Nothing is logged if this thread was late as well, because the whole process was paused, or if the loop's thread mostly
waited for a processor. At most `LINES_PER_MINUTE` stalls are logged, and each place once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

LINES_PER_MINUTE: Final = 10
_MINUTE_SECONDS: Final = 60.0
_LOOKS_PER_STALL: Final = 4
_LEAST_PAUSE_SECONDS: Final = 0.01
_SHOWN_FRAMES: Final = 12
_MOSTLY: Final = 0.8


class StallWatch:
    """The watch over the event loop that starts it. `seconds`: a turn of the loop that takes longer is a stall."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pause = max(_LEAST_PAUSE_SECONDS, seconds / _LOOKS_PER_STALL)
        self._beat_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._watched_native = 0
        self._logged: dict[str, float] = {}
        self.count = 0
        """Stalls that were noticed."""

    def start(self) -> None:
        """Watch the loop that runs in this thread."""
        self._watched, self._watched_native = threading.get_ident(), threading.get_native_id()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and end the thread."""
        self._has_ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._beat)

    def _run(self) -> None:
        reported, looked_at, excused_at = 0.0, time.monotonic(), 0.0
        times_at_beat, beat_at = self._times(), self._beat_at
        while not self._has_ended.wait(self._pause):
            now = time.monotonic()
            if now - looked_at > self._pause + self._seconds / 2:
                excused_at = now  # the process was paused, or this thread starved too
            looked_at = now
            if self._beat_at != beat_at:
                if reported == beat_at:
                    logger.warning("the event loop has stalled for %.0f ms", 1000 * (self._beat_at - beat_at))
                beat_at, times_at_beat = self._beat_at, self._times()
                continue
            stalled = now - max(beat_at + self._pause, excused_at)
            if stalled < self._seconds or reported == beat_at:
                continue
            ran, waited = (after - before for before, after in zip(times_at_beat, self._times(), strict=True))
            if waited >= _MOSTLY * stalled:
                excused_at = now
                continue
            self.count += 1
            frame = sys._current_frames().get(self._watched)
            if self._may_log(_place(frame), now):
                reported = beat_at
                logger.warning(
                    "the event loop is stalled for %.0f ms, of which its thread ran %.0f ms and waited %.0f ms for a "
                    "processor: %s",
                    1000 * stalled,
                    1000 * min(ran, stalled),
                    1000 * min(waited, stalled),
                    stack_of(frame),
                )

    def _may_log(self, place: str, now: float) -> bool:
        self._logged = {each: at for each, at in self._logged.items() if now - at < _MINUTE_SECONDS}
        if place in self._logged or len(self._logged) >= LINES_PER_MINUTE:
            return False
        self._logged[place] = now
        return True

    def _times(self) -> tuple[float, float]:
        """Return the seconds that the loop's thread has run and waited for a processor so far (Linux; else zeros)."""
        try:
            ran, waited, _ = Path(f"/proc/self/task/{self._watched_native}/schedstat").read_text().split()
            return int(ran) / 1e9, int(waited) / 1e9
        except (OSError, ValueError):
            return 0.0, 0.0


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Watch over the running event loop during the block, unless `seconds` is 0."""
    if not seconds:
        yield
        return
    watch = StallWatch(seconds)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def stack_of(frame: FrameType | None) -> str:
    """Return a stack on one line, the innermost call first, without the frames of the event loop itself."""
    shown: list[str] = []
    while frame is not None and len(shown) < _SHOWN_FRAMES:
        code = frame.f_code
        if code.co_filename.endswith(("asyncio/events.py", "asyncio/base_events.py", "asyncio/runners.py")):
            break
        shown.append(f"{code.co_qualname} ({_short(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(shown) or "no Python code"


def _place(frame: FrameType | None) -> str:
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _short(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(path.split("/")[-2:])
