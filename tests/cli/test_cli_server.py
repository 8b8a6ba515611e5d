"""`kraftpy server` as a process: its one line, its exit statuses, its complaints."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]
READY = re.compile(r"^kraftpy \S+ ready: node (\d+), PLAINTEXT://127\.0\.0\.1:(\d+), [\d.]+ s\n$")
SECONDS = 60.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "kraftpy", "server", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**{name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}, **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ready_line(process: subprocess.Popen[str]) -> re.Match[str]:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], SECONDS)[0], "no ready line"
    match = READY.match(process.stdout.readline())
    assert match is not None, process.stderr and process.stderr.read()
    return match


def test_it_says_one_line_when_it_serves_and_stops_when_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "node.properties").write_text("node.id = 3\nlisteners=PLAINTEXT://127.0.0.1:0\nnum.network.threads=3\n")
    process = start("node.properties", "--override", "node.id=4", KAFKA_NUM_PARTITIONS="2", KAFKA_NUM_PARTITION="2")
    node, port = ready_line(process).groups()
    assert node == "4"
    socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS).close()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, "")
    assert err.splitlines() == [
        "kraftpy: warning: KAFKA_NUM_PARTITION is ignored: num.partition is not a setting; "
        "did you mean num.partitions?",
        "kraftpy: info: num.network.threads is ignored: Kafka has it, but this broker does not use it",
    ]
    assert (tmp_path / "kraftpy-data").is_dir()


def test_a_taken_port_is_one_line_and_status_2(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--override", f"listeners=PLAINTEXT://127.0.0.1:{port}")
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1), err
    assert str(port) in err


def test_a_directory_in_use_is_one_line_and_status_2(start: Start) -> None:
    options = ("--override", "listeners=PLAINTEXT://127.0.0.1:0")
    ready_line(start(*options))
    second = start(*options)
    out, err = second.communicate(timeout=SECONDS)
    assert (second.returncode, out, err.count("\n")) == (2, "", 1), err
    assert "kraftpy-data" in err


def test_ctrl_c_stops_it_cleanly(start: Start) -> None:
    process = start("--override", "listeners=PLAINTEXT://127.0.0.1:0")
    ready_line(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "", "")
