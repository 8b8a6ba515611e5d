"""The container image's decisions before the server starts, and its check that the server is serving."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy.broker.storage.directories import DirectoryError
from kraftpy.broker.storage.format import format_directories
from kraftpy.cli.container import DATA, configs_of_environment, decided, given_as_arguments
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.testing.cluster import EmbeddedBroker

SECONDS = 60.0
NOWHERE = "127.0.0.1:1"


def choose(environment: dict[str, str], properties: str = "", mounted: str = "") -> dict[str, str]:
    return decided(environment, properties, is_mount=lambda path: path == mounted)


def test_with_nothing_said_every_interface_is_bound_and_localhost_is_told() -> None:
    assert choose({}) == {
        "KAFKA_LOG_DIRS": DATA,
        "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092",
    }


@pytest.mark.parametrize(
    ("environment", "properties"),
    [
        ({"KAFKA_LISTENERS": "PLAINTEXT://:1", "KAFKA_LOG_DIRS": "/data"}, ""),
        ({"KAFKA_LISTENERS": "PLAINTEXT://:1", "KAFKA_LOG_DIR": "/data"}, ""),
        ({}, "listeners=PLAINTEXT://:1\nlog.dirs=/data\n"),
        ({"KAFKA_PROCESS_ROLES": "controller"}, "log.dir:/data"),
    ],
)
def test_what_the_environment_or_the_file_says_is_left_alone(environment: dict[str, str], properties: str) -> None:
    assert choose(environment, properties) == {}


@pytest.mark.parametrize("source", ["environment", "file"])
def test_listeners_are_the_advertised_ports_on_every_interface(source: str) -> None:
    told = "INSIDE://broker.example:19092,OUT://[::1]:9092,PLAINTEXT://localhost:29092"
    chosen = (
        choose({"KAFKA_ADVERTISED_LISTENERS": told})
        if source == "environment"
        else choose({}, f"advertised.listeners = {told}")
    )
    assert chosen["KAFKA_LISTENERS"] == "INSIDE://0.0.0.0:19092,OUT://0.0.0.0:9092,PLAINTEXT://0.0.0.0:29092"
    assert "KAFKA_ADVERTISED_LISTENERS" not in chosen


@pytest.mark.parametrize("mounted", ["/tmp/kafka-logs", "/tmp/kraft-combined-logs"])
def test_data_go_where_a_volume_for_kafka_s_default_is_mounted(mounted: str) -> None:
    assert choose({}, mounted=mounted)["KAFKA_LOG_DIRS"] == mounted


def test_the_log_level_of_kafka_s_image_is_ours() -> None:
    assert choose({"KAFKA_LOG4J_ROOT_LOGLEVEL": "warn"})["KRAFTPY_LOG_LEVEL"] == "WARNING"
    assert "KRAFTPY_LOG_LEVEL" not in choose({"KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO", "KRAFTPY_LOG_LEVEL": "DEBUG"})
    assert "KRAFTPY_LOG_LEVEL" not in choose({"KAFKA_LOG4J_ROOT_LOGLEVEL": "loud"})


def test_arguments_are_variables() -> None:
    assert given_as_arguments(["KAFKA_NODE_ID=2", "KAFKA_OPTS=-Da=b"]) == {
        "KAFKA_NODE_ID": "2",
        "KAFKA_OPTS": "-Da=b",
    }
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        given_as_arguments(["server"])


def test_new_directories_become_the_cluster_s_and_others_stay(tmp_path: Path) -> None:
    config = BrokerConfig.of({"log.dirs": f"{tmp_path}/a,{tmp_path}/b", "node.id": "7"})
    format_directories(config, "first")
    marked = (tmp_path / "b" / "meta.properties").read_text()
    assert "cluster.id=first\n" in marked
    assert "node.id=7\n" in marked
    format_directories(config, "first")
    assert (tmp_path / "b" / "meta.properties").read_text() == marked
    more = BrokerConfig.of({"log.dirs": f"{tmp_path}/c,{tmp_path}/a", "node.id": "7"})
    with pytest.raises(DirectoryError, match=r"/a belongs to cluster first, not to second"):
        format_directories(more, "second")
    assert not (tmp_path / "c" / "meta.properties").exists()


def test_several_processes_are_asked_for_by_variables(tmp_path: Path) -> None:
    config = BrokerConfig.of({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"})
    asked = {"KRAFTPY_PROCESSES": "3", "KRAFTPY_PORT_STEP": "10"}
    configs = configs_of_environment(config, asked)
    assert [each.client_listeners[0].port for each in configs] == [9092, 9102, 9112]
    for each in configs:
        format_directories(each, "first")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["node-1", "node-2", "node-3"]
    assert configs_of_environment(config, {"KRAFTPY_PROCESSES": ""}) == [config]
    for text in ("0", "-1", "many", "257", "1" * 1000):
        with pytest.raises(ConfigError, match="expected a whole number from 1 to 256"):
            configs_of_environment(config, {"KRAFTPY_PROCESSES": text})


SCRIPTS = Path(__file__).resolve().parents[2] / "docker" / "bin"


@pytest.mark.parametrize(
    ("script", "given", "passed_on"),
    [
        ("kafka-topics.sh", "--bootstrap-server b:1 --list", "topic list --bootstrap-server b:1"),
        (
            "kafka-topics.sh",
            "--create --if-not-exists --topic t --partitions=3 --replication-factor 1 --config a=b",
            "topic create t --if-not-exists --partitions 3 --replication-factor 1 --config a=b",
        ),
        ("kafka-topics.sh", "--describe", "topic describe"),
        ("kafka-topics.sh", "--delete --topic=t --if-exists", "topic delete t --if-exists"),
        ("kafka-topics.sh", "--list --zookeeper z", None),
        ("kafka-topics.sh", "--list --topic", None),
        ("kafka-topics.sh", "--topic t", None),
        ("kafka-broker-api-versions.sh", "--bootstrap-server b:1", "ping --bootstrap-server b:1"),
        ("kafka-broker-api-versions.sh", "", None),
    ],
)
def test_kafka_s_commands_are_ours(script: str, given: str, passed_on: str | None, tmp_path: Path) -> None:
    (tmp_path / "kraftpy").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "kraftpy").chmod(0o755)
    done = subprocess.run(
        [str(SCRIPTS / script), *given.split()],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=SECONDS, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if passed_on is None:
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{passed_on}\n", "")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    return {**kept, "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0", "KAFKA_LOG_DIRS": str(tmp_path / "data")}


@pytest.fixture
def container(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The image's start command, outside of a container, with a heap and a cluster id as Kafka's users give them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kraftpy.cli.container", "run", "KAFKA_NODE_ID=5"],
        env={**environment, "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw", "KAFKA_HEAP_OPTS": "-Xmx1G"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_the_start_command_serves_says_so_and_stops_cleanly(
    container: subprocess.Popen[str], environment: dict[str, str], tmp_path: Path
) -> None:
    assert container.stdout is not None
    assert select.select([container.stdout], [], [], SECONDS)[0], "no ready line"
    ready = re.search(r"node 5, PLAINTEXT://(127\.0\.0\.1:\d+)", container.stdout.readline())
    assert ready

    asked = kraftpy("ping", "-b", ready[1], "--node", "5")
    assert json.loads(asked.stdout) == {
        "server": ready[1], "cluster": "4L6g3nShT-eMCtK--X86sw", "controller": 5, "brokers": [5],
    }  # fmt: skip
    check = [sys.executable, "-m", "kraftpy.cli.container", "healthy"]
    there = {**environment, "KAFKA_LISTENERS": f"PLAINTEXT://{ready[1]}", "KAFKA_NODE_ID": "5"}
    assert subprocess.run(check, env=there, timeout=SECONDS, check=False).returncode == 0
    another = subprocess.run(
        check, env={**there, "KAFKA_NODE_ID": "6"}, timeout=SECONDS, check=False, capture_output=True, text=True
    )
    assert (another.returncode, another.stderr) == (1, f"{ready[1]}: node 6 is not among the live brokers (5)\n")

    container.send_signal(signal.SIGTERM)
    out, err = container.communicate(timeout=SECONDS)
    assert (container.returncode, out, err) == (0, "", "")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_the_start_command_makes_the_secret_once_and_shows_it_to_nobody(
    environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "secrets" / "quorum"
    file.parent.mkdir()
    found = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "kraftpy.cli.container", "run"],
            env={
                **environment,
                "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:0",
                "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://127.0.0.1:0",
                "KAFKA_KRAFTPY_QUORUM_SECRET_FILE": str(file),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], SECONDS)[0], "no ready line"
            found.append(file.read_text())
            arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
        finally:
            process.terminate()
            out, err = process.communicate(timeout=SECONDS)
        secret = found[-1].strip()
        assert len(secret) >= 32
        assert secret not in out + err + arguments
        assert (file.stat().st_mode & 0o777, os.listdir(file.parent)) == (0o600, ["quorum"])
    assert found[0] == found[1]


def test_a_secret_that_cannot_be_made_is_one_line_and_status_2(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "none" / "quorum"
    done = subprocess.run(
        [sys.executable, "-m", "kraftpy.cli.container", "run", f"KAFKA_KRAFTPY_QUORUM_SECRET_FILE={file}"],
        env=environment, timeout=SECONDS, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"kraftpy: kraftpy.quorum.secret.file={file} cannot be created: No such file or directory\n"


def test_a_cluster_that_is_another_s_is_one_line_and_status_2(environment: dict[str, str], tmp_path: Path) -> None:
    format_directories(BrokerConfig.of({"log.dirs": str(tmp_path / "data")}), "first")
    done = subprocess.run(
        [sys.executable, "-m", "kraftpy.cli.container", "run"],
        env={**environment, "CLUSTER_ID": "second"},
        timeout=SECONDS, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"kraftpy: log.dirs: {tmp_path}/data belongs to cluster first, not to second\n"


def kraftpy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kraftpy", *arguments], timeout=SECONDS, check=False, capture_output=True, text=True
    )


def test_a_ping_that_reaches_nobody_is_one_line_and_status_1() -> None:
    done = kraftpy("ping", "-b", NOWHERE)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert NOWHERE in done.stderr


def test_a_ping_takes_the_first_server_that_answers(kraftpy_server: EmbeddedBroker) -> None:
    done = kraftpy("ping", "-b", f"{NOWHERE},{kraftpy_server.bootstrap}")
    assert json.loads(done.stdout)["server"] == kraftpy_server.bootstrap
    assert done.returncode == 0
