"""kafka-python's own integration suite against our server: `make compat`.

Its sdist comes from PyPI; nothing of it is kept here. It takes a broker's address from the environment (KAFKA_URI) and
the Kafka version to expect (KAFKA_VERSION). Tests that do not pass are in `kafka_python_exceptions.toml`, each with its
reason; a test that does not pass and is not there, or is there and passes, makes this fail.

Nothing is tried again, with one exception, which the summary tells: the tests under `client_race` there, and only when
they failed because they received nothing at all. Any other failure of theirs, a part that is missing included, counts.

The sdist leaves out two files the suite imports: an empty `test/__init__.py`, and `test/service.py`, which starts the
processes of a Kafka of its own. `_SERVICE` below takes its place: the broker is ours and runs already.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from kraftpy.config.broker import AUTHORIZER
from kraftpy.testing.cluster import EmbeddedBroker

HERE = Path(__file__).parent
EXCEPTIONS = HERE / "kafka_python_exceptions.toml"
SUITES = ("test_admin_integration.py", "test_consumer_integration.py", "test_producer_integration.py")
SECURE_SUITES = ("test_sasl_integration.py", "test_ssl_integration.py")
"""Those that start brokers of their own: `kafka_python_brokers` starts ours."""
KAFKA_VERSION = "4.3.0"
TEST_TIMEOUT_SECONDS = 60
RACE_TRIES = 3
RECEIVED_NOTHING = "assert set() == {"
SETTINGS = {
    # The settings with which the suite's own fixture would have started Kafka, from its kafka.properties.
    "node.id": "0",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:0",  # the port that was bound
    "num.partitions": "4",
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "true",
    "authorizer.class.name": AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
_SERVICE = '''
"""Stands in for the file of this name: the broker is started and stopped by somebody else."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    """A service that the suite would start by itself."""

    def __init__(self, *arguments, **options):
        raise RuntimeError("this run uses the broker it was given and starts no other")
'''


def fetch(directory: Path) -> Path:
    """The unpacked sdist of the version that is installed, completed so that it can be imported."""
    version = importlib.metadata.version("kafka-python")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--dest", directory, f"kafka-python=={version}"], check=True)
    archive = next(directory.glob("kafka_python-*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    sources = directory / f"kafka_python-{version}"
    (sources / "test" / "__init__.py").touch()  # without it, `test` is the standard library's
    (sources / "test" / "service.py").write_text(_SERVICE)
    return sources


def run(sources: Path, bootstrap: str | None, arguments: list[str]) -> dict[str, tuple[str, str]]:
    """(passed, failed or skipped; why it failed) of each test. `arguments` go to pytest.

    Without `bootstrap`, the tests have brokers of their own.
    """
    report = sources / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **({} if bootstrap is None else {"KAFKA_URI": f"kafka://{bootstrap}"}),
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(sources),  # where Kafka would be installed: has to exist, is not looked into
        "PYTHONPATH": os.pathsep.join(map(str, (sources, *((HERE, HERE.parents[1]) if bootstrap is None else ())))),
    }
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["--timeout", str(TEST_TIMEOUT_SECONDS), "--timeout-method", "signal"]
    options += ["--show-capture=no", "--durations=5"]
    options += ["-p", "kafka_python_brokers"] if bootstrap is None else []
    subprocess.run([sys.executable, "-m", "pytest", *options, *arguments], cwd=sources, env=environment, check=False)
    outcomes: dict[str, tuple[str, str]] = {}
    if not report.exists():
        return outcomes
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
        problems = [child for child in case if child.tag in ("failure", "error")]
        is_skipped = any(child.tag == "skipped" for child in case)
        outcome = "failed" if problems else "skipped" if is_skipped else "passed"
        outcomes[name] = outcome, " ".join(problem.get("message") or "" for problem in problems)
    return outcomes


def _node_id(name: str) -> str:
    module, _, test = name.partition("::")
    return f"test/integration/{module}.py::{test}"


def compare(outcomes: dict[str, str], expected: dict[str, str], *, everything: bool) -> list[str]:
    """One line for each test that is not as `expected` (name -> reason, of those that do not pass) says."""
    lines = []
    for name, outcome in sorted(outcomes.items()):
        if outcome != "passed" and name not in expected:
            lines.append(f"{outcome}, and is not in {EXCEPTIONS.name}: {name}")
        if outcome == "passed" and name in expected:
            lines.append(f"passed, and is still in {EXCEPTIONS.name}: {name}")
    if everything:
        lines += [f"is in {EXCEPTIONS.name}, and was not run: {name}" for name in expected if name not in outcomes]
    return lines


def main() -> int:
    """Run the suite; 0 if exactly the listed tests do not pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.usage = "%(prog)s [-h] [arguments for pytest, such as -k NAME]"
    _, more = parser.parse_known_args()
    exceptions = tomllib.loads(EXCEPTIONS.read_text())
    expected: dict[str, str] = exceptions["does_not_pass"]
    races: dict[str, str] = exceptions["client_race"]
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(settings=SETTINGS) as broker:
        sources = fetch(Path(directory))
        found = run(sources, broker.bootstrap, [*(f"test/integration/{name}" for name in SUITES), *more])
        found |= run(sources, None, [*(f"test/integration/{name}" for name in SECURE_SUITES), *more])
        tried_again: set[str] = set()
        for _ in range(RACE_TRIES - 1):
            raced = [name for name in races if name in found and RECEIVED_NOTHING in found[name][1]]
            if raced:
                tried_again.update(raced)
                found |= run(sources, broker.bootstrap, [_node_id(name) for name in raced])
        outcomes = {name: outcome for name, (outcome, _) in found.items()}
        crashed = "Traceback" in broker.log_text
        if crashed:
            print(broker.log_text[-4000:])
    surprises = compare(outcomes, expected, everything=not more)
    for name, outcome in sorted(outcomes.items()):
        if outcome != "passed" and name in expected:
            print(f"  {outcome}: {name}: {expected[name]}")
    for line in surprises:
        print(f"  {line}")
    for name in sorted(tried_again):
        print(f"  {outcomes[name]} when tried again: {name}: {races[name]}")
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    print(f"kafka-python {importlib.metadata.version('kafka-python')}, its integration suite:", end=" ")
    print(f"{passed} passed of {len(outcomes)}; {len(outcomes) - passed} did not, {len(surprises)} without a reason")
    return 1 if surprises or crashed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
