"""The part of a broker that its metrics and health are read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers.services import HasCoordinators, HasTransactions

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.containment import Complaints, Incidents, Tasks
    from kraftpy.broker.metadata.lifecycle import Lifecycle
    from kraftpy.broker.metadata.log import MetadataLog
    from kraftpy.broker.metadata.transport import Links
    from kraftpy.broker.peers import Peers
    from kraftpy.broker.quotas.clients import ClientQuotaManager
    from kraftpy.broker.replication.fetch_sessions import FetchSessions
    from kraftpy.broker.replication.replica_manager import ReplicaManager
    from kraftpy.broker.replication.replicas import Replicas
    from kraftpy.broker.request_memory import RequestMemory
    from kraftpy.broker.share.coordinators import ShareCoordinators
    from kraftpy.broker.share.partitions import SharePartitions
    from kraftpy.broker.share.sessions import ShareSessions
    from kraftpy.broker.storage.directories import LogDirectories
    from kraftpy.config import BrokerConfig
    from kraftpy.metadata.image import Image
    from kraftpy.metrics.registry import NodeMetrics
    from kraftpy.ports import Clock
    from kraftpy.types import BrokerId


class Node(HasCoordinators, HasTransactions, Protocol):
    """A broker, a controller, or both."""

    lifecycle: Lifecycle
    metadata: MetadataLog
    metrics: NodeMetrics
    clock: Clock
    node_id: BrokerId
    incidents: Incidents
    complaints: Complaints
    tasks: Tasks
    directories: LogDirectories
    replica_manager: ReplicaManager
    replicas: Replicas
    fetch_sessions: FetchSessions
    share_sessions: ShareSessions
    client_quotas: ClientQuotaManager
    request_memory: RequestMemory
    peers: Peers
    links: Links | None

    @property
    def share_coordinators(self) -> ShareCoordinators:
        """The share coordinators on this node."""

    @property
    def share_partitions(self) -> SharePartitions:
        """The partitions led here that share groups read."""

    @property
    def config(self) -> BrokerConfig:
        """The settings now in force."""

    @property
    def image(self) -> Image:
        """The cluster's metadata as of now."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Every open client connection."""

    @property
    def health(self) -> dict[str, Any]:
        """The errors this node has survived, and the work it cannot do."""
