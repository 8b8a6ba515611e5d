"""The ports of a cluster's nodes, and its companion process with the links between them.

Ports are reserved until `close`, so a node that starts again gets its old port. Cuts are directed: data that one node
sends to another are held back, and data in the other direction are not (`companion` says what a cut is).
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kraftpy.testing.ports import HOST, ReservedPorts
from kraftpy.testing.server_process import BrokerDied

_COMPANION_SECONDS = 10.0

Cut = tuple[int, int]
"""The sender, and the receiver that it does not reach."""


class Ports(NamedTuple):
    """A node's listening ports; 0 if it has no such listener."""

    clients: int
    brokers: int
    controllers: int


class Wiring:
    """The connections between nodes. `ports` are the nodes' own; the others are where nodes find each other."""

    def __init__(self, brokers: Sequence[int], controllers: Sequence[int], *, can_partition: bool) -> None:
        self.token = secrets.token_hex(16)
        """The token that marks the cluster's processes."""
        self.ports: dict[int, Ports] = {}
        self.voter_ports: dict[int, dict[int, int]] = {}
        """The ports at which each node finds each voter."""
        self.replication_ports: dict[int, int] = {}
        """The ports at which brokers find each broker."""
        self._brokers = brokers
        self._controllers = controllers
        self._can_partition = can_partition
        self._reserved = ReservedPorts()
        self._cuts: dict[int, frozenset[Cut]] = {}
        self._cuts_made = 0
        self._companion: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    def open(self, remove: str | None) -> None:
        """Reserve ports and start the companion, which deletes the directory `remove` once the test is gone."""
        nodes = sorted({*self._brokers, *self._controllers})
        for node in nodes:
            is_broker, is_controller = node in self._brokers, node in self._controllers
            self.ports[node] = Ports(
                clients=self._reserved.reserve() if is_broker else 0,
                brokers=self._reserved.reserve() if is_broker else 0,
                controllers=self._reserved.reserve() if is_controller else 0,
            )
        links: list[dict[str, Any]] = []
        listening: list[socket.socket] = []

        def link(from_node: int | None, to_node: int, to_port: int) -> int:
            if not self._can_partition:
                return to_port
            listener = socket.create_server((HOST, 0), backlog=128)
            listening.append(listener)
            links.append({"fd": listener.fileno(), "from_node": from_node, "to_node": to_node, "to_port": to_port})
            return int(listener.getsockname()[1])

        for node in nodes:
            self.voter_ports[node] = {
                voter: self.ports[voter].controllers
                if voter == node
                else link(node, voter, self.ports[voter].controllers)
                for voter in self._controllers
            }
        self.replication_ports = {node: link(None, node, self.ports[node].brokers) for node in self._brokers}
        spec = {"token": self.token, "remove": remove, "links": links}
        self._companion = subprocess.Popen(
            [sys.executable, "-c", "from kraftpy.testing.companion import main; main()", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno() for listener in listening],
            start_new_session=True,
        )
        for listener in listening:
            listener.close()

    def cut(self, cuts: Iterable[Cut]) -> int:
        """Add these cuts, in force when this returns. Returns the number to undo them with."""
        with self._lock:
            self._cuts_made += 1
            self._cuts[self._cuts_made] = frozenset(cuts)
            self._send_cuts()
            return self._cuts_made

    def mend(self, number: int) -> None:
        """Undo some cuts, except those that others made, too."""
        with self._lock:
            if self._cuts.pop(number, None) is not None:
                self._send_cuts()

    def _send_cuts(self) -> None:
        companion = self._companion
        if companion is None:
            return
        assert companion.stdin is not None
        assert companion.stdout is not None
        try:
            companion.stdin.write(json.dumps(sorted(frozenset().union(*self._cuts.values()))).encode() + b"\n")
            companion.stdin.flush()
        except OSError:
            pass
        if companion.stdout.readline() != b"ok\n":
            raise BrokerDied("the companion process that carries the connections between nodes has ended")

    def close(self) -> None:
        """End the companion and release the ports."""
        self._cuts.clear()
        companion, self._companion = self._companion, None
        if companion is not None:
            try:
                companion.communicate(timeout=_COMPANION_SECONDS)
            except subprocess.TimeoutExpired:
                companion.kill()
                companion.communicate()
        self._reserved.close()
