"""The cluster as clients of one listener see it: reachable brokers, leaders and offline replicas.

A broker is shown if it is not fenced and has a listener with the name that the client connected through; a client never
gets an address of another listener. A replica on any other broker is offline to that client, and so is one whose broker
reported that its log directory failed (KIP-112, 858). A partition whose leader the client cannot reach has no leader,
and an error that says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kraftpy.metadata.image import Broker, Image, Partition
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId

NOBODY = BrokerId(-1)


class SeenBroker(NamedTuple):
    """A broker, and the address at which the client reaches it."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class View:
    """An image seen through one listener. Made for one response: the image may have changed after an await."""

    __slots__ = ("_image", "_live", "brokers")

    def __init__(self, image: Image, listener: str) -> None:
        self._image = image
        self.brokers: list[SeenBroker] = [
            seen for broker in image.brokers() if (seen := _seen(broker, listener)) is not None
        ]
        """Every registered broker with this listener, fenced or not, by id."""
        self._live = frozenset(broker.broker_id for broker in self.brokers if not broker.is_fenced)

    @property
    def live_brokers(self) -> list[SeenBroker]:
        """The brokers that are not fenced."""
        return [broker for broker in self.brokers if not broker.is_fenced]

    def leader(self, partition: Partition) -> tuple[BrokerId, ErrorCode]:
        """Return the leader and NONE, or no leader and the reason: LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND."""
        if partition.leader in self._live:
            return partition.leader, ErrorCode.NONE
        if not self._image.is_fenced(partition.leader):
            return NOBODY, ErrorCode.LISTENER_NOT_FOUND
        return NOBODY, ErrorCode.LEADER_NOT_AVAILABLE

    def offline(self, partition: Partition) -> list[int]:
        """Return the replicas that the client cannot reach or that cannot be used."""
        live, failed = self._live, partition.offline_replicas
        return [replica for replica in partition.replicas if replica not in live or replica in failed]

    def online(self, partition: Partition, members: Iterable[BrokerId]) -> list[int]:
        """Return those of `members`, replicas of the partition, that the client can reach and that can be used."""
        live, failed = self._live, partition.offline_replicas
        return [member for member in members if member in live and member not in failed]

    def controller(self, preferred: BrokerId | None, here: BrokerId) -> BrokerId:
        """Return the broker that clients should send cluster changes to; every broker forwards them.

        It is the active controller if the client can reach it, else the broker that answers, else any live one.
        """
        for candidate in (preferred, here, *sorted(self._live)):
            if candidate is not None and candidate in self._live:
                return candidate
        return NOBODY


def _seen(broker: Broker, listener: str) -> SeenBroker | None:
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return None
    return SeenBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.fenced)
