"""Reports what happens in a simulated cluster as it happens: the story of a run.

`Watch.look` compares the present state with what was reported before: nodes that start, are ready and end; who leads
the quorum; leaders and in-sync replicas of partitions, as the most advanced broker knows them. A handler reports what
nodes log, and the code that carries out faults reports those. It is called between turns of the loop and schedules
nothing: a run that is watched is the same run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chaos.history import FAULT, HEAL
from chaos.worlds.loop import current
from chaos.worlds.simulated import Node, SimulatedCluster

Tell = Callable[[float, str, str], None]
"""Virtual seconds, who, what."""


class Watch:
    """Tells what changed since the last look."""

    def __init__(self, cluster: SimulatedCluster, tell: Tell) -> None:
        self._cluster = cluster
        self._tell_at = tell
        self._nodes: dict[int, str] = {}
        self._exits: dict[int, int] = {}
        self._quorum: tuple[int, int] = (0, 0)
        self._looked_at = (-1, -1)
        self._partitions: dict[str, tuple[Any, ...]] = {}

    def tell(self, who: str, what: str) -> None:
        """Return the current time."""
        self._tell_at(self._cluster.loop.time(), who, what)

    def nemesis(self, f: str, value: dict[str, Any]) -> None:
        """A fault begins, ends, or is left out."""
        match f:
            case str(name) if name == FAULT:
                settings = "".join(f", {name} {of}" for name, of in value["settings"].items() if name != "parts")
                parts = " and ".join(part["kind"] for part in value["settings"].get("parts", ()))
                nodes = ", ".join(map(str, value["nodes"])) or "nobody in particular"
                kind = f"{value['kind']} ({parts})" if parts else value["kind"]
                self.tell("nemesis", f"fault {value['id']}: {kind} of {value['target']} (nodes {nodes}){settings}")
            case str(name) if name == HEAL:
                self.tell("nemesis", f"fault {value['id']} ends")
            case _:
                self.tell("nemesis", f"{f}: {value}")

    def look(self) -> None:
        """Report everything new."""
        for number, node in self._cluster.nodes.items():
            self._look_at_node(number, node)
        self._look_at_quorum()
        self._look_at_partitions()

    def _look_at_node(self, number: int, node: Node) -> None:
        for why in node.exits[self._exits.get(number, 0) :]:
            self.tell(node.host, f"ended by itself: {why}")
        self._exits[number] = len(node.exits)
        state = "is not running"
        if node.is_running:
            assert node.process is not None
            state = f"runs (start {node.starts})" if not node.is_ready else f"is ready (start {node.starts})"
            if node.process.is_paused:
                state = "is paused"
        if self._nodes.get(number, "is not running") != state:
            self.tell(node.host, state)
        self._nodes[number] = state

    def _look_at_quorum(self) -> None:
        epoch, leader = self._quorum
        for node in self._cluster.nodes.values():
            if node.is_running and node.broker is not None and node.broker.metadata.leader_id is not None:
                epoch, leader = max(
                    (epoch, leader), (node.broker.metadata.leader_epoch, node.broker.metadata.leader_id)
                )
        if (epoch, leader) != self._quorum:
            self._quorum = (epoch, leader)
            self.tell("quorum", f"node {leader} leads in epoch {epoch}")

    def _look_at_partitions(self) -> None:
        brokers = [node.broker for node in self._cluster.nodes.values() if node.is_running and node.broker is not None]
        if not brokers:
            return
        broker = max(brokers, key=lambda broker: broker.metadata.acted_index)
        seen = (id(broker), broker.metadata.acted_index)
        if seen == self._looked_at or broker.metadata.acted_index < self._looked_at[1]:
            return
        self._looked_at = seen
        found: dict[str, tuple[Any, ...]] = {}
        for topic, number, partition in broker.image.partitions():
            key = f"{topic.name}-{number}"
            found[key] = (int(partition.leader), int(partition.leader_epoch), *_isr(partition))
            if self._partitions.get(key) != found[key]:
                leader, epoch, isr, replicas = found[key]
                self.tell(key, f"leader {leader} in epoch {epoch}, in sync {isr} of {replicas}")
        for key in self._partitions:
            if key not in found:
                self.tell(key, "is deleted")
        self._partitions = found


def _isr(partition: Any) -> tuple[str, str]:
    return ",".join(map(str, partition.isr)), ",".join(map(str, partition.replicas))


class _Lines(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.INFO)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        """Report it as said by the process that runs now."""
        process = current.get()
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._watch.tell("world" if process is None else process.name, f"{record.levelname.lower()}: {text}")


@contextmanager
def told_log_lines(watch: Watch) -> Iterator[None]:
    """Report log lines meanwhile, and do nothing else with them."""
    root = logging.getLogger()
    before, level, disabled = root.handlers[:], root.level, root.manager.disable
    root.handlers[:] = [_Lines(watch)]
    root.setLevel(logging.INFO)
    root.manager.disable = 0
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        root.manager.disable = disabled
