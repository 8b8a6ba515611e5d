"""What a run on real processes asks of its world, besides faults (`chaos.nemesis.World`).

A world that has all of it can be run by `chaos.live`, whatever its nodes are: processes, containers, machines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaos.history import Key
from chaos.nemesis import Kind, NodeId, World
from kraftpy.protocol.apis import ApiKey


class LiveWorld(World, Protocol):
    """A `World` of real processes.

    `chaos.worlds.asking.Asking` has what is learned and changed by requests alone, for all such worlds: `state`,
    `move_leader`, `reassign`, `create_topic`, `delete_topic`, `set_voter`, `wait_ready`, `wait_in_sync` and the looks
    at single nodes.
    """

    @property
    def name(self) -> str:
        """As `--world` has it."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All of them, in order."""

    @property
    def left_out(self) -> Mapping[Kind, str]:
        """Kinds of faults that it cannot do here, and why: one line for each, said to the user."""

    @property
    def bootstrap_servers(self) -> str:
        """For clients in this process."""

    def address(self, node: NodeId) -> tuple[str, int]:
        """Where this process reaches that node, whatever is cut between nodes."""

    def incarnation(self, node: NodeId) -> int:
        """How often it was started: what a node knew before, it may forget."""

    def is_running(self, node: NodeId) -> bool:
        """Whether its process lives, paused or not."""

    def problems(self) -> list[str]:
        """Nodes that ended though no fault made them, or did not stop when asked; a line each."""

    async def open(self) -> None:
        """Make the cluster and start every node. Raises RuntimeError, in one line, where something is missing."""

    async def close(self) -> None:
        """End and remove all that `open` and the faults made. Also after an `open` that failed."""

    async def wait_ready(self, at_most_seconds: float) -> list[str]:
        """Wait until every node serves and knows all others; what is not so in the end, a line each."""

    async def wait_in_sync(self, at_most_seconds: float) -> list[str]:
        """Wait until every partition has a leader and all its replicas in sync; what is not so in the end."""

    def watermarks(self, node: NodeId, keys: Sequence[Key], at: Mapping[Key, int]) -> Awaitable[list[dict[str, Any]]]:
        """Of those partitions that this node leads. Raises OSError."""

    def ask(self, node: NodeId, key: ApiKey, version: int, request: object, *, seconds: float = ...) -> Awaitable[Any]:
        """The answer to one request to one node. Raises OSError where none comes in that time."""

    def controller(self, node: NodeId) -> Awaitable[dict[str, Any] | None]:
        """Whom this node takes for the controller. Raises OSError."""

    def images(self, at_most_seconds: float) -> Awaitable[dict[NodeId, str]]:
        """A digest of what each node knows of topics, once all say the same; else what they say in the end."""

    async def log_directory(self, node: NodeId) -> Path:
        """What the node's log directory holds, as a directory on this machine; asked for after `stop` of all nodes."""

    def server_log(self, node: NodeId) -> str:
        """What the node has written to its log, of all its runs."""
