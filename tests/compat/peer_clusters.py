"""Clusters of Apache Kafka and of kraftpy as processes, started with the same settings as a user would start them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from maven import JavaProject

from kraftpy.broker.storage.format import format_directories
from kraftpy.config.sources import load
from kraftpy.testing.ports import ReservedPorts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

Kind = Literal["kafka", "kraftpy"]

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
WARM = ("-Xms512M", "-Xmx768M", "-server", "-XX:+UseG1GC")
START_SECONDS = 90.0
STOP_SECONDS = 30.0


def kafka_class_path() -> str:
    """Return the class path of Apache Kafka, which Maven fetches when the pom has changed."""
    return JavaProject(ROOT / "build" / "compat-kafka", HERE / "differential" / "pom.xml").path()


def properties(node: int, ports: list[int], controller_ports: list[int], data: Path) -> dict[str, object]:
    """Return the settings of one node. Internal topics are small, so that all their partitions are soon loaded."""
    count = len(ports)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controller_ports, 1))
    return {
        "node.id": node,
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[node - 1]},CONTROLLER://127.0.0.1:{controller_ports[node - 1]}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[node - 1]}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": voters,
        "log.dirs": data,
        "num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "group.streams.initial.rebalance.delay.ms": 300,
        "offsets.topic.replication.factor": min(count, 3),
        "offsets.topic.num.partitions": 10,
        "transaction.state.log.replication.factor": min(count, 3),
        "transaction.state.log.min.isr": min(count, 2),
        "transaction.state.log.num.partitions": 10,
        "share.coordinator.state.topic.replication.factor": min(count, 3),
        "share.coordinator.state.topic.min.isr": min(count, 2),
        "auto.create.topics.enable": "true",
        "default.replication.factor": min(count, 3),
        "min.insync.replicas": min(count, 2),
    }


class PeerCluster:
    """The nodes of one cluster, numbered from 1, in a directory of their own.

    `extra` are settings beside those of `properties`, or in their place; `listeners` are client listeners beside
    PLAINTEXT, protocols by name; `java` are the options of Kafka's JVMs, and `path` is Kafka's class path. `sources` is
    a directory whose package kraftpy runs, such as one with compiled modules.
    """

    def __init__(
        self,
        kind: Kind,
        count: int,
        extra: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        java: Sequence[str] = WARM,
        path: str | None = None,
        sources: Path | None = None,
    ) -> None:
        self.kind = kind
        self.count = count
        self.directory = Path(tempfile.mkdtemp(prefix=f"compat-{kind}-"))
        self._reserved = ReservedPorts()
        self.ports = [self._reserved.reserve() for _ in range(count)]
        self.controller_ports = [self._reserved.reserve() for _ in range(count)]
        self.more_ports = {name: [self._reserved.reserve() for _ in range(count)] for name in listeners or {}}
        """The ports of each listener in `listeners`, node by node."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._options = java
        self._sources = sources
        self._path = (path or kafka_class_path()) if kind == "kafka" else ""
        for node in range(1, count + 1):
            settings = properties(node, self.ports, self.controller_ports, self.directory / f"data{node}")
            for name, protocol in (listeners or {}).items():
                address = f",{name}://127.0.0.1:{self.more_ports[name][node - 1]}"
                settings["listeners"] = f"{settings['listeners']}{address}"
                settings["advertised.listeners"] = f"{settings['advertised.listeners']}{address}"
                settings["listener.security.protocol.map"] = (
                    f"{settings['listener.security.protocol.map']},{name}:{protocol}"
                )
            lines = [f"{name}={value}\n" for name, value in {**settings, **(extra or {})}.items()]
            file = self.directory / f"{node}.properties"
            file.write_text("".join(lines), encoding="utf-8")
            if kind == "kafka":
                formatting = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file))
                subprocess.run(self._java(*formatting), check=True, stdout=subprocess.DEVNULL)
            else:
                format_directories(load("".join(lines)).config, CLUSTER_ID)

    def _java(self, *arguments: str) -> list[str]:
        return ["java", *self._options, "-cp", self._path, *arguments]

    def process_id(self, node: int) -> int:
        """The id of the process of a node that runs."""
        return self._processes[node].pid

    def data_directory(self, node: int) -> str:
        return str(self.directory / f"data{node}")

    def output(self, node: int) -> str:
        """Return the output of a node's process."""
        return (self.directory / f"{node}.out").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start all nodes, and wait until each answers. A majority is first: the last node is never the controller."""
        majority = self.count // 2 + 1
        self._start_nodes(range(1, majority + 1))
        self._start_nodes(range(majority + 1, self.count + 1))

    def _start_nodes(self, nodes: range) -> None:
        for node in nodes:
            file = str(self.directory / f"{node}.properties")
            python = [sys.executable, "-m", "kraftpy", "server", file]
            command = self._java("kafka.Kafka", file) if self.kind == "kafka" else python
            with (self.directory / f"{node}.out").open("ab") as log:
                environment = os.environ | ({"PYTHONPATH": str(self._sources)} if self._sources is not None else {})
                self._processes[node] = subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=self.directory, env=environment
                )
        deadline = time.monotonic() + START_SECONDS
        while not all(answers(self.ports[node - 1]) for node in nodes):
            ended = [node for node in self._processes if not self.is_running(node)]
            if ended or time.monotonic() > deadline:
                node = ended[0] if ended else nodes[0]
                raise SystemExit(f"node {node} of {self.kind} did not start: {self.output(node)[-2000:]}")
            time.sleep(0.01)

    def running_nodes(self) -> list[int]:
        return [node for node in self._processes if self.is_running(node)]

    def is_running(self, node: int) -> bool:
        return self._processes[node].poll() is None

    def kill(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGKILL)
        self._processes[node].wait()

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reserved.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def answers(port: int) -> bool:
    """Return whether a node answers a request for its versions."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.2) as connection:
            connection.settimeout(1)
            request = struct.pack(">hhih", 18, 0, 1, -1)
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


@contextlib.contextmanager
def running(
    kind: Kind, count: int, extra: Mapping[str, str] | None = None, listeners: Mapping[str, str] | None = None
) -> Iterator[PeerCluster]:
    """Run a cluster; `extra` and `listeners` are those of `PeerCluster`."""
    cluster = PeerCluster(kind, count, extra, listeners=listeners)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
