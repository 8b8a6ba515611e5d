"""The partitions of this broker that it cannot use, and the reports about its replicas that the cluster needs.

A partition that is being opened is here too, but it has not failed: it can be used in a moment, and clients get an
error that says so. A partition has failed, and is offline, because its log directory failed, because its log could not
be opened (that is retried), or because its data is gone: its directory was on a disk that is not here any more, or was
replaced by an empty one. A partition of the last kind is not opened, and so not created empty, unless the cluster
knows: an empty log on the only in-sync replica would be mistaken for the partition's data. The metadata decides whether
it may start empty (`metadata.partitions`); the mark in the image records that durably.

A log that was found shorter than it was known to be is not offline, but is reported too: the cluster must no longer
rely on this replica for the missing records, even if the broker claimed them when it registered.

`reports` returns the states that the metadata does not have yet; its caller keeps sending them until it returns none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kraftpy.config import TopicConfig
from kraftpy.metadata.commands import ReplicaState
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.types import BrokerId, TopicId, TopicPartition

Number = tuple[TopicId, int]


class Wanted(NamedTuple):
    """A partition that the metadata assigns to this broker."""

    topic: Topic
    number: int
    config: TopicConfig

    @property
    def key(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic.name, self.number)

    @property
    def partition(self) -> Partition:
        """The partition's state as of now."""
        return self.topic.partitions[self.number]


class _Reason(NamedTuple):
    """Why a partition is offline."""

    text: str
    state: ReplicaState | None
    """The state to report to the cluster; None if no one else could do anything about it."""
    may_retry: bool


class Offline:
    """The partitions of one broker that cannot be used."""

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self._wanted: dict[TopicPartition, Wanted] = {}
        self._reasons: dict[TopicPartition, _Reason] = {}
        self._marked: dict[Number, None] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._shortened: dict[Number, None] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._wanted

    def held_by_id(self, topic_id: TopicId, partition: int, image: Image) -> Wanted | None:
        """Return a partition that cannot be used, or None."""
        topic = image.topic_by_id(topic_id)
        return None if topic is None else self._wanted.get(TopicPartition(topic.name, partition))

    def has_failed(self, key: TopicPartition) -> bool:
        """Return whether a partition is offline, and not just about to be opened."""
        return key in self._reasons

    def failures(self) -> dict[TopicPartition, str]:
        """Return the offline partitions, each with the reason."""
        return {key: reason.text for key, reason in self._reasons.items()}

    def __iter__(self) -> Iterator[Wanted]:
        return iter(list(self._wanted.values()))

    # --- adding and removing -----------------------------------------------------------------

    def opening(self, wanted: Iterable[Wanted]) -> None:
        """Add partitions that are about to be opened; they cannot be used until then."""
        self._wanted.update((each.key, each) for each in wanted)

    def failed(
        self, wanted: Wanted, text: str, state: ReplicaState | None = ReplicaState.OFFLINE, *, may_retry: bool
    ) -> bool:
        """Mark a partition as unusable for this reason; return whether the reason is new."""
        before = self._reasons.get(wanted.key)
        self._wanted[wanted.key] = wanted
        self._reasons[wanted.key] = _Reason(text, state, may_retry)
        return before is None or before.text != text

    def gone(self, key: TopicPartition) -> None:
        """Remove a partition that can be used now, or is no longer this broker's."""
        self._wanted.pop(key, None)
        self._reasons.pop(key, None)
        self._in_doubt.discard(key)

    def why(self, key: TopicPartition) -> str:
        """Explain why a partition has failed."""
        return self._reasons[key].text

    def to_retry(self) -> list[Wanted]:
        """Return the partitions that may be usable by now."""
        reasons = self._reasons
        return [each for key, each in self._wanted.items() if (reason := reasons.get(key)) is None or reason.may_retry]

    # --- what may be gone --------------------------------------------------------------------

    def doubt(self, keys: Iterable[TopicPartition]) -> None:
        """Mark partitions that were not found, and may be on a directory that is not here."""
        self._in_doubt.update(keys)

    def may_begin(self, wanted: Wanted) -> bool:
        """Return whether a partition that has no directory here may be created, empty."""
        return wanted.key not in self._in_doubt and self.broker_id not in wanted.partition.offline_replicas

    def mark_shortened(self, number: Number) -> None:
        """Mark a usable replica that lacks records it once had."""
        self._shortened[number] = None

    # --- reports to the cluster --------------------------------------------------------------

    def follow_metadata(self, number: Number, partition: Partition) -> None:
        """Update this broker's marks from a partition's new metadata."""
        if self.broker_id in partition.offline_replicas:
            self._marked[number] = None
        else:
            self._marked.pop(number, None)

    def reports(self, image: Image, is_open: Callable[[Number], bool]) -> dict[Number, ReplicaState]:
        """Return the states of this broker's replicas that must be reported to the metadata."""
        found: dict[Number, ReplicaState] = {}
        for key, reason in self._reasons.items():
            partition = image.partition(*key)
            if partition is None or reason.state is None or self.broker_id not in partition.replicas:
                continue
            is_marked = self.broker_id in partition.offline_replicas
            is_due = not is_marked
            if reason.state is ReplicaState.LOST:
                is_due = key in self._in_doubt or (is_marked and partition.has_leader)
            if is_due:
                found[self._wanted[key].topic.topic_id, key.partition] = reason.state
        for number in list(self._marked):
            topic = image.topic_by_id(number[0])
            if topic is None or self.broker_id not in topic.partitions[number[1]].replicas:
                del self._marked[number]
            elif is_open(number):
                found[number] = ReplicaState.ONLINE
        for number in list(self._shortened):
            topic = image.topic_by_id(number[0])
            if topic is None or not _counts_on(self.broker_id, topic.partitions[number[1]]):
                del self._shortened[number]
            else:
                found[number] = ReplicaState.TRUNCATED
        return found

    def reported(self, number: Number, image: Image) -> None:
        """Handle the cluster's decision on a reported partition, which ends the doubt about it."""
        self._shortened.pop(number, None)
        topic = image.topic_by_id(number[0])
        if topic is None:
            return
        key = TopicPartition(topic.name, number[1])
        self._in_doubt.discard(key)
        reason, wanted = self._reasons.get(key), self._wanted.get(key)
        if reason is not None and wanted is not None and reason.state is ReplicaState.LOST and self.may_begin(wanted):
            self._reasons[key] = reason._replace(state=None, may_retry=True)


def _counts_on(broker_id: BrokerId, partition: Partition) -> bool:
    """Return whether the replica might be elected because of the records it had."""
    return broker_id in partition.isr or broker_id in partition.eligible_leader_replicas
