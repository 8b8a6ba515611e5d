"""An undecided check is shown wherever a verdict is, and counts as passed nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from planted import done, history
from registers import Clients, Kind

from chaos import checkers, live, running, seeds, simulation
from chaos.__main__ import main
from chaos.checkers.verdict import Options, Status, Verdict, status
from chaos.history import History, Op, to_line
from chaos.ledger import Entry, append, version
from chaos.report import render
from chaos.seeds import Task, simulate, simulate_one, wrong
from chaos.story import Story

OPS = Clients(1, Kind(topics=1)).run(300)
BAD = [*done(0, "fail", "send", [["send", "x", 2]]), *done(1, "ok", "poll", [["poll", {"x": [[0, 2]]}]])]


def verdicts(ops: list[Op]) -> list[Verdict]:
    return checkers.check(History(ops), Options(most_steps=0))


def outcome(*, problems: tuple[str, ...] = ()) -> simulation.Outcome:
    return simulation.Outcome(5, ops=OPS, verdicts=verdicts(OPS), problems=list(problems))


def write(file: Path, ops: list[Op]) -> Path:
    file.write_text("".join(to_line(op) + "\n" for op in ops), encoding="utf-8")
    return file


def run(*arguments: object, expected: int) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == expected, result.output
    return result.output


def test_a_history_that_is_only_undecided_has_a_status_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path / "history.jsonl", OPS)
    out = run("check", file, "--most-steps", 0, expected=3)
    (row,) = [line for line in out.splitlines() if "metadata" in line and "│" in line]
    assert "undecided: topic-0" in row
    assert "right" not in row
    assert "topic-0: after" in out
    assert "wrong" not in out
    assert "undecided" not in run("check", file, expected=0)


def test_what_is_wrong_as_well_counts_for_more(tmp_path: Path) -> None:
    bad = history(*BAD).ops
    shifted = [Op(index=op.index + len(bad), time=op.time + len(bad), process=op.process + 10, type=op.type, f=op.f,
                  value=op.value, extra=op.extra) for op in OPS]  # fmt: skip
    file = write(tmp_path / "history.jsonl", [*bad, *shifted])
    out = run("check", file, "--most-steps", 0, expected=1)
    assert "undecided: topic-0" in out
    assert "G1a 1" in out


def test_the_page_says_so(tmp_path: Path) -> None:
    file = write(tmp_path / "history.jsonl", OPS)
    run("report", file, "--most-steps", 0, expected=3)
    page = (tmp_path / "history.html").read_text(encoding="utf-8")
    assert '<span class="verdict open">undecided</span>' in page.partition("<h2>")[0]
    assert "nothing wrong" not in page
    assert "undecided: topic-0" in page
    assert "<h2>Undecided</h2>" in page
    assert "topic-0: after" in page
    assert "<h2>Undecided</h2>" not in render(History(OPS), checkers.check(History(OPS)))


def test_a_status_says_the_worst() -> None:
    undecided, right = verdicts(OPS), checkers.check(History(OPS))
    assert status(right) is Status.RIGHT
    assert status(undecided) is Status.UNDECIDED
    assert status(undecided, ["node2 ended"]) is Status.WRONG
    assert status(right, ["node2 ended"]) is Status.WRONG
    assert status([*undecided, *checkers.check(history(*BAD))]) is Status.WRONG


def test_a_seed_that_is_undecided_is_not_good_and_is_named() -> None:
    assert not outcome().is_good
    assert wrong(outcome()) == ["undecided: metadata"]
    assert wrong(outcome(problems=("a client hangs",))) == ["a client hangs", "undecided: metadata"]


def test_one_seed_that_is_undecided_is_shown_and_not_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seeds, "_console", seeds.Console(highlight=False, soft_wrap=True, width=120))
    runs: list[Any] = []

    def simulated(seed: int, minutes: float, **options: Any) -> simulation.Outcome:
        runs.append(options)
        return outcome()

    monkeypatch.setattr(simulation, "run", simulated)
    assert simulate_one(Task(seed=5, minutes=0.5), shrink_runs=10) is Status.UNDECIDED
    assert len(runs) == 1
    assert "undecided: topic-0" in capsys.readouterr().out


def test_a_campaign_with_a_seed_that_is_undecided_is_no_approval(tmp_path: Path) -> None:
    def came_to(*words: str) -> Status:
        file = tmp_path / f"{len(words)}.jsonl"
        for seed, verdict in enumerate(((), words), 1):
            entry = Entry(
                seed=seed,
                version=version(),
                minutes=1.0,
                verdict=verdict,
                workloads=("log",),
                operations=1,
                virtual_seconds=1.0,
                cpu_seconds=1.0,
            )
            append(file, entry)
        return simulate([Task(seed=1, minutes=1.0), Task(seed=2, minutes=1.0)], 1, ledger_file=file)

    assert came_to() is Status.RIGHT
    assert came_to("undecided: metadata") is Status.UNDECIDED
    assert came_to("lost-write", "undecided: metadata") is Status.WRONG


def test_a_seed_of_many_says_what_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "run", lambda seed, minutes, **options: outcome())
    finished = seeds._run((Task(seed=5, minutes=0.5), "a version"))
    assert finished.entry.verdict == ("undecided: metadata",)
    assert "undecided: topic-0: after" in finished.line
    assert "python -m chaos sim --seed 5" in finished.line


def test_a_story_tells_where_it_was_given_up() -> None:
    told = [event for event in Story().lines(OPS, verdicts(OPS)) if event.who == "undecided"]
    assert [event.what.partition(":")[0] for event in told] == ["topic-0"]


@pytest.mark.parametrize(
    ("problems", "expected"), [((), Status.UNDECIDED), (("node 2 ended",), Status.WRONG)], ids=["undecided", "wrong"]
)
def test_a_run_of_real_processes_that_is_undecided_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: tuple[str, ...], expected: Status
) -> None:
    came_to = live.Outcome(history=History(OPS), verdicts=verdicts(OPS), problems=list(problems))
    monkeypatch.setattr(live, "run", lambda world, settings: came_to)
    monkeypatch.setitem(running.WORLDS, "docker", lambda *_: SimpleNamespace())
    result = CliRunner().invoke(main, ["run", "--world", "docker", "--faults", "1", "--out", str(tmp_path)])
    assert result.exit_code == expected, result.output
    assert not came_to.is_good


def test_the_evidence_is_data(tmp_path: Path) -> None:
    (metadata,) = [verdict for verdict in verdicts(OPS) if verdict.undecided]
    (undecided,) = metadata.undecided
    assert json.loads(json.dumps(undecided.evidence))["steps"] > 0
    assert undecided.ops[0] in {op.index for op in OPS}
