"""`kraftpy init`: the tutorial's commands print what the page shows, on their own cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.config import BrokerConfig
from kraftpy.config.sources import load, parse_properties
from tests.test_readme import blocks, stable

pytestmark = [pytest.mark.timeout(120)]

PAGE = "docs/tutorials/first-secure-cluster.md"
BOUND_SECONDS = 30.0
NODES = 3


def free_base() -> int:
    """A port from which all ports of three nodes are free."""
    for base in range(21_092, 32_000, 100):
        try:
            for node in range(NODES):
                for port in range(3):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", base + 10 * node + port))
        except OSError:
            continue
        return base
    raise AssertionError("no ports are free")


class Reader:
    """Runs the page's commands in a directory, with the default port replaced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_base()
        self.servers: list[subprocess.Popen[str]] = []

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        kept["KRAFTPY_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{self.port}"
        return kept

    def shell(self, command: str) -> str:
        if command.startswith("kraftpy init "):
            command += f" --port {self.port}"
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout

    def rerun(self, block: str) -> str:
        lines = []
        for line in block.splitlines():
            if line.startswith("$ "):
                lines += [line, *self.shell(line[2:]).splitlines()]
        return "".join(f"{line}\n" for line in lines)

    def start(self, command: str) -> None:
        self.servers.append(
            subprocess.Popen(
                command.split(),
                cwd=self.directory,
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def wait_ready(self) -> None:
        for server in self.servers:
            assert server.stdout is not None
            line = server.stdout.readline()  # it ends with the process, whose start has a limit of its own
            assert " ready: node " in line, server.communicate()

    def stop(self) -> list[str]:
        """Stop the servers; return what they wrote on standard error."""
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        logs = []
        for server in self.servers:
            try:
                logs.append(server.communicate(timeout=BOUND_SECONDS)[1])
            except subprocess.TimeoutExpired:
                server.kill()
                server.communicate()
                raise
        return logs


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        for server in made.servers:
            if server.poll() is None:
                server.kill()
                server.communicate()


def test_the_tutorial_s_commands_print_what_it_says(reader: Reader) -> None:
    console = blocks("console", PAGE)
    assert stable(reader.rerun(console[0])) == stable(console[0])
    (servers,) = [block for block in blocks("sh", PAGE) if "kraftpy server" in block]
    for command in servers.splitlines():
        reader.start(command)
    reader.wait_ready()
    for block in console[1:]:
        assert stable(reader.rerun(block)) == stable(block)
    logs = reader.stop()
    password = re.findall(r'password="([^"]+)"', (reader.directory / "cluster/client.properties").read_text())
    for log in logs:
        assert "Traceback" not in log
        assert password[0] not in log
    assert [server.returncode for server in reader.servers] == [0] * NODES


def test_nothing_is_overwritten_and_nothing_is_readable_by_others(tmp_path: Path) -> None:
    target = tmp_path / "cluster"
    arguments = ["init", str(target), "--secure", "--port", "30000"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    for path in [target, *target.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 1
    assert "nothing is overwritten" in again.output
    assert before == {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["secure", "plain"])
def test_the_settings_hold_on_the_machine_and_in_containers(tmp_path: Path, kind: str) -> None:
    """Without a warning; in containers, the environment replaces the settings that differ."""
    target = tmp_path / "cluster"
    arguments = ["init", str(target), "--nodes", "2", *(["--secure"] if kind == "secure" else [])]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    services = yaml.safe_load((target / "compose.yaml").read_text())["services"]
    for number in (1, 2):
        text = (target / f"node-{number}" / "server.properties").read_text()
        loaded = load(text)
        assert (loaded.warnings, loaded.notes) == ([], [])
        assert {each.listener for each in loaded.config.secured} == (
            {"CLIENTS", "INTERNAL", "CONTROLLER"} if kind == "secure" else set()
        )
        service = services[f"kafka{number}"]
        inside = load(text, service["environment"])
        assert not inside.warnings or kind == "plain"  # clients of other machines get in
        assert [str(voter) for voter in inside.config.controller_quorum_voters] == ["1@kafka1:9094", "2@kafka2:9094"]
        assert inside.config.log_dirs == ("/var/lib/kafka/data",)
        mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
        assert all((target / path).exists() for path in mounted)
        for each in inside.config.secured:
            assert each.tls is not None
            assert each.tls.keys is not None
            assert each.tls.keys.location in mounted.values()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "cluster"), "--secure"])
    assert done.exit_code == 1
    assert "cryptography is not installed: pip install 'kraftpy[security]'" in done.output
    assert not (tmp_path / "cluster").exists()


def test_a_client_s_file_is_one_of_kafka_s(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["init", str(tmp_path / "cluster"), "--secure"]).exit_code == 0
    found = parse_properties((tmp_path / "cluster/client.properties").read_text())
    assert found["security.protocol"] == "SASL_SSL"
    node = parse_properties((tmp_path / "cluster/node-1/server.properties").read_text())
    assert BrokerConfig.of(node).node_id == 1
