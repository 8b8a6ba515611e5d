"""Three nodes of Apache Kafka, or of kraftpy, with the same settings, and the JVM in which tools ask them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import secure_lines
from command_line import FILES, TOOLS, CommandLine
from peer_clusters import Kind, PeerCluster

STOP_SECONDS = 30.0
UNTIL_SECONDS = 30.0
NO_ADDRESS = frozenset({"--validate-regex", "version-mapping", "feature-dependencies"})
"""Words of command lines that ask no cluster."""
SETTINGS = {
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}
LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ToolCluster(PeerCluster):
    """Three nodes with the settings that the stories expect, and the files that the tools are given."""

    def __init__(self, kind: Kind, path: str, *, is_secure: bool = False) -> None:
        settings = SETTINGS | secure_lines.SETTINGS if is_secure else SETTINGS
        super().__init__(kind, 3, settings, java=("-Xmx512M", *LIGHT), path=path)
        self.kept = ""
        """The value that a command line `keeps`."""
        for name, text in (FILES | secure_lines.FILES).items():
            (self.directory / name).write_text(text, encoding="utf-8")

    @property
    def brokers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def controllers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.controller_ports)

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

    def keep(self, printed: str, command: CommandLine) -> None:
        """Keep what later command lines need of what this one printed."""
        found = re.search(command.keeps, printed) if command.keeps else None
        if found is not None:
            self.kept = found[1]

    def _filled_in(self, argument: str) -> str:
        if argument.startswith("@"):
            return str(self.directory / argument[1:])
        return argument.replace("%data1", self.data_directory(1)).replace("%kept", self.kept)


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
                cluster.keep(printed, command)
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
def running(kind: Kind, path: str, *, is_secure: bool) -> Iterator[tuple[ToolCluster, Jvm]]:
    cluster = ToolCluster(kind, path, is_secure=is_secure)
    jvm = Jvm(path)
    try:
        cluster.start()
        yield cluster, jvm
    finally:
        jvm.stop()
        cluster.stop()
