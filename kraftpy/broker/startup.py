"""Listeners of a node that starts, and its failures: one-line errors that name the setting or the directory."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager

from kraftpy.broker.descriptors import Descriptors, are_enough, least_limit
from kraftpy.config import Listener


class StartupError(Exception):
    """The broker cannot start; the message says why, in one line.

    `is_damage`: the disk is unreadable or does not hold what was written; changing a setting would not help.
    """

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


def check_descriptors(shares: Descriptors) -> None:
    """Check that there are descriptors for a node's minimum of files and connections. Raises StartupError."""
    if not are_enough(shares):
        limit, least = shares.limit, least_limit(shares)
        raise StartupError(f"a limit of {limit} open files (ulimit -n) is too low: {least} are enough")


@contextmanager
def opening(listener: Listener) -> Iterator[None]:
    """Name the listener if the block cannot bind it or listen on it. Raises StartupError.

    A port that could be bound may still be in use when the node listens on it, because a bound socket that does not
    listen does not keep out others that reuse addresses.
    """
    try:
        yield
    except OSError as error:
        raise StartupError(f"listeners: cannot listen on {listener}: {reason(error)}") from error


def let_many_wait(server: asyncio.Server, backlog: int) -> None:
    """Set the backlog here, because asyncio also uses it as the number of connections to accept in one go."""
    for each in server.sockets:
        with each.dup() as listening:
            listening.listen(backlog)


def reason(error: OSError) -> str:
    """Return the system's reason for an error of a socket."""
    if error.errno == errno.EADDRINUSE:
        return "the port is taken"
    return error.strerror or str(error)
