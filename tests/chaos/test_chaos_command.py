"""`python -m chaos`: exit status, tables, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from planted import done, history

from chaos.__main__ import main
from chaos.history import Op, read, to_line
from chaos.reference.samples import SAMPLES


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return result.output


def write(file: Path, ops: list[Op]) -> Path:
    file.write_text("".join(to_line(op) + "\n" for op in ops), encoding="utf-8")
    return file


def test_a_clean_history_has_status_0(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert "lines in" in run("sample", file, "--lines", 2000, "--workload", "transactions", "--seed", 7)
    ops = read(file.read_text(encoding="utf-8").splitlines(keepends=True))
    assert len(ops) >= 2000
    out = run("check", file)
    assert "log" in out
    assert "right" in out
    assert "wrong" not in out


@pytest.mark.parametrize("workload", SAMPLES)
def test_every_workload_has_a_sample(tmp_path: Path, workload: str) -> None:
    file = tmp_path / "history.jsonl"
    run("sample", file, "--lines", 600, "--workload", workload)
    assert "wrong" not in run("check", file)


def test_a_history_with_an_anomaly_has_status_1_and_shows_the_evidence(tmp_path: Path) -> None:
    lines = done(0, "fail", "send", [["send", "x", 2]]) + done(1, "ok", "poll", [["poll", {"x": [[0, 2]]}]])
    file = write(tmp_path / "history.jsonl", history(*lines).ops)
    out = run("check", file, status=1)
    assert "G1a 1" in out
    assert '"type":"fail","f":"send","value":[["send","x",2]]' in out
    assert "right" in run("check", file, "--allow", "G1a")


def test_a_history_can_go_to_jepsen_and_come_back(tmp_path: Path) -> None:
    lines = done(0, "fail", "send", [["send", "x", 2]]) + done(1, "ok", "poll", [["poll", {"x": [[0, 2]]}]])
    file = write(tmp_path / "history.jsonl", history(*lines).ops)
    text = run("edn", file, "--numbered").replace("0 is x\n", "")
    (tmp_path / "history.edn").write_text(text, encoding="utf-8")
    assert "[:poll {0 [[0 2]]}]" in text
    assert "G1a 1" in run("check", tmp_path / "history.edn", status=1)


def test_what_is_no_history_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert "No such file" in run("check", file, status=1)
    file.write_text('{"index":0}\n', encoding="utf-8")
    assert "no operation" in run("check", file, status=1)
