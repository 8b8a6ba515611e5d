"""Fixtures of the console's tests: a real broker's pages, and its admin client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kraftpy.client import Admin
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import Browser, browsing


@pytest.fixture
async def admin(kraftpy_server: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=kraftpy_server.bootstrap) as made:
        yield made


@pytest.fixture
async def browser(kraftpy_server: EmbeddedBroker) -> AsyncIterator[Browser]:
    """A browser that may change everything."""
    async with browsing(kraftpy_server.bootstrap) as opened:
        yield opened
