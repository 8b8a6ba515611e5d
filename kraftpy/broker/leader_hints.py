"""Names the current leader in an answer that says a partition is not led here, to save a Metadata request (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.protocol.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kraftpy.types import TopicId

if TYPE_CHECKING:
    from kraftpy.broker.services import HasImage


class LeaderHints:
    """The hints of one response; `endpoints` are those of the leaders it names, on the listener of the request."""

    def __init__(self, broker: HasImage, listener: str) -> None:
        self._broker = broker
        self._listener = listener
        self._endpoints: dict[int, NodeEndpoint] = {}

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """The endpoints of the leaders named so far."""
        return list(self._endpoints.values())

    def of(self, topic: str, topic_id: bytes, partition: int) -> LeaderIdAndEpoch | None:
        """Return the partition's leader from the metadata; None without a leader that has this listener.

        The topic is looked up by id if `topic` is "".
        """
        image = self._broker.image
        found = image.topic(topic) if topic else image.topic_by_id(TopicId(topic_id))
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        state = found.partitions[partition]
        if not state.has_leader:
            return None
        if state.leader not in self._endpoints:
            leader = image.broker(state.leader)
            endpoint = None if leader is None else leader.endpoint(self._listener)
            if leader is None or endpoint is None:
                return None
            self._endpoints[state.leader] = NodeEndpoint(
                node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=leader.rack
            )
        return LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
