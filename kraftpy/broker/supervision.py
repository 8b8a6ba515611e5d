"""The ties of a node's process to the supervisor that forked it (`supervisor`): two ends of pipes.

The process tells that it is ready, and learns that the supervisor is gone, however that ended: only the supervisor
holds the other end of `lifeline`, so the system closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Supervision:
    """The descriptors that a process of several inherits."""

    lifeline: int
    """A descriptor that becomes readable when the supervisor is gone."""
    report: int
    """A descriptor to which the process writes its listeners, on one line, when it is ready."""

    def tell_ready(self, listeners: str) -> None:
        """Tell the supervisor that clients can connect. Does nothing if it is gone."""
        with contextlib.suppress(OSError):
            os.write(self.report, f"{listeners}\n".encode())

    def watch(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """Call `stop` once the supervisor is gone."""

        def gone() -> None:
            loop.remove_reader(self.lifeline)
            logger.error("the supervisor is gone: this node stops")
            stop()

        loop.add_reader(self.lifeline, gone)
