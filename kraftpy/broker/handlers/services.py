"""Capabilities of a broker that several handlers use and that come from one of its wings (see `broker.services`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kraftpy.broker.broker_proof import BrokerProof
    from kraftpy.broker.groups.coordinators import Coordinators
    from kraftpy.broker.metadata.config_changes import ConfigRoom
    from kraftpy.broker.metadata.log import MetadataLog
    from kraftpy.broker.replication.fetch_sessions import FetchSessions
    from kraftpy.broker.replication.replicas import Replicas
    from kraftpy.broker.share.coordinator_client import ShareStates
    from kraftpy.broker.transactions.coordinators import TransactionCoordinators
    from kraftpy.types import BrokerId


class HasMetadata(Protocol):
    """Submits changes of the cluster's metadata."""

    @property
    def metadata(self) -> MetadataLog:
        """The log that commands are submitted to."""


class HasControllerId(Protocol):
    """Knows a broker that accepts changes of the cluster."""

    @property
    def controller_id(self) -> BrokerId:
        """The broker that clients should send such changes to."""


class HasConfigRoom(Protocol):
    """Bounds the memory taken by stored settings."""

    @property
    def config_room(self) -> ConfigRoom:
        """The budget for the settings of topics, brokers and groups."""


class HasProof(Protocol):
    """Can tell brokers from clients."""

    @property
    def proof(self) -> BrokerProof:
        """Verifies that a connection belongs to a broker."""


class HasReplicas(Protocol):
    """Holds replicas of partitions."""

    @property
    def replicas(self) -> Replicas:
        """The replicas on this node."""


class HasFetchSessions(Protocol):
    """Keeps fetch sessions."""

    @property
    def fetch_sessions(self) -> FetchSessions:
        """The incremental fetch sessions on this node (KIP-227)."""


class HasCoordinators(Protocol):
    """Coordinates groups."""

    @property
    def coordinators(self) -> Coordinators:
        """The group coordinators on this node."""


class HasTransactions(Protocol):
    """Coordinates transactions."""

    @property
    def transactions(self) -> TransactionCoordinators:
        """The transaction coordinators on this node; requests for others are passed on."""


class HasShareStates(Protocol):
    """Reads and writes the state of share partitions."""

    @property
    def share_states(self) -> ShareStates:
        """The share coordinators, on this node and elsewhere."""
