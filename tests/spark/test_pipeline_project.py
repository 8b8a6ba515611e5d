"""Projects: what `kraftpy pipeline init` writes, and what it and `run` refuse. No Spark is started here."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.pipeline.project import SPEC, ProjectError, check, create

_ADDRESSES = {"bootstrap_servers": "one:9092,two:9092", "source_topic": "flights", "target_topic": "delays"}


def test_a_project_names_its_place_its_topics_and_its_broker(tmp_path: Path) -> None:
    written = create("hourly", tmp_path, **_ADDRESSES)
    place = tmp_path / "hourly"
    assert {each.relative_to(place).as_posix() for each in written} == {
        "README.md",
        "conf/log4j2.properties",
        "conf/spark-defaults.conf",
        "sample.jsonl",
        "spark-pipeline.yml",
        "transformations/counts.sql",
        "transformations/publish.py",
        "transformations/tables.py",
    }
    spec = yaml.safe_load((place / "spark-pipeline.yml").read_text())
    assert spec["name"] == "hourly"
    assert spec["storage"] == f"file://{place}/storage"
    assert spec["configuration"]["spark.kraftpy.bootstrap.servers"] == "one:9092,two:9092"
    assert spec["configuration"]["spark.kraftpy.source.topic"] == "flights"
    assert spec["configuration"]["spark.kraftpy.target.topic"] == "delays"
    for source in (place / "transformations").glob("*.py"):
        ast.parse(source.read_text())
    for each in written:
        assert "@" not in each.read_text().replace("@dp.", ""), each
    check(place)


def test_a_project_of_other_transformations(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "rows.sql").write_text("-- from @source_topic@")
    (mine / "deep" / "more.sql").write_text("")
    place = tmp_path / "hourly"
    written = create("hourly", tmp_path, **_ADDRESSES, transformations=mine)
    assert {each.relative_to(place).as_posix() for each in written} == {
        "conf/log4j2.properties",
        "conf/spark-defaults.conf",
        "spark-pipeline.yml",
        "transformations/deep/more.sql",
        "transformations/rows.sql",
    }
    assert (place / "transformations" / "rows.sql").read_text() == "-- from flights"
    check(place)


@pytest.mark.parametrize("name", ["", "1st", "a b", "../up", "a/b", "é"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProjectError, match="not a project name"):
        create(name, tmp_path, **_ADDRESSES)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hourly").mkdir()
    with pytest.raises(ProjectError, match="already exists"):
        create("hourly", tmp_path, **_ADDRESSES)
    assert list((tmp_path / "hourly").iterdir()) == []


def test_a_place_that_settings_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="space"):
        create("hourly", tmp_path / "my projects", **_ADDRESSES)


def test_a_project_that_was_moved_says_what_to_change(tmp_path: Path) -> None:
    create("hourly", tmp_path, **_ADDRESSES)
    (tmp_path / "hourly").rename(tmp_path / "daily")
    with pytest.raises(ProjectError, match="was the project moved"):
        check(tmp_path / "daily")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_project_that_is_no_utf_8_says_so(tmp_path: Path, encoding: str) -> None:
    (tmp_path / SPEC).write_text("storage: é", encoding=encoding)
    with pytest.raises(ProjectError, match=f"^{tmp_path / SPEC} is (encoded in UTF-16|not UTF-8)"):
        check(tmp_path)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(cli, ["pipeline", "init", "hourly", "-b", "here:1"], catch_exceptions=False)
    assert made.exit_code == 0
    assert "wrote hourly/spark-pipeline.yml\n" in made.output
    again = CliRunner().invoke(cli, ["pipeline", "init", "hourly"], catch_exceptions=False)
    assert again.exit_code == 1
    assert "already exists" in again.output
    for command in ("run", "dry-run"):
        nowhere = CliRunner().invoke(cli, ["pipeline", command], catch_exceptions=False)
        assert nowhere.exit_code == 1
        assert "kraftpy pipeline init NAME creates one" in nowhere.output


def test_a_port_that_spark_cannot_do_without_is_named_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create("hourly", tmp_path, **_ADDRESSES)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("kraftpy.pipeline.run._PORT", port)
        result = CliRunner().invoke(
            cli, ["pipeline", "run", "--project", str(tmp_path / "hourly")], catch_exceptions=False
        )
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert f"cannot listen on port {port}: Address already in use. Spark's pipelines use this port" in line


@pytest.mark.parametrize("command", ["run", "dry-run"])
def test_a_master_is_passed_on(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's program takes it as a remote, and starts a server with it only in the mode "connect"."""
    create("hourly", tmp_path, **_ADDRESSES)
    home, told = tmp_path / "home", tmp_path / "told"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "spark-pipelines"
    program.write_text(f'#!/bin/sh\necho "$SPARK_API_MODE:$@" >>{told}\n')
    program.chmod(0o755)
    monkeypatch.setattr("kraftpy.pipeline.run.spark_home", lambda: home)
    monkeypatch.setattr("kraftpy.pipeline.run._PORT", 0)
    monkeypatch.delenv("SPARK_API_MODE", raising=False)
    project = ["--project", str(tmp_path / "hourly")]
    for more in ([], ["--master", "spark://master:7077"]):
        result = CliRunner().invoke(cli, ["pipeline", command, *project, *more], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert told.read_text().splitlines() == [f":{command}", f"connect:{command} --remote spark://master:7077"]
