"""The cost of metrics: the same loads on a node with the listener, scraped, and one without, in turn; large pages.

    python -m bench.metrics [--pairs N] [--directory DIR] [--output FILE]

Writes bench/METRICS.md. Both nodes run at once and take turns; the one with the listener is scraped every two seconds
while it is under load, more often than Prometheus does it. Processor time is the node's own, so it counts scrapes too.
The page is that of a node with 5,000 partitions and 1,000 groups.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.brokers import SMALL_LOGS, Running, ours
from bench.pairs import Figures, Runs, ended, in_turn, median, met, ratio_of
from bench.wire import Wire
from kraftpy.client import NewTopic
from kraftpy.client.blocking.facade import BlockingAdmin
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.testing.ports import ReservedPorts

RESULTS = Path(__file__).with_name("METRICS.md")
TOPICS, PARTITIONS, GROUPS, COMMITTED = 50, 100, 1_000, 10
MOST_US, MOST_SHARE, MOST_SLICE_S = 5.0, 0.02, 0.05
_SCRAPE_S = 2.0
_SECONDS = 3.0
_RECORDS = 4_000_000
"""Runs of a second differ from one to the next by more than the target."""
_COMMIT_VERSION, _FIND_VERSION = 8, 1


class Side(NamedTuple):
    """A node, and the port for monitors if it has one."""

    node: Running
    port: int


class Page(NamedTuple):
    """The cost of a scrape of a large node."""

    samples: int
    size: int
    took_s: float
    """How long it took; this and the next are medians of five."""
    used_s: float
    """The node's processor time."""
    longest_s: float
    """The longest slice of the event loop."""


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        text: bytes = response.read()
    return text.decode()


@contextlib.contextmanager
def scraped(port: int) -> Iterator[None]:
    """Scrape in the background, if there is a port."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(_SCRAPE_S):
            scrape(port)

    thread = threading.Thread(target=work)
    if port:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if port:
            thread.join()


def requests(side: Side) -> Figures:
    """Small Produce requests over eight sockets: processor time of each, and how many a second."""
    command = [sys.executable, "-m", "bench.kafka_load", "many", "--bootstrap", side.node.bootstrap]
    command += ["--topic", "small", "--count", "8", "--seconds", str(_SECONDS), "--pids", str(side.node.process.pid)]
    with scraped(side.port):
        return ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


def records(side: Side) -> Figures:
    """A producer and a consumer of librdkafka: records a second, and processor time of each."""
    before = processor_s(side.node.process.pid)
    with scraped(side.port):
        sent = side.node.load("produce", "--topics", "large", "--count", str(_RECORDS), "--setting", "acks=1")
    return {"rate": sent["rate"], "cpu_us": (processor_s(side.node.process.pid) - before) / _RECORDS * 1e6}


def processor_s(pid: int) -> float:
    """Return the processor time of a process, to the nanosecond: ticks of 10 ms would be 2 % of a run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def fill(node: Running) -> None:
    """Make the topics and the groups of a large node; each group has committed offsets in one topic."""
    with BlockingAdmin(bootstrap_servers=node.bootstrap) as admin:
        for number in range(TOPICS):
            admin.create_topics([NewTopic(name=f"t{number}", num_partitions=PARTITIONS)])
    wire = Wire(node.bootstrap)
    for number in range(GROUPS):
        _commit(wire, f"group-{number}", f"t{number % TOPICS}")
    wire.close()


def large_page(under: Path) -> Page:
    """Measure a scrape of a large node."""
    with ReservedPorts() as ports:
        port = ports.reserve()
        settings = {"kraftpy.metrics.listener": f"127.0.0.1:{port}", "offsets.topic.num.partitions": "50"}
        with ours(under, settings) as node:
            fill(node)
            scrape(port)
            took, used, size = [], [], 0
            for _ in range(5):
                time.sleep(1.5)
                before, began = node.cpu_seconds(), time.perf_counter()
                text = scrape(port)
                took.append(time.perf_counter() - began)
                used.append(node.cpu_seconds() - before)
                size = len(text)
            longest = _value(text, "kraftpy_scrape_longest_slice_seconds")
            samples = sum(not line.startswith("#") for line in text.splitlines())
    return Page(samples, size, statistics.median(took), statistics.median(used), longest)


def page_described(page: Page) -> list[str]:
    """Return the lines about the page of a large node."""
    return [
        "",
        f"## A page of {TOPICS * PARTITIONS:,} partitions and {GROUPS:,} groups",
        "",
        f"- {page.samples:,} samples, {page.size / 1e6:.1f} MB; it took {page.took_s:.2f} s, of which "
        f"{page.used_s:.2f} s of the node's processor time (medians of five)",
        f"- the longest slice held the event loop for {page.longest_s * 1000:.0f} ms of processor time; at most "
        f"{MOST_SLICE_S * 1000:.0f} ms was the target: {met(page.longest_s <= MOST_SLICE_S)}",
    ]


def _commit(wire: Wire, group: str, topic: str) -> None:
    partitions = [
        OffsetCommitRequestPartition(partition_index=each, committed_offset=each, committed_metadata="")
        for each in range(COMMITTED)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    deadline = time.monotonic() + 60
    while True:
        answer = wire.ask(ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, request)
        codes = {each.error_code for found in answer.topics for each in found.partitions}
        if codes == {0}:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{group}: {codes}")
        wire.ask(ApiKey.FIND_COORDINATOR, _FIND_VERSION, FindCoordinatorRequest(key=group))  # creates the topic
        time.sleep(0.2)


def _value(text: str, name: str) -> float:
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")))


def described(runs: dict[str, Runs]) -> list[str]:
    """Return a table of the pairs. Sides are without and with."""
    added = statistics.median(on["cpu_us"] - off["cpu_us"] for off, on in zip(*runs["requests"], strict=True))
    slower = 1 / ratio_of(runs["records"], "cpu_us") - 1
    lines = ["", "## With and without", "", "| load | without | with | change |", "|---|---|---|---|"]
    off, on = (median(side, "cpu_us") for side in runs["requests"])
    lines.append(f"| processor time of a Produce request of 200 bytes | {off:.1f} us | {on:.1f} us | {added:+.1f} us |")
    off, on = (median(side, "cpu_us") for side in runs["records"])
    lines.append(
        f"| processor time of a record of a librdkafka producer | {off:.3f} us | {on:.3f} us | {slower:+.1%} |"
    )
    for load, key, name in (
        ("requests", "per_s", "such requests a second"),
        ("records", "rate", "such records a second"),
    ):
        off, on = (median(side, key) for side in runs[load])
        lines.append(f"| {name} | {off:,.0f} | {on:,.0f} | {1 / ratio_of(runs[load], key) - 1:+.1%} |")
    return [
        *lines,
        "",
        "Changes are the medians of the pairs' changes. Loads and nodes share the machine, so rates depend on what",
        "else it does, and processor time does less: the throughput of a node is judged by it.",
        "",
        f"- at most {MOST_US:g} us a request was the target: {met(added <= MOST_US)}",
        f"- at most {MOST_SHARE:.0%} of the throughput was the target: {met(slower <= MOST_SHARE)}",
    ]


def written(described_machine: list[str], load_before: float, pairs: int, runs: dict[str, Runs], page: Page) -> str:
    """Return the whole file."""
    head = [
        "# The cost of metrics",
        "",
        "Written by `make bench-metrics` (`python -m bench.metrics`); do not edit.",
        "",
        *(f"- {line}" for line in described_machine),
        f"- load average {load_before:.1f} before; medians of {pairs} pairs; scraped every {_SCRAPE_S:g} s",
    ]
    return "\n".join([*head, *described(runs), *page_described(page)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    load_before = machine.load_average()
    with ReservedPorts() as ports:
        port = ports.reserve()
        on = {**SMALL_LOGS, "kraftpy.metrics.listener": f"127.0.0.1:{port}"}
        with ours(chosen.directory, SMALL_LOGS) as without, ours(chosen.directory, on) as with_:
            sides = Side(without, 0), Side(with_, port)
            for side in sides:
                records(side)
            runs = {
                "requests": in_turn(chosen.pairs, sides, requests),
                "records": in_turn(chosen.pairs, sides, records),
            }
    page = large_page(chosen.directory)
    described_machine = machine.describe(chosen.directory)
    chosen.output.write_text(written(described_machine, load_before, chosen.pairs, runs, page))
    print(chosen.output.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
