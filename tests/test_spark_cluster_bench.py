"""The model of Spark's cluster: what it computes from costs, and the costs from runs; no cluster is started."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.spark_cluster import LOADS, PARTITIONS, Results, compared, costs_of, modelled
from bench.spark_cluster_model import Assumed, Costs, Query, gives_way, rate, slope, times

COSTS = Costs(
    worker_row=1e-6,
    broker_row=1e-7,
    sent_row=125.0,
    worker_task=0.02,
    broker_task=0.002,
    driver_task=0.005,
    query=0.5,
    plan_partition=0.001,
)
LONG, SHORT = Query(1_000_000, 4), Query(1_000, 4)


def test_all_parts_of_a_query_on_ten_workers() -> None:
    found = times(COSTS, Assumed(), LONG, 10)
    assert found.planning == pytest.approx(0.5 + 39 * 0.001)
    assert found.workers == pytest.approx(4 * 1.02)
    assert found.brokers == pytest.approx(40 * 0.102 / 3)
    assert found.network == pytest.approx(40_000_000 * 125 / 3 / 1.25e9)
    assert found.driver == pytest.approx(40 * 0.005)
    assert found.slowest == "workers"
    assert rate(COSTS, Assumed(), LONG, 10) == pytest.approx(40_000_000 / (found.planning + found.workers))


def test_a_part_gives_way_where_it_takes_as_long_as_the_workers() -> None:
    served = gives_way(COSTS, Assumed(), LONG)
    assert list(served) == ["brokers", "network", "driver", "planning"]
    assert served["brokers"] == pytest.approx(30)
    assert served["driver"] == pytest.approx(204)
    assert times(COSTS, Assumed(), LONG, 30).slowest == "workers"
    assert times(COSTS, Assumed(), LONG, 31).slowest == "brokers"
    at = times(COSTS, Assumed(), LONG, 895)
    assert at.planning == pytest.approx(at.workers, rel=0.001)
    assert served["planning"] == pytest.approx(895, rel=0.001)


def test_short_tasks_wait_for_planning_and_the_driver() -> None:
    served = gives_way(COSTS, Assumed(), SHORT)
    assert served["planning"] == 0
    assert served["driver"] == pytest.approx(4.2)
    assert rate(COSTS, Assumed(), SHORT, 100) < 3 * rate(COSTS, Assumed(), SHORT, 10)


def test_more_brokers_serve_more_workers() -> None:
    assert gives_way(COSTS, Assumed(brokers=6), LONG)["brokers"] == pytest.approx(60)
    assert gives_way(COSTS, Assumed(broker_cores=4), LONG)["brokers"] == pytest.approx(120)
    assert gives_way(COSTS, Assumed(worker_cores=2), LONG)["brokers"] == pytest.approx(15)


def test_a_part_that_costs_nothing_never_gives_way() -> None:
    served = gives_way(replace(COSTS, driver_task=0.0, plan_partition=0.0), Assumed(), LONG)
    assert served["driver"] == served["planning"] == math.inf


def test_the_slope_of_points() -> None:
    assert slope([(1, 1.0), (3, 2.0), (5, 3.0)]) == pytest.approx(0.5)
    assert slope([(1, 3.0), (2, 1.0)]) == 0


def run(seconds: float, **more: float) -> dict[str, float]:
    return {"seconds": seconds, "per_s": 1_000_000 / seconds, "sent": 120e6, "machine": 2.0, **more}


def results() -> Results:
    one = [run(2.0, workers=1.3, brokers=0.16, driver=0.3) for _ in range(3)]
    two = [run(1.6, workers=1.4, brokers=0.17, driver=0.3) for _ in range(3)]
    planning = [(1, run(0.5)), (251, run(0.75)), (1001, run(1.5))]
    tasks = [(count, run(1.0, workers=count / 40, brokers=count / 200, driver=count / 100)) for count in (12, 60, 108)]
    return Results({load: [two, one] for load in LOADS}, planning, tasks, 1_000_000, 2)


def test_costs_of_a_row_are_those_of_one_worker_without_its_tasks() -> None:
    found = costs_of(results())
    assert found.worker_task == pytest.approx(0.025)
    assert found.worker_row == pytest.approx((1.3 - PARTITIONS * 0.025) / 1_000_000)
    assert found.broker_row == pytest.approx((0.16 - PARTITIONS * 0.005) / 1_000_000)
    assert (found.sent_row, found.query) == (120, 0.5)
    assert found.plan_partition == pytest.approx(0.001)
    assert found.driver_task == pytest.approx(0.01)


def test_the_page_tells_the_ratio_and_what_gives_way() -> None:
    told = "\n".join([*compared(results()), *modelled(results())])
    assert "| read | 500,000 | 625,000 | **1.25** | 0.88 | 1.17 | 0.12 | 0.08 |" in told
    assert "With long tasks, the brokers' processor gives way first, at 29 workers. For 100 workers not to" in told
    assert "their processor takes 11 such brokers" in told
