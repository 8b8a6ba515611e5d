"""The admin client's answers: groups, settings, log directories, producers, the cluster and its quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from kraftpy.client.model import Node
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition


class ConfigSource(IntEnum):
    """The origin of a setting's value, with the wire's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """An entity's quotas: the names of the entity by type, with None for the default, and the values by key."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A setting that gives the value, or would if others were not set. `value` is None if it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting. `value` is None if it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_read_only: bool = False
    is_sensitive: bool = False
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()
    """The settings that can give the value, in order of precedence; empty unless asked for."""

    @property
    def is_default(self) -> bool:
        """True if neither the resource nor the broker overrides the default."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as a broker lists it."""

    group_id: str
    protocol_type: str = ""
    state: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group and its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    metadata: bytes = b""
    assignment: bytes = b""
    member_epoch: int | None = None
    """The member's epoch in a consumer group (KIP-848) or share group; None in other groups."""
    target: tuple[TopicPartition, ...] | None = None
    """The target assignment of a consumer group's member: what it will read once others have given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members. `state` is "Dead" if it does not exist.

    `protocol` is the assignor. Only consumer groups (KIP-848) and share groups (KIP-932), whose members share
    partitions, have epochs.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]
    group_type: str = "classic"
    group_epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOffset:
    """A share group's start offset in a partition (KIP-932), and its lag, the records not yet read (KIP-1226).

    None means unknown: for a start offset, because the group has not read there yet; for a lag, because the leader has
    not reported it yet.
    """

    start_offset: int | None
    leader_epoch: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster's id, controller and brokers."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()
    """Registered brokers that are fenced. They are among `nodes` only if they were asked for (KIP-1073)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum, as its leader sees it. -1 means unknown."""

    node_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEndpoint:
    """The address of a voter's listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum. `leader_id` is -1 if it has no leader."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[QuorumEndpoint, ...]]
    """The voters' endpoints, if the broker reports them (KIP-853)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRange:
    """The levels of a feature that a broker supports."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """The features finalized in the cluster and those supported by the broker asked. `epoch` is -1 if unknown."""

    finalized: dict[str, int]
    supported: dict[str, FeatureRange]
    epoch: int


class FeatureUpgrade(IntEnum):
    """The changes of a feature's level to allow, with the wire's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2  # without loss of information
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition being reassigned: all its replicas, those being added and those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirPartition:
    """One partition's log in a directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A log directory of a broker. The totals are -1 if the broker does not report them."""

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: dict[TopicPartition, LogDirPartition]
    error: ErrorCode = ErrorCode.NONE
    """KAFKA_STORAGE_ERROR if the directory is offline; then nothing else is known of it."""
    is_cordoned: bool = False
    """It gets no new replicas (KIP-1066). False from brokers older than Kafka 4.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer whose state a partition keeps."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id and the broker that coordinates it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The coordinator's view of a transactional id."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at_ms: int
    """-1 if no transaction is open."""
    partitions: frozenset[TopicPartition]
    """The partitions of the transaction; while it is being completed, those that have no marker yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """A transaction that is open in a partition and that no coordinator will complete."""

    partition: TopicPartition
    producer: ActiveProducer
