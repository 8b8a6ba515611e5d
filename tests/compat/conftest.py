"""Fixtures of the tests with public clients."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def sockets_collected() -> Iterator[None]:
    """kafka-python forgets to close sockets that could not connect: closed here, so that no later test is blamed."""
    yield
    gc.collect()
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.fileno() >= 0 and each.family == socket.AF_INET:
            try:
                each.getpeername()
            except OSError:
                each.close()
