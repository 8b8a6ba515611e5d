"""Apache Kafka's own integration tests, unmodified, against our server: `make compat-junit`.

    python tests/compat/junit_suite.py                                  all of PACKAGES
    python tests/compat/junit_suite.py --package org.apache.kafka.tools
    python tests/compat/junit_suite.py --class GetOffsetShellTest --method testTopicNameArg
    python tests/compat/junit_suite.py --class GetOffsetShellTest --kafka   the same against Kafka itself

Needs a JDK, Maven and a repository that has Apache Kafka; the tests of GSSAPI need kraftpy's extra `kerberos`. The
tests come from Kafka's test jars. Those run that get a cluster by `@ClusterTest`, `KafkaClusterTestKit` or
`QuorumTestHarness`: classes of `junit/src/standins` stand in the class path before Kafka's and start processes of
`kraftpy server` in place of brokers inside the JVM. Each test class has a JVM of its own; `--jobs` run at a time, by
default as many as have cores and memory.

`junit/cannot_pass.toml` names the tests that cannot pass, with reasons. The exit status is 1 if another one does not
pass, if one of those passes, if a node logs a traceback, or if a JVM ends before its class is done. Reports, and the
logs of nodes that tell of errors, are left in build/junit/. `--record` keeps the counts in `junit/runs.tsv` and
`junit/README.md`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from compat.junit_classes import cluster_tests  # noqa: E402
from compat.junit_runs import README, RUNS, Run, read_runs, table_of, with_table, write_runs  # noqa: E402
from compat.junit_table import TABLE, Outcome, Verdict, judge, read_outcomes, read_table  # noqa: E402
from compat.maven import JavaProject  # noqa: E402

BUILD = HERE.parents[1] / "build" / "junit"
JUNIT = HERE / "junit"
PACKAGES = (
    "org.apache.kafka.tools",
    "org.apache.kafka.clients",
    "org.apache.kafka.server",
    "kafka.server",
    "kafka.api",
    "org.apache.kafka.streams.integration",
)
BYTES_PER_JOB = 2 << 30
"""The memory of a JVM and of the nodes that it starts."""
TEST_SECONDS = 120
CLASS_SECONDS = 7200
FIRST_PORT, PORTS_PER_JOB = 20000, 1000
"""Below the ports that the system picks for outgoing connections."""
JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",  # Kafka's KDC tells the JVM of its realm
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options of a run."""

    with_kafka: bool
    roles: str
    method: str
    test_seconds: int
    first_port: int = FIRST_PORT
    first_slot: int = 0
    """The first thousand of ports that the run uses, counted from `first_port`."""


class Runner:
    """Runs test classes, each in a JVM."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        project = JavaProject(BUILD, JUNIT / "pom.xml")
        listener = project.compile(sorted((JUNIT / "src" / "listener").rglob("*.java")), "listener")
        services = "META-INF/services"
        shutil.copytree(JUNIT / "src" / "listener" / services, listener / services, dirs_exist_ok=True)
        standins = project.compile(sorted((JUNIT / "src" / "standins").rglob("*.java")), "standins")
        self.jars = project.jars
        self._path = project.path(listener) if chosen.with_kafka else project.path(standins, listener)
        self._free_slots = list(range(chosen.first_slot, 100))
        self._lock = threading.Lock()

    def run(self, name: str) -> list[Outcome]:
        """Run one class and return the outcomes of its tests."""
        directory = BUILD / ("kafka" if self._chosen.with_kafka else "kraftpy") / name
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "tmp").mkdir(parents=True)
        outcomes = directory / "outcomes.jsonl"
        with self._lock:
            slot = self._free_slots.pop(0)
        try:
            with (directory / "out.txt").open("wb") as out, (directory / "err.txt").open("wb") as err:
                command = self._command(name, directory, outcomes, slot)
                trouble = _wait(subprocess.Popen(command, cwd=directory, stdout=out, stderr=err, env=_environment()))
        finally:
            with self._lock:
                self._free_slots.insert(0, slot)
            shutil.rmtree(directory / "tmp", ignore_errors=True)
        return read_outcomes(name, outcomes.read_text() if outcomes.exists() else "", trouble)

    def _command(self, name: str, directory: Path, outcomes: Path, slot: int) -> list[str]:
        first_port = self._chosen.first_port + slot % 12 * PORTS_PER_JOB
        seconds = f"{self._chosen.test_seconds}s"
        method = ["--select-method", f"{name}#{self._chosen.method}"]
        properties = {
            "java.io.tmpdir": directory / "tmp",
            "log4j2.configurationFile": JUNIT / "log4j2.yaml",
            "kraftpy.python": sys.executable,
            "kraftpy.ports": f"{first_port}-{first_port + PORTS_PER_JOB - 1}",
            "kraftpy.roles": self._chosen.roles,
            "kraftpy.logs": directory / "logs",
            "kraftpy.outcomes": outcomes,
        }
        return [
            "java",
            *JVM,
            *(f"-D{key}={value}" for key, value in properties.items()),
            "-cp",
            self._path,
            "org.junit.platform.console.ConsoleLauncher",
            "execute",
            "--details=none",
            "--disable-banner",
            "--disable-ansi-colors",
            f"--reports-dir={directory}",
            f"--config=junit.jupiter.execution.timeout.default={seconds}",
            "--config=junit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD",
            *(method if self._chosen.method else ["--select-class", name]),
        ]


def _environment() -> dict[str, str]:
    """This process's own, but nodes may write bytecode: each of the thousands would compile the whole package again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of a JVM; return what went wrong with the JVM itself, if anything did."""
    try:
        status = process.wait(CLASS_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return f"not done after {CLASS_SECONDS} s"
    except BaseException:
        process.terminate()
        process.wait()
        raise
    is_usual = status in (0, 1)  # all passed; some failed, or a test has ended the JVM (`read_outcomes`)
    return "" if is_usual else f"the JVM ended with status {status}"


def jobs_that_fit() -> int:
    """Return how many JVMs have a core and memory each."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    return max(1, min(os.cpu_count() or 1, available // BYTES_PER_JOB))


def select(known: Sequence[str], classes: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Return the classes of these names (whole, or without the package) and in these packages, or in PACKAGES."""
    missing = [name for name in classes if not any(_is_named(each, name) for each in known)]
    if missing:
        raise SystemExit(f"no test class that starts a cluster: {', '.join(missing)}")
    wanted = packages or (() if classes else PACKAGES)
    return [
        each
        for each in known
        if any(_is_named(each, name) for name in classes) or any(each.startswith(f"{name}.") for name in wanted)
    ]


def _is_named(known: str, name: str) -> bool:
    return known == name or known.endswith(f".{name}")


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.outcome for outcome in outcomes if not outcome.is_left_out)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['aborted']} aborted, {seconds:.0f} s"


def describe(outcome: Outcome) -> str:
    flaky = " (Kafka calls it flaky)" if outcome.is_flaky_in_kafka else ""
    notes = "".join(f" [{note}]" for note in outcome.notes)
    return f"{outcome.outcome}: {outcome.test}{flaky}: {outcome.cause}{notes}"


def report(verdict: Verdict) -> None:
    for line in verdict.stale:
        print(f"stale: {line}")
    for outcome in verdict.crashed:
        print(f"a node logged a traceback: {outcome.test}: {'; '.join(outcome.notes)}")
    for outcome in sorted(verdict.failed, key=lambda each: each.test):
        print(describe(outcome))
    reasons = Counter(entry.reason for _, entry in verdict.explained)
    for reason, number in sorted(reasons.items()):
        print(f"  {number} cannot pass: {reason}")
    print(
        f"Kafka's own tests: {len(verdict.passed)} passed, {len(verdict.failed)} failed, "
        f"{len(verdict.explained)} skipped (in {TABLE.name}), {len(verdict.disabled)} disabled by Kafka, "
        f"{len(verdict.stale)} stale in {TABLE.name}"
    )


def record(outcomes: dict[str, list[Outcome]], known: Sequence[str]) -> None:
    """Keep the counts of whole classes that were run, of all those that are known."""
    table, before = read_table(TABLE.read_text()), read_runs(RUNS.read_text() if RUNS.exists() else "")
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    runs = {name: before.get(name) for name in select(known, (), PACKAGES)}
    runs |= {name: Run.of(found, table, day) for name, found in outcomes.items() if name in runs}
    RUNS.write_text(write_runs(runs))
    README.write_text(with_table(README.read_text(), table_of(runs, PACKAGES)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--class", dest="classes", action="append", default=[], metavar="CLASS", help="a test class")
    parser.add_argument("--package", dest="packages", action="append", default=[], help="a package with all below it")
    parser.add_argument("--method", default="", help="one test of --class, with its parameters' types in brackets")
    parser.add_argument("--jobs", type=int, default=0, help="how many JVMs at a time; by default as many as fit")
    parser.add_argument("--kafka", action="store_true", help="run against Kafka itself; the table is left aside")
    parser.add_argument("--roles", choices=("combined", "both"), default="both")
    parser.add_argument("--test-seconds", type=int, default=TEST_SECONDS, help="when a test is given up")
    parser.add_argument("--first-slot", type=int, default=0, help="leave the ports of so many jobs to other runs")
    parser.add_argument("--first-port", type=int, default=FIRST_PORT, help="where the nodes' ports begin")
    parser.add_argument("--list", action="store_true", help="print the classes, and run nothing")
    parser.add_argument("--record", action="store_true", help="keep the counts of each class; not with --method")
    asked = parser.parse_args()
    if asked.record and (asked.method or asked.kafka):
        parser.error("--record keeps runs of whole classes against kraftpy")
    chosen = Chosen(
        with_kafka=asked.kafka,
        roles=asked.roles,
        method=asked.method,
        test_seconds=asked.test_seconds,
        first_port=asked.first_port,
        first_slot=asked.first_slot,
    )
    runner = Runner(chosen)
    known = cluster_tests(runner.jars)
    classes = select(known, asked.classes, asked.packages)
    if asked.list:
        print("\n".join(classes))
        return 0
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(asked.jobs or jobs_that_fit()) as pool:
        for name, found in zip(classes, pool.map(runner.run, classes), strict=True):
            print(f"{name}: {summary(found)}", flush=True)
            outcomes += found
            if asked.record:
                record({name: found}, known)
    verdict = judge(outcomes, {} if asked.kafka else read_table(TABLE.read_text()))
    report(verdict)
    return 0 if verdict.is_good and outcomes else 1


if __name__ == "__main__":
    sys.exit(main())
