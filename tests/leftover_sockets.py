"""Sockets that a client forgot to close when it could not connect.

Sockets are noted as they are made. Looking for them among all objects would take a second in a run of many tests.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def unconnected_closed() -> Iterator[None]:
    """At the end, close the TCP sockets made in the block that are of no use: not connected, and not listening."""
    made: list[weakref.ref[socket.socket]] = []
    make = socket.socket.__init__

    def noting(self: socket.socket, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made.append(weakref.ref(self))

    with mock.patch.object(socket.socket, "__init__", noting):
        yield
    for reference in made:
        each = reference()
        if each is not None and each.fileno() >= 0 and _is_tcp(each) and not _is_in_use(each):
            each.close()


def _is_tcp(each: socket.socket) -> bool:
    return each.family == socket.AF_INET and each.type == socket.SOCK_STREAM


def _is_in_use(each: socket.socket) -> bool:
    if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return True
    try:
        each.getpeername()
    except OSError:
        return False
    return True
