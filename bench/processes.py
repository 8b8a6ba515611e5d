"""`kraftpy server --processes`: two processes beside one on two cores, and what each further one costs.

    python -m bench.processes [--pairs N] [--seconds S] [--most N] [--directory DIR] [--output FILE]

Writes bench/PROCESSES.md. Both sides run at once and take turns: a pair is one run on each, and its ratio is the rate
of two processes divided by that of one. The load (`bench.processes_load`) needs a core as well, so on a machine of two
cores it is part of what two processes share: the ratio cannot exceed `2 c / (c' + l)`, where c and c' are the processor
time that one and two processes use for a request, and l the load's. `2 c / c'` is the ratio of the brokers alone, with
the load elsewhere. Run it on an otherwise idle machine: whatever else runs takes from two processes, not from one.

The second part starts 1, 2, 4, ... processes and measures what depends on their number: the processor time of a request
and of an idle process, and memory. From these, the model of the how-to page predicts the speed-up on as many cores.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine
from bench.brokers import SMALL_LOGS, server_command
from bench.load import QUIET
from bench.metrics import processor_s
from bench.pairs import Figures, Runs, ended, in_turn, median, met, ratio_of
from bench.processes_load import DEPTH
from kraftpy.testing.ports import HOST, ReservedPorts

RESULTS = Path(__file__).with_name("PROCESSES.md")
TARGET = 1.6
KINDS = {
    "single": "Produce requests of one record of 200 bytes",
    "batches": "Produce requests of fifty such records",
    "fetch": "Fetch requests answered with 16 KiB",
}
assert KINDS.keys() == DEPTH.keys()
_IDLE_S = 10.0
_BOUND_S = 60.0


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of one `kraftpy server`."""

    bootstrap: str
    pids: tuple[int, ...]
    """Their processes, and the supervisor's."""

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic of one replica."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_BOUND_S)

    def load(self, kind: str, seconds: float) -> Figures:
        """Run a load; return its figures."""
        command = [sys.executable, "-m", "bench.processes_load", kind, "--bootstrap", self.bootstrap.partition(",")[0]]
        command += ["--topic", kind, "--seconds", str(seconds), "--pids", ",".join(map(str, self.pids))]
        return ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def idle_share(self) -> float:
        """Return the share of a core that each process uses while nothing is asked of it."""
        time.sleep(2.0)
        before, began = sum(map(processor_s, self.pids)), time.perf_counter()
        time.sleep(_IDLE_S)
        used = sum(map(processor_s, self.pids)) - before
        return used / (time.perf_counter() - began) / max(1, len(self.pids) - 1)

    def memory_mb(self) -> float:
        """Return the memory of all processes, where what they share counts once."""
        return sum(psutil.Process(pid).memory_full_info().pss for pid in self.pids) / 1e6


class Size(NamedTuple):
    """The figures of one number of processes."""

    processes: int
    idle: float
    memory_mb: float
    idle_memory_mb: float
    node_us: Mapping[str, float]


@contextlib.contextmanager
def brokers(under: Path, processes: int) -> Iterator[Brokers]:
    """Run so many processes on a new directory, which is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-bench-", dir=under))
    with ReservedPorts() as ports:
        listeners = f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:{ports.reserve()}"
        command = server_command(directory, settings={**SMALL_LOGS, "listeners": listeners})
        started = subprocess.Popen(
            [*command, "--processes", str(processes)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            addresses = re.findall(r"PLAINTEXT://([^,\s]+)", line)
            if len(addresses) != processes:
                raise RuntimeError(f"the server said {line!r}")
            children = psutil.Process(started.pid).children()
            pids = started.pid, *(child.pid for child in children)
            yield Brokers(",".join(addresses), pids)
        finally:
            started.terminate()
            started.communicate(timeout=_BOUND_S)
            shutil.rmtree(directory)


def compared(under: Path, pairs: int, seconds: float) -> list[str]:
    """Compare two processes with one; return the lines of the report."""
    lines = [
        "## Two processes beside one",
        "",
        "| load | one: requests/s | two | ratio | c (us) | c' (us) | l (us) | 2 c / (c' + l) | 2 c / c' |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    ratios = []
    with brokers(under, 1) as one, brokers(under, 2) as two:
        sides = two, one
        for side in sides:
            for kind in KINDS:
                side.topic(kind, 4)
                side.load(kind, 1.0)
        for kind, name in KINDS.items():
            runs = in_turn(pairs, sides, lambda side, kind=kind: side.load(kind, seconds))
            ratios.append(ratio_of(runs, "per_s"))
            lines.append(_row(name, runs, ratios[-1]))
    return [
        *lines,
        "",
        f"c and c' are the processor time of a request in the brokers, of one process and of two; l is the load's. "
        f"The load runs on the same {psutil.cpu_count()} cores.",
        "",
        f"- a ratio of at least {TARGET} was the target: {met(min(ratios) >= TARGET)} ({min(ratios):.2f} at least)",
    ]


def _row(name: str, runs: Runs, ratio: float) -> str:
    two, one = runs
    c, c2, load = median(one, "node_us"), median(two, "node_us"), median(two, "load_us")
    return (
        f"| {name} | {median(one, 'per_s'):,.0f} | {median(two, 'per_s'):,.0f} | **{ratio:.2f}** | {c:.1f} | {c2:.1f} "
        f"| {load:.1f} | {2 * c / (c2 + load):.2f} | {2 * c / c2:.2f} |"
    )


def measured(under: Path, processes: int, seconds: float) -> Size:
    """Measure what depends on the number of processes."""
    with brokers(under, processes) as some:
        idle, idle_memory = some.idle_share(), some.memory_mb()
        node_us = {}
        for kind in KINDS:
            some.topic(kind, 2 * processes)
            some.load(kind, 1.0)
            node_us[kind] = some.load(kind, seconds)["node_us"]
        return Size(processes, idle, some.memory_mb(), idle_memory, node_us)


def growth(sizes: list[Size]) -> list[str]:
    """Describe how costs grow, and what the model makes of it."""
    lines = [
        "## How it grows",
        "",
        "| processes N | i(N): idle, of a core each | memory, idle | under load | "
        + " | ".join(f"c(N), {kind} (us)" for kind in KINDS)
        + " |",
        "|--:|--:|--:|--:|" + "--:|" * len(KINDS),
    ]
    for size in sizes:
        costs = " | ".join(f"{size.node_us[kind]:.1f}" for kind in KINDS)
        lines.append(
            f"| {size.processes} | {size.idle:.2%} | {size.idle_memory_mb:.0f} MB | {size.memory_mb:.0f} MB | {costs} |"
        )
    lines += [
        "",
        "The model: S(N) = N (1 - i(N)) / (1 + a (N - 1)), the speed-up on a machine with a core for each process, and "
        "others for clients.",
        "`a` is fitted to c(N) = c(1) (1 + a (N - 1)).",
        "",
        "| load | a | " + " | ".join(f"S({size.processes})" for size in sizes[1:]) + " |",
        "|---|--:|" + "--:|" * (len(sizes) - 1),
    ]
    for kind, name in KINDS.items():
        a = fitted(sizes, kind)
        speed_ups = [size.processes * (1 - size.idle) / (1 + a * (size.processes - 1)) for size in sizes[1:]]
        lines.append(f"| {name} | {a:.4f} | " + " | ".join(f"{each:.1f}" for each in speed_ups) + " |")
    return lines


def fitted(sizes: list[Size], kind: str) -> float:
    """Return the growth of c(N) with each further process, as a part of c(1), by least squares; at least 0."""
    first = sizes[0].node_us[kind]
    steps = [(size.processes - 1, size.node_us[kind] / first - 1) for size in sizes[1:]]
    return max(0.0, sum(n * rise for n, rise in steps) / sum(n * n for n, _ in steps))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--most", type=int, default=16, help="the most processes of the second part")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    load_before = machine.load_average()
    machine.warm(chosen.directory, 512 << 20)
    lines = compared(chosen.directory, chosen.pairs, chosen.seconds)
    sizes = [measured(chosen.directory, 1 << power, chosen.seconds) for power in range(chosen.most.bit_length())]
    head = [
        "# Several processes of one host",
        "",
        "Written by `make bench-processes` (`python -m bench.processes`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(chosen.directory)),
        f"- load average {load_before:.1f} before; medians of {chosen.pairs} pairs of {chosen.seconds:g} s",
        "",
    ]
    chosen.output.write_text("\n".join([*head, *lines, "", *growth(sizes)]) + "\n")
    print(chosen.output.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
