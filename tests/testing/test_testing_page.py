"""docs/how-to/testing.md: its examples run, its tables name what there is, and each thing that there is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.faults import Faulty

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, tmp_path: Path) -> None:
    program = tmp_path / "test_example.py"
    program.write_text(EXAMPLES[number], encoding="utf-8")
    command = [sys.executable, str(program)]
    if "def test_" in EXAMPLES[number]:
        command = [sys.executable, "-m", "pytest", "-p", "kraftpy.testing.pytest_plugin", str(program)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def methods_in(heading: str) -> set[str]:
    table = PAGE[PAGE.index(heading) :].partition("\n\n")[0]
    return {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)\(", row)}


def test_its_tables_have_every_fault_that_there_is() -> None:
    def begin_faults(kind: type) -> set[str]:
        return {
            name
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and inspect.signature(method).return_annotation == "Fault"
        }

    assert methods_in("| on `Cluster`, `AsyncCluster`, `EmbeddedBroker` |") == begin_faults(Faulty)
    others = methods_in("| on `Cluster`, `AsyncCluster` |")
    assert others >= begin_faults(Cluster) - begin_faults(Faulty)
    assert all(hasattr(Cluster, name) for name in others)
    assert begin_faults(EmbeddedBroker) - begin_faults(Faulty) == {"pause"}


def test_the_readme_leads_to_it() -> None:
    assert "(docs/how-to/testing.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
