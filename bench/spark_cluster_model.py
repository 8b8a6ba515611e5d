"""The part that gives way first as Spark's workers become more: arithmetic on measured costs, and nothing else.

A query reads `tasks` Spark partitions on each worker, each of them a partition of the topic with `rows` rows. Workers,
brokers, the brokers' network and the driver work at the same time, so the slowest of them tells how long the query
takes; planning comes before all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The measured ones, in seconds of processor time, but for those of planning and the bytes."""

    worker_row: float
    broker_row: float
    sent_row: float
    """The bytes that brokers send."""
    worker_task: float
    broker_task: float
    driver_task: float
    query: float
    """The seconds until a query of one partition is done."""
    plan_partition: float
    """The seconds that each further partition of the topic adds before the first task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """The machines of the model, which nobody has measured."""

    brokers: int = 3
    broker_cores: float = 1.0
    """One process of Python."""
    broker_bytes_per_s: float = 1.25e9
    """Ten gigabits a second."""
    worker_cores: float = 1.0
    driver_cores: float = 1.0
    """One thread of the driver gives out tasks and takes their results."""


class Query(NamedTuple):
    """The work of each worker."""

    rows: int
    tasks: int


class Times(NamedTuple):
    """The seconds that each part needs for a query; the first comes before the others."""

    planning: float
    workers: float
    brokers: float
    network: float
    driver: float

    @property
    def slowest(self) -> str:
        """The part that decides how long the tasks take."""
        parts = self._asdict()
        del parts["planning"]
        return max(parts, key=parts.__getitem__)

    @property
    def seconds(self) -> float:
        """The whole query."""
        return self.planning + max(self[1:])


def times(costs: Costs, assumed: Assumed, query: Query, workers: int) -> Times:
    """Return what each part needs for a query on so many workers."""
    tasks = workers * query.tasks
    rows = tasks * query.rows
    return Times(
        planning=costs.query + costs.plan_partition * (tasks - 1),
        workers=_worker_s(costs, assumed, query),
        brokers=(rows * costs.broker_row + tasks * costs.broker_task) / assumed.brokers / assumed.broker_cores,
        network=rows * costs.sent_row / assumed.brokers / assumed.broker_bytes_per_s,
        driver=tasks * costs.driver_task / assumed.driver_cores,
    )


def rate(costs: Costs, assumed: Assumed, query: Query, workers: int) -> float:
    """Return the rows a second of a query on so many workers."""
    return workers * query.tasks * query.rows / times(costs, assumed, query, workers).seconds


def gives_way(costs: Costs, assumed: Assumed, query: Query) -> dict[str, float]:
    """Return the number of workers that each part can serve, the least first: with more of them, they wait for it.

    Planning gives way when it takes as long as the tasks of workers that wait for nothing else.
    """
    one = times(costs, assumed, query, 1)
    left = max(0.0, one.workers - costs.query + costs.plan_partition)
    found = {
        "planning": _times_in(left, costs.plan_partition * query.tasks),
        "brokers": _times_in(one.workers, one.brokers),
        "network": _times_in(one.workers, one.network),
        "driver": _times_in(one.workers, one.driver),
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return how much the second figure grows with the first, by least squares; at least 0."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return max(0.0, rise / sum((x - mean_x) ** 2 for x, _ in points))


def _worker_s(costs: Costs, assumed: Assumed, query: Query) -> float:
    return query.tasks * (query.rows * costs.worker_row + costs.worker_task) / assumed.worker_cores


def _times_in(whole: float, part: float) -> float:
    return whole / part if part else math.inf
