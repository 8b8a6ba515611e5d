"""A broker that is not ours: librdkafka's mock cluster, three brokers in this process, nothing stored on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.client.connection import Connection

_MOCK_CLAIMS = {11: 5, 12: 3, 13: 1, 14: 3}
"""JoinGroup, Heartbeat, LeaveGroup and SyncGroup: the mock offers newer versions than it can read or write."""


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[str]:
    """Its bootstrap servers. Topics are created when met, with four partitions."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    keeper = confluent_kafka.Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "", "log_level": 0})
    brokers = keeper.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del keeper


@pytest.fixture
def honest_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep to what the mock can really do."""
    real = Connection.open.__func__  # type: ignore[attr-defined]

    async def open_(cls: type[Connection], *args: Any, **options: Any) -> Connection:
        connection: Connection = await real(cls, *args, **options)
        connection.versions = {
            key: (low, min(high, _MOCK_CLAIMS.get(key, high))) for key, (low, high) in connection.versions.items()
        }
        return connection

    monkeypatch.setattr(Connection, "open", classmethod(open_))
