"""The cluster's metadata as replayed so far: what every lookup of a request reads.

Replaying the same records gives equal images, and equal images give equal bytes. Objects that a lookup returns are
frozen; `Topic` alone grows in place. Nothing here refuses: a record that does not fit is our own mistake, and raises.

`version` counts the records ever replayed. It only grows, it is the same on every node at the same point, it names the
encoded answers that a cache may keep, and a broker's epoch is the version that its registration made.

Left out: an index from brokers to partitions (an election looks at every partition: 2,000 take milliseconds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import assert_never

from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack
from kraftpy.metadata.commands import ConfigResourceType, Endpoint, NewerSchemaError
from kraftpy.metadata.records import (
    NO_LEADER,
    BrokerChanged,
    BrokerRegistered,
    ClusterFormatted,
    ConfigChanged,
    PartitionChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from kraftpy.types import BrokerId, LeaderEpoch, Millis, ProducerId, TopicId

SCHEMA = 1
"""The shape of a snapshot's bytes."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker. Its epoch grows with each registration; a fenced one leads nothing."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    registered_ms: Millis

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where this broker's listener of that name is."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition: who keeps it, who is in sync, who leads. The first replica is the preferred leader."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int

    @property
    def has_leader(self) -> bool:
        """Whether somebody may lead it now."""
        return self.leader != NO_LEADER


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic and its partitions; a partition's number is its place in the list."""

    name: str
    topic_id: TopicId
    created_ms: Millis
    partitions: list[Partition] = field(default_factory=list)

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, which the others follow."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedTopic:
    name: str
    topic_id: TopicId
    created_ms: Millis
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedConfig:
    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The image as its snapshot holds it."""

    cluster_id: str | None
    version: int
    next_producer_id: ProducerId
    brokers: tuple[Broker, ...]
    topics: tuple[_SavedTopic, ...]
    configs: tuple[_SavedConfig, ...]


class Image:
    """Topics, partitions, settings, brokers and producer id blocks of one cluster."""

    __slots__ = (
        "_brokers",
        "_colliding",
        "_configs",
        "_sorted_topics",
        "_topics",
        "_topics_by_id",
        "cluster_id",
        "next_producer_id",
        "partition_count",
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
        self._colliding: dict[str, str] = {}
        self._configs: dict[tuple[ConfigResourceType, str], dict[str, str]] = {}

    # -- lookups

    def topic(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        """The topic of that id."""
        return self._topics_by_id.get(topic_id)

    def topics(self) -> Sequence[Topic]:
        """Every topic, by name."""
        if self._sorted_topics is None:
            self._sorted_topics = tuple(self._topics[name] for name in sorted(self._topics))
        return self._sorted_topics

    def topic_colliding_with(self, name: str) -> str | None:
        """A topic whose name differs from this one in '.' and '_' alone, or is the same and has one of them."""
        return self._colliding.get(name.replace(".", "_"))

    def partition(self, topic: str, partition: int) -> Partition | None:
        """One partition, by its topic's name and its number."""
        found = self._topics.get(topic)
        return found.partitions[partition] if found and 0 <= partition < len(found.partitions) else None

    def partitions(self) -> Iterator[tuple[Topic, int, Partition]]:
        """Every partition with its topic and number, by topic name."""
        for topic in self.topics():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def broker(self, broker_id: BrokerId) -> Broker | None:
        """The registered broker of that id, fenced or not."""
        return self._brokers.get(broker_id)

    def brokers(self) -> list[Broker]:
        """Every registered broker, by id."""
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]

    def is_active(self, broker_id: BrokerId) -> bool:
        """Whether the broker is registered and not fenced."""
        broker = self._brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def configs(self, resource_type: ConfigResourceType, resource_name: str) -> Mapping[str, str]:
        """What is set for a resource, without defaults. "" names what is set for every broker."""
        return self._configs.get((resource_type, resource_name), _NOTHING)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """What is set for a topic, without defaults."""
        return self._configs.get((ConfigResourceType.TOPIC, topic), _NOTHING)

    # -- replay

    def replay(self, record: Record) -> None:
        """Take a decided fact in. Never refuses; a record that does not fit raises, for it is our own mistake."""
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
                self._configs.pop((ConfigResourceType.TOPIC, topic.name), None)
                self._sorted_topics = None
                self.partition_count -= len(topic.partitions)
            case ConfigChanged():
                self._replay_config_changed(record)
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
                )
            case BrokerChanged():
                self._brokers[record.broker_id] = replace(self._brokers[record.broker_id], fenced=record.fenced)
            case ClusterFormatted():
                self.cluster_id = record.cluster_id
            case _:
                assert_never(record)
        self.version += 1

    def _add_topic(self, topic: Topic) -> None:
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = topic
        self._sorted_topics = None
        self.partition_count += len(topic.partitions)
        if "." in topic.name or "_" in topic.name:
            self._colliding[topic.name.replace(".", "_")] = topic.name

    def _replay_partition_created(self, record: PartitionCreated) -> None:
        partitions = self._topics_by_id[record.topic_id].partitions
        assert record.partition == len(partitions), "partitions are created in order"
        partition = Partition(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )
        partitions.append(partition)
        self.partition_count += 1

    def _replay_partition_changed(self, record: PartitionChanged) -> None:
        partitions = self._topics_by_id[record.topic_id].partitions
        partitions[record.partition] = replace(
            partitions[record.partition],
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )

    def _replay_config_changed(self, record: ConfigChanged) -> None:
        key = (record.resource_type, record.resource_name)
        if record.value is not None:
            self._configs.setdefault(key, {})[record.name] = record.value
            return
        configs = self._configs.get(key, {})
        configs.pop(record.name, None)
        if not configs:
            self._configs.pop(key, None)

    # -- snapshots

    def to_bytes(self) -> bytes:
        """The whole image, equal for equal images."""
        saved = _Saved(
            cluster_id=self.cluster_id,
            version=self.version,
            next_producer_id=self.next_producer_id,
            brokers=tuple(self.brokers()),
            topics=tuple(
                _SavedTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    created_ms=topic.created_ms,
                    partitions=tuple(topic.partitions),
                )
                for topic in self.topics()
            ),
            configs=tuple(
                _SavedConfig(resource_type=kind, resource_name=resource, name=name, value=value)
                for (kind, resource), configs in sorted(self._configs.items())
                for name, value in sorted(configs.items())
            ),
        )
        return pack([SCHEMA, to_plain(saved)])

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Image:
        """The image that `to_bytes` gave. Raises `CodecError` on anything else (`NewerSchemaError`: another schema)."""
        plain = unpack(data)
        if type(plain) is not list or len(plain) != 2:
            raise CodecError("not a metadata snapshot")
        if plain[0] != SCHEMA:
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
        return image
