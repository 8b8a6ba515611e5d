"""kafka-python's sockets that cannot connect are closed at once, so that no later test is blamed for them."""

from __future__ import annotations

import gc
import socket
import warnings

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from kraftpy.testing.ports import ReservedPorts


def test_a_socket_that_cannot_connect_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    make = socket.socket.__init__

    def noting(self: socket.socket, *arguments: object, **named: object) -> None:
        make(self, *arguments, **named)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(socket.socket, "__init__", noting)
    with ReservedPorts() as ports:
        port = ports.reserve()
        made.clear()
        with pytest.raises(KafkaError):
            KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}", bootstrap_timeout_ms=300)
        tried = [each for each in made if each.family == socket.AF_INET and each.type == socket.SOCK_STREAM]
        assert tried
        assert [each.fileno() for each in tried] == [-1] * len(tried)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            made.clear()
            tried.clear()
            gc.collect()
