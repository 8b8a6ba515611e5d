"""The console's speed at a large node: the first page after its start, and each page, cold and warm.

    python -m bench.console [--runs N] [--directory DIR] [--output FILE]

Writes bench/CONSOLE.md. The node has 5,000 partitions and 1,000 groups, of which 100 have a member. A page is cold if
it is the first that a new console is asked for, as soon as that says its address: nothing is kept, and the console
still prepares itself. A page is warm at a console that has run for some samples, which it goes on taking meanwhile.
Console, node and client share the machine; times are those of an HTTP client with a connection of its own for each
page.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import machine
from bench.brokers import PROGRAM, Running, ours
from bench.metrics import GROUPS, PARTITIONS, TOPICS, fill
from bench.pairs import met
from bench.wire import Wire
from kraftpy.client.blocking.facade import BlockingProducer
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

RESULTS = Path(__file__).with_name("CONSOLE.md")
MOST_S: Final = 0.3
MEMBERS: Final = 100
RECORDS: Final = 10_000
PAGES: Final = (
    ("overview", "/", f'href="/groups">{GROUPS:,}</a>'),
    ("brokers and quorum", "/brokers", "Metadata quorum"),
    ("a broker, all settings", "/broker?id=1&settings=all", "log.dirs"),
    ("topics", "/topics", "t0"),
    ("a topic of 100 partitions", "/topic?name=t0", "Partitions of t0"),
    ("messages, the newest", "/messages?topic=t0", "value-"),
    ("groups", "/groups", "group-0"),
    ("a group", "/group?id=group-0", "Offsets of group-0"),
    ("transactions", "/transactions", "Transactional ids"),
    ("users", "/users", "Set a password"),
    ("ACLs", "/acls", "<h1>ACLs</h1>"),
    ("quotas", "/quotas", "No quotas."),
)
"""The pages: a name, the path, and a text that shows that it is the page and no failure."""
_WARM_ASKED = 20
_WARM_PAUSE_S = 0.25
_BOUND_S = 120.0
_SESSION_MS = 3_600_000
_SETTINGS = {
    "offsets.topic.num.partitions": "50",
    "group.consumer.session.timeout.ms": str(_SESSION_MS),
    "group.consumer.max.session.timeout.ms": str(_SESSION_MS),
}


class Started(NamedTuple):
    """A console that has just said its address."""

    url: str
    took_s: float
    """From the start of the process until then."""


class Times(NamedTuple):
    """The seconds of a page."""

    cold: list[float]
    warm: list[float]


@contextlib.contextmanager
def console(bootstrap: str) -> Iterator[Started]:
    """Run a new console, which may change the cluster, until the block ends."""
    command = [*PROGRAM, "console", "-b", bootstrap, "--listen", "127.0.0.1:0", "--allow-changes"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        _, found, url = line.strip().partition("the console is at ")
        if not found:
            raise RuntimeError(f"the console said {line!r}")
        yield Started(url.removesuffix("/"), took)
    finally:
        process.terminate()
        process.communicate()


def ask(url: str, path: str, expected: str) -> float:
    """Return the seconds that a page takes. Raises RuntimeError if it is not that page."""
    began = time.perf_counter()
    with urllib.request.urlopen(url + path, timeout=_BOUND_S) as answer:
        text = answer.read().decode()
    took = time.perf_counter() - began
    if expected not in text:
        raise RuntimeError(f"{path} is without {expected!r}: {text[:2_000]}")
    return took


def join(node: Running) -> None:
    """Have the first groups a member each."""
    wire = Wire(node.bootstrap)
    for number in range(MEMBERS):
        request = ConsumerGroupHeartbeatRequest(
            group_id=f"group-{number}",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=[f"t{number % TOPICS}"],
            topic_partitions=[],
        )
        answer = wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if answer.error_code:
            raise RuntimeError(f"group-{number}: {answer.error_code} {answer.error_message}")
    wire.close()


def measure(node: Running, runs: int) -> tuple[list[float], dict[str, Times]]:
    """Return the seconds until a console says its address, and those of each page."""
    starts: list[float] = []
    cold: dict[str, list[float]] = {path: [] for _, path, _ in PAGES}
    warm: dict[str, list[float]] = {path: [] for _, path, _ in PAGES}
    for _ in range(runs):
        for _, path, expected in PAGES:
            with console(node.bootstrap) as started:
                cold[path].append(ask(started.url, path, expected))
                starts.append(started.took_s)
    with console(node.bootstrap) as started:
        deadline = time.monotonic() + _BOUND_S
        while _has_no_rates(started.url):
            if time.monotonic() > deadline:
                raise RuntimeError("the console takes no samples")
            time.sleep(1)
        for _ in range(_WARM_ASKED):
            for _, path, expected in PAGES:
                warm[path].append(ask(started.url, path, expected))
                time.sleep(_WARM_PAUSE_S)
    return starts, {path: Times(cold[path], warm[path]) for _, path, _ in PAGES}


def _has_no_rates(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/", timeout=_BOUND_S) as answer:
        return b"The first two samples are being taken." in answer.read()


def written(
    described_machine: list[str], load_before: float, runs: int, starts: list[float], times: dict[str, Times]
) -> str:
    """Return the whole file."""
    first = statistics.median(times["/"].cold)
    lines = [
        "# The console's speed",
        "",
        "Written by `make bench-console` (`python -m bench.console`); do not edit.",
        "",
        *(f"- {line}" for line in described_machine),
        f"- load average {load_before:.1f} before; medians of {runs} consoles, and of {_WARM_ASKED} requests to one",
        "",
        f"A node with {TOPICS * PARTITIONS:,} partitions and {GROUPS:,} groups, of which {MEMBERS} have a member, and",
        "a console, on the same machine. A page is cold if it is the first that a new console is asked for, as soon as",
        "that says its address: it still prepares itself. A page is warm at a console that has run for some samples,",
        "and goes on taking them.",
        "",
        "| page | cold | slowest of them | warm | slowest of them |",
        "|---|---|---|---|---|",
    ]
    for name, path, _ in PAGES:
        cold, warm = times[path]
        shown = (statistics.median(cold), max(cold), statistics.median(warm), max(warm))
        lines.append(f"| {name} | " + " | ".join(f"{seconds * 1000:.0f} ms" for seconds in shown) + " |")
    lines += [
        "",
        f"- a console says its address {statistics.median(starts):.2f} s after its start",
        f"- the first page, the overview, within {MOST_S * 1000:.0f} ms was the target: {met(first <= MOST_S)}",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    load_before = machine.load_average()
    with ours(chosen.directory, _SETTINGS) as node:
        fill(node)
        join(node)
        with BlockingProducer(bootstrap_servers=node.bootstrap) as producer:
            producer.send_many("t0", ((None, f"value-{number}".encode()) for number in range(RECORDS)))
            producer.flush()
        starts, times = measure(node, chosen.runs)
    described_machine = machine.describe(chosen.directory)
    chosen.output.write_text(written(described_machine, load_before, chosen.runs, starts, times))
    print(chosen.output.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
