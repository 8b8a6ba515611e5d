"""`kraftpy load` against a real broker."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.client import BlockingProducer
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the catalog's SQLite connections
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    name = f"load-{secrets.token_hex(4)}"
    with BlockingProducer(bootstrap_servers=kraftpy_server.bootstrap) as producer:
        for n in range(5):
            producer.send(name, b"%d" % n)
    return name


def run(server: EmbeddedBroker, *arguments: object, status: int = 0) -> Result:
    environment = {"KRAFTPY_BOOTSTRAP_SERVERS": server.bootstrap}
    result = CliRunner().invoke(cli, ["load", *map(str, arguments)], env=environment)
    assert result.exit_code == status, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_what_is_new_is_loaded(kind: str, topic: str, kraftpy_server: EmbeddedBroker, tmp_path: Path) -> None:
    where = ["--table", tmp_path / "table"]
    if kind == "iceberg":
        where = ["--table", "ns.table", "--catalog", f"sqlite:///{tmp_path}/c.db", "--warehouse", tmp_path / "w"]
    loaded = run(kraftpy_server, topic, "--to", kind, *where, "--max-records-per-partition", 3)
    assert [json.loads(line) for line in loaded.stdout.splitlines()] == [
        {"batch": 0, "records": 3, "files": 1},
        {"batch": 1, "records": 2, "files": 1},
    ]
    assert run(kraftpy_server, topic, "--to", kind, *where).stdout == ""
    if kind == "parquet":
        rows = ds.dataset(tmp_path / "table", format="parquet", partitioning="hive").to_table()
        assert sorted(rows["value"].to_pylist()) == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("t", "--table", "x", "--catalog", "c"), 2, "--catalog and --warehouse require --to iceberg"),
        (("t", "--table", "ns.x", "--to", "iceberg"), 2, "requires --catalog and --warehouse"),
        (("t", "--table", "x", "--to", "iceberg", "--catalog", "c", "--warehouse", "w"), 2, "namespace.table"),
        (("no-such-topic", "--table", "x"), 1, "topic 'no-such-topic' does not exist"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...],
    status: int,
    message: str,
    kraftpy_server: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run(kraftpy_server, *arguments, status=status).output
