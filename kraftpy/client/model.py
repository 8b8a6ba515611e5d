"""The client's vocabulary: records, metadata, offsets, and the constants that requests use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple

from kraftpy.types import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]


class TimestampType(IntEnum):
    """The meaning of a record's timestamp, with Kafka's numbers."""

    NONE = -1  # a record format without timestamps
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class RecordMetadata(NamedTuple):
    """The place of a record in the log, once it is delivered."""

    topic: str
    partition: int
    offset: int
    """-1 if the broker did not report it (acks=0, or a duplicate it no longer remembers)."""
    timestamp_ms: int
    """The producer's, or the broker's under LogAppendTime."""


class ProducerRecord(NamedTuple):
    """A record to send, as interceptors see it."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    """None: chosen by the producer."""
    timestamp_ms: int | None = None
    """None: the time of sending."""
    headers: Sequence[tuple[str, bytes | None]] = ()


class ConsumerRecord(NamedTuple):
    """A record read from a partition."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1


class ShareRecord(NamedTuple):
    """A record handed out by a share group. It is this consumer's until it is acknowledged or its lock expires."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1
    delivery_count: int = 1
    """How often the group has handed the record out, this time included."""


class AcknowledgeType(IntEnum):
    """The acknowledgement of a record of a share group, with the wire's numbers."""

    ACCEPT = 1  # it was processed
    RELEASE = 2  # deliver it again, to any member
    REJECT = 3  # never deliver it again
    RENEW = 4  # processing takes longer: restart the lock (KIP-1222); another acknowledgement follows


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, with a note."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """The identity of a group and of the member that commits its offsets (KIP-447)."""

    group_id: str
    generation_id: int = -1
    """The generation or, with `group_protocol='consumer'`, the member's epoch; -1 outside any membership."""
    member_id: str = ""
    group_instance_id: str | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class OffsetSpec(IntEnum):
    """Places in a partition that ListOffsets knows by a negative number; any other number is a time in ms."""

    LATEST = -1  # the end: high watermark, or last stable offset under read_committed
    EARLIEST = -2
    MAX_TIMESTAMP = -3  # the record with the largest timestamp (KIP-734)
    EARLIEST_LOCAL = -4  # the first record on the broker's own disk (KIP-405)
    LATEST_TIERED = -5  # the last record in remote storage (KIP-1005)


class IsolationLevel(IntEnum):
    """Which records a reader sees, with the wire's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1  # without aborted transactions, up to the last stable offset


class CoordinatorType(IntEnum):
    """The kinds of keys that coordinators are looked up for."""

    GROUP = 0
    TRANSACTION = 1


class ResourceType(IntEnum):
    """The kinds of resources that have a configuration, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    """The change that IncrementalAlterConfigs makes to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AutoOffsetReset(Enum):
    """The place to start if there is no valid offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"  # raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker, from metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition, from metadata. `leader` is -1 while it has none."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    """Not in sync, but known to hold everything committed (KIP-966); None if the broker did not report them."""
    last_known_eligible_replicas: tuple[int, ...] | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's topic and number."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic, from metadata. `topic_id` is 16 zero bytes if the broker has no ids."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]

    def with_more(self, partitions: tuple[PartitionInfo, ...]) -> TopicInfo:
        """Return the topic with the partitions of a later page added."""
        return replace(self, partitions=self.partitions + partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 asks for the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignment: dict[int, list[int]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
