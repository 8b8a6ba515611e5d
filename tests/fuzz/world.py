"""The nodes that a fuzz attacks: real processes with few descriptors, topics to be attacked and one that is honest.

Left out: TLS, nodes that do not vote.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import honest
import hostile
from broker_wire import ask, connect

from kraftpy.config import Address
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.testing.nodes import Cluster

SECRET = "what only nodes of the fuzz know"
OPEN_FILES = 1024
"""A node's limit of open files: the usual one, and below the number of a crowd's connections."""
SETUP_SECONDS = 30.0
_LOG_LEVEL = "KRAFTPY_LOG_LEVEL"
_PROBE, _PATH = "KRAFTPY_LOOP_PROBE", "PYTHONPATH"
"""Variables that have a node measure the steps of its event loop (`loop_probe/sitecustomize.py`)."""

_TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "odd": (2, {}),
    "odd-compacted": (1, {"cleanup.policy": "compact"}),
    "odd-recompressed": (1, {"compression.type": "gzip"}),
    "odd-large": (1, {"max.message.bytes": "10000000"}),
    "odd-synced": (1, {"kraftpy.flush.before.ack": "true"}),
    "odd-brief": (1, {}),
    honest.TOPIC: (1, {}),
}
"""Name -> partitions and settings."""


class World:
    """One node, or several, in a directory that is kept for as long as the caller wants."""

    def __init__(self, directory: Path, *, nodes: int, flush_before_ack: bool, measures_steps: bool = False) -> None:
        settings = {
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.num.partitions": "4",
            "num.partitions": "1",
            "kraftpy.quorum.secret": SECRET,
        }
        if flush_before_ack:
            settings["kraftpy.flush.before.ack"] = "true"
        self.nodes = nodes
        self.steps_directory = directory / "steps"
        """The file to which nodes write the costs of steps of their event loops."""
        self._environment = {_LOG_LEVEL: "INFO"}
        if measures_steps:
            self.steps_directory.mkdir(parents=True, exist_ok=True)
            path = [str(Path(__file__).with_name("loop_probe")), *filter(None, [os.environ.get(_PATH)])]
            self._environment |= {_PROBE: str(self.steps_directory), _PATH: os.pathsep.join(path)}
        self.cluster = Cluster(nodes, directory=directory, settings=settings, can_partition=False)
        self.topic_ids: dict[str, bytes] = {}
        self.homes: dict[str, int] = {}
        """Group or transactional id -> the place of its coordinator in `brokers`."""

    def open(self) -> None:
        """Start the nodes and make the topics."""
        with as_nodes_start(self._environment):
            self.cluster.open()
        self._create_topics()
        groups = [name for names in hostile.GROUPS.values() for name in names]
        for key_type, names in ((0, groups), (1, list(hostile.TRANSACTIONAL_IDS))):
            self._find_homes(key_type, names)

    @property
    def brokers(self) -> list[Address]:
        """Return the addresses for clients, by node id."""
        return [_address(self.cluster.address(node)) for node in self.cluster.brokers]

    @property
    def for_brokers(self) -> list[Address]:
        """Return the addresses for brokers, by node id."""
        return [self._listener(node, "REPLICATION") for node in self.cluster.brokers]

    @property
    def controllers(self) -> dict[int, Address]:
        """Return the addresses for nodes. A single node has no links."""
        nodes = self.cluster.controllers if self.nodes > 1 else ()
        return {node: self._listener(node, "CONTROLLER") for node in nodes}

    def _listener(self, node: int, name: str) -> Address:
        text = (self.cluster.node_directory(node) / "server.properties").read_text()
        match = re.search(rf"{name}://([\d.]+:\d+)", text)
        assert match is not None
        return _address(match[1])

    def died(self) -> list[int]:
        """Return the nodes that have ended without being stopped."""
        return [node for node in self.cluster.nodes if not self.cluster.is_running(node)]

    def pids(self) -> dict[int, int]:
        """The process of each node that runs."""
        return {node: self.cluster.pid(node) for node in self.cluster.nodes if self.cluster.is_running(node)}

    def resident_mb(self) -> float:
        """The memory of the node that has most, in megabytes."""
        found = [0.0]
        for node in self.cluster.nodes:
            with contextlib.suppress(OSError, AssertionError):
                status = Path(f"/proc/{self.cluster.pid(node)}/status").read_text()
                found += [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")]
        return max(found)

    def logs(self) -> dict[int, str]:
        """The log of each node."""
        return {node: self.cluster.logs(node) for node in self.cluster.nodes}

    def log_bytes(self) -> int:
        """Return the size of the largest log of any node."""
        paths = [self.cluster.node_directory(node) / "server.log" for node in self.cluster.nodes]
        return max(path.stat().st_size if path.exists() else 0 for path in paths)

    def start(self) -> None:
        """Start what does not run; returns when all serve."""
        with as_nodes_start(self._environment):
            for node in self.cluster.nodes:
                if not self.cluster.can_ask(node):
                    self.cluster.start(node, wait=False)
        self.cluster.wait_ready()

    def start_alone(self, node: int) -> None:
        """Start one node, which then waits for the others."""
        with as_nodes_start(self._environment):
            self.cluster.start(node, wait=False)

    def stop(self) -> float:
        """Stop all nodes cleanly; return the seconds of the slowest. Raises BrokerDied if one does not stop."""
        slowest = 0.0
        for node in reversed(self.cluster.nodes):
            started = time.monotonic()
            self.cluster.stop(node)
            slowest = max(slowest, time.monotonic() - started)
        return slowest

    def kill(self) -> None:
        """Kill what runs."""
        for node in self.cluster.nodes:
            if self.cluster.can_ask(node):
                self.cluster.kill(node)

    def close(self) -> None:
        """End everything, however it is."""
        self.kill()
        self.cluster.close()

    def _create_topics(self) -> None:
        deadline = time.monotonic() + SETUP_SECONDS
        wanted = dict(_TOPICS)
        while wanted:
            assert time.monotonic() < deadline, f"not created: {sorted(wanted)}"
            topics = [
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=-1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
                for name, (partitions, configs) in wanted.items()
            ]
            for topic in self._ask(0, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics)).topics:
                if topic.error_code == ErrorCode.NONE:
                    del wanted[topic.name]
                    if topic.name != honest.TOPIC:
                        self.topic_ids[topic.name] = topic.topic_id

    def _find_homes(self, key_type: int, names: list[str]) -> None:
        deadline = time.monotonic() + SETUP_SECONDS
        while wanted := [name for name in names if name not in self.homes]:
            assert time.monotonic() < deadline, f"no coordinators: {wanted}"
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=wanted)
            for found in self._ask(0, ApiKey.FIND_COORDINATOR, 4, request).coordinators:
                if found.error_code == ErrorCode.NONE:
                    self.homes[found.key] = self.cluster.brokers.index(found.node_id)
            time.sleep(0.05)

    def _ask(self, broker: int, key: ApiKey, version: int, request: Any) -> Any:
        with connect(str(self.brokers[broker])) as connection:
            return ask(connection, key, version, request)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


@contextlib.contextmanager
def as_nodes_start(environment: dict[str, str]) -> Iterator[None]:
    """Processes that are started within have the usual limit of open files, and these variables besides."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = dict(os.environ)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, soft), hard))
    os.environ.update(environment)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
