"""Every bench in one go, as a table in bench/RESULTS.md.

    python -m bench [--quick] [--only NAME ...] [--pairs N] [--directory DIR] [--output FILE]

`--quick` lets the log grow to 2 GB rather than 10. What `--only` leaves out is left out of the file. The directory is
where the brokers' data go: on the disk that is meant, with 12 GB free (`--quick`: 4).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import machine, startup, throughput
from bench.brokers import ours

RESULTS = Path(__file__).with_name("RESULTS.md")
SPARK_TARGET_ROWS_PER_S = 1e6
_SCALE_WARM_BYTES = 4 << 30

Lines = list[str]


def main() -> int:
    """Run what was asked for and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="every bench, into bench/RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="a log of 2 GB rather than 10")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), help="leave the others out")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each broker for a ratio (default 7)")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    sections = [name for name in SECTIONS if arguments.only is None or name in arguments.only]
    load_before = machine.load_average()
    started = time.monotonic()
    lines = []
    for name in sections:
        print(f"{name} ...", file=sys.stderr, flush=True)
        section = SECTIONS[name](arguments)
        print("\n".join(section), file=sys.stderr, flush=True)
        lines += ["", *section]
    head = [
        "# What the bench found",
        "",
        "Written by `make bench` (`python -m bench`); do not edit.",
        "",
        *(f"- {line}" for line in machine.describe(arguments.directory)),
        f"- load average {load_before:.1f} before, {(time.monotonic() - started) / 60:.0f} minutes",
    ]
    arguments.output.write_text("\n".join([*head, *lines]) + "\n")
    return 0


def produce_and_consume(arguments: argparse.Namespace) -> Lines:
    """Our broker against the mock."""
    lines = [
        "## Producing and consuming",
        "",
        "confluent-kafka against our broker and against librdkafka's mock cluster, a broker in C that stores nothing: "
        f"{arguments.pairs} pairs of runs, in turn. The ratio is ours to the mock's, pair by pair; target: "
        f"{throughput.TARGET_RATIO} with default batching.",
        "",
        "| confluent-kafka | ours, records/s | mock, records/s | ratio: median | least | most | target |"
        " broker's CPU, us/record: ours | mock |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case in throughput.CASES:
        for run in (throughput.produce, throughput.consume):
            found = run(case, arguments.pairs, arguments.directory)
            print(found.name, f"{found.ratio:.2f}", file=sys.stderr, flush=True)
            target = _met(found.ratio >= throughput.TARGET_RATIO) if found.has_target else ""
            lines.append(
                f"| {found.name} | {statistics.median(found.ours):,.0f} | {statistics.median(found.mock):,.0f} | "
                f"**{found.ratio:.2f}** | {min(found.ratios):.2f} | {max(found.ratios):.2f} | {target} | "
                f"{found.ours_cpu_us:.2f} | {found.mock_cpu_us:.2f} |"
            )
    return [
        *lines,
        "",
        "Method: each run of producing has a fresh broker. Right before it as much memory as it needs is touched by "
        "writing a file and deleting it, until that goes at 1.5 GB/s: the host of a virtual machine may back memory "
        "only when it is touched, at a tenth of the speed, and take it back seconds after it is freed. The mock keeps "
        "5 MB of each partition and uses that memory again; ours keeps all, and pays for what is not there after all. "
        "Consuming reads the same records from both, 20 topics of 4 partitions, each below what the mock keeps; "
        f"{', '.join(f'{name}={value}' for name, value in throughput.CONSUMER_SETTINGS.items())}, so that librdkafka "
        "does not pause for a second whenever its queue is full. Client and broker share the machine.",
    ]


def start_and_memory(arguments: argparse.Namespace) -> Lines:
    """How soon it serves, how little it needs."""
    found = startup.run(arguments.directory)
    return [
        "## Start-up and idle memory",
        "",
        "| `kraftpy server` | found | target |",
        "|---|--:|--:|",
        f"| first answer on a new directory, median of {found.runs} | {found.new_s:.2f} s | "
        f"< {startup.TARGET_S} s: {_met(found.new_s < startup.TARGET_S)} |",
        f"| the slowest of them | {found.worst_new_s:.2f} s | |",
        f"| first answer on a directory that was used, median of {found.runs} | {found.again_s:.2f} s | "
        f"< {startup.TARGET_S} s: {_met(found.again_s < startup.TARGET_S)} |",
        f"| (a Python that does nothing) | {found.import_free_s:.2f} s | |",
        f"| resident once started | {found.started_mb:.0f} MB | "
        f"< {startup.TARGET_MB:.0f} MB: {_met(found.started_mb < startup.TARGET_MB)} |",
        f"| resident when idle for 10 s after a producer and a consumer came and went | {found.used_mb:.0f} MB | "
        f"< {startup.TARGET_MB:.0f} MB: {_met(found.used_mb < startup.TARGET_MB)} |",
        "",
        "Each start is a new process, timed from its creation to its first ApiVersions answer; the disk cache is warm.",
    ]


def client_codec(arguments: argparse.Namespace) -> Lines:
    """Records to batches and back."""
    from bench import codec

    table: dict[str, dict[str, str]] = {}
    for row in codec.run():
        cells = table.setdefault(row["what"], {"ours": f"{row['ours']:,.0f}"})
        cells[row["peer_name"]] = f"{row['peer']:,.0f} ({row['ratio']:.1f}x)"
    peers = sorted({peer for cells in table.values() for peer in cells if peer != "ours"})
    return [
        "## Client: records to batches and back",
        "",
        "Records a second, best of several rounds in turn; in brackets how many times the peer's rate ours is.",
        "",
        f"| | ours | {' | '.join(peers)} |",
        f"|---|--:|{'--:|' * len(peers)}",
        *(
            f"| {what} | {cells['ours']} | {' | '.join(cells.get(peer, '') for peer in peers)} |"
            for what, cells in table.items()
        ),
    ]


def log_scale(arguments: argparse.Namespace) -> Lines:
    """What does not grow with the log."""
    from bench import log_scale

    machine.warm(arguments.directory, _SCALE_WARM_BYTES)
    figures = log_scale.run(2.0 if arguments.quick else 10.0, arguments.directory)
    sizes = list(figures)
    first, last = figures[sizes[0]], figures[sizes[-1]]
    return [
        "## The log at different sizes",
        "",
        "Microseconds a call, median (mean); the ratio is that of the medians, largest log to smallest.",
        "",
        f"| | {' | '.join(sizes)} | ratio |",
        f"|---|{'--:|' * (len(sizes) + 1)}",
        *(
            f"| {call.strip()} | {' | '.join('{:.1f} ({:.1f})'.format(*figures[size][call]) for size in sizes)} | "
            f"{last[call][0] / first[call][0]:.2f} |"
            for call in first
        ),
    ]


def spark_read(arguments: argparse.Namespace) -> Lines:
    """A topic into Spark."""
    from bench import spark_read

    with ours(arguments.directory) as broker:
        rows = spark_read.run(broker.bootstrap)
    return [
        "## Spark",
        "",
        '`spark.read.format("kraftpy")` into the `noop` sink, `local[2]`, the broker on the same machine.',
        "",
        "| | rows/s, median | best | MB/s, median | target |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {row['name']}, {row['records']:,} records of {row['value_bytes']} B | "
            f"{row['median_rows_per_s']:,.0f} | {row['best_rows_per_s']:,.0f} | {row['median_mb_per_s']:,.0f} | "
            f"1 M rows/s: {_met(row['median_rows_per_s'] >= SPARK_TARGET_ROWS_PER_S)} |"
            for row in rows
        ),
    ]


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


SECTIONS: dict[str, Callable[[argparse.Namespace], Lines]] = {
    "throughput": produce_and_consume,
    "startup": start_and_memory,
    "codec": client_codec,
    "log": log_scale,
    "spark": spark_read,
}

if __name__ == "__main__":
    raise SystemExit(main())
