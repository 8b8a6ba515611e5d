"""Fixtures of the tests with public clients."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def sockets_collected() -> Iterator[None]:
    """kafka-python leaves sockets that could not connect to the collector: here, where that is ignored, not later."""
    yield
    gc.collect()
