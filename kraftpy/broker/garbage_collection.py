"""Keeps garbage collections from stopping the node.

A full collection of the interpreter looks at every object of the process while nothing else runs. With thousands of
partitions, that would be the longest stall of all. Almost all of those objects live as long as the node. So hardly any
collection runs during the start, and the objects alive at its end, or after a full collection that took long, are set
aside (`gc.freeze`): the next collection looks only at newer objects. Frozen objects are looked at again every
`_AGAIN_SECONDS`, so that cycles that have died since are freed.
"""

from __future__ import annotations

import gc
import time
from typing import Any

_STARTING = (100_000, 50, 1000)
_LONG_SECONDS = 0.02
_AGAIN_SECONDS = 6 * 3600.0
_FULL = 2


class Collections:
    """Controls the garbage collections of this process, from its start."""

    def __init__(self) -> None:
        self._usual = gc.get_threshold()
        self._began_at = 0.0
        self._looked_at = time.monotonic()
        gc.set_threshold(*_STARTING)

    def started(self) -> None:
        """The node is ready: freeze the objects that exist now."""
        gc.freeze()
        gc.set_threshold(*self._usual)
        gc.callbacks.append(self.collected)

    def stop(self) -> None:
        """Restore the interpreter's settings."""
        gc.set_threshold(*self._usual)
        if self.collected in gc.callbacks:
            gc.callbacks.remove(self.collected)
        gc.unfreeze()

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """Handle the start or end of a collection; the interpreter calls this."""
        if info["generation"] != _FULL:
            return
        now = time.monotonic()
        if phase == "start":
            self._began_at = now
        elif now - self._began_at > _LONG_SECONDS:
            if now - self._looked_at > _AGAIN_SECONDS:
                self._looked_at = now
                gc.unfreeze()
            else:
                gc.freeze()
