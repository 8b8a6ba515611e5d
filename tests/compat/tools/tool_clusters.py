"""Three nodes of Apache Kafka, or of kraftpy, with the same settings, and the JVM in which tools ask them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from command_line import FILES, TOOLS, CommandLine

Kind = Literal["kafka", "kraftpy"]

NODES = (1, 2, 3)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
UNTIL_SECONDS = 30.0
NO_ADDRESS = frozenset({"--validate-regex", "version-mapping", "feature-dependencies"})
"""Words of command lines that ask no cluster."""
LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class ToolCluster:
    """A cluster in a directory of its own, and its files for the tools."""

    def __init__(self, kind: Kind, directory: Path, path: str) -> None:
        self.kind = kind
        self.directory = directory
        self.ports = {node: free_port() for node in NODES}
        self.controller_ports = {node: free_port() for node in NODES}
        self._path = path
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        directory.mkdir()
        for name, text in FILES.items():
            (directory / name).write_text(text, encoding="utf-8")

    @property
    def brokers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def controllers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.controller_ports.values())

    def data(self, node: int) -> Path:
        return self.directory / f"data{node}"

    def _settings(self, node: int) -> dict[str, object]:
        return {
            "node.id": node,
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node]},CONTROLLER://127.0.0.1:{self.controller_ports[node]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.ports[node]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{k}@127.0.0.1:{port}" for k, port in self.controller_ports.items()),
            "log.dirs": self.data(node),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.num.partitions": 4,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "transaction.state.log.min.isr": 2,
            "share.coordinator.state.topic.min.isr": 2,
        }

    def start(self) -> None:
        """Start all nodes, and wait until each answers."""
        java = ["java", "-Xmx512M", *LIGHT, "-cp", self._path]
        for node in NODES:
            file = self.directory / f"{node}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in self._settings(node).items()))
            command = [sys.executable, "-m", "kraftpy", "server", str(file)]
            if self.kind == "kafka":
                formatting = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
                subprocess.run(formatting, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                command = [*java, "kafka.Kafka", str(file)]
            with (self.directory / f"{node}.out").open("ab") as log:
                self._processes[node] = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env={**os.environ, "KRAFTPY_CLUSTER_ID": CLUSTER_ID},
                )
        deadline = time.monotonic() + START_SECONDS
        while not all(map(answers, self.ports.values())):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes.values()):
                printed = "".join((self.directory / f"{node}.out").read_text()[-1000:] for node in NODES)
                raise SystemExit(f"{self.kind} did not start: {printed}")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def arguments(self, line: str) -> list[str]:
        """Return the class of a command line's tool and its arguments."""
        name, *given = shlex.split(line)
        name, _, role = name.partition(":")
        tool = TOOLS[name]
        arguments = [self._filled_in(argument) for argument in given]
        address = [tool.controller_option, self.controllers] if role else [tool.option, self.brokers]
        if not tool.option or NO_ADDRESS.intersection(given):
            address = []
        return [tool.name, *(address + arguments if tool.is_first else arguments + address)]

    def _filled_in(self, argument: str) -> str:
        if argument.startswith("@"):
            return str(self.directory / argument[1:])
        return argument.replace("%data1", str(self.data(1)))


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


class Jvm:
    """`Tools`, in which the command lines run one after another, some beside the others."""

    def __init__(self, path: str) -> None:
        command = [
            "java",
            "-Xmx512M",
            *LIGHT,
            "-Djava.security.manager=allow",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-Dfile.encoding=UTF-8",
            "-cp",
            path,
            "Tools",
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def run(self, cluster: ToolCluster, command: CommandLine) -> str:
        """Return what a command line prints: standard output, standard error marked with `!`, its exit status."""
        deadline = time.monotonic() + UNTIL_SECONDS
        while True:
            printed = self._once(cluster, command)
            if not command.until or contains(printed, command.until) or time.monotonic() > deadline:
                return printed
            time.sleep(0.2)

    def _once(self, cluster: ToolCluster, command: CommandLine) -> str:
        tool, *arguments = cluster.arguments(command.line)
        request: dict[str, Any] = {"do": "run", "tool": tool, "arguments": arguments, "input": command.given}
        request["seconds"] = int(command.seconds)
        if command.starts:
            request |= {"do": "start", "as": command.starts}
        elif command.ends:
            request |= {"do": "end", "as": command.ends}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if command.starts:
            return "started\n"
        lines = answer["out"].splitlines()
        lines += [f"! {line}" for line in answer["err"].splitlines()]
        status = answer["status"]
        lines.append("still running" if status == -1 else f"exit status {status}")
        return "\n".join(lines) + "\n"

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def contains(text: str, pattern: str) -> bool:
    """Return whether a regular expression matches anywhere in the text."""
    return re.search(pattern, text) is not None


@contextlib.contextmanager
def running(kind: Kind, scratch: Path, path: str) -> Iterator[tuple[ToolCluster, Jvm]]:
    cluster = ToolCluster(kind, scratch / kind, path)
    jvm = Jvm(path)
    try:
        cluster.start()
        yield cluster, jvm
    finally:
        jvm.stop()
        cluster.stop()
