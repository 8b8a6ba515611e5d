"""kafka-python's own integration suite against our server: `make compat`.

Its sdist comes from PyPI; nothing of it is kept here. It takes a broker's address from the environment (KAFKA_URI) and the
Kafka version to expect (KAFKA_VERSION). What does not pass is in `kafka_python_exceptions.toml`, each with its reason; a test that
fails and is not there, or is there and passes, makes this fail.
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

from kraftpy.testing.cluster import EmbeddedBroker

HERE = Path(__file__).parent
EXCEPTIONS = HERE / "kafka_python_exceptions.toml"
SUITES = ("test_admin_integration.py", "test_consumer_integration.py", "test_producer_integration.py")
KAFKA_VERSION = "4.0.0"
SETTINGS = {
    # What the suite's own fixture would have started Kafka with.
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "auto.create.topics.enable": "true",
}


def fetch(directory: Path) -> Path:
    """The unpacked sdist of the version that is installed."""
    version = importlib.metadata.version("kafka-python")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", directory]
        + [f"kafka-python=={version}"],
        check=True,
    )
    archive = next(directory.glob("kafka_python-*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    sources = directory / f"kafka_python-{version}"
    (sources / "test" / "__init__.py").touch()  # not in the sdist; without it, `test` is the standard library's
    return sources


def run(sources: Path, bootstrap: str, arguments: list[str]) -> dict[str, str]:
    """The outcome of each test: passed, failed or skipped."""
    report = sources / "report.xml"
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "PYTHONPATH": str(sources),
    }
    tests = [f"test/integration/{name}" for name in SUITES]
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=120", f"--junitxml={report}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests, *arguments], cwd=sources, env=environment, check=False
    )
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcomes[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return outcomes


def main() -> int:
    """Run the suite; 0 if exactly the listed tests do not pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, such as -k NAME")
    arguments = parser.parse_args()
    expected: dict[str, str] = tomllib.loads(EXCEPTIONS.read_text())["fails"]
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(settings=SETTINGS) as broker:
        outcomes = run(fetch(Path(directory)), broker.bootstrap, arguments.pytest)
        crashed = "Traceback" in broker.log_text
        if crashed:
            print(broker.log_text[-4000:])
    counts = {kind: sum(outcome == kind for outcome in outcomes.values()) for kind in ("passed", "failed", "skipped")}
    print(f"kafka-python {importlib.metadata.version('kafka-python')} integration suite: {counts}")
    surprises = sorted(name for name, outcome in outcomes.items() if outcome == "failed" and name not in expected)
    mended = sorted(name for name, outcome in outcomes.items() if outcome == "passed" and name in expected)
    for name in surprises:
        print(f"  fails, and is not in {EXCEPTIONS.name}: {name}")
    for name in mended:
        print(f"  passes, and is still in {EXCEPTIONS.name}: {name}")
    return 1 if surprises or mended or crashed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
