"""Records: decided facts, replayed into the image in order. A record is never refused.

Records exist only in memory: the journal keeps the commands, from which each node derives the same records. The broker
reads them to learn what changed (which logs to open, which settings to apply again).
"""

from __future__ import annotations

from kraftpy.frozen import frozen
from kraftpy.metadata.acls import AclChanged
from kraftpy.metadata.commands import ConfigResourceType, ConfigValue, Endpoint
from kraftpy.metadata.credentials import ScramCredentialChanged
from kraftpy.metadata.delegation_tokens import DelegationTokenChanged, DelegationTokenRemoved
from kraftpy.metadata.quotas import ClientQuotaChanged
from kraftpy.types import BrokerId, LeaderEpoch, Millis, ProducerId, TopicId

NO_LEADER = BrokerId(-1)


@frozen
class ClusterFormatted:
    """The cluster has an id."""

    cluster_id: str


@frozen
class BrokerRegistered:
    """A broker process is registered; it replaces an earlier one with the same id."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    registered_ms: Millis
    is_cordoned: bool = False
    host: str | None = None


@frozen
class BrokerChanged:
    """A broker was fenced or unfenced, or begins a controlled shutdown; these are its new flags."""

    broker_id: BrokerId
    fenced: bool
    in_controlled_shutdown: bool = False
    is_leaving: bool = False
    is_returning: bool = False
    is_cordoned: bool = False


@frozen
class BrokerUnregistered:
    """A broker is no longer registered."""

    broker_id: BrokerId


@frozen
class TopicCreated:
    """A topic exists. The records of its partitions follow, in order from 0."""

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
    """The topic's next partition exists, in a new topic or a growing one."""

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
    """The new state of a partition, in full. `leader` is `NO_LEADER` while no replica may lead."""

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
    """A setting has a new value; None means that it is no longer set."""

    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str | None


@frozen
class ControllerDefaultsChanged:
    """The active controller has these static settings for elections, and the defaults for all others."""

    configs: tuple[ConfigValue, ...]


@frozen
class ProducerIdsAllocated:
    """Every producer id below `next_producer_id` is allocated."""

    broker_id: BrokerId
    next_producer_id: ProducerId


@frozen
class FeatureChanged:
    """A feature is finalized at this level; 0 means that it is not finalized."""

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
    | ControllerDefaultsChanged
    | ProducerIdsAllocated
    | FeatureChanged
    | ScramCredentialChanged
    | AclChanged
    | DelegationTokenChanged
    | DelegationTokenRemoved
    | ClientQuotaChanged
)
