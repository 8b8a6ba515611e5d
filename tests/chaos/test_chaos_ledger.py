"""A campaign's ledger: what is in it is not run again, what is cut off of it is, and a summary counts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from chaos import ledger
from chaos.ledger import Entry

ROOT = Path(__file__).parents[2]
ENTRY = Entry(
    seed=7,
    version="v1",
    minutes=0.5,
    verdict=(),
    workloads=("log", "topics"),
    operations=1_000,
    virtual_seconds=60.0,
    cpu_seconds=3.0,
)


def shown(entries: list[Entry]) -> list[list[str]]:
    console = Console(width=200, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(ledger.summary(entries))
    lines = console.export_text().splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "ledger.jsonl"
    assert ledger.read(file) == []
    entries = [ENTRY, replace(ENTRY, seed=8, verdict=("lost-write", "nodeN ended"))]
    for entry in entries:
        ledger.append(file, entry)
    assert ledger.read(file) == entries
    assert all(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def test_a_line_that_was_cut_off_is_passed_over_and_gone_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    ledger.append(file, ENTRY)
    with file.open("a", encoding="utf-8") as opened:
        opened.write('{"seed": 8, "ver')
    assert ledger.read(file) == [ENTRY]
    ledger.append(file, replace(ENTRY, seed=9))
    assert [entry.seed for entry in ledger.read(file)] == [7, 9]


@pytest.mark.parametrize("text", ["[]\n", '{"seed": 7}\n', "seeds\n"])
def test_another_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"notes\.txt is no ledger"):
        ledger.read(file)
    assert file.read_text(encoding="utf-8") == text


def test_what_was_run_is_known_by_version_and_minutes() -> None:
    entries = [ENTRY, replace(ENTRY, version="v2", seed=8), replace(ENTRY, minutes=5.0)]
    assert ledger.done(entries, "v1") == {(7, 0.5), (7, 5.0)}
    assert ledger.done(entries, "v3") == set()


def test_the_version_is_that_of_the_sources_alone(tmp_path: Path) -> None:
    sources = {
        "chaos/__init__.py": "",
        "chaos/seeds.py": "import json\nfrom chaos import a\ndef run():\n    from chaos.worlds.inner import Inner",
        "chaos/a.py": "import chaos.b",
        "chaos/b.py": "from chaos.seeds import run",
        "chaos/worlds/__init__.py": "",
        "chaos/worlds/inner.py": "class Inner: ...",
        "chaos/worlds/real.py": "from chaos import a",
        "chaos/README.md": "",
        "kraftpy/c.py": "",
        "kraftpy/inner/d.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    def changes_it(name: str) -> bool:
        before = ledger.version(tmp_path)
        with (tmp_path / name).open("a") as file:
            file.write("\n# changed\n")
        return ledger.version(tmp_path) != before

    assert [name for name in sources if not changes_it(name)] == ["chaos/worlds/real.py", "chaos/README.md"]


_RUN = """
import runpy, sys
import chaos.__main__
command = set(sys.modules)
del sys.modules["chaos.__main__"]
sys.argv = ["chaos", "sim", "--seed", "3", "--minutes", "0.2"]
try:
    runpy.run_module("chaos", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
found = {name for name in sys.modules.keys() - command if name.partition(".")[0] == "chaos"}
print(*found, sep="\\n", file=sys.stderr)
"""


def test_a_simulation_imports_nothing_of_the_harness_that_its_version_leaves_out(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # without it the command would restart itself with it
    done = subprocess.run(
        [sys.executable, "-c", _RUN], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    names = set(done.stderr.split())
    assert "chaos.worlds.breaking" in names
    assert names <= ledger.simulated().keys()


def test_the_summary_counts_a_seed_in_each_of_its_workloads_and_once_in_all() -> None:
    entries = [
        ENTRY,
        replace(ENTRY, seed=8, verdict=("lost-write",), virtual_seconds=120.0, cpu_seconds=3.0),
        replace(ENTRY, seed=9, workloads=("groups",)),
    ]
    assert shown(entries) == [
        ["groups", "1", "0", "1,000", "1", "0.1", "20", ""],
        ["log", "2", "1", "2,000", "3", "0.1", "30", "lost-write"],
        ["topics", "2", "1", "2,000", "3", "0.1", "30", "lost-write"],
        ["all", "3", "1", "3,000", "4", "0.1", "27", "lost-write"],
    ]


@pytest.mark.timeout(280)
def test_a_campaign_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"

    def campaign(seeds: int) -> str:
        options = ["--seeds", str(seeds), "--first", "14", "--minutes", "0.2", "--jobs", "1", "--shrink", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "chaos", "sim", *options, "--ledger", str(file)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=130,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = campaign(1)
    assert "1 seeds, 0 bad" in first
    assert "were run before" not in first
    second = campaign(2)
    assert "1 of 2 seeds were run before" in second
    assert "1 seeds, 0 bad" in second
    entries = ledger.read(file)
    assert [entry.seed for entry in entries] == [14, 15]
    for entry in entries:
        assert (entry.version, entry.minutes, entry.verdict) == (ledger.version(), 0.2, ())
        assert entry.operations > 10
        assert entry.virtual_seconds > 12
        assert entry.cpu_seconds > 0
