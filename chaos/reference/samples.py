"""Workloads against the perfect Kafka, by name: each creates clients from a seed."""

from __future__ import annotations

from collections.abc import Callable

from chaos.generator import (
    GroupCalls,
    GroupOptions,
    LogCalls,
    LogOptions,
    PipelineCalls,
    QueueCalls,
    TopicCalls,
)
from chaos.reference.clients import Clients
from chaos.reference.queue import QueueClients
from chaos.reference.topics import TopicClients


def _log(seed: int, *, transactions: bool, via: str) -> Clients:
    options = LogOptions(transactions=transactions, via=via, crash_chance=0.002)
    return Clients(seed, LogCalls(seed, options), 5, transactions=transactions)


SAMPLES: dict[str, Callable[[int], Clients]] = {
    "log": lambda seed: _log(seed, transactions=False, via="assign"),
    "log-subscribe": lambda seed: _log(seed, transactions=False, via="subscribe"),
    "transactions": lambda seed: _log(seed, transactions=True, via="assign"),
    "transactions-subscribe": lambda seed: _log(seed, transactions=True, via="subscribe"),
    "groups": lambda seed: Clients(seed, GroupCalls(seed, GroupOptions(crash_chance=0.003)), 5),
    "pipeline": lambda seed: Clients(seed, PipelineCalls(seed), 6),
    "queue": lambda seed: QueueClients(seed, QueueCalls(seed), 6),
    "topics": lambda seed: TopicClients(seed, TopicCalls(seed), 5),
}
