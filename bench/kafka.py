"""Speed beside Apache Kafka: single requests, batches, consumers, many connections, groups, transactions, the start.

    python -m bench.kafka [--compiled DIR] [--pairs N] [--nodes 1 3] [--only NAME ...] [--output FILE]

Writes bench/KAFKA.md. Needs a JDK, Maven and a repository that has Apache Kafka. The clusters run at once with the
same settings, and take turns: a pair is one run on each, and its ratio is ours divided by Kafka's. With `--compiled`, a
cluster of ours with compiled modules (`make compiled`, build/compiled) takes turns, too. All are warmed up first: JVMs
are at their full speed after some 100,000 requests. Clients and brokers share the machine, and clients are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine
from bench.brokers import SMALL_LOGS, Running
from bench.pairs import Figures, Runs, ended, in_turn, median, met, options, ratio_of, write_results

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "compat")]

from peer_clusters import Kind, PeerCluster  # noqa: E402

RESULTS = Path(__file__).with_name("KAFKA.md")
HOST = "127.0.0.1"
KINDS: tuple[tuple[Kind, bool], ...] = (("kraftpy", False), ("kraftpy", True), ("kafka", False))
"""The clusters, and whether they run compiled modules."""
CONSUMER = ("queued.min.messages=1000000", "queued.max.messages.kbytes=1000000", "fetch.queue.backoff.ms=10")
BATCHES = ((100, 800_000), (200, 800_000), (1000, 200_000))
"""Bytes of a record, and records a run."""
READ = 400_000
WARM_UP_S = 15.0
_START_PAIRS = 5
_BOUND_S = 60.0

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Peer:
    """One cluster."""

    cluster: PeerCluster
    topics: set[str] = field(default_factory=set)

    @property
    def bootstrap(self) -> str:
        """The addresses of its nodes."""
        return ",".join(f"{HOST}:{port}" for port in self.cluster.ports)

    @property
    def acks(self) -> int:
        """1 on one node; all on several."""
        return 1 if self.cluster.count == 1 else -1

    def topic(self, name: str, partitions: int) -> str:
        """Create a topic, replicated to all nodes, unless it is there; return its name once all partitions are led."""
        if name not in self.topics:
            admin = AdminClient({"bootstrap.servers": self.bootstrap})
            admin.create_topics([NewTopic(name, partitions, self.cluster.count)])[name].result(30)
            self._wait(lambda: _is_led(admin, name, partitions), f"{name} is not led")
            self.topics.add(name)
        return name

    def wait_for_nodes(self) -> None:
        """Wait until all nodes are part of the cluster."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._wait(lambda: len(admin.list_topics(timeout=10).brokers) == self.cluster.count, "nodes are missing")

    def _wait(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _BOUND_S
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.cluster.kind}: {otherwise}")
            time.sleep(0.1)

    def rate(self, what: str, *arguments: str, more: tuple[str, ...] = ()) -> Figures:
        """Run `bench.load`; return its figures."""
        first = psutil.Process(self.cluster.process_id(1))
        running = Running(name=self.cluster.kind, bootstrap=self.bootstrap, process=first)
        return running.load(what, *arguments, *options([f"acks={self.acks}", *more] if what == "produce" else more))

    def load(self, what: str, topic: str, seconds: float = 5.0, **given: object) -> Figures:
        """Run `bench.kafka_load`; return its figures."""
        pids = ",".join(str(self.cluster.process_id(node)) for node in range(1, self.cluster.count + 1))
        first = self.bootstrap.split(",")[0] if what in ("single", "many", "members") else self.bootstrap
        command = [sys.executable, "-m", "bench.kafka_load", what, "--bootstrap", first, "--topic", topic]
        command += ["--seconds", str(seconds), "--pids", pids, "--acks", str(self.acks)]
        command += [part for name, value in given.items() for part in (f"--{name}", str(value))]
        return ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    known = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return len(known) == partitions and all(each.leader >= 0 for each in known.values())


Sides = tuple[Peer, ...]
"""Ours, ours with compiled modules if they are measured, and Kafka's."""


class Table:
    """Rows of a table, printed as they are found."""

    def __init__(self, title: str, text: str, sides: Sides) -> None:
        self._ours = range(len(sides) - 1)
        if len(sides) > 2:
            names = "| | ours | compiled | Kafka's | ratio | compiled | target | | compiled |"
            columns = [names, "|---|--:|--:|--:|--:|--:|--:|---|---|"]
        else:
            columns = ["| | ours | Kafka's | ratio | target | |", "|---|--:|--:|--:|--:|---|"]
        self.lines = [f"### {title}", "", text, "", *columns]

    def add(self, name: str, runs: Runs, key: str, unit: str, *, least: float = 0.0, most: float = 0.0) -> None:
        """Add a row whose ratio should be at least, or at most, this much."""
        values = " | ".join(f"{median(side, key):,.0f}{unit}" for side in runs)
        found = [ratio_of(runs, key, side) for side in self._ours]
        ratios = " | ".join(f"**{ratio:.2f}**" for ratio in found)
        target = f">= {least:.1f}" if least else f"<= {most:.1f}"
        verdicts = " | ".join(met(ratio >= least if least else ratio <= most) for ratio in found)
        self.lines.append(f"| {name} | {values} | {ratios} | {target} | {verdicts} |")
        print(self.lines[-1], file=sys.stderr, flush=True)


@contextlib.contextmanager
def peers(nodes: int, compiled: Path | None) -> Iterator[Sides]:
    """Run the clusters, warmed up."""
    with contextlib.ExitStack() as stack:
        found = []
        for kind, sources in KINDS:
            if sources and compiled is None:
                continue
            cluster = PeerCluster(kind, nodes, SMALL_LOGS, sources=compiled if sources else None)
            stack.callback(cluster.stop)
            cluster.start()
            found.append(Peer(cluster))
        for peer in found:
            peer.wait_for_nodes()
            _warm_up(peer)
        yield tuple(found)


def _warm_up(peer: Peer) -> None:
    peer.load("single", peer.topic("single", 1), WARM_UP_S)
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        peer.rate("produce", "--topics", peer.topic("warm-up", 4), "--count", "100000")
        peer.rate("consume", "--topics", "warm-up", more=CONSUMER)


def single_requests(sides: Sides, pairs: int) -> Lines:
    """One record after the other."""
    table = Table(
        "Single requests", "200 B, acks=1 on one node and all on three, each once the last is acknowledged.", sides
    )
    for name, load, has_cpu in (
        ("requests written once", "single", True),
        ("librdkafka", "librdkafka", False),
    ):
        runs = in_turn(pairs, sides, lambda peer: peer.load(load, peer.topic("single", 1)))  # noqa: B023
        table.add(f"{name}: p50", runs, "p50_us", " us", most=1.0)
        table.add(f"{name}: p99", runs, "p99_us", " us", most=0.7)
        if has_cpu:
            table.add(f"{name}: brokers' CPU", runs, "cpu_us", " us", most=1.0)
    return table.lines


def batches(sides: Sides, pairs: int) -> Lines:
    """Produce in batches."""
    table = Table("Produce in batches", "Records a second, 4 partitions, as librdkafka batches them by default.", sides)
    shapes: list[tuple[str, int, int, tuple[str, ...]]] = [(f"{size} B", size, count, ()) for size, count in BATCHES]
    shapes.append(("200 B, 50 a batch", 200, 300_000, ("batch.num.messages=50",)))
    for name, size, count, more in shapes:
        amount = ("--count", str(count // sides[0].cluster.count), "--size", str(size))
        runs = in_turn(
            pairs,
            sides,
            lambda peer: peer.rate("produce", "--topics", peer.topic(f"batches-{size}", 4), *amount, more=more),  # noqa: B023
        )
        table.add(name, runs, "rate", "", least=1.5)
    return table.lines


def consumers(sides: Sides, pairs: int) -> Lines:
    """Consume with one consumer and with ten."""
    table = Table("Consume", "Records a second, 4 partitions; ten consumers read everything each.", sides)
    for size, _ in BATCHES:
        topic = f"read-{size}"
        for peer in sides:
            amount = ("--count", str(READ), "--size", str(size), "--partitions", "4")
            peer.rate("produce", "--topics", peer.topic(topic, 4), *amount)
        for count in (1, 10):
            runs = in_turn(pairs, sides, lambda peer: peer.load("readers", topic, count=count))  # noqa: B023
            table.add(f"{size} B, {count} consumer{'s' if count > 1 else ''}", runs, "rate", "", least=1.2)
    return table.lines


def many_connections(sides: Sides, pairs: int) -> Lines:
    """Many connections, each with one record after the other."""
    table = Table(
        "200 connections", "200 B, each connection sends the next record once the last is acknowledged.", sides
    )
    runs = in_turn(pairs, sides, lambda peer: peer.load("many", peer.topic("many", 4), count=200))
    table.add("requests a second", runs, "per_s", "", least=1.0)
    table.add("p99", runs, "p99_us", " us", most=1.0)
    return table.lines


def end_to_end(sides: Sides, pairs: int) -> Lines:
    """From the call of produce until the consumer has the record."""
    table = Table(
        "End to end", "librdkafka, linger 0: from `produce` until a consumer's `poll` returns the record.", sides
    )
    runs = in_turn(pairs, sides, lambda peer: peer.load("end-to-end", peer.topic("end-to-end", 1)))
    table.add("p50", runs, "p50_us", " us", most=1.0)
    table.add("p99", runs, "p99_us", " us", most=1.0)
    return table.lines


def groups(sides: Sides, pairs: int) -> Lines:
    """Heartbeats and commits of many members."""
    table = Table(
        "1,000 members", "100 groups of ten (KIP-848), one after the other: heartbeats, a sixth are commits.", sides
    )
    runs = in_turn(pairs, sides, lambda peer: peer.load("members", peer.topic("members", 20), count=1000))
    table.add("brokers' CPU a request", runs, "cpu_us", " us", most=1.0)
    return table.lines


def transactions(sides: Sides, pairs: int) -> Lines:
    """Transactions of one record."""
    table = Table("Transactions", "One record each, one after the other.", sides)
    runs = in_turn(pairs, sides, lambda peer: peer.load("transactions", peer.topic("transactions", 1)))
    table.add("commits a second", runs, "per_s", "", least=1.0)
    table.add("brokers' CPU a commit", runs, "cpu_us", " us", most=1.0)
    return table.lines


SECTIONS: dict[str, Callable[[Sides, int], Lines]] = {
    "single": single_requests,
    "batches": batches,
    "consumers": consumers,
    "many": many_connections,
    "end-to-end": end_to_end,
    "groups": groups,
    "transactions": transactions,
}


def start_and_memory(nodes: int, compiled: Path | None) -> Lines:
    """Start each, a few times; measure until each node answers, and the memory of the first node then."""
    kinds = [kind for kind in KINDS if compiled is not None or not kind[1]]
    runs: Runs = [[] for _ in kinds]
    for _ in range(_START_PAIRS):
        for side, (kind, sources) in enumerate(kinds):
            cluster = PeerCluster(kind, nodes, sources=compiled if sources else None)
            try:
                begun = time.monotonic()
                cluster.start()
                seconds = time.monotonic() - begun
                time.sleep(1)
                memory = psutil.Process(cluster.process_id(1)).memory_info().rss
            finally:
                cluster.stop()
            runs[side].append({"ms": seconds * 1e3, "mb": memory / 1e6})
    most_ms = 200 if nodes == 1 else 450
    lines = [
        "### Start and memory",
        "",
        f"Until {'it answers' if nodes == 1 else 'all three answer'}; resident memory a second later; medians of "
        f"{_START_PAIRS} starts.",
        "",
        "| | start | target | | idle memory | target | |",
        "|---|--:|--:|---|--:|--:|---|",
    ]
    for (kind, sources), side in zip(kinds, runs, strict=True):
        ms, mb = median(side, "ms"), median(side, "mb")
        if kind == "kafka":
            lines.append(f"| Kafka | {ms:,.0f} ms | | | {mb:.0f} MB | | |")
            continue
        name = "ours, compiled" if sources else "ours"
        verdicts = met(ms <= most_ms), met(mb <= 40)
        lines.append(
            f"| {name} | {ms:,.0f} ms | <= {most_ms} ms | {verdicts[0]} | {mb:.0f} MB | <= 40 MB | {verdicts[1]} |"
        )
    return lines


def main() -> int:
    """Run the requested sections and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description="beside Kafka, into bench/KAFKA.md")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each cluster for a ratio (default 7)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3], choices=[1, 3])
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS, "start"], help="run only these sections")
    parser.add_argument("--compiled", type=Path, metavar="DIR", help="sources with compiled modules, measured as well")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    compiled: Path | None = arguments.compiled and arguments.compiled.resolve(strict=True)
    load_before = machine.load_average()
    lines: Lines = []
    for nodes in arguments.nodes:
        lines += ["", f"## {'One node' if nodes == 1 else 'Three nodes'}"]
        wanted = [name for name in SECTIONS if arguments.only is None or name in arguments.only]
        if wanted:
            with peers(nodes, compiled) as sides:
                for name in wanted:
                    print(f"{nodes} node(s): {name} ...", file=sys.stderr, flush=True)
                    lines += ["", *SECTIONS[name](sides, arguments.pairs)]
        if arguments.only is None or "start" in arguments.only:
            lines += ["", *start_and_memory(nodes, compiled)]
            print("\n".join(lines[-4:]), file=sys.stderr, flush=True)
        write_results(  # so far: the rest may be interrupted
            arguments.output,
            "Speed",
            "bench-kafka",
            lines,
            directory=Path(tempfile.gettempdir()),
            load_before=load_before,
            pairs=arguments.pairs,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
