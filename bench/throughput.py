"""Producing and consuming with confluent-kafka: our broker against librdkafka's mock cluster, pair by pair.

A pair is one run on each, ours first in odd pairs and second in even ones, and its ratio is our rate divided by the
mock's; a disturbance of the machine that outlasts a run affects both. Producing: each run has a fresh broker.
Consuming: both brokers are filled once with the same records, spread evenly over 20 topics of 4 partitions so that no
partition exceeds the 5 MB that the mock keeps, and are read repeatedly.

librdkafka's consumer stops fetching for a second whenever its queue is full, which would hide the broker: both sides
get a long queue and a short pause.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import PARTITIONS, Running, mock, ours
from bench.machine import warm

TOPICS = [f"bench-{number}" for number in range(20)]
CONSUMER_SETTINGS = {
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "1000000",
    "fetch.queue.backoff.ms": "10",
}
TARGET_RATIO = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The records to send; `produced` and `consumed` are their numbers.

    Producing ends before the kernel takes back the memory that was touched for it.
    """

    name: str
    size: int
    produced: int
    consumed: int
    settings: dict[str, str]
    has_target: bool
    write_bytes: int = 1_000_000
    """The approximate size of a batch."""


CASES = [
    Case(name="100 B", size=100, produced=1_500_000, consumed=2_400_000, settings={}, has_target=False),
    Case(name="200 B", size=200, produced=1_000_000, consumed=1_400_000, settings={}, has_target=True),
    Case(
        name="200 B, 50 a batch",
        size=200,
        produced=750_000,
        consumed=1_400_000,
        settings={"batch.num.messages": "50"},
        has_target=False,
        write_bytes=10_600,
    ),
    Case(name="1 KB", size=1000, produced=200_000, consumed=300_000, settings={}, has_target=True),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rates in records per second, and the ratios of the pairs."""

    name: str
    size: int
    ours: list[float]
    mock: list[float]
    ours_cpu_us: float
    mock_cpu_us: float
    has_target: bool

    @property
    def ratios(self) -> list[float]:
        return [ours / mock for ours, mock in zip(self.ours, self.mock, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def produce(case: Case, pairs: int, under: Path) -> Comparison:
    """Send the case's records to each broker, `pairs` times."""

    def once(broker: Running) -> dict[str, Any]:
        amount = ("--count", str(case.produced), "--size", str(case.size))
        return broker.load(
            "produce", *amount, *_settings(case.settings), before=lambda: warm(under, _memory(case), case.write_bytes)
        )

    def on_ours() -> dict[str, Any]:
        with ours(under) as broker:
            return once(broker)

    def on_mock() -> dict[str, Any]:
        with mock() as broker:
            return once(broker)

    return _compare(f"produce, {case.name}", case, pairs, on_ours, on_mock)


def consume(case: Case, pairs: int, under: Path) -> Comparison:
    """Fill both brokers with the case's records and read them all, `pairs` times."""
    topics = ("--topics", ",".join(TOPICS))
    with ours(under) as our_broker, mock() as mock_broker:
        for broker in (our_broker, mock_broker):
            spread = ("--partitions", str(PARTITIONS), "--count", str(case.consumed), "--size", str(case.size))
            broker.load("produce", *topics, *spread, *_settings(case.settings))

        def once(broker: Running) -> dict[str, Any]:
            return broker.load("consume", *topics, *_settings(CONSUMER_SETTINGS))

        return _compare(f"consume, {case.name}", case, pairs, lambda: once(our_broker), lambda: once(mock_broker))


def _compare(
    name: str, case: Case, pairs: int, on_ours: Callable[[], dict[str, Any]], on_mock: Callable[[], dict[str, Any]]
) -> Comparison:
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "mock": []}
    for pair in range(pairs):
        sides = [("ours", on_ours), ("mock", on_mock)]
        for side, run in sides if pair % 2 == 0 else reversed(sides):
            runs[side].append(run())
    counts = {run["records"] for side in runs.values() for run in side}
    if len(counts) != 1:
        raise RuntimeError(f"{name}: not the same amount everywhere: {sorted(counts)} records")
    count = counts.pop()
    return Comparison(
        name=name,
        size=case.size,
        ours=[run["rate"] for run in runs["ours"]],
        mock=[run["rate"] for run in runs["mock"]],
        ours_cpu_us=statistics.median(run["broker_cpu"] for run in runs["ours"]) / count * 1e6,
        mock_cpu_us=statistics.median(run["broker_cpu"] for run in runs["mock"]) / count * 1e6,
        has_target=case.has_target,
    )


def _memory(case: Case) -> int:
    """Return the memory that a run of producing needs: the log, and the producer's queue.

    More is worse, because the kernel then hands out pages other than those touched last.
    """
    return int(1.1 * case.produced * (case.size + 20)) + (100 << 20)


def _settings(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--setting", f"{name}={value}")]
