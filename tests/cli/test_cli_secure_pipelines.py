"""`--command-config` of `kraftpy load`, `audit` and `pipeline`, on its own cluster with TLS and SASL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.client import BlockingProducer, RangeReader, TopicPartition
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(240)]

ROWS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    users = {"alice": "secret of alice"}
    with Cluster(brokers=1, security="sasl_ssl", users=users, settings={"num.partitions": "2"}) as made:
        yield made


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in cluster.client_properties().items()))
    return path


def kraftpy(*arguments: str | Path, cluster: Cluster) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments), "-b", cluster.bootstrap_servers])


def fill(cluster: Cluster, topic: str) -> None:
    with BlockingProducer(**cluster.client_options()) as producer:
        producer.send_many(topic, ((None, b'{"id": "%d"}' % number) for number in range(ROWS)))


def test_a_load_and_its_audit_log_in(cluster: Cluster, config: Path, tmp_path: Path) -> None:
    fill(cluster, "loaded")
    secured = ("--command-config", config)
    load = ("load", "loaded", "--table", tmp_path / "table", "--audit-tier", "table")
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(config.read_text().replace("secret of alice", "guessed"))
    refused = kraftpy(*load, "--command-config", wrong, cluster=cluster)
    assert refused.exit_code == 1
    assert "SASL_AUTHENTICATION_FAILED" in refused.output
    assert not any((tmp_path / "table").rglob("*.parquet"))
    done = kraftpy(*load, *secured, cluster=cluster)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["records"] == ROWS
    counted = kraftpy("audit", "count", "loaded", *secured, cluster=cluster)
    assert counted.exit_code == 0, counted.output
    assert json.loads(counted.stdout)["records"] == ROWS
    books = kraftpy("audit", "books", "loaded", "--tiers", "log,table", "--summary", *secured, cluster=cluster)
    assert books.exit_code == 0, books.output
    assert [(row["tier"], row["records"]) for row in map(json.loads, books.stdout.splitlines())] == [
        ("log", ROWS),
        ("table", ROWS),
    ]
    for command in (("audit", "count", "loaded"), ("audit", "books", "loaded")):
        refused = kraftpy(*command, "--command-config", wrong, cluster=cluster)
        assert refused.exit_code == 1
        assert "SASL_AUTHENTICATION_FAILED" in refused.output


def test_a_project_names_the_file_and_does_not_copy_it(
    cluster: Cluster, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = kraftpy("pipeline", "init", "secured", "--command-config", config, cluster=cluster)
    assert made.exit_code == 0, made.output
    spec = yaml.safe_load((tmp_path / "secured" / "spark-pipeline.yml").read_text())
    assert spec["configuration"]["spark.kraftpy.command.config"] == str(config)
    for path in (tmp_path / "secured").rglob("*"):
        assert path.is_dir() or "secret of alice" not in path.read_text()


@pytest.mark.spark
@pytest.mark.long
def test_a_pipeline_logs_in(cluster: Cluster, config: Path, tmp_path: Path) -> None:
    """With the file that the project names, and with another that it is given."""
    sample = [{"id": str(n), "at": "2026-01-01T00:00:00Z", "place": "here", "amount": 1.0} for n in range(ROWS)]
    with BlockingProducer(**cluster.client_options()) as producer:
        producer.send_many("events", ((None, json.dumps(each).encode()) for each in sample))
        producer.send("counts", b"before")
    command = [sys.executable, "-m", "kraftpy", "pipeline"]
    kept = {name: value for name, value in os.environ.items() if name != "KRAFTPY_COMMAND_CONFIG"}
    elsewhere = tmp_path / "elsewhere.properties"
    init = ["init", "secured", "-b", cluster.bootstrap_servers, "--command-config", str(elsewhere)]
    elsewhere.write_bytes(config.read_bytes())
    subprocess.run([*command, *init], cwd=tmp_path, env=kept, check=True, capture_output=True, timeout=60)
    elsewhere.unlink()
    run = [*command, "run", "--project", "secured", "--command-config", str(config)]
    done = subprocess.run(run, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "secret of alice" not in done.stdout + done.stderr
    tables = list((tmp_path / "secured" / "tables").rglob("*.parquet"))
    assert any("silver" in str(path) for path in tables)
    with RangeReader(**cluster.client_options()) as reader:
        ends = reader.latest([TopicPartition("counts", number) for number in range(2)])
    assert sum(ends.values()) >= 1
