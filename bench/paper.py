"""The experiment of Kafka's first paper, repeated: kraftpy, Apache Kafka, RabbitMQ and ActiveMQ Artemis in turn.

    python -m bench.paper [--messages N] [--only NAME ...] [--directory DIR] [--output FILE]

Writes bench/PAPER.md, with its figures beside it. Needs a JDK from 17, Maven and Debian's rabbitmq-server.

Section 5 of the paper (Kreps, Narkhede, Rao: "Kafka: a Distributed Messaging System for Log Processing", NetDB 2011)
sends messages of 200 bytes by one producer, and receives them all by one consumer. So does this bench, with each
system's own load tool. One node runs at a time, on an empty directory of the same disk. Each line is of a new node,
which a tenth of the messages warms up. Node and tool share the machine, while the paper had one for each.

Left out: the paper's own versions of RabbitMQ (2.4) and ActiveMQ (5.4).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import machine
from bench.paper_figures import figure
from bench.paper_reports import Run, points
from bench.paper_systems import FETCH_BYTES, SIZE, WINDOW, System, activemq, kafka, rabbit, versions, wait_until_stored

RESULTS = Path(__file__).with_name("PAPER.md")
MESSAGES = 1_000_000
_LEAST_MESSAGES = 20_000
"""With fewer, a run may be over before the tool reports anything."""
_POINTS = 50
"""The most points of a line."""

LINES: dict[str, Callable[[], AbstractContextManager[System]]] = {
    "kraftpy, batch 1": partial(kafka, "kraftpy", 1),
    "kraftpy, batch 50": partial(kafka, "kraftpy", 50),
    "Apache Kafka, batch 1": partial(kafka, "kafka", 1),
    "Apache Kafka, batch 50": partial(kafka, "kafka", 50),
    "RabbitMQ": rabbit,
    "ActiveMQ Artemis": activemq,
}

PAPER = [
    "## The paper's results",
    "",
    "10 million messages; two machines of 8 cores at 2 GHz with 16 GB of memory and six disks in RAID 10, one for the",
    "broker and one for the client, connected by 1 Gb/s. Kafka's producer sent some 50,000 messages a second in",
    "batches of 1 and 400,000 in batches of 50: orders of magnitude more than ActiveMQ 5.4's, and at least twice as",
    "many as RabbitMQ 2.4's. Kafka's consumer received some 22,000 a second, more than four times as many as theirs.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The runs of one line: a producer that does not wait, one that does, and a consumer."""

    unwaited: Run
    waited: Run
    consumed: Run


def measure(start: Callable[[], AbstractContextManager[System]], messages: int) -> Measured:
    """Start a node, warm it up, send and receive; then send to another queue, with acknowledgements."""
    with start() as system:
        for queue in ("warm-up", "unwaited", "waited"):
            system.create(queue)
        system.produce("warm-up", messages // 10, waits=False)
        system.consume("warm-up", messages // 10)
        unwaited = system.produce("unwaited", messages, waits=False)
        wait_until_stored(system.data)
        consumed = system.consume("unwaited", messages)
        waited = system.produce("waited", messages, waits=True)
    return Measured(unwaited=unwaited, waited=waited, consumed=consumed)


def produced(measured: Mapping[str, Measured]) -> list[str]:
    """Return the producers' table."""
    lines = [
        "| | messages a request | messages/s | MB/s | messages/s, acknowledged |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, each in measured.items():
        cells = [
            f"{each.unwaited.batch:.1f}",
            f"**{each.unwaited.rate:,.0f}**",
            f"{each.unwaited.rate * SIZE / 1e6:.1f}",
            f"{each.waited.rate:,.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def consumed(measured: Mapping[str, Measured]) -> list[str]:
    """Return the consumers' table."""
    lines = ["| | messages/s | MB/s |", "|---|--:|--:|"]
    for name, each in measured.items():
        rate = each.consumed.rate
        lines.append(f"| {name} | **{rate:,.0f}** | {rate * SIZE / 1e6:.1f} |")
    return lines


def settings(found: Mapping[str, str]) -> list[str]:
    """Return how each system runs; `found` are the versions by name."""
    kafka_tool = f"`ProducerPerformance` of {found['Apache Kafka']}"
    return [
        "## How they run",
        "",
        "The paper's producers did not wait for acknowledgements, so the figure and the first columns are of such",
        f"runs. In those with acknowledgements, at most {WINDOW:,} messages are sent and not acknowledged. No system",
        "syncs the disk before it acknowledges a message (the paper: brokers flush to their store asynchronously), and",
        "each has the memory that its own scripts give it. Messages are persistent. Consumers acknowledge",
        "automatically.",
        "",
        "| | producer | not waiting | with acknowledgements | consumer |",
        "|---|---|---|---|---|",
        f"| kraftpy, Apache Kafka {found['Apache Kafka']} | {kafka_tool}, `batch.size` for 1 or 50 records, default "
        "`linger.ms` | `acks=0`: the broker does not answer | `acks=1`, `enable.idempotence=false`, "
        f"`max.in.flight.requests.per.connection` {WINDOW:,} or {WINDOW // 50} | `ConsumerPerformance`, "
        f"`--fetch-size {FETCH_BYTES}`, as the paper; joining the group does not count |",
        f"| RabbitMQ {found['RabbitMQ']}, a durable classic queue | "
        f"PerfTest {found['PerfTest']}, `--flag persistent` | "
        f"no confirms | `--confirm {WINDOW}` | PerfTest, `--autoack`: the broker sends without limit |",
        f"| ActiveMQ Artemis {found['ActiveMQ Artemis']}, `--no-fsync` | `artemis perf producer --persistent` | "
        "`--max-pending 0`: the broker acknowledges every message, and the producer does not wait for that | "
        f"`--max-pending {WINDOW}` | `artemis perf consumer`, `consumerWindowSize={FETCH_BYTES}` |",
        "",
        "A producer that does not wait is done when its last message is in a buffer of its socket: with few messages,",
        "or a slow broker, the rate with acknowledgements is the one to trust. The means are the tools' own, from",
        "their first message on; those of ConsumerPerformance and `artemis perf` end with the last full report (0.1 s",
        "and 1 s).",
    ]


def written(
    described_machine: list[str],
    load_before: float,
    messages: int,
    measured: Mapping[str, Measured],
    found: Mapping[str, str],
    output: Path = RESULTS,
) -> str:
    """Return the whole page; `output` is the file that it is for."""
    return "\n".join(
        [
            "# The paper's experiment, beside Apache Kafka, RabbitMQ and ActiveMQ Artemis",
            "",
            "Written by `make bench-paper` (`python -m bench.paper`); do not edit.",
            "",
            *(f"- {line}" for line in described_machine),
            f"- load average {load_before:.1f} before; {messages:,} messages of {SIZE} bytes a run, one run each",
            "",
            "It repeats section 5 of Kreps, Narkhede and Rao: *Kafka: a Distributed Messaging System for Log",
            "Processing* (NetDB 2011). One node of one system runs at a time; one producer sends messages to one topic",
            "or queue, then one consumer receives them all. Node and client share the machine. All clients are the",
            "systems' own load tools, in Java.",
            "",
            "## Producer",
            "",
            f"![Messages a second of each producer]({_producer_name(output)})",
            "",
            *produced(measured),
            "",
            "## Consumer",
            "",
            f"![Messages a second of each consumer]({_consumer_name(output)})",
            "",
            *consumed(measured),
            "",
            *settings(found),
            "",
            *PAPER,
            "",
        ]
    )


def _producer_name(page: Path) -> str:
    return f"{page.stem.lower()}-producer.svg"


def _consumer_name(page: Path) -> str:
    return f"{page.stem.lower()}-consumer.svg"


def draw(output: Path, messages: int, measured: Mapping[str, Measured]) -> None:
    """Write the figures beside the page."""
    least = messages // _POINTS
    sent = {name: points(each.unwaited.reports, SIZE, least) for name, each in measured.items()}
    received = {name: points(each.consumed.reports, SIZE, least) for name, each in measured.items()}
    producers = figure("Producer", "MB produced", sent)
    consumers = figure("Consumer", "MB consumed", received)
    output.with_name(_producer_name(output)).write_text(producers, encoding="utf-8")
    output.with_name(_consumer_name(output)).write_text(consumers, encoding="utf-8")


def _java_version() -> str:
    said = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr
    return said.splitlines()[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper", description="the paper's figures, into bench/PAPER.md"
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"messages of a run (default {MESSAGES:,})")
    parser.add_argument("--only", nargs="+", choices=list(LINES), help="run only these")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="directory for the data")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.messages < _LEAST_MESSAGES:
        parser.error(f"at least {_LEAST_MESSAGES:,} messages")
    tempfile.tempdir = str(chosen.directory)
    found = versions()
    load_before = machine.load_average()
    measured: dict[str, Measured] = {}
    for name, start in LINES.items():
        if chosen.only is None or name in chosen.only:
            machine.warm(chosen.directory, 2 * chosen.messages * SIZE)
            begun = time.monotonic()
            measured[name] = each = measure(start, chosen.messages)
            print(
                f"{name}: {each.unwaited.rate:,.0f} sent a second, {each.waited.rate:,.0f} acknowledged, "
                f"{each.consumed.rate:,.0f} received; took {time.monotonic() - begun:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    described = [*machine.describe(chosen.directory), _java_version()]
    page = written(described, load_before, chosen.messages, measured, found, chosen.output)
    draw(chosen.output, chosen.messages, measured)
    chosen.output.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
