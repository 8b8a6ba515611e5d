"""The cost of failures: kill -9, SIGSTOP, a cut, a rolling restart, 2,000 partitions; and of replication.

    python -m bench.failover [--quick] [--kills N] [--only NAME ...] [--seed N] [--directory DIR] [--output FILE]

Writes bench/FAILOVER.md. Three nodes that are brokers and voters (`kraftpy.testing.Cluster`) run on the client's
machine, with a topic of 12 partitions, three replicas and `min.insync.replicas=2`. Random choices come from the seed,
which is printed and written.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine
from bench.brokers import Running, ours
from bench.failover_load import Load, Outage, Proof
from kraftpy.testing import Cluster

RESULTS = Path(__file__).with_name("FAILOVER.md")
PARTITIONS = 12
WIDE_PARTITIONS = 2000
TARGET_OUTAGE_S = 2.0
TARGET_START_S = 10.0
TARGET_MOVE_S = 3.0
TARGET_IDLE_PERCENT = 5.0
PAUSE_S = 10.0
_BOUND_S = 120.0
_IDLE_S = 10.0
_TOPIC = "failover"

Lines = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    kills: int
    seed: int
    directory: Path
    is_quick: bool


class Bench:
    """A cluster, the load on it, and its failures."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        topic = NewTopic(_TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        self.admin.create_topics([topic])[_TOPIC].result(_BOUND_S)
        cluster.wait_in_sync(_BOUND_S)

    def load(self) -> Load:
        """The load on it."""
        return Load(self.cluster.bootstrap_servers, _TOPIC, PARTITIONS)

    def quorum_leader(self) -> int:
        """Return the leader of the quorum, waiting until there is one."""
        deadline = time.monotonic() + _BOUND_S
        while (leader := self.cluster.quorum_leader()) is None:
            if time.monotonic() > deadline:
                raise RuntimeError("the quorum has no leader")
            time.sleep(0.02)
        return leader

    def even_out(self) -> None:
        """Elect preferred leaders everywhere, so that each node leads a third."""
        self.admin.elect_leaders(ElectionType.PREFERRED, None).result(_BOUND_S)

    def recover(self, node: int | None = None) -> None:
        """Start `node`, if given; wait until all replicas are in sync and preferred leaders lead."""
        if node is not None:
            self.cluster.start(node)
        self.cluster.wait_in_sync(_BOUND_S)
        self.even_out()
        time.sleep(0.3)  # clients find the new leaders first, so that the next failure is measured alone


def kills(options: Options) -> Lines:
    """Kill random nodes, one at a time."""
    chance = random.Random(options.seed)
    found: list[tuple[bool, Outage, float]] = []
    with Cluster() as cluster:
        bench = Bench(cluster)
        with bench.load() as load:
            bench.recover()
            for number in range(options.kills):
                node = chance.choice(cluster.nodes)
                is_leader = node == bench.quorum_leader()
                outage = load.watch()
                cluster.kill(node)
                load.wait(outage)
                started = time.monotonic()
                bench.recover(node)
                found.append((is_leader, outage, time.monotonic() - started))
                _say(
                    f"kill {number + 1}: node {node}{', leader of the quorum' if is_leader else ''}: produced after "
                    f"{outage.produced_s:.2f} s, consumed after {outage.consumed_s:.2f} s"
                )
        proof = load.proof()
    lines = [
        f"## kill -9, {options.kills} times",
        "",
        "Seconds from the kill until every partition has had a record that was sent after it acknowledged "
        f"(producer) and read (group of two). Target: p99 below {TARGET_OUTAGE_S:g} s.",
        "",
        "| killed | kills | producer p50 | p99 | max | consumers p50 | p99 | max | target |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, wanted in (("any node", (True, False)), ("leader of the quorum", (True,)), ("another", (False,))):
        outages = [outage for is_leader, outage, _ in found if is_leader in wanted]
        if not outages:
            continue
        produced = [outage.produced_s or 0.0 for outage in outages]
        consumed = [outage.consumed_s or 0.0 for outage in outages]
        is_met = max(_percentile(produced, 99), _percentile(consumed, 99)) < TARGET_OUTAGE_S
        lines.append(
            f"| {name} | {len(outages)} | {_spread(produced)} | {_spread(consumed)} | "
            f"{_met(is_met) if len(wanted) == 2 else ''} |"
        )
    back = statistics.median(seconds for *_, seconds in found)
    return [
        *lines,
        "",
        f"From a node's start until it is in sync everywhere and leads its third again: {back:.1f} s (median). "
        f"{_proved(proof)}",
    ]


def other_failures(options: Options) -> Lines:
    """Measure SIGSTOP, a cut network, and a rolling restart."""
    rows = []
    with Cluster() as cluster:
        bench = Bench(cluster)
        with bench.load() as load:
            for what, choose in (
                ("leader of the quorum", lambda leader: leader),
                ("another node", lambda leader: next(node for node in cluster.nodes if node != leader)),
            ):
                bench.recover()
                node = choose(bench.quorum_leader())
                outage = load.watch()
                cluster.pause(node)
                time.sleep(PAUSE_S)
                cluster.resume(node)
                load.wait(outage, _BOUND_S)
                rows.append((f"SIGSTOP for {PAUSE_S:g} s: {what}", outage))
                _say_row(rows[-1])
            bench.recover()
            node = bench.quorum_leader()
            others = [other for other in cluster.nodes if other != node]
            outage = load.watch()
            cluster.partition([node], others)
            elected_s = _elected(cluster, node)
            time.sleep(max(0.0, PAUSE_S - elected_s))
            cluster.heal()
            load.wait(outage, _BOUND_S)
            rows.append((f"leader cut off from the other two for {PAUSE_S:g} s", outage))
            _say_row(rows[-1])
            bench.recover()
            before = len(load.failures)
            outages = []
            for node in cluster.nodes:
                outage = load.watch()
                cluster.stop(node)
                load.wait(outage)
                outages.append(outage)
                bench.recover(node)
            slowest = max(outages, key=lambda outage: outage.produced_s or 0.0)
            rows.append(("rolling restart, the slowest of three stops", slowest))
            _say_row(rows[-1])
            failed = len(load.failures) - before
        proof = load.proof()
    return [
        "## SIGSTOP, a cut, a rolling restart",
        "",
        "| | producer continues after, s | consumers continue after, s |",
        "|---|--:|--:|",
        *(f"| {name} | {outage.produced_s:.2f} | {outage.consumed_s:.2f} |" for name, outage in rows),
        "",
        "A client does not notice that a node is paused, or cut off from the others: it waits for the "
        "answer to its request, and turns to the others once that node refuses it. "
        f"After the cut the other two had elected leaders for all partitions within {elected_s:.2f} s. Requests that "
        f"failed during the rolling restart, as the retrying producer saw it: {failed}. {_proved(proof)}",
    ]


def many_partitions(options: Options) -> Lines:
    """Measure 2,000 partitions: start, the leaderships of a killed broker, idle use."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-", dir=options.directory) as directory:
        cluster = Cluster(directory=directory, can_partition=False, start_timeout=_BOUND_S, stop_timeout=_BOUND_S)
        with cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            started = time.monotonic()
            admin.create_topics([NewTopic("wide", WIDE_PARTITIONS, 3)], operation_timeout=_BOUND_S)["wide"].result(
                _BOUND_S
            )
            cluster.wait_in_sync(_BOUND_S)
            created_s = time.monotonic() - started
            _say(f"created in {created_s:.1f} s")
        started = time.monotonic()
        with cluster:
            while any(cluster.led_by(-1, ask=node) for node in cluster.brokers):
                time.sleep(0.05)
            started_s = time.monotonic() - started
            cluster.wait_in_sync(_BOUND_S)
            in_sync_s = time.monotonic() - started
            _say(f"led in {started_s:.1f} s, in sync in {in_sync_s:.1f} s")
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            admin.elect_leaders(ElectionType.PREFERRED, None).result(_BOUND_S)
            cluster.wait_in_sync(_BOUND_S)
            time.sleep(5.0)  # work that the start has left to do is not idleness
            idle = _idle(cluster)
            node = _victim(cluster)
            led = cluster.led_by(node, ask=_other(cluster, node))
            started = time.monotonic()
            cluster.kill(node)
            while cluster.led_by(node, ask=_other(cluster, node)) or cluster.led_by(-1, ask=_other(cluster, node)):
                if time.monotonic() - started > _BOUND_S:
                    raise RuntimeError(f"node {node} still leads")
                time.sleep(0.02)
            moved_s = time.monotonic() - started
            _say(f"{led} leaderships moved in {moved_s:.2f} s")
            cluster.start(node)
            cluster.wait_in_sync(_BOUND_S)
    return [
        "## 2,000 partitions, three replicas",
        "",
        "| | found | target |",
        "|---|--:|--:|",
        f"| a topic of 2,000 partitions: from the request until all are in sync | {created_s:.1f} s | |",
        f"| from starting the three nodes until all of them know a leader of every partition | "
        f"{started_s:.1f} s | < {TARGET_START_S:g} s: {_met(started_s < TARGET_START_S)} |",
        f"| and until all replicas are in sync | {in_sync_s:.1f} s | |",
        f"| a killed broker's {led} leaderships have moved to others | {moved_s:.2f} s | "
        f"< {TARGET_MOVE_S:g} s: {_met(moved_s < TARGET_MOVE_S)} |",
        f"| CPU of an idle node: the highest of the three | {max(idle):.1f} % of a core | "
        f"< {TARGET_IDLE_PERCENT:g} %: {_met(max(idle) < TARGET_IDLE_PERCENT)} |",
    ]


def _victim(cluster: Cluster) -> int:
    """Return the node to kill: the leader of the quorum, which is the harder case."""
    leader = cluster.quorum_leader()
    return leader if leader is not None else cluster.nodes[0]


def replication(options: Options) -> Lines:
    """Compare acks=all on three replicas with acks=1 on one node, in turn."""
    amount = ("--count", "60000" if options.is_quick else "150000", "--size", "1000")
    pairs = 2 if options.is_quick else 5
    alone, together = [], []
    for _ in range(pairs):
        with ours(options.directory) as broker:
            alone.append(broker.load("produce", *amount, "--setting", "acks=1")["mb_per_s"])
        with Cluster(can_partition=False, settings={"num.partitions": "4", "min.insync.replicas": "2"}) as cluster:
            broker = Running(
                name="three nodes", bootstrap=cluster.bootstrap_servers, process=psutil.Process(cluster.pid(1))
            )
            together.append(broker.load("produce", *amount, "--setting", "acks=all")["mb_per_s"])
        _say(f"one node {alone[-1]:.0f} MB/s, three {together[-1]:.0f} MB/s")
    ratios = [one / other for one, other in zip(together, alone, strict=True)]
    return [
        "## What replication costs",
        "",
        f"confluent-kafka, records of 1 KB, {pairs} pairs of runs in turn, each on fresh nodes.",
        "",
        "| | MB/s, median | least | most |",
        "|---|--:|--:|--:|",
        f"| three nodes, three replicas, acks=all | {statistics.median(together):.0f} | {min(together):.0f} | "
        f"{max(together):.0f} |",
        f"| one node, acks=1 | {statistics.median(alone):.0f} | {min(alone):.0f} | {max(alone):.0f} |",
        f"| ratio, pair by pair | **{statistics.median(ratios):.2f}** | {min(ratios):.2f} | {max(ratios):.2f} |",
    ]


def _elected(cluster: Cluster, cut_off: int) -> float:
    """Return the seconds until the other nodes know a leader for every partition that is not the one cut off."""
    started = time.monotonic()
    other = _other(cluster, cut_off)
    while cluster.led_by(cut_off, ask=other) or cluster.led_by(-1, ask=other):
        if time.monotonic() - started > _BOUND_S:
            raise RuntimeError(f"node {cut_off} still leads")
        time.sleep(0.02)
    return time.monotonic() - started


def _other(cluster: Cluster, node: int) -> int:
    return next(other for other in cluster.brokers if other != node)


def _idle(cluster: Cluster) -> list[float]:
    """Return the percentage of a core that each node uses while there are no requests."""
    processes = [psutil.Process(cluster.pid(node)) for node in cluster.nodes]
    for process in processes:
        process.cpu_percent()
    time.sleep(_IDLE_S)
    found = [process.cpu_percent() for process in processes]
    _say("idle: " + ", ".join(f"{each:.1f} %" for each in found))
    return found


def _percentile(values: list[float], percent: int) -> float:
    """Return a percentile by nearest rank."""
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def _spread(values: list[float]) -> str:
    return f"{_percentile(values, 50):.2f} | {_percentile(values, 99):.2f} | {max(values):.2f}"


def _proved(proof: Proof) -> str:
    return (
        f"{proof.acknowledged:,} records were acknowledged: {proof.lost} lost, {proof.repeated} duplicated, "
        f"{proof.out_of_order} out of order, {proof.not_consumed} not consumed; {proof.offsets_gone_back} committed "
        f"offsets went back; {proof.failed_requests} failed at the producer: "
        f"{'as promised' if proof.is_clean else '**not as promised**'}."
    )


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_row(row: tuple[str, Outage]) -> None:
    name, outage = row
    _say(f"{name}: produced after {outage.produced_s:.2f} s, consumed after {outage.consumed_s:.2f} s")


SECTIONS: dict[str, Callable[[Options], Lines]] = {
    "kills": kills,
    "others": other_failures,
    "partitions": many_partitions,
    "replication": replication,
}


def main() -> int:
    """Run the requested parts and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description="failures, into bench/FAILOVER.md")
    parser.add_argument("--quick", action="store_true", help="five kills, and smaller runs")
    parser.add_argument("--kills", type=int, help="how many (default 50)")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), help="leave the others out")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kill_count = arguments.kills if arguments.kills is not None else 5 if arguments.quick else 50
    options = Options(kills=kill_count, seed=arguments.seed, directory=arguments.directory, is_quick=arguments.quick)
    _say(f"seed {options.seed}")
    load_before = machine.load_average()
    started = time.monotonic()
    lines: Lines = []
    for name, section in SECTIONS.items():
        if arguments.only is None or name in arguments.only:
            _say(f"{name} ...")
            found = section(options)
            _say("\n".join(found))
            lines += ["", *found]
    minutes = (time.monotonic() - started) / 60
    head = [
        "# What failures cost",
        "",
        "Written by `make bench-failover` (`python -m bench.failover`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(arguments.directory)),
        f"- load average {load_before:.1f} before, {minutes:.0f} minutes, seed {options.seed}",
        "- three nodes, the producer and the consumers share the machine; settings are the defaults, of nodes and of "
        "librdkafka; a topic of 12 partitions, three replicas, min.insync.replicas=2; each partition gets a record "
        "every 10 ms",
    ]
    arguments.output.write_text("\n".join([*head, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
