"""What was decided: facts, replayed into the image in order. A record is never refused.

Records stay in memory: the command is what the journal keeps, and each node derives the same records from it. The shell
reads them to learn what changed (which logs to open, which settings to apply again).
"""

from __future__ import annotations

from kraftpy.metadata.commands import ConfigResourceType, Endpoint
from kraftpy.metadata.frozen import frozen
from kraftpy.types import BrokerId, LeaderEpoch, Millis, ProducerId, TopicId

NO_LEADER = BrokerId(-1)


@frozen
class ClusterFormatted:
    """The cluster has an id."""

    cluster_id: str


@frozen
class BrokerRegistered:
    """A broker process is known; it replaces an earlier one of the same id."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    registered_ms: Millis


@frozen
class BrokerChanged:
    """A broker was fenced or unfenced, or begins to shut down; this is how it is now."""

    broker_id: BrokerId
    fenced: bool
    in_controlled_shutdown: bool = False


@frozen
class BrokerUnregistered:
    """A broker is no longer known."""

    broker_id: BrokerId


@frozen
class TopicCreated:
    """A topic exists, without partitions yet: they follow, in order from 0."""

    name: str
    topic_id: TopicId
    created_ms: Millis


@frozen
class TopicDeleted:
    """A topic, its partitions and its settings are gone."""

    name: str
    topic_id: TopicId


@frozen
class PartitionCreated:
    """The topic's next partition exists, in a new topic or in one that grows."""

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: int = 0


@frozen
class PartitionChanged:
    """A partition's whole state is now this. `leader` is `NO_LEADER` while nobody may lead."""

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    is_recovering: bool = False
    offline_replicas: tuple[BrokerId, ...] = ()


@frozen
class ConfigChanged:
    """A setting has this value; None means that it is no longer set."""

    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str | None


@frozen
class ProducerIdsAllocated:
    """Every producer id below `next_producer_id` is given away."""

    broker_id: BrokerId
    next_producer_id: ProducerId


@frozen
class FeatureChanged:
    """A feature is finalized at this level; 0 means that it is not."""

    name: str
    level: int


Record = (
    ClusterFormatted
    | BrokerRegistered
    | BrokerChanged
    | BrokerUnregistered
    | TopicCreated
    | TopicDeleted
    | PartitionCreated
    | PartitionChanged
    | ConfigChanged
    | ProducerIdsAllocated
    | FeatureChanged
)
