"""kafka-python 3.0.12 forgets to close a socket that cannot connect.

Such a socket is collected at some later time, and its ResourceWarning then fails the test that happens to run. So the
tests have kafka-python close it where it gives it up.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from kafka.net.inet import KafkaNetSocket


@contextmanager
def unconnected_closed() -> Iterator[None]:
    """Close each socket of kafka-python's as soon as its connection fails or is given up."""
    sock_connect = KafkaNetSocket.sock_connect

    async def connect_or_close(
        self: KafkaNetSocket, net: Any, sock: socket.socket, *arguments: Any, **named: Any
    ) -> socket.socket:
        try:
            connected: socket.socket = await sock_connect(self, net, sock, *arguments, **named)
        except BaseException:
            sock.close()
            raise
        return connected

    with mock.patch.object(KafkaNetSocket, "sock_connect", connect_or_close):
        yield
