"""What the admin client answers with: groups, settings, log directories, producers, the cluster and its quorum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kraftpy.client.model import Node
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition


class ConfigSource(IntEnum):
    """Where a setting's value comes from, with the wire's numbers."""

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
class ConfigEntry:
    """One setting. `value` is None where it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_read_only: bool = False
    is_sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
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
    """A member and what it reads."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    metadata: bytes = b""
    assignment: bytes = b""
    member_epoch: int | None = None
    """Of a member of the consumer protocol (KIP-848) or of a share group: how far it has come."""
    target: tuple[TopicPartition, ...] | None = None
    """Of a member of the consumer protocol: what it shall read, when others have given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members. `state` is "Dead" for one that does not exist.

    `protocol` is the assignor. Epochs are those of a group of the consumer protocol (KIP-848) or of a share group
    (KIP-932), whose members share partitions.
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
    """Where a share group begins in a partition (KIP-932), and how many records it has before it (KIP-1226).

    None is not known: of a start offset, since nobody has read there; of a lag, since the leader has not told yet.
    """

    start_offset: int | None
    leader_epoch: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()
    """Registered brokers that take no part, among `nodes` only where they were asked for (KIP-1073)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """A voter or an observer of the metadata, as its leader sees it. -1 is unknown."""

    node_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEndpoint:
    """Where a voter is reached."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The quorum that keeps the metadata. `leader_id` is -1 while there is none."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[QuorumEndpoint, ...]]
    """Of the voters, where the broker tells (KIP-853)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRange:
    """The levels of a feature that a broker can run."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """What the cluster has agreed on, and what the broker that was asked could run. `epoch` is -1 where not told."""

    finalized: dict[str, int]
    supported: dict[str, FeatureRange]
    epoch: int


class FeatureUpgrade(IntEnum):
    """What may happen to a feature's level, with the wire's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2  # nothing is lost
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition on the move: all its replicas, those that come and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirPartition:
    """A partition's log in a directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A log directory of a broker. The totals are -1 where the broker does not tell."""

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: dict[TopicPartition, LogDirPartition]
    error: ErrorCode = ErrorCode.NONE
    """KAFKA_STORAGE_ERROR where it is offline: then nothing else is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at_ms: int
    """-1 where no transaction is open."""
    partitions: frozenset[TopicPartition]
    """Those that are part of it; while it is being ended, those that have no marker yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """A transaction that a partition has open, and that no coordinator will end."""

    partition: TopicPartition
    producer: ActiveProducer
