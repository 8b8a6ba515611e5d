"""Failures of a node's start, each told in one line that names the setting or the directory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from kraftpy.config import Listener


class StartupError(Exception):
    """The broker cannot start; the message says why, in one line.

    `is_damage`: the disk is unreadable or does not hold what was written; the cause is not a setting to be changed.
    """

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


@contextmanager
def opening(listener: Listener) -> Iterator[None]:
    """Name the listener if the block cannot bind it or listen on it. Raises StartupError.

    A port that could be bound may still be taken when the node listens on it, because a bound socket that does not
    listen keeps out no other that reuses addresses.
    """
    try:
        yield
    except OSError as error:
        raise StartupError(f"listeners: cannot listen on {listener}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Return what the system says of a socket."""
    if error.errno == errno.EADDRINUSE:
        return "the port is taken"
    return error.strerror or str(error)
