"""Run every bench and write a table to bench/RESULTS.md.

    python -m bench [--quick] [--only NAME ...] [--pairs N] [--directory DIR] [--output FILE]

`--quick` lets the log grow to 2 GB rather than 10. The file contains only the benches that `--only` names. The brokers'
data are written to the directory: it should be on the disk to be measured, with 12 GB free (`--quick`: 4).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import machine, quorum, startup, throughput
from bench.brokers import ours

RESULTS = Path(__file__).with_name("RESULTS.md")
SPARK_TARGET_ROWS_PER_S = 1e6
_SCALE_WARM_BYTES = 4 << 30

Lines = list[str]


def main() -> int:
    """Run the requested benches and write the file."""
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
    """Report our broker against the mock."""
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
        "Method: each produce run has a fresh broker, to which 20 MB are first sent that are not counted. Right before "
        "the run, as much memory as it needs is touched by writing and deleting a file, until this reaches 1.5 GB/s: "
        "the host of a virtual machine may provide memory only when it is touched, at a tenth of the speed, and "
        "reclaim it seconds after it is freed. The mock keeps 5 MB of each partition and reuses that memory; ours "
        "keeps everything, and pays for memory that is missing after all. Consume runs read the same records from "
        "both, 20 topics of 4 partitions, each smaller than what the mock keeps; "
        f"{', '.join(f'{name}={value}' for name, value in throughput.CONSUMER_SETTINGS.items())}, so that librdkafka "
        "does not pause for a second whenever its queue is full. Client and broker share the machine.",
    ]


def start_and_memory(arguments: argparse.Namespace) -> Lines:
    """Report start-up time and memory."""
    found = startup.run(arguments.directory)
    return [
        "## Start-up and idle memory",
        "",
        "| `kraftpy server` | found | target |",
        "|---|--:|--:|",
        f"| first answer on a new directory, median of {found.runs} | {found.new_s:.2f} s | "
        f"< {startup.TARGET_S} s: {_met(found.new_s < startup.TARGET_S)} |",
        f"| the slowest of them | {found.worst_new_s:.2f} s | |",
        f"| first answer on a used directory, median of {found.runs} | {found.again_s:.2f} s | "
        f"< {startup.TARGET_S} s: {_met(found.again_s < startup.TARGET_S)} |",
        f"| (a Python that does nothing) | {found.import_free_s:.2f} s | |",
        f"| resident once started | {found.started_mb:.0f} MB | "
        f"< {startup.TARGET_MB:.0f} MB: {_met(found.started_mb < startup.TARGET_MB)} |",
        f"| resident when idle for 10 s, after a producer and a consumer have gone | {found.used_mb:.0f} MB | "
        f"< {startup.TARGET_MB:.0f} MB: {_met(found.used_mb < startup.TARGET_MB)} |",
        "",
        "Each start is a new process, timed from its creation to its first ApiVersions answer; the disk cache is warm.",
    ]


def quorum_syncs(arguments: argparse.Namespace) -> Lines:
    """Report the effect of the metadata journal's syncs on producers."""
    without, with_writes = quorum.run(arguments.directory)
    return [
        "## Producing while the metadata change",
        "",
        "| acks=1, one record of 1 KB after the other | requests | p50, ms | p99, ms | worst, ms |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {name} | {found.requests:,} | {found.p50_ms:.2f} | {found.p99_ms:.2f} | {found.worst_ms:.1f} |"
            for name, found in (
                ("metadata at rest", without),
                (f"{with_writes.metadata_writes:,} metadata writes meanwhile, each synced", with_writes),
            )
        ),
        "",
        f"p99 with the writes is {with_writes.p99_ms / without.p99_ms:.2f} times that without. Journal and logs are on "
        "one disk, the clients on the same machine.",
    ]


def syncs_before_acknowledging(arguments: argparse.Namespace) -> Lines:
    """Report the cost of durability."""
    from bench import durability

    sync_ms, found = durability.run(arguments.directory)
    return [
        "## Syncing before acknowledging",
        "",
        f"acks=all, one record of 1 KB after the other from each producer, a topic of {durability.PARTITIONS} "
        f"partitions. A sync of 1 KB takes this disk {sync_ms:.2f} ms.",
        "",
        "| | producers | requests/s | p50, ms | p99, ms | syncs a request |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {each.mode} | {each.producers} | {each.requests_per_s:,.0f} | {each.p50_ms:.2f} | {each.p99_ms:.2f} | "
            f"{each.syncs_per_request:.3f} |"
            for each in found
        ),
        "",
        "All clients are in one process, on the same machine. A request waits for at most two rounds of syncs, "
        "shared with all requests that arrive meanwhile; a round syncs each partition that was written to.",
    ]


def client_codec(arguments: argparse.Namespace) -> Lines:
    """Report the rates of encoding and decoding records."""
    from bench import codec

    table: dict[str, dict[str, str]] = {}
    for row in codec.run():
        cells = table.setdefault(row["what"], {"ours": f"{row['ours']:,.0f}"})
        cells[row["peer_name"]] = f"{row['peer']:,.0f} ({row['ratio']:.1f}x)"
    peers = sorted({peer for cells in table.values() for peer in cells if peer != "ours"})
    return [
        "## Client: records to batches and back",
        "",
        "Records per second, the best of several rounds in turn; in brackets, our rate as a multiple of the peer's.",
        "",
        f"| | ours | {' | '.join(peers)} |",
        f"|---|--:|{'--:|' * len(peers)}",
        *(
            f"| {what} | {cells['ours']} | {' | '.join(cells.get(peer, '') for peer in peers)} |"
            for what, cells in table.items()
        ),
    ]


def log_scale(arguments: argparse.Namespace) -> Lines:
    """Report the costs that do not grow with the log."""
    from bench import log_scale

    machine.warm(arguments.directory, _SCALE_WARM_BYTES)
    figures = log_scale.run(2.0 if arguments.quick else 10.0, arguments.directory)
    sizes = list(figures)
    first, last = figures[sizes[0]], figures[sizes[-1]]
    return [
        "## The log at different sizes",
        "",
        "Microseconds a call, p50 / p99; the ratios are those of the largest log to the smallest. The controls read as "
        "much at random places, with a CRC and without a log.",
        "",
        f"| | {' | '.join(sizes)} | ratios |",
        f"|---|{'--:|' * (len(sizes) + 1)}",
        *(
            f"| {call.strip()} | {' | '.join('{:.1f} / {:.1f}'.format(*figures[size][call]) for size in sizes)} | "
            f"{last[call][0] / first[call][0]:.2f} / {last[call][1] / first[call][1]:.2f} |"
            for call in first
        ),
    ]


def after_sigkill(arguments: argparse.Namespace) -> Lines:
    """Report how soon a large node serves again after SIGKILL."""
    from bench import recovery

    found = recovery.run(2.0 if arguments.quick else 10.0, arguments.directory)
    return [
        "## Serving again after SIGKILL",
        "",
        f"{found.gigabytes:.1f} GB in {found.partitions} partitions, records of 1 KB in large batches. Seconds from "
        f"the start of the process; target for the first record: {recovery.TARGET_S:.0f} s.",
        "",
        "| | to be read again | ready | first record fetched | target |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {each.what} | {each.behind_gb:.2f} GB | {each.ready_s:.1f} s | {each.fetched_s:.1f} s | "
            f"{_met(each.fetched_s < recovery.TARGET_S)} |"
            for each in found.restarts
        ),
        "",
        "The written data is in the page cache, if that is large enough.",
    ]


def many_partitions(arguments: argparse.Namespace) -> Lines:
    """Report the cost of thousands of partitions."""
    from bench import partitions

    found = partitions.run(arguments.directory)
    return [
        "## Many partitions",
        "",
        f"A node with {partitions.PARTITIONS:,} partitions that may open {partitions.FILES:,} files.",
        "",
        "| | found | target |",
        "|---|--:|--:|",
        f"| memory of an idle partition | {found.idle_kb:.1f} kB | "
        f"< {partitions.TARGET_KB:.0f} kB: {_met(found.idle_kb < partitions.TARGET_KB)} |",
        f"| memory of a partition with a record, once that was read | {found.used_kb:.1f} kB | |",
        f"| start after a clean stop | {found.start_after_stop_s:.1f} s | "
        f"< {partitions.TARGET_START_S:.0f} s: {_met(found.start_after_stop_s < partitions.TARGET_START_S)} |",
        f"| start after SIGKILL, records in each | {found.start_after_kill_s:.1f} s | "
        f"< {partitions.TARGET_START_S:.0f} s: {_met(found.start_after_kill_s < partitions.TARGET_START_S)} |",
        f"| clean stop, records in each | {found.stop_s:.1f} s | |",
        f"| open files at rest, none written to | {found.files_at_rest} | |",
        f"| open files at most, during all of this | {found.files_at_most} | "
        f"< {partitions.FILES:,}: {_met(found.files_at_most < partitions.FILES)} |",
        f"| processor at rest, of one core | {found.idle_cpu_percent:.1f} % | |",
        f"| create one topic of {partitions.PARTITIONS:,} partitions | {found.create_one_topic_s:.1f} s | |",
        f"| create {partitions.TOPICS} topics of {partitions.PARTITIONS // partitions.TOPICS} | "
        f"{found.create_many_topics_s:.1f} s | |",
        f"| a record to each, and all read | {found.produce_s:.1f} s, {found.consume_s:.1f} s | |",
    ]


def compacted(arguments: argparse.Namespace) -> Lines:
    """Report the cost of compaction, and its effect on producers."""
    from bench import compaction

    found, at_rest, cleaned = compaction.run(arguments.directory, 0.1 if arguments.quick else 1.0)
    return [
        "## Compaction",
        "",
        f"| {found.records:,} records, {compaction.KEYS:,} keys, values of {compaction.VALUE_BYTES} bytes | |",
        "|---|--:|",
        f"| time to clean | {found.seconds:.1f} s |",
        f"| speed | {found.bytes_before / found.seconds / 1e6:.0f} MB/s, "
        f"{found.records / found.seconds:,.0f} records/s |",
        f"| size before, after | {found.bytes_before / 1e6:.0f} MB, {found.bytes_after / 1e6:.0f} MB |",
        f"| peak memory of the cleaner process | {found.peak_mb:.0f} MB |",
        "",
        "| acks=1, one record of 1 KB after the other | requests | p50, ms | p99, ms | worst, ms |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {name} | {each.requests:,} | {each.p50_ms:.2f} | {each.p99_ms:.2f} | {each.worst_ms:.1f} |"
            for name, each in (
                ("nothing is cleaned", at_rest),
                ("another topic of the broker is cleaned", cleaned),
            )
        ),
        "",
        f"p99 while it cleans is {cleaned.p99_ms / at_rest.p99_ms:.2f} times that without. The cleaner is a process of "
        "its own; broker, cleaner and client share the machine.",
    ]


def fetch_cpu(arguments: argparse.Namespace) -> Lines:
    """Report the broker's processor time per gigabyte that consumers fetch."""
    from bench import cpu_per_gb

    figures = cpu_per_gb.run(arguments.directory, rounds=2 if arguments.quick else 3)
    ways = list(cpu_per_gb.WAYS)
    return [
        "## What a fetched gigabyte costs the broker",
        "",
        "Seconds of processor time, the least of several rounds; each way has a broker of its own, asked in turn. "
        f"Batches of {cpu_per_gb.text(cpu_per_gb.BATCH_BYTES)}; the consumers read one partition, from page cache.",
        "",
        f"| bytes of an answer | consumers | {' | '.join(ways)} |",
        f"|--:|--:|{'--:|' * len(ways)}",
        *(
            f"| {cpu_per_gb.text(answer_bytes)} | {consumers} | {' | '.join(f'{cells[way]:.2f}' for way in ways)} |"
            for (answer_bytes, consumers), cells in figures.items()
        ),
    ]


def spark_read(arguments: argparse.Namespace) -> Lines:
    """Report the rate of reading a topic into Spark."""
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
    "quorum": quorum_syncs,
    "durability": syncs_before_acknowledging,
    "codec": client_codec,
    "log": log_scale,
    "compaction": compacted,
    "recovery": after_sigkill,
    "fetch": fetch_cpu,
    "partitions": many_partitions,
    "spark": spark_read,
}

if __name__ == "__main__":
    raise SystemExit(main())
