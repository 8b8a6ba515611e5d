"""The nearest replicas to which leaders have pointed a client that told its rack (KIP-392), each for a while.

A leader that knows of a replica in the client's rack sends no records, but the replica's id. The client then reads
there until the lease ends, the replica answers with an error, or cannot be reached, and asks the leader again. If it
cannot be reached, or metadata do not name it, leaders are told no rack for as long as a lease: they would point to it
again, and send nothing.
"""

from __future__ import annotations

from collections.abc import Container

from kraftpy.types import TopicPartition


class NearestReplicas:
    """The replicas from which one client reads, if these are not the leaders. Times are in milliseconds."""

    def __init__(self, rack: str, lease_ms: float) -> None:
        self._rack = rack
        self._lease_ms = lease_ms
        self._leased: dict[TopicPartition, tuple[int, float]] = {}
        self._no_rack_until_ms = 0.0

    def rack(self, now_ms: float) -> str:
        """Return the rack to tell a leader; empty if there is none to tell now."""
        return self._rack if now_ms >= self._no_rack_until_ms else ""

    def source(self, partition: TopicPartition, leader: int, nodes: Container[int], now_ms: float) -> int:
        """Return the id of the node to read from: the nearest replica if it is one of `nodes`, else the leader."""
        node_id, until_ms = self._leased.get(partition, (leader, now_ms))
        if now_ms >= until_ms:
            self.forget(partition)
        elif node_id in nodes:
            return node_id
        else:
            self.unreachable(node_id, now_ms)
        return leader

    def point(self, partition: TopicPartition, node_id: int, now_ms: float) -> None:
        """Note that a leader has pointed to a replica."""
        self._leased[partition] = (node_id, now_ms + self._lease_ms)

    def forget(self, partition: TopicPartition) -> bool:
        """Read from the leader again; return whether there was a nearest replica."""
        return self._leased.pop(partition, None) is not None

    def unreachable(self, node_id: int, now_ms: float) -> bool:
        """Note that a node cannot be reached; return whether it is a nearest replica."""
        away = [partition for partition, (nearest, _) in self._leased.items() if nearest == node_id]
        for partition in away:
            del self._leased[partition]
        if away:
            self._no_rack_until_ms = now_ms + self._lease_ms
        return bool(away)
