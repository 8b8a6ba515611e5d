"""The interface that a run on real processes needs of its world, besides faults (`chaos.nemesis.World`).

`chaos.live` can run any world that implements this protocol: its nodes may be processes, containers or machines.
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
        """The world's name, as in `--world`."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All nodes, in order."""

    @property
    def left_out(self) -> Mapping[Kind, str]:
        """Kinds of faults that it cannot do here, and why: one line for each, shown to the user."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers for clients in this process."""

    def address(self, node: NodeId) -> tuple[str, int]:
        """Return the address at which this process reaches the node, regardless of cuts between nodes."""

    def incarnation(self, node: NodeId) -> int:
        """Return how often the node was started: a restarted node may forget what it knew."""

    def is_running(self, node: NodeId) -> bool:
        """Return True if its process lives, paused or not."""

    def problems(self) -> list[str]:
        """Nodes that ended without a fault, or did not stop when asked; a line each."""

    async def open(self) -> None:
        """Make the cluster and start every node. Raises RuntimeError, in one line, if something is missing."""

    async def close(self) -> None:
        """End and remove all that `open` and the faults made. Also called after an `open` that failed."""

    async def wait_ready(self, at_most_seconds: float) -> list[str]:
        """Wait until every node serves and knows all others; return a line for everything still missing at the end."""

    async def wait_in_sync(self, at_most_seconds: float) -> list[str]:
        """Wait until every partition has a leader and all its replicas in sync; return what is missing at the end."""

    def watermarks(self, node: NodeId, keys: Sequence[Key], at: Mapping[Key, int]) -> Awaitable[list[dict[str, Any]]]:
        """Return watermarks of the partitions that this node leads. Raises OSError."""

    def ask(self, node: NodeId, key: ApiKey, version: int, request: object, *, seconds: float = ...) -> Awaitable[Any]:
        """Return the answer to one request to one node. Raises OSError if none comes in that time."""

    def controller(self, node: NodeId) -> Awaitable[dict[str, Any] | None]:
        """Return the controller that this node knows. Raises OSError."""

    def images(self, at_most_seconds: float) -> Awaitable[dict[NodeId, str]]:
        """Return a digest of what each node knows of topics, once all agree; otherwise what they say at the end."""

    async def log_directory(self, node: NodeId) -> Path:
        """Return the node's log directory as a directory on this machine; asked for after `stop` of all nodes."""

    def server_log(self, node: NodeId) -> str:
        """Return everything the node has written to its log, over all its runs."""
