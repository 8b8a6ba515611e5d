"""Ports of 127.0.0.1 that stay reserved for a test, even while no server listens there.

A port that was free when it was asked for, and is released before a server binds it, may meanwhile be given to another
process.
"""

from __future__ import annotations

import socket
from types import TracebackType

HOST = "127.0.0.1"


class ReservedPorts:
    """Ports that the system gives to no other process until `close`.

    A bound socket that does not listen keeps each: the system does not hand the port out again, and a server that
    reuses addresses, as this broker and the JVM do, may still listen there.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def reserve(self) -> int:
        """Return a free port."""
        held = socket.socket()
        self._held.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        return int(held.getsockname()[1])

    def close(self) -> None:
        """Release them all."""
        for each in self._held:
            each.close()
        self._held.clear()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
