"""Fixtures every test may use: a real broker in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftpy.testing.cluster import EmbeddedBroker

BrokerFactory = Callable[..., EmbeddedBroker]


@pytest.fixture(scope="session")
def kraftpy_server() -> Iterator[EmbeddedBroker]:
    """One broker for the whole session; tests share it and take topic and group names of their own."""
    with EmbeddedBroker(settings={"offsets.topic.num.partitions": "8"}) as broker:
        yield broker
        assert "Traceback" not in broker.log_text, broker.log_text


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Start brokers of one's own: `start_broker(settings={...})`; each is stopped when the test ends."""
    started: list[EmbeddedBroker] = []

    def start(**settings: object) -> EmbeddedBroker:
        directory = tmp_path / f"broker-{len(started)}"
        broker = EmbeddedBroker(directory, **settings)  # type: ignore[arg-type]
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.close()
