"""Opens logs: the threads that do it, and the progress reports if it takes long.

Each log is opened by a thread of `num.recovery.threads.per.data.dir`. Scans after a crash run segment by segment in as
many threads again, so that one large log keeps all of them busy as many small ones do. There are two pools because the
thread that opens a log waits for its scans.

Progress is logged every two seconds, in one line.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from kraftpy.broker.threads import Threads
from kraftpy.log.recovery import Progress, Scan
from kraftpy.log.scanning import Scanned

logger = logging.getLogger(__name__)

_TELL_EVERY_S = 2.0


class Opening:
    """Opens some logs together. A context manager: on exit, its threads have ended."""

    def __init__(self, logs: int, opening_threads: int, scanning_threads: int, shared: Threads | None = None) -> None:
        """`shared` opens the logs instead of threads of its own: starting threads takes the event loop's time."""
        self.logs = logs
        self.opened = 0
        self._is_shared = shared is not None
        self.pool = shared or Threads(max(1, min(opening_threads, logs)), thread_name_prefix="open-log")
        self.began_at = time.monotonic()
        self._running = 0
        self._idle = threading.Condition()
        self._scans = Threads(max(1, scanning_threads), thread_name_prefix="scan-log")
        self._scanned: list[tuple[int, int]] = []  # per scanned log: bytes done, and in total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_shared:
            self.pool.shutdown(cancel_futures=True)
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0)
        self._scans.shutdown(cancel_futures=True)

    @contextmanager
    def job(self) -> Generator[None, None, None]:
        """Wrap a thread's work: none is running once the `Opening` is left."""
        with self._idle:
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def progress(self) -> Progress:
        """Return a callback for the progress of one log's scan. Each log needs its own."""
        number = -1

        def progress(done: int, total: int) -> None:
            nonlocal number
            if number < 0:  # the first call is by the thread that opens the log, before any scan has begun
                self._scanned.append((done, total))
                number = len(self._scanned) - 1
            self._scanned[number] = (done, total)

        return progress

    def side_by_side(self, scans: Sequence[Scan]) -> Generator[Scanned, None, None]:
        """Run the scans of a log in the scanning threads (`recovery.SideBySide`)."""
        futures: list[Future[Scanned]] = [self._scans.submit(each) for each in scans]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()  # wait; the outcome no longer matters once this is closed

    async def tell(self, say: Callable[[str], None] = logger.warning) -> None:
        """Report the progress regularly, until cancelled."""
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            say(f"opening logs: {self}")

    def __str__(self) -> str:
        done, total = (sum(column) for column in zip(*self._scanned, strict=True)) if self._scanned else (0, 0)
        seconds = time.monotonic() - self.began_at
        line = f"{self.opened} of {self.logs} partitions, {self.logs - self.opened} left"
        if total:
            rate = done / 1e6 / seconds if seconds > 0 else 0.0
            line += f"; after a crash: {done / 1e9:.2f} of {total / 1e9:.2f} GB read again, {rate:,.0f} MB/s"
        return f"{line}; {seconds:.0f} s"
