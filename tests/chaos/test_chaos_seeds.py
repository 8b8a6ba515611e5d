"""Seeds: the list of those that once failed, faults in files, and the commands that repeat a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import seeds
from chaos.__main__ import main
from chaos.checkers.verdict import Verdict
from chaos.drawing import draw
from chaos.ledger import version
from chaos.nemesis import Kind, Plan, schedule
from chaos.seeds import Task, fresh_seeds, known_seeds, read_faults, seeds_having, write_faults, wrong
from chaos.simulation import Outcome

ROOT = Path(__file__).parents[2]


def test_known_seeds_say_what_they_found_and_none_is_twice_there() -> None:
    known = known_seeds()
    assert known
    for each in known:
        assert each.keys() == {"seed", "minutes", "found", "since"}
        assert each["found"]
        assert 0 < each["minutes"] <= 5
    assert len({(each["seed"], each["minutes"]) for each in known}) == len(known)


def test_fresh_seeds_are_others_for_each_version_and_none_of_the_known() -> None:
    one, other = fresh_seeds(50, version()), fresh_seeds(50, "0123456789ab")
    assert len(one) == 50
    assert one == fresh_seeds(50, version())
    assert one != other
    assert not {each["seed"] for each in known_seeds()}.intersection(one)


def test_seeds_of_some_workloads_are_those_that_draw_them() -> None:
    some = seeds_having(lambda drawn: not {"transactions", "queue"}.isdisjoint(drawn.workloads), 1, 40)
    assert len(some) == 40
    assert some == [seed for seed in range(1, 301) if {"transactions", "queue"} & {*draw(seed).workloads}][:40]
    result = CliRunner().invoke(main, ["sim", "--having", "nonsense"])
    assert result.exit_code == 2
    assert "transactions, queue" in result.output


def test_seeds_of_some_brokers_are_those_that_draw_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Task] = []
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(seeds, "simulate", lambda tasks, *_, **__: asked.extend(tasks))
    CliRunner().invoke(main, ["sim", "--brokers", "3", "--having", "queue", "--seeds", "20"], catch_exceptions=False)
    drawn = [draw(task.seed) for task in asked]
    assert len(drawn) == 20
    assert {each.brokers for each in drawn} == {3}
    assert all("queue" in each.workloads for each in drawn)
    result = CliRunner().invoke(main, ["sim", "--brokers", "3", "--known"])
    assert result.exit_code == 2
    assert "for --first and --seeds" in result.output


def test_faults_survive_their_file(tmp_path: Path) -> None:
    faults = schedule(7, Plan(kinds=tuple(Kind), duration_ms=300_000))
    assert any(fault.kind is Kind.SEVERAL for fault in faults)
    write_faults(tmp_path / "faults.jsonl", faults)
    assert list(read_faults(tmp_path / "faults.jsonl")) == faults


def test_what_is_wrong_has_names_without_what_differs_from_run_to_run() -> None:
    log = Verdict("log")
    log.counts.update({"lost-write": 3, "unseen": 1})
    problems = ["node2 ended: KeyError(7)", "node1 ended: OSError(28)", "a client hangs"]
    outcome = Outcome(5, verdicts=[Verdict("groups"), log], problems=problems)
    assert wrong(outcome) == ["lost-write", "unseen", "nodeN ended", "a client hangs"]


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (None, "python -m chaos sim --seed 5 --minutes 0.5"),
        ((), "python -m chaos sim --seed 5 --minutes 0.5 --faults seed-5.faults.jsonl"),
    ],
)
def test_a_task_says_what_repeats_it(faults: tuple[()] | None, expected: str) -> None:
    assert Task(seed=5, minutes=0.5, faults=faults).command == expected


def test_a_seed_is_told_as_a_story_with_faults_from_a_file(tmp_path: Path) -> None:
    faults = [fault for fault in schedule(3, Plan(kinds=(Kind.KILL,), duration_ms=30_000)) if fault.at_ms < 12_000]
    write_faults(tmp_path / "faults.jsonl", faults)
    command = [sys.executable, "-m", "chaos", "sim", "--seed", "3", "--minutes", "0.4"]
    done = subprocess.run(
        [*command, "--faults", "faults.jsonl", "--trace"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nemesis   fault" in done.stdout
    assert "is not running" in done.stdout
    assert "sends: " in done.stdout
    ops = [json.loads(line) for line in (tmp_path / "seed-3.jsonl").read_text(encoding="utf-8").splitlines()]
    begun = [op["value"]["id"] for op in ops if op["process"] == "nemesis" and op["f"] == "fault"]
    assert begun == [fault.id for fault in faults]


def test_the_command_of_the_checkout_runs_with_the_python_beside_it(tmp_path: Path) -> None:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    python = bin_directory / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (bin_directory / "kraftpy-chaos").symlink_to(ROOT / "chaos" / "kraftpy-chaos")
    done = subprocess.run(
        [str(bin_directory / "kraftpy-chaos"), "plan", "--seed", "7", "--minutes", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = schedule(7, Plan(kinds=tuple(Kind), duration_ms=60_000))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [fault.as_value() for fault in expected]


def test_make_puts_the_command_beside_python() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "ln -sf ../../chaos/kraftpy-chaos $(BIN)/kraftpy-chaos" in makefile
    assert os.access(ROOT / "chaos" / "kraftpy-chaos", os.X_OK)
