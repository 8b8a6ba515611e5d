"""Spark's standalone mode against three brokers: rates on one worker and on two, and by a model on more (root, Linux).

    python -m bench.spark_cluster [--pairs N] [--records N] [--directory DIR] [--output FILE]

Writes bench/SPARK_CLUSTER.md. Master, workers, drivers and brokers are those of `make test-spark-cluster`, each in a
network namespace of its own, and a worker has one core to give. A run is a driver of its own, whose application has the
cores of one worker or of both; runs take turns. All of them share this machine's processor, so two workers are compared
twice: as fast as they are, and each held to a part of a core, which leaves enough for everything else.

Processor time is counted by control groups: of the brokers, of the workers with their executors, and of the driver. The
model of `bench.spark_cluster_model` computes from it what gives way first, on machines that nobody has measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine
from bench.control_groups import Group, groups
from bench.load import QUIET
from bench.pairs import Figures, Runs, median, ratio_of
from bench.spark_cluster_model import Assumed, Costs, Query, gives_way, rate, slope, times
from bench.spark_read import VALUE_BYTES, load
from tests.spark_cluster.machines import Network, missing
from tests.spark_cluster.stands import Brokers, SparkMachines, pack

RESULTS = Path(__file__).with_name("SPARK_CLUSTER.md")
JOB = Path(__file__).with_name("spark_cluster_job.py")
PARTITIONS = 12
HELD = 0.4
"""The part of a core that a worker is held to: two of them leave the larger part of two cores to the others."""
PLANNED = (1, 250, 1000)
TASKS = (12, 60, 108)
QUERIES = (Query(1_000_000, 4), Query(100_000, 4), Query(10_000, 4))
WORKERS = (1, 2, 5, 10, 20, 50, 100)
LOADS = {
    "read": "read",
    "held": f"read, each worker held to {HELD:g} of a core",
    "stream": "stream from topic to topic, exactly once",
}
PARTS = {
    "planning": "planning",
    "brokers": "the brokers' processor",
    "network": "the brokers' network",
    "driver": "the driver",
    "workers": "the workers",
}
_SECONDS = 600


class Cluster:
    """Brokers and Spark, whose processes are in control groups, and the topics."""

    def __init__(self, brokers: Brokers, spark: SparkMachines, made: Mapping[str, Group], records: int) -> None:
        """Fill the topics, and put all that runs into its group."""
        self._brokers, self._spark, self._groups, self._records = brokers, spark, made, records
        load(brokers.bootstrap, "rows", records, partitions=PARTITIONS, replicas=3)
        load(brokers.bootstrap, "some", records // 4, partitions=PARTITIONS, replicas=3)
        load(brokers.bootstrap, "few", 200 * max(TASKS), partitions=PARTITIONS, replicas=3)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, **QUIET})
        topics = [NewTopic("target", PARTITIONS, 3), *(NewTopic(f"empty-{count}", count, 1) for count in PLANNED)]
        for made_topic in admin.create_topics(topics).values():
            made_topic.result(60)
        brokers.wait()
        for each in brokers.machines:
            made["brokers"].take(each.pids())
        for number, each in enumerate(spark.workers):
            made[f"worker-{number}"].take(each.pids())

    def run(self, workers: int, kind: str) -> Figures:
        """Run a driver that has so many workers; return its figures. Raises RuntimeError if it fails."""
        written = self._spark.shared / "work.json"
        written.write_text(json.dumps(self._work(kind)))
        more = {
            "spark.cores.max": str(workers),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }
        driver = self._spark.driver
        driver.log.unlink(missing_ok=True)
        process = self._spark.submit([str(JOB), str(written)], more=more)
        try:
            for _ in range(10):  # before it starts what it measures, and after its shells have become one program
                self._groups["driver"].take(driver.pids())
                time.sleep(0.2)
            status = process.wait(_SECONDS)
        finally:
            driver.kill()
        told = [line for line in driver.text().splitlines() if line.startswith("FIGURES ")]
        if status or not told:
            raise RuntimeError(f"the driver ended with {status}:\n{driver.text()[-3000:]}")
        figures: Figures = json.loads(told[-1].removeprefix("FIGURES "))
        return figures

    def _work(self, kind: str) -> dict[str, Any]:
        here = Path("/proc", str(os.getpid()), "root")  # a machine of its own has another /sys
        workers = [self._groups[f"worker-{number}"] for number in range(SparkMachines.WORKERS)]
        places = {"brokers": [self._groups["brokers"]], "workers": workers, "driver": [self._groups["driver"]]}
        bounds = [each.bound(HELD) for each in workers]
        return {
            "kind": kind,
            "bootstrap": self._brokers.bootstrap,
            "directory": str(self._spark.own),
            "topics": {"rows": self._records, "some": self._records // 4},
            "planned": PLANNED,
            "tasks": TASKS,
            "groups": {place: [f"{here}{each.directory}" for each in found] for place, found in places.items()},
            "bounds": [(f"{here}{each.file}", each.held, each.free) for each in bounds],
            "broker_pids": [each.processes[-1].pid for each in self._brokers.machines],
        }


class Results(NamedTuple):
    """All that was measured: runs with one worker and with two, of each load; planning and tasks."""

    rates: Mapping[str, Runs]
    """Those with two workers come first, as `bench.pairs` wants it."""
    planning: Sequence[tuple[int, Figures]]
    tasks: Sequence[tuple[int, Figures]]
    records: int
    cores: int


@contextlib.contextmanager
def cluster(under: Path, records: int) -> Iterator[Cluster]:
    """Have all machines, in a new directory, which is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-bench-", dir=under))
    names = "brokers", "driver", *(f"worker-{number}" for number in range(SparkMachines.WORKERS))
    try:
        with groups(f"kraftpy-bench-{os.getpid()}", names) as made, Network(directory) as network:
            brokers = Brokers(network, directory)
            brokers.start()
            (directory / "archive").mkdir()
            spark = SparkMachines(network, directory, pack(directory / "archive"), cores=1)
            spark.start()
            yield Cluster(brokers, spark, made, records)
    finally:
        shutil.rmtree(directory)


def measured(under: Path, pairs: int, records: int) -> Iterator[Results]:
    """Run everything; yield what there is after each pair, so that a run that is broken off leaves a page."""
    rates: dict[str, Runs] = {kind: [[], []] for kind in LOADS}
    with cluster(under, records) as some:
        costs = some.run(1, "costs")
        for pair in range(pairs):
            for workers in (2, 1) if pair % 2 == 0 else (1, 2):
                run = some.run(workers, "rates")
                for kind, runs in rates.items():
                    runs[2 - workers].append(run[kind])
            yield Results(rates, costs["planning"], costs["tasks"], records, os.cpu_count() or 1)


def costs_of(results: Results) -> Costs:
    """Return the model's costs: of a row by the reads of one worker, after what their tasks cost."""
    _, one = results.rates["read"]

    def of_task(place: str) -> float:
        return slope([(tasks, figures[place]) for tasks, figures in results.tasks])

    def of_row(place: str) -> float:
        return (median(one, place) - PARTITIONS * of_task(place)) / results.records

    planning = [(partitions, figures["seconds"]) for partitions, figures in results.planning]
    return Costs(
        worker_row=of_row("workers"),
        broker_row=of_row("brokers"),
        sent_row=median(one, "sent") / results.records,
        worker_task=of_task("workers"),
        broker_task=of_task("brokers"),
        driver_task=of_task("driver"),
        query=min(planning)[1],
        plan_partition=slope(planning),
    )


def compared(results: Results) -> list[str]:
    """Describe one worker beside two."""
    lines = [
        "## One worker and two",
        "",
        "| load | one: rows/s | two | ratio | busy cores: one | two | by others: one | two |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, name in LOADS.items():
        two, one = results.rates[kind]
        lines.append(
            f"| {name} | {median(one, 'per_s'):,.0f} | {median(two, 'per_s'):,.0f} | "
            f"**{ratio_of(results.rates[kind], 'per_s'):.2f}** | {_busy(one):.2f} | {_busy(two):.2f} | "
            f"{_others(one):.2f} | {_others(two):.2f} |"
        )
    lines += [
        "",
        f"Busy cores are those that brokers, workers and driver used together, of the {results.cores} that there are. "
        "Where two workers use nearly all of them, the ratio says how much one worker had left, not how Spark or the "
        "brokers grow; the held workers leave some. Others are Spark's master, the kernel, and all that has nothing "
        "to do with this bench: the more they used, the less a rate is worth.",
        "",
        "| processor time of a row (us) | workers: one | two | brokers: one | two | driver: one | two |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, name in LOADS.items():
        rows = results.records / (4 if kind == "stream" else 1)
        two, one = results.rates[kind]
        shares = [
            f"{median(side, place) / rows * 1e6:.2f}"
            for place in ("workers", "brokers", "driver")
            for side in (one, two)
        ]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return lines


def modelled(results: Results) -> list[str]:
    """Describe the model: its costs, its assumptions, and what it says."""
    costs, assumed = costs_of(results), Assumed()
    most = max(WORKERS)
    first = next(iter(gives_way(costs, assumed, QUERIES[0]).items()))
    lines = [
        f"## On paper: {most} workers",
        "",
        "| measured | |",
        "|---|--:|",
        f"| a row of {VALUE_BYTES} bytes: processor time of a worker | {costs.worker_row * 1e6:.2f} us |",
        f"| of the brokers | {costs.broker_row * 1e6:.3f} us |",
        f"| bytes that the brokers send | {costs.sent_row:.0f} |",
        f"| so one core of a broker serves, of values | {VALUE_BYTES / costs.broker_row / 1e6:,.0f} MB/s |",
        f"| a task: processor time of a worker | {costs.worker_task * 1e3:.1f} ms |",
        f"| of the brokers | {costs.broker_task * 1e3:.1f} ms |",
        f"| of the driver | {costs.driver_task * 1e3:.1f} ms |",
        f"| a query of a topic of one partition without rows | {costs.query:.2f} s |",
        f"| planning: each further partition of the topic | {costs.plan_partition * 1e3:.2f} ms |",
        "",
        f"Assumed: {assumed.brokers} brokers of one core each (one process of Python), whose records are in memory and "
        f"whose leaders are spread evenly; {assumed.broker_bytes_per_s * 8 / 1e9:.0f} Gbit/s for each of them; workers "
        "of one core, which wait for nothing but these; a driver that gives out tasks with one core; a task for each "
        f"partition of the topic, {QUERIES[0].tasks} to a worker in a query; costs that do not depend on the number of "
        "workers. Planning comes before the tasks; workers, brokers, network and driver work at the same time.",
        "",
        "The number of workers above which each part takes longer than the workers, and they wait for it (planning: "
        "above which it takes as long as they do):",
        "",
        "| rows of a task | " + " | ".join(PARTS[part] for part in PARTS if part != "workers") + " | first |",
        "|--:|" + "--:|" * (len(PARTS) - 1) + "---|",
    ]
    for query in QUERIES:
        found = gives_way(costs, assumed, query)
        counts = " | ".join(f"{found[part]:,.0f}" for part in PARTS if part != "workers")
        lines.append(f"| {query.rows:,} | {counts} | {PARTS[next(iter(found))]} |")
    lines += [
        "",
        "Rows a second (millions), and the share of the query that planning takes:",
        "",
        "| rows of a task | "
        + " | ".join(f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS)
        + f" | slowest at {most} |",
        "|--:|" + "--:|" * len(WORKERS) + "---|",
    ]
    for query in QUERIES:
        cells = []
        for workers in WORKERS:
            found_times = times(costs, assumed, query, workers)
            share = found_times.planning / found_times.seconds
            cells.append(f"{rate(costs, assumed, query, workers) / 1e6:.2f}, {share:.0%}")
        slowest = PARTS[times(costs, assumed, query, most).slowest]
        lines.append(f"| {query.rows:,} | {' | '.join(cells)} | {slowest} |")
    return [
        *lines,
        "",
        f"With long tasks, {PARTS[first[0]]} gives way first, at {first[1]:.0f} workers. "
        f"{_enough(costs, assumed, most)}",
    ]


def _enough(costs: Costs, assumed: Assumed, workers: int) -> str:
    """Say how many brokers workers with long tasks need."""
    served = gives_way(costs, assumed, QUERIES[0])
    by_processor, by_network = (math.ceil(assumed.brokers * workers / served[part]) for part in ("brokers", "network"))
    return (
        f"For {workers} workers not to wait for brokers, their processor takes {by_processor} such brokers (or "
        f"processes of them, `kraftpy server --processes`), and their network {by_network}."
    )


def written(described: Sequence[str], load_before: float, results: Results) -> str:
    """Return the whole page."""
    pairs = len(results.rates["read"][0])
    head = [
        "# Spark's standalone cluster, on one worker and two",
        "",
        "Written by `make bench-spark-cluster` (`python -m bench.spark_cluster`); do not edit.",
        "",
        *(f"- {line}" for line in described),
        f"- load average {load_before:.1f} before; medians of {pairs} pairs",
        "",
        f"Three brokers, Spark's master, two workers of one core and a driver, each in a network namespace of its own, "
        f"**all on the same {results.cores} cores**: rates are of a machine that everything shares. "
        f"{results.records:,} records of {VALUE_BYTES} bytes in {PARTITIONS} partitions with three replicas (the "
        "stream: a quarter of them) are read with all seven columns into `noop`, from the brokers' memory.",
        "",
    ]
    return "\n".join([*head, *compared(results), "", *modelled(results)]) + "\n"


def _busy(runs: list[Figures]) -> float:
    """Return the cores that brokers, workers and driver used together."""
    return statistics.median(_ours(run) / run["seconds"] for run in runs)


def _others(runs: list[Figures]) -> float:
    """Return the cores that all else used."""
    return statistics.median(max(0.0, run["machine"] - _ours(run)) / run["seconds"] for run in runs)


def _ours(run: Figures) -> float:
    return float(sum(run[place] for place in ("brokers", "workers", "driver")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if (reason := missing()) is not None:
        parser.error(reason)
    load_before = machine.load_average()
    for results in measured(chosen.directory, chosen.pairs, chosen.records):
        chosen.output.write_text(written(machine.describe(chosen.directory), load_before, results))
    print(chosen.output.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
