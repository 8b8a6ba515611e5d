"""A project from its making to its second run, as its README says, by Spark's own declarative pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kraftpy.testing.cluster import EmbeddedBroker


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_project_runs_and_goes_on(tmp_path: Path, kraftpy_server: EmbeddedBroker) -> None:
    temporary = tmp_path / "temporary"  # where Java leaves files that have no other place
    temporary.mkdir()
    environment = {
        **os.environ,
        "KRAFTPY_BOOTSTRAP_SERVERS": kraftpy_server.bootstrap,
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
    }

    def kraftpy(*words: str, given: bytes | None = None, place: Path = tmp_path) -> str:
        command = [sys.executable, "-m", "kraftpy", *words]
        done = subprocess.run(
            command, cwd=place, env=environment, input=given, capture_output=True, timeout=400, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        assert b" ERROR " not in done.stderr, done.stderr.decode()  # nor what Spark says of its own session's end
        return done.stdout.decode()

    def counts() -> list[tuple[str, str]]:
        lines = kraftpy("consume", "hourly-counts").splitlines()
        values = [json.loads(json.loads(line)["value"]) for line in lines]
        return [(value["place"], value["start"]) for value in values]

    kraftpy("pipeline", "init", "hourly", "--source-topic", "hourly-events", "--target-topic", "hourly-counts")
    project = tmp_path / "hourly"
    for topic in ("hourly-events", "hourly-counts"):
        kraftpy("topic", "create", topic, "--partitions", "2")
    sample = (project / "sample.jsonl").read_bytes()
    kraftpy("produce", "hourly-events", given=sample)
    kraftpy("pipeline", "dry-run", place=project)
    assert not (project / "tables").exists() or not list((project / "tables").glob("*/*.parquet"))
    kraftpy("pipeline", "run", place=project)
    rows = {name: pq.read_table(project / "tables" / name).num_rows for name in ("bronze", "silver", "quarantine")}
    assert rows == {"bronze": 242, "silver": 240, "quarantine": 2}
    first = counts()
    assert len(first) == len(set(first)) > 0

    later = sample.replace(b"2026-01-01T", b"2026-01-02T")
    kraftpy("produce", "hourly-events", given=later)
    kraftpy("pipeline", "run", "--project", str(project))
    assert pq.read_table(project / "tables" / "bronze").num_rows == 484
    second = counts()
    assert second[: len(first)] != second
    assert len(second) == len(set(second)) > len(first)
    lags = kraftpy("group", "describe", "hourly").splitlines()
    assert {json.loads(line)["lag"] for line in lags} == {0}
    assert list(temporary.iterdir()) == []
