"""Our segments and indexes in the hands of Apache Kafka's own classes, and theirs in ours. Part of `make compat`.

    python tests/compat/java_suite.py            compare, both ways; exit status 1 if anything differs
    python tests/compat/java_suite.py --write    rebuild `java_segments`, which the tests read without a JDK

Needs a JDK, Maven and a repository that has Apache Kafka. A broker is filled by librdkafka, kafka-python, aiokafka and
our own client, with every codec, and partly compacted. When it has stopped:

1. `FileRecords` reads each segment; each batch and record must be what we read in it.
2. `DumpLogSegments --deep-iteration` goes through each segment, its index and its time index, and must find no
   mismatch; with `--index-sanity-check` and `--verify-index-only` too.
3. It decodes `__consumer_offsets` and `__transaction_state`; the commits and the transactional ids made must be among
   what it prints.
4. It reads the producer snapshots and the `.txnindex` files: every transaction that was aborted, and who wrote it.
5. Files that Kafka's classes write (`Segments.java`) must mean the same to us.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from compat.clients import LIBRARIES, Message  # noqa: E402
from compat.maven import JavaProject  # noqa: E402
from compat.segment_rows import records_once_compacted, segment_rows  # noqa: E402

from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DUMP = "kafka.tools.DumpLogSegments"
COMPLAINTS = ("mismatch", "out of order", "corrupt", "isvalid: false")
"""Words by which DumpLogSegments reports errors. Gaps between offsets are no error after compaction."""

GROUP = "readers"
TRANSACTIONAL_ID = "java-reads-this"
IN_TRANSACTIONS = "in-transactions"
TRANSACTIONS = 30
"""Every third is committed, the others are aborted."""
KEYS = 30


class Java:
    """Kafka's classes with `Segments`, compiled, in a directory."""

    def __init__(self, scratch: Path) -> None:
        project = JavaProject(scratch, HERE / "java" / "pom.xml")
        project.compile([HERE / "java" / "Segments.java"])
        self._path = project.path()

    def run(self, *arguments: str) -> str:
        done = subprocess.run(["java", "-cp", self._path, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"java {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


def fill(home: Path) -> Path:
    """Fill a broker with clients of three libraries, stop it, and return its log directory."""
    data = home / "data"
    settings = {"log.dirs": str(data), "log.cleaner.backoff.ms": "50", "log.cleaner.min.cleanable.ratio": "0.01"}
    compact = {"cleanup.policy": "compact", "internal.segment.bytes": "60000", "file.delete.delay.ms": "0"}
    plain = {"internal.segment.bytes": "100000"}
    with EmbeddedBroker(home, settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [f"{client.name}.{codec}" for client in LIBRARIES for codec in CODECS]
        topics = [NewTopic(name, 1, 1, config=plain) for name in names]
        topics += [NewTopic(f"{name}.compact", 1, 1, config=compact) for name in names]
        topics.append(NewTopic(IN_TRANSACTIONS, 1, 1, config={"internal.segment.bytes": "10000"}))
        for future in admin.create_topics(topics).values():
            future.result(20)
        for client, codec in itertools.product(LIBRARIES, CODECS):
            for each in range(8):
                sent = [
                    Message(
                        os.urandom(200).hex().encode(),
                        b"key %d" % (os.urandom(1)[0] % KEYS),
                        (("header", b"%d" % each),) * (number % 3),
                        int(time.time() * 1000) - number,
                    )
                    for number in range(80)
                ]
                for suffix in ("", ".compact"):
                    client.produce(broker.bootstrap, f"{client.name}.{codec}{suffix}", sent, codec=codec)
        for client in LIBRARIES:
            client.consume(broker.bootstrap, f"{client.name}.none", 640, group=f"{GROUP}-{client.name}")
        write_transactions(broker.bootstrap)
        for name in names:
            records_once_compacted(data / f"{name}.compact-0", KEYS)
    return data


def write_transactions(bootstrap: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID, "linger.ms": 0}
    )
    producer.init_transactions(30)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.produce(IN_TRANSACTIONS, os.urandom(400).hex().encode(), partition=0)
        producer.flush(30)
        if number % 3 == 0:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def segments(data: Path) -> list[Path]:
    return sorted(path for path in data.glob("*-*/*.log") if path.stat().st_size)


def compare_records(java: Java, files: list[Path], found: list[str]) -> int:
    """Compare the rows that both read in these files, note differences in `found`, and return how many Kafka reads."""
    theirs: list[list[object]] = []
    for line in java.run("Segments", "read", *map(str, files)).splitlines():
        row = json.loads(line)
        if row["kind"] == "file":
            theirs.append([])
        else:
            theirs[-1].append(row)
    for path, rows in zip(files, theirs, strict=True):
        ours = list(segment_rows(path))
        if rows != ours:
            differing = next(pair for pair in itertools.zip_longest(rows, ours) if pair[0] != pair[1])
            found.append(f"{path}: Kafka reads {differing[0]}, kraftpy {differing[1]}")
    return sum(map(len, theirs))


def dump(java: Java, files: list[Path], found: list[str]) -> None:
    """Kafka's own look at segments and indexes."""
    logs = ",".join(map(str, files))
    indexes = [path.with_suffix(suffix) for path in files for suffix in (".index", ".timeindex")]
    there = ",".join(str(path) for path in indexes if path.exists() and path.stat().st_size)
    for options in (
        ["--deep-iteration", "--print-data-log", "--files", logs],
        ["--deep-iteration", "--files", there],
        ["--index-sanity-check", "--files", there],
        ["--verify-index-only", "--files", there],
    ):
        printed = java.run(DUMP, *options)
        bad = [line for line in printed.splitlines() if any(word in line.lower() for word in COMPLAINTS)]
        found += [f"DumpLogSegments {' '.join(options[:-2])}: {line}" for line in bad]
        print(f"DumpLogSegments {' '.join(options[:-2])}: {len(printed.splitlines())} lines, {len(bad)} complaints")


def dump_groups(java: Java, data: Path, found: list[str]) -> None:
    files = ",".join(str(path) for path in segments(data) if path.parent.name.startswith("__consumer_offsets-"))
    printed = java.run(DUMP, "--offsets-decoder", "--deep-iteration", "--files", files)
    groups = [f"{GROUP}-{client.name}" for client in LIBRARIES]
    missing = [group for group in groups if f'"group":"{group}"' not in printed]
    found += [f"DumpLogSegments --offsets-decoder: no group {group}" for group in missing]
    print(f"DumpLogSegments --offsets-decoder: {len(printed.splitlines())} lines, {len(missing)} groups missing")


def dump_transactions(java: Java, data: Path, found: list[str]) -> None:
    """Kafka's own look at what is kept of transactions."""
    states = ",".join(str(path) for path in segments(data) if path.parent.name.startswith("__transaction_state-"))
    printed = java.run(DUMP, "--transaction-log-decoder", "--deep-iteration", "--files", states)
    if f'"transactionalId":"{TRANSACTIONAL_ID}"' not in printed:
        found.append(f"DumpLogSegments --transaction-log-decoder: no {TRANSACTIONAL_ID}")
    partition = data / f"{IN_TRANSACTIONS}-0"
    indexes = sorted(partition.glob("*.txnindex"))
    lines = java.run(DUMP, "--files", ",".join(map(str, indexes))).splitlines() if indexes else []
    aborted = sum("firstOffset" in line for line in lines)
    expected = sum(number % 3 != 0 for number in range(TRANSACTIONS))
    if aborted != expected:
        found.append(f"DumpLogSegments: {aborted} aborted transactions in {len(indexes)} indexes, not {expected}")
    snapshots = sorted(partition.glob("*.snapshot"))
    lines = java.run(DUMP, "--files", ",".join(map(str, snapshots))).splitlines()
    producers = sum("producerId" in line for line in lines)
    if producers != len(snapshots):
        found.append(f"DumpLogSegments: {producers} producers in {len(snapshots)} snapshots of one producer each")
    print(f"DumpLogSegments: {aborted} aborted transactions, {producers} producers in {len(snapshots)} snapshots")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make the test data anew")
    chosen = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kraftpy-java-") as scratch:
        java = Java(Path(scratch))
        written = HERE / "java_segments" if chosen.write else Path(scratch) / "written"
        java.run("Segments", "write", str(written))
        files = sorted(written.glob("*/*.log"))
        rows = compare_records(java, files, found)
        print(f"written by Kafka: {len(files)} segments, {rows} batches and records")
        if not chosen.write:
            data = fill(Path(scratch) / "broker")
            files = segments(data)
            rows = compare_records(java, files, found)
            print(f"written by kraftpy: {len(files)} segments, {rows} batches and records")
            dump(java, files, found)
            dump_groups(java, data, found)
            dump_transactions(java, data, found)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
