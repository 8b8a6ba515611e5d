"""The cluster's metadata as replayed so far; requests look everything up here.

Replaying the same records gives equal images, and equal images give equal bytes. Objects that a lookup returns are
frozen; only `Topic` grows in place. Nothing here refuses: a record that does not fit is a bug, and raises.

`version` counts the records ever replayed. It only grows, it is the same on every node at the same point of the log,
caches key encoded responses by it, and a broker's epoch is the version that its registration created.
`Broker.registered_index` is that registration's index in the log: the broker has caught up once it has applied it.

One file because the image, the records it replays and its snapshot have the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import assert_never

from kraftpy.config.settings import whole_number
from kraftpy.frozen import frozen
from kraftpy.metadata.acls import AclChanged, Acls
from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack_in_parts
from kraftpy.metadata.commands import ConfigResourceType, ConfigValue, Endpoint, NewerSchemaError, is_new_level
from kraftpy.metadata.credentials import Credentials, ScramChange, ScramCredentialChanged
from kraftpy.metadata.delegation_tokens import (
    DelegationToken,
    DelegationTokenChanged,
    DelegationTokenRemoved,
    DelegationTokens,
)
from kraftpy.metadata.quotas import ClientQuotaChanged, ClientQuotas, QuotaChange
from kraftpy.metadata.records import (
    NO_LEADER,
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterFormatted,
    ConfigChanged,
    ControllerDefaultsChanged,
    FeatureChanged,
    PartitionChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.metadata.submissions import SavedSubmissions, Submissions
from kraftpy.metadata.topic_counts import TopicCounts
from kraftpy.security.acls import AclBinding
from kraftpy.types import BrokerId, LeaderEpoch, Millis, ProducerId, TopicId

SCHEMA = 8
"""The newest snapshot schema. Snapshots of earlier ones can be read too: they only lack fields that have defaults."""
_OLDER_SCHEMA = 4
"""The schema of a snapshot that earlier versions can read: with their features, and without a controller's defaults."""
_WITHOUT_SECURITY, _WITHOUT_CORDONS, _WITHOUT_HOSTS = 5, 6, 7

_TOPICS_DEPTH = 3
"""The nesting of a topic in a snapshot: in a pair with the schema, in the map of the image's parts, in a list."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
ELR_FEATURE = "eligible.leader.replicas.version"

_CONFIG_OVERHEAD_BYTES = 128
_NOTHING: Mapping[str, str] = MappingProxyType({})


@frozen
class Broker:
    """A registered broker. Its epoch grows with each registration; a fenced one leads nothing."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    registered_ms: Millis
    in_controlled_shutdown: bool = False
    registered_index: int = 0
    """The log index of its registration: it has caught up once it has applied this entry."""
    shutdown_index: int = 0
    """The log index at which its controlled shutdown began: a broker that has applied it knows that this one no longer
    leads."""
    is_leaving: bool = False
    """Some of its partitions have been moved, as for a fencing or a controlled shutdown; the rest and its new state
    follow in later entries."""
    is_returning: bool = False
    """It was unfenced, and some of the partitions that wait for a leader may still be given to it in later entries."""
    is_cordoned: bool = False
    """All of its log directories are cordoned: it gets no new replicas (KIP-1066)."""
    host: str | None = None
    """The host that it shares with other brokers; None if it is alone on its host."""

    @property
    def is_active(self) -> bool:
        """True if it may be elected and join ISRs: not fenced, in controlled shutdown or leaving."""
        return not self.fenced and not self.in_controlled_shutdown and not self.is_leaving

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the broker's endpoint on a listener, or None."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@frozen
class Partition:
    """One partition's replicas, ISR and leader. The first replica is the preferred leader.

    During a reassignment, `replicas` lists the target replicas in their order, then those to be removed (KIP-455).
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    """Replicas outside the ISR that hold all committed records: the ISR has been below its minimum since they left
    (KIP-966)."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """The last leader, if both ISR and ELR are empty."""
    is_recovering: bool = False
    """The leader was elected uncleanly and has not yet reported that it recovered (KIP-704)."""
    offline_replicas: tuple[BrokerId, ...] = ()
    """Replicas whose broker is alive but cannot use its log: a disk failed, or the log is gone. Only an unclean
    election on request elects one."""

    @property
    def has_leader(self) -> bool:
        """True if the partition has a leader."""
        return self.leader != NO_LEADER

    @property
    def preferred_leader(self) -> BrokerId:
        """The first replica, which should lead while all replicas are healthy."""
        return self.replicas[0]

    @property
    def is_reassigning(self) -> bool:
        """True if a reassignment is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas after any reassignment in progress."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic and its partitions; a partition's number is its index in the list."""

    name: str
    topic_id: TopicId
    created_ms: Millis
    partitions: list[Partition] = field(default_factory=list)

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition, which the others match."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@frozen
class _SavedTopic:
    name: str
    topic_id: TopicId
    created_ms: Millis
    partitions: tuple[Partition, ...]


@frozen
class _SavedConfig:
    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str


@frozen
class _SavedFeature:
    name: str
    level: int


@frozen
class _Saved:
    """The snapshot form of the image."""

    cluster_id: str | None
    version: int
    next_producer_id: ProducerId
    brokers: tuple[Broker, ...]
    topics: tuple[_SavedTopic, ...]
    configs: tuple[_SavedConfig, ...]
    features: tuple[_SavedFeature, ...] = ()
    submissions: tuple[SavedSubmissions, ...] = ()
    controller_defaults: tuple[ConfigValue, ...] = ()
    credentials: tuple[ScramChange, ...] = ()
    acls: tuple[AclBinding, ...] = ()
    delegation_tokens: tuple[DelegationToken, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()


def config_bytes(resource_name: str, name: str, value: str) -> int:
    """Estimate the memory of one setting of one resource: its name, its value and object overhead."""
    return _CONFIG_OVERHEAD_BYTES + len(resource_name) + len(name) + len(value)


def _values(configs: tuple[ConfigValue, ...]) -> Mapping[str, str]:
    return MappingProxyType({config.name: config.value for config in configs if config.value is not None})


@lru_cache(maxsize=1024)
def _created(
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    leader: BrokerId,
    leader_epoch: LeaderEpoch,
    partition_epoch: int,
) -> Partition:
    """Return a new partition. The thousands of a large topic that have equal state share one immutable object."""
    return Partition(
        replicas=replicas, isr=isr, leader=leader, leader_epoch=leader_epoch, partition_epoch=partition_epoch
    )


def _replicas(partition: Partition | None) -> tuple[BrokerId, ...]:
    return () if partition is None else partition.replicas


def _holders(partition: Partition | None) -> tuple[BrokerId, ...]:
    """Return the leader, or `NO_LEADER`, and the members of the ISR."""
    if partition is None:
        return ()
    return partition.isr if partition.leader in partition.isr else (*partition.isr, partition.leader)


def _eligible(partition: Partition | None) -> tuple[BrokerId, ...]:
    return () if partition is None else partition.eligible_leader_replicas


class Image:
    """Topics, partitions, settings, brokers, features and producer id blocks of one cluster."""

    __slots__ = (
        "_brokers",
        "_colliding",
        "_configs",
        "_eligible",
        "_features",
        "_held",
        "_names",
        "_placed",
        "_sorted_topics",
        "_topics",
        "_topics_by_id",
        "acls",
        "cluster_id",
        "configs_bytes",
        "controller_defaults",
        "credentials",
        "delegation_tokens",
        "next_producer_id",
        "partition_count",
        "quotas",
        "submissions",
        "version",
    )

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.version = 0
        self.next_producer_id = ProducerId(0)
        self.partition_count = 0
        self._brokers: dict[BrokerId, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[TopicId, Topic] = {}
        self._sorted_topics: tuple[Topic, ...] | None = ()
        self._names: tuple[str, ...] = ()
        """Their names, sorted, unless `_sorted_topics` is None."""
        self._colliding: dict[str, str] = {}
        self._configs: dict[tuple[ConfigResourceType, str], dict[str, str]] = {}
        self.configs_bytes = 0
        """Estimated memory of all settings of topics, brokers and groups (`config_bytes`)."""
        self.controller_defaults: Mapping[str, str] = _NOTHING
        """Static settings of the active controller that elections use if neither topic nor cluster sets them."""
        self._features: dict[str, int] = {}
        self._placed = TopicCounts()
        self._held = TopicCounts()
        self._eligible = TopicCounts()
        self.submissions = Submissions()
        self.credentials = Credentials()
        self.acls = Acls()
        self.delegation_tokens = DelegationTokens()
        self.quotas = ClientQuotas()

    # -- lookups

    def topic(self, name: str) -> Topic | None:
        """Return the topic with this name."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        """Return the topic with this id."""
        return self._topics_by_id.get(topic_id)

    def topics(self) -> Sequence[Topic]:
        """Return every topic, sorted by name."""
        if self._sorted_topics is None:
            self._names = tuple(sorted(self._topics))
            self._sorted_topics = tuple(self._topics[name] for name in self._names)
        return self._sorted_topics

    def topic_colliding_with(self, name: str) -> str | None:
        """Return a topic whose name is equal to this one if '.' and '_' are treated alike, and contains one of them."""
        return self._colliding.get(name.replace(".", "_"))

    def partition(self, topic: str, partition: int) -> Partition | None:
        """Return one partition, by topic name and number."""
        found = self._topics.get(topic)
        return found.partitions[partition] if found and 0 <= partition < len(found.partitions) else None

    def partitions(self) -> Iterator[tuple[Topic, int, Partition]]:
        """Yield every partition with its topic and number, in order of topic names."""
        for topic in self.topics():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def broker(self, broker_id: BrokerId) -> Broker | None:
        """Return the registered broker with this id, fenced or not."""
        return self._brokers.get(broker_id)

    def brokers(self) -> list[Broker]:
        """Return every registered broker, in order of ids."""
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]

    def active_brokers(self) -> list[Broker]:
        """Return the brokers that may be elected and join ISRs, in order of ids."""
        return [broker for broker in self.brokers() if broker.is_active]

    def is_active(self, broker_id: BrokerId) -> bool:
        """Return whether the broker is registered, not fenced and not in controlled shutdown."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.is_active

    def is_fenced(self, broker_id: BrokerId) -> bool:
        """Return whether the broker is fenced or not registered."""
        broker = self._brokers.get(broker_id)
        return broker is None or broker.fenced

    def partitions_of(
        self, broker_id: BrokerId, within: Container[str] | None = None
    ) -> Iterator[tuple[Topic, int, Partition]]:
        """Yield every partition of which the broker has a replica, in order of topic names; only topics in `within`.

        Nothing has to be sorted, so that a caller may look at only some of very many.
        """
        self.topics()  # sorts the names
        names = self._names if within is None else filter(within.__contains__, self._names)
        for name in filter(self._placed.of(broker_id).__contains__, names):
            topic = self._topics[name]
            for number, partition in enumerate(topic.partitions):
                if broker_id in partition.replicas:
                    yield topic, number, partition

    def held_by(self, broker_id: BrokerId) -> Mapping[str, int]:
        """Return how many partitions of each topic the broker leads or is in sync with; of `NO_LEADER`, how many have
        no leader. Topics without any have no entry."""
        return self._held.of(broker_id)

    def holders(self) -> list[BrokerId]:
        """Return the brokers for which `held_by` is not empty, and `NO_LEADER` if it is not empty for that."""
        return self._held.brokers()

    def eligible_in(self, broker_id: BrokerId) -> Mapping[str, int]:
        """Return in how many partitions of each topic the broker is an eligible leader replica."""
        return self._eligible.of(broker_id)

    def replica_count(self, broker_id: BrokerId) -> int:
        """Return the number of replicas on the broker."""
        return sum(self._placed.of(broker_id).values())

    def configs(self, resource_type: ConfigResourceType, resource_name: str) -> Mapping[str, str]:
        """Return a resource's settings without defaults. The name "" stands for all brokers."""
        return self._configs.get((resource_type, resource_name), _NOTHING)

    def configured(self, resource_type: ConfigResourceType) -> list[str]:
        """Return the names of the resources of a type that have settings, sorted."""
        return sorted(name for kind, name in self._configs if kind is resource_type)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return a topic's settings without defaults."""
        return self._configs.get((ConfigResourceType.TOPIC, topic), _NOTHING)

    def min_insync_replicas(self, topic: str) -> int:
        """Return the topic's minimum, or the cluster's, or the controller's. A single broker's setting does not count:
        with eligible leader replicas, all brokers must judge an ISR alike."""
        for configs in (self.topic_configs(topic), self.cluster_configs(), self.controller_defaults):
            if value := configs.get(MIN_INSYNC_REPLICAS):
                return whole_number(value, 1)
        return 1

    def cluster_configs(self) -> Mapping[str, str]:
        """Return the settings of all brokers, without defaults."""
        return self._configs.get((ConfigResourceType.BROKER, ""), _NOTHING)

    def features(self) -> Mapping[str, int]:
        """Return the finalized features and their levels."""
        return MappingProxyType(self._features)

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature; 0 if it has none."""
        return self._features.get(name, 0)

    @property
    def has_eligible_leader_replicas(self) -> bool:
        """True if partitions keep eligible leader replicas (KIP-966)."""
        return self._features.get(ELR_FEATURE, 0) > 0

    # -- replay

    def replay(self, record: Record, index: int = 0) -> None:
        """Apply a decided fact. Never refuses; a record that does not fit raises, since it is a bug.

        `index` is the log index of the command that produced the record.
        """
        match record:
            case TopicCreated():
                topic = Topic(name=record.name, topic_id=record.topic_id, created_ms=record.created_ms)
                self._add_topic(topic)
            case PartitionCreated():
                self._replay_partition_created(record)
            case PartitionChanged():
                self._replay_partition_changed(record)
            case TopicDeleted():
                topic = self._topics_by_id.pop(record.topic_id)
                del self._topics[topic.name]
                self._colliding.pop(topic.name.replace(".", "_"), None)
                for name, value in self._configs.pop((ConfigResourceType.TOPIC, topic.name), {}).items():
                    self.configs_bytes -= config_bytes(topic.name, name, value)
                self._sorted_topics = None
                self.partition_count -= len(topic.partitions)
                for partition in topic.partitions:
                    self._count(topic.name, partition, None)
            case ConfigChanged():
                self._replay_config_changed(record)
            case ControllerDefaultsChanged():
                self.controller_defaults = _values(record.configs)
            case ProducerIdsAllocated():
                self.next_producer_id = record.next_producer_id
            case BrokerRegistered():
                self._brokers[record.broker_id] = Broker(
                    broker_id=record.broker_id,
                    broker_epoch=record.broker_epoch,
                    incarnation_id=record.incarnation_id,
                    endpoints=record.endpoints,
                    rack=record.rack,
                    fenced=record.fenced,
                    registered_ms=record.registered_ms,
                    registered_index=index,
                    is_cordoned=record.is_cordoned,
                    host=record.host,
                )
            case BrokerChanged():
                before = self._brokers[record.broker_id]
                begins = record.in_controlled_shutdown and not before.in_controlled_shutdown
                self._brokers[record.broker_id] = replace(
                    before,
                    fenced=record.fenced,
                    in_controlled_shutdown=record.in_controlled_shutdown,
                    shutdown_index=index if begins else before.shutdown_index,
                    is_leaving=record.is_leaving,
                    is_returning=record.is_returning,
                    is_cordoned=record.is_cordoned,
                )
            case BrokerUnregistered():
                del self._brokers[record.broker_id]
            case FeatureChanged():
                self._features[record.name] = record.level
                if record.level == 0:
                    del self._features[record.name]
            case ClusterFormatted():
                self.cluster_id = record.cluster_id
            case ScramCredentialChanged():
                self.credentials.replay(record.change)
            case AclChanged():
                self.acls.replay(record)
            case DelegationTokenChanged():
                self.delegation_tokens.put(record.token)
            case DelegationTokenRemoved():
                self.delegation_tokens.remove(record.token_id)
            case ClientQuotaChanged():
                self.quotas.replay(record.change)
            case _:
                assert_never(record)
        self.version += 1

    def _add_topic(self, topic: Topic) -> None:
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = topic
        self._sorted_topics = None
        self.partition_count += len(topic.partitions)
        if "." in topic.name or "_" in topic.name:
            self._colliding[topic.name.replace(".", "_")] = topic.name
        for partition in topic.partitions:
            self._count(topic.name, None, partition)

    def _count(self, topic: str, before: Partition | None, after: Partition | None) -> None:
        """Count a partition that has changed; None before it was created, and after it was deleted."""
        for counts, members in ((self._placed, _replicas), (self._held, _holders), (self._eligible, _eligible)):
            was, is_now = members(before), members(after)
            if was != is_now:
                counts.change(topic, was, is_now)

    def _replay_partition_created(self, record: PartitionCreated) -> None:
        partitions = self._topics_by_id[record.topic_id].partitions
        assert record.partition == len(partitions), "partitions are created in order"
        partition = _created(record.replicas, record.isr, record.leader, record.leader_epoch, record.partition_epoch)
        partitions.append(partition)
        self.partition_count += 1
        self._count(record.topic, None, partition)

    def _replay_partition_changed(self, record: PartitionChanged) -> None:
        partitions = self._topics_by_id[record.topic_id].partitions
        before = partitions[record.partition]
        after = partitions[record.partition] = Partition(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            eligible_leader_replicas=record.eligible_leader_replicas,
            last_known_elr=record.last_known_elr,
            is_recovering=record.is_recovering,
            offline_replicas=record.offline_replicas,
        )
        self._count(record.topic, before, after)

    def _replay_config_changed(self, record: ConfigChanged) -> None:
        key = (record.resource_type, record.resource_name)
        configs = self._configs.get(key, {})
        before = configs.pop(record.name, None) if record.value is None else configs.get(record.name)
        if before is not None:
            self.configs_bytes -= config_bytes(record.resource_name, record.name, before)
        if record.value is not None:
            self.configs_bytes += config_bytes(record.resource_name, record.name, record.value)
            self._configs.setdefault(key, {})[record.name] = record.value
            return
        if not configs:
            self._configs.pop(key, None)

    # -- snapshots

    def to_bytes(self) -> bytes:
        """Encode the whole image; equal images give equal bytes."""
        return self.capture()()

    def capture(self) -> Callable[[], bytes]:
        """Capture the whole image; the returned function does what `to_bytes` does, in any thread and at any time.

        Capturing copies references to what never changes, a hundred times faster than encoding it.
        """
        cluster_id, version, next_producer_id = self.cluster_id, self.version, self.next_producer_id
        brokers = tuple(self.brokers())
        topics = [(topic, tuple(topic.partitions)) for topic in self.topics()]
        configs = [(key, dict(values)) for key, values in self._configs.items()]
        features, submissions = dict(self._features), self.submissions.saved()
        defaults, credentials, acls = self.controller_defaults, self.credentials.capture(), self.acls.saved()
        tokens, quotas = self.delegation_tokens.all(), self.quotas.capture()

        def encode() -> bytes:
            saved = _Saved(
                cluster_id=cluster_id,
                version=version,
                next_producer_id=next_producer_id,
                brokers=brokers,
                topics=tuple(
                    _SavedTopic(
                        name=topic.name, topic_id=topic.topic_id, created_ms=topic.created_ms, partitions=partitions
                    )
                    for topic, partitions in topics
                ),
                configs=tuple(
                    _SavedConfig(resource_type=kind, resource_name=resource, name=name, value=value)
                    for (kind, resource), values in sorted(configs, key=lambda each: each[0])
                    for name, value in sorted(values.items())
                ),
                features=tuple(_SavedFeature(name=name, level=level) for name, level in sorted(features.items())),
                submissions=submissions,
                controller_defaults=tuple(ConfigValue(name=name, value=value) for name, value in defaults.items()),
                credentials=credentials(),
                acls=acls,
                delegation_tokens=tuple(sorted(tokens, key=lambda token: token.token_id)),
                quotas=quotas(),
            )
            needs_newer = bool(defaults) or any(is_new_level(name, level) for name, level in features.items())
            is_secured = bool(saved.credentials or acls or tokens or saved.quotas)
            schema = _WITHOUT_CORDONS if is_secured else _WITHOUT_SECURITY if needs_newer else _OLDER_SCHEMA
            if any(broker.is_cordoned for broker in brokers):
                schema = _WITHOUT_HOSTS
            if any(broker.host is not None for broker in brokers):
                schema = SCHEMA
            return pack([schema, to_plain(saved)])

        return encode

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Image:
        """Decode the output of `to_bytes`. Raises `NewerSchemaError` on another schema, `CodecError` on other bytes."""
        plain = unpack_in_parts(data, _TOPICS_DEPTH)
        if type(plain) is not list or len(plain) != 2:
            raise CodecError("not a metadata snapshot")
        if plain[0] not in range(1, SCHEMA + 1):
            raise NewerSchemaError(
                f"another version of kraftpy wrote this metadata (a snapshot of schema {plain[0]}, this one knows "
                f"{SCHEMA}): upgrade this node"
            )
        saved = from_plain(_Saved, plain[1])
        image = cls()
        image.cluster_id, image.version = saved.cluster_id, saved.version
        image.next_producer_id = saved.next_producer_id
        image._brokers = {broker.broker_id: broker for broker in saved.brokers}
        for topic in saved.topics:
            image._add_topic(
                Topic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    created_ms=topic.created_ms,
                    partitions=list(topic.partitions),
                )
            )
        for config in saved.configs:
            key = (config.resource_type, config.resource_name)
            image._configs.setdefault(key, {})[config.name] = config.value
            image.configs_bytes += config_bytes(config.resource_name, config.name, config.value)
        image._features = {feature.name: feature.level for feature in saved.features}
        image.submissions = Submissions(saved.submissions)
        image.controller_defaults = _values(saved.controller_defaults)
        image.credentials = Credentials(saved.credentials)
        image.acls = Acls(saved.acls)
        image.delegation_tokens = DelegationTokens(saved.delegation_tokens)
        image.quotas = ClientQuotas(saved.quotas)
        return image
