"""`kraftpy topic move-replica` and what `kraftpy cluster log-dirs` shows of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.testing.cluster import EmbeddedBroker


def run(broker: EmbeddedBroker, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [*arguments, "-b", broker.bootstrap])
    return done.exit_code, done.output


def rows(broker: EmbeddedBroker, *arguments: str) -> list[dict[str, Any]]:
    status, output = run(broker, *arguments, "--format", "json")
    assert status == 0, output
    return [json.loads(line) for line in output.splitlines()]


def test_a_replica_is_moved_and_a_failed_directory_shown(
    start_broker: Callable[..., EmbeddedBroker], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    broker = start_broker(settings={"log.dirs": f"{first},{second}"})
    assert run(broker, "topic", "create", "t", "--partitions", "2")[0] == 0
    moved = rows(broker, "topic", "move-replica", "t", "--broker", "1", "--to", str(second), "--wait")
    assert [(row["partition"], row["directory"], row["moving_to"]) for row in moved] == [
        (0, str(second), None),
        (1, str(second), None),
    ]
    shown = {row["path"]: row for row in rows(broker, "cluster", "log-dirs")}
    assert [shown[str(path)]["partitions"] for path in (first, second)] == [0, 2]
    assert [shown[str(path)]["error"] for path in (first, second)] == [None, None]

    status, output = run(broker, "topic", "move-replica", "t:0", "--broker", "1", "--to", "/nowhere")
    assert status == 1
    assert "LOG_DIR_NOT_FOUND: the directory is not among the broker's log.dirs" in output
    status, output = run(broker, "topic", "move-replica", "t:0", "--broker", "7", "--to", str(second))
    assert status == 1
    assert "broker 7 has no replica of these partitions" in output
    assert run(broker, "topic", "move-replica", "--broker", "1", "--to", str(second))[0] == 2

    shutil.rmtree(second)
    deadline = time.monotonic() + 20
    while not (error := {row["path"]: row for row in rows(broker, "cluster", "log-dirs")}[str(second)]["error"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert error == "KAFKA_STORAGE_ERROR"
