"""docs/explanation/delivery.md: its examples run and say what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kraftpy.testing.cluster import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "delivery.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^## ([\w ]+)\n(?:(?!^## ).*\n)*?^```python\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)


def test_each_guarantee_has_an_example() -> None:
    names = [name for name, _ in EXAMPLES]
    assert names == ["At most once", "At least once", "Exactly once", "Shared among many"]
    assert len(EXAMPLES) == PAGE.count("```python")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name, _ in EXAMPLES])
def test_an_example_runs(name: str, tmp_path: Path, kraftpy_server: EmbeddedBroker) -> None:
    source = dict(EXAMPLES)[name]
    assert "assert " in source
    program = tmp_path / "program.py"
    program.write_text(source.replace("127.0.0.1:9092", kraftpy_server.bootstrap), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_the_readme_leads_to_it() -> None:
    assert "(docs/explanation/delivery.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
