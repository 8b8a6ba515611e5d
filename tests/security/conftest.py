"""Fixtures of the tests of security."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import Certificates
from tests.security.guarded_broker import GuardedBroker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and a broker's certificate."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A broker with an authorizer."""
    with ReservedPorts() as ports:
        made = GuardedBroker(ports, tmp_path_factory.mktemp("audit"))
        yield made
        made.stop()
