"""Three nodes by files, all by `kraftpy` commands: a quorum is formatted with its voters, and one disk is replaced."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli import cli
from kraftpy.log.layout import read_meta_properties
from kraftpy.testing.ports import ReservedPorts
from kraftpy.testing.server_process import ServerProcess

BOUND_SECONDS = 60.0
NODES = (1, 2, 3)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kraftpy(*arguments: str) -> str:
    """Run a command that has to succeed, and return its output."""
    done = CliRunner().invoke(cli, [*arguments])
    assert done.exit_code == 0, done.output
    return done.output


class Nodes:
    """The nodes' files and processes."""

    def __init__(self, directory: Path, ports: ReservedPorts) -> None:
        self.directory = directory
        self.clients = {node: ports.reserve() for node in NODES}
        self.controllers = {node: ports.reserve() for node in NODES}
        self.cluster_id = kraftpy("format", "--random-uuid").strip()
        self.processes: dict[int, ServerProcess] = {}
        for node in NODES:
            self.file(node).write_text(
                f"""process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{self.clients[node]},CONTROLLER://127.0.0.1:{self.controllers[node]}
controller.quorum.bootstrap.servers={",".join(f"127.0.0.1:{port}" for port in self.controllers.values())}
controller.quorum.auto.join.enable=true
log.dirs={self.data(node)}
"""
            )

    def file(self, node: int) -> Path:
        return self.directory / f"node-{node}.properties"

    def data(self, node: int) -> Path:
        return self.directory / f"data-{node}"

    def format(self, node: int, *arguments: str) -> None:
        kraftpy("format", str(self.file(node)), "--cluster-id", self.cluster_id, *arguments)

    def start(self, *nodes: int) -> None:
        for node in nodes:
            log = self.directory / f"node-{node}.log"
            self.processes[node] = ServerProcess([str(self.file(node))], log=log, own_session=True, node=node)
        for node in nodes:
            self.processes[node].wait_ready(time.monotonic() + BOUND_SECONDS)

    def end(self, node: int, number: signal.Signals) -> int:
        return self.processes.pop(node).end(number, BOUND_SECONDS)

    def quorum(self, asked: int) -> dict[int, str]:
        """Each node's role, as one of them tells it."""
        rows = kraftpy("cluster", "quorum", "-b", f"127.0.0.1:{self.clients[asked]}", "--format", "json")
        found: list[dict[str, Any]] = [json.loads(line) for line in rows.splitlines()]
        return {row["node"]: row["role"] for row in found}

    def are_voters(self, *nodes: int) -> bool:
        return sorted(self.quorum(nodes[0]).values()) == ["leader", *["voter"] * (len(nodes) - 1)]


@contextmanager
def three_nodes(directory: Path, ports: ReservedPorts) -> Iterator[Nodes]:
    nodes = Nodes(directory, ports)
    try:
        yield nodes
    finally:
        for node in [*nodes.processes]:
            nodes.end(node, signal.SIGKILL)


def test_a_disk_of_a_formatted_quorum_is_replaced(tmp_path: Path, ports: ReservedPorts) -> None:
    with three_nodes(tmp_path, ports) as nodes:
        ids = {node: kraftpy("format", "--random-uuid").strip() for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{nodes.controllers[node]}:{ids[node]}" for node in NODES)
        for node in NODES:
            nodes.format(node, "--initial-controllers", voters)
            properties = read_meta_properties(OsDirectory(nodes.data(node)))
            assert properties is not None
            assert (properties["directory.id"], properties["cluster.id"]) == (ids[node], nodes.cluster_id)
        nodes.start(*NODES)
        until(lambda: nodes.are_voters(*NODES))
        kraftpy("topic", "create", "t", "-b", f"127.0.0.1:{nodes.clients[1]}", "--replication-factor", "3")

        nodes.end(3, signal.SIGKILL)
        shutil.rmtree(nodes.data(3))
        nodes.format(3, "--no-initial-controllers")
        nodes.start(3)
        until(lambda: nodes.are_voters(*NODES))
        log = (tmp_path / "node-3.log").read_text()
        assert log.count("removes the voter with the old one") == log.count("adds itself to the voters") == 1

        # The node with the new disk is as good a voter as any: with it, one other may go.
        nodes.end(1, signal.SIGTERM)
        until(lambda: nodes.quorum(2).get(3) in ("leader", "voter"))
        kraftpy("topic", "create", "u", "-b", f"127.0.0.1:{nodes.clients[3]}", "--replication-factor", "2")
        nodes.start(1)
        until(lambda: nodes.are_voters(*NODES))
        for node in NODES:
            assert nodes.end(node, signal.SIGTERM) == 0
        nodes.start(*NODES)
        until(lambda: nodes.are_voters(*NODES))
