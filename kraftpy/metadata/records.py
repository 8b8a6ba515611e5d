"""What was decided: facts, replayed into the image in order. A record is never refused.

Records stay in memory: the command is what the journal keeps, and each node derives the same records from it. The shell
reads them to learn what changed (which logs to open, which settings to apply again).
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.metadata.commands import ConfigResourceType, Endpoint
from kraftpy.types import BrokerId, LeaderEpoch, Millis, ProducerId, TopicId

NO_LEADER = BrokerId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFormatted:
    """The cluster has an id."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """A broker process is known; it replaces an earlier one of the same id."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    registered_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanged:
    """A broker was fenced or unfenced."""

    broker_id: BrokerId
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic exists, without partitions yet: they follow, in order from 0."""

    name: str
    topic_id: TopicId
    created_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic, its partitions and its settings are gone."""

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCreated:
    """The topic's next partition exists, in a new topic or in one that grows."""

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - an int
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """A partition's leader or in-sync replicas are now these. `leader` is `NO_LEADER` while nobody may lead."""

    topic: str
    topic_id: TopicId
    partition: int
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """A setting has this value; None means that it is no longer set."""

    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """Every producer id below `next_producer_id` is given away."""

    broker_id: BrokerId
    next_producer_id: ProducerId


Record = (
    ClusterFormatted
    | BrokerRegistered
    | BrokerChanged
    | TopicCreated
    | TopicDeleted
    | PartitionCreated
    | PartitionChanged
    | ConfigChanged
    | ProducerIdsAllocated
)
