"""The sockets that `sockets_collected` closes after a test, and those it leaves alone."""

from __future__ import annotations

import contextlib
import socket

import leftover_sockets


def test_only_a_new_socket_that_neither_listens_nor_is_connected_is_closed() -> None:
    with contextlib.ExitStack() as stack:
        older = stack.enter_context(socket.socket())
        with leftover_sockets.unconnected_closed():
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            connected = stack.enter_context(socket.create_connection(listening.getsockname()))
            accepted = stack.enter_context(listening.accept()[0])
            datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            forgotten = stack.enter_context(socket.socket())
            forgotten.setblocking(False)
        assert [each.fileno() >= 0 for each in (older, listening, connected, accepted, datagrams)] == [True] * 5
        assert forgotten.fileno() < 0
