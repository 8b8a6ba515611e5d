"""The table of the partitions that this broker holds, by topic name and by topic id, as requests look them up.

Invariant: a replica is in both indexes or in neither, and one that is in them is open, in a log directory that works. A
partition that the metadata assigns to this broker and that is not here is in `offline`. A lookup that fails says why,
in the error code that makes a client do the right thing: ask for the new leader, or wait. KAFKA_STORAGE_ERROR is for
partitions whose directory or log has failed; one that is still being opened is not led yet, and one that is being
closed and deleted is gone already.

`ReplicaManager` fills the table; everyone else reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kraftpy.broker.replication.due_work import DueWork
from kraftpy.broker.replication.leadership_check import Confirmations
from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.storage.offline import Offline
from kraftpy.broker.storage.record_inspection import Decoding
from kraftpy.metadata.image import Image
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.metrics.traffic import Traffic

_NONE: Mapping[int, Replica] = MappingProxyType({})


class Replicas:
    """Every partition of this broker, by topic name and by topic id."""

    def __init__(self, offline: Offline, confirmations: Confirmations, traffic: Traffic | None = None) -> None:
        self.broker_id = offline.broker_id
        self.image = Image()
        """The metadata that the table reflects, or is about to."""
        self.offline = offline
        """The partitions of this broker that cannot be used."""
        self.confirmations = confirmations
        """Checks that this broker still leads."""
        self.decoding = Decoding()
        """Long work on the records of a partition."""
        self.due = DueWork()
        """The partitions that periodic work has to look at."""
        self.traffic = traffic
        """Counts bytes and records by topic; None if there are no metrics."""
        self._by_name: dict[tuple[str, int], Replica] = {}
        self._by_topic: dict[TopicId, dict[int, Replica]] = {}
        """By topic id and number."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_name.values()))

    # --- lookups -----------------------------------------------------------------------------

    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Replica:
        """Return the partition's replica if this broker leads it, in the epoch that the client means (-1 is any).

        As in Kafka, the epoch is checked before the role. Raises KafkaError (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
        NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR).
        """
        replica = self._by_name.get((topic, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            replica.check_leader_epoch(current_leader_epoch)
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here(topic, partition, replica)

    def leader_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """Like `leader`, by topic id. Raises KafkaError (UNKNOWN_TOPIC_ID if no topic has the id)."""
        replica = self.held_by_id(topic_id, partition)
        if replica is not None and replica.leading is not None:
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def readable(self, topic: str, partition: int) -> Replica:
        """Return the partition's replica if this broker leads or follows it. Raises KafkaError as `leader` does."""
        replica = self._by_name.get((topic, partition))
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here(topic, partition, replica)

    def readable_by_id(self, topic_id: TopicId, partition: int) -> Replica:
        """Like `readable`, by topic id. Raises KafkaError as `leader_by_id` does."""
        replica = self.held_by_id(topic_id, partition)
        if replica is not None and (replica.leading is not None or replica.following is not None):
            return replica
        raise self._not_here_by_id(topic_id, partition, replica)

    def held(self, key: TopicPartition) -> Replica | None:
        """Return the partition's replica in any role."""
        return self._by_name.get(key)

    def of_topic(self, topic_id: TopicId) -> list[Replica]:
        """Return the replicas of a topic's partitions, in any role."""
        return [*self._by_topic.get(topic_id, _NONE).values()]

    def any_role(self, topic: str, partition: int) -> Replica:
        """Return the partition's replica in any role. Raises KafkaError as `leader` does."""
        replica = self._by_name.get((topic, partition))
        if replica is not None:
            return replica
        raise self._not_here(topic, partition, None)

    def held_by_id(self, topic_id: TopicId, partition: int) -> Replica | None:
        """Return the partition's replica in any role."""
        return self._by_topic.get(topic_id, _NONE).get(partition)

    def in_directory(self, path: str) -> list[Replica]:
        """Return the partitions in a log directory, sorted."""
        return [self._by_name[key] for key in sorted(self._by_name) if self._by_name[key].log_directory.path == path]

    def _not_here(self, topic: str, partition: int, replica: Replica | None) -> KafkaError:
        key = TopicPartition(topic, partition)
        known = self.image.partition(topic, partition)
        leads_elsewhere = known is not None and known.leader not in (NO_LEADER, self.broker_id)
        if self.offline.has_failed(key) and not leads_elsewhere:  # otherwise aiokafka would keep asking this broker
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} is offline: {self.offline.why(key)}")
        if replica is None and known is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {key}")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {key}")

    def _not_here_by_id(self, topic_id: TopicId, partition: int, replica: Replica | None) -> KafkaError:
        topic = self.image.topic_by_id(topic_id)
        if topic is None and replica is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no partition {partition} of topic {topic_id.hex()}")
        name = topic.name if topic is not None else replica.topic_partition.topic if replica is not None else ""
        return self._not_here(name, partition, replica)

    # --- for the replica manager -------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """Add a replica that was opened."""
        if self.traffic is not None and replica.topic_partition not in self._by_name:
            replica.traffic = self.traffic.opened(replica.topic_partition.topic)
        self._by_name[replica.topic_partition] = replica
        self._by_topic.setdefault(replica.topic_id, {})[replica.topic_partition.partition] = replica
        self.due.changed(replica)

    def remove(self, replica: Replica) -> bool:
        """Remove a replica that is about to be closed; return False if it was removed before."""
        if self._by_name.pop(replica.topic_partition, None) is None:
            return False
        of_topic = self._by_topic[replica.topic_id]
        del of_topic[replica.topic_partition.partition]
        if not of_topic:
            del self._by_topic[replica.topic_id]
        self.due.closed(replica)
        if self.traffic is not None:
            self.traffic.closed(replica.topic_partition.topic)
        return True
