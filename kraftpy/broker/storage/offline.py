"""The partitions that are this broker's and that it cannot use, and what the cluster is to be told of its replicas.

A partition is offline because its log directory failed, because its log could not be opened (that is tried again), or
because what it held is gone: its directory was on a disk that is not here any more, or was replaced by an empty one.
The last is never opened, and so made anew, unless the cluster knows: an empty log on the only replica in sync would be
taken for what the partition holds. Whether it may begin anew the metadata decides (`metadata.partitions`); the mark in
the image is what says so, and survives.

A log that was found shorter than it was known to be is not offline. The cluster is told as well: it is no longer to be
counted on for what it had, whatever it said when it registered.

`reports` is what the metadata does not say yet; whoever drives it sends that until there is nothing.
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
    """A partition that the metadata gives this broker."""

    topic: Topic
    number: int
    config: TopicConfig

    @property
    def key(self) -> TopicPartition:
        """Its name."""
        return TopicPartition(self.topic.name, self.number)

    @property
    def partition(self) -> Partition:
        """Its state, as of now."""
        return self.topic.partitions[self.number]


class _Reason(NamedTuple):
    """Why a partition is offline."""

    text: str
    state: ReplicaState | None
    """What the cluster is to be told; None for nothing: nobody else could do anything about it."""
    may_retry: bool


class Offline:
    """What is offline on one broker."""

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self._wanted: dict[TopicPartition, Wanted] = {}
        self._reasons: dict[TopicPartition, _Reason] = {}
        self._marked: dict[Number, None] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._cut: dict[Number, None] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._wanted

    def __iter__(self) -> Iterator[Wanted]:
        return iter(list(self._wanted.values()))

    # --- coming and going --------------------------------------------------------------------

    def opening(self, wanted: Iterable[Wanted]) -> None:
        """These are about to be opened: until they are, they cannot be used."""
        self._wanted.update((each.key, each) for each in wanted)

    def failed(
        self, wanted: Wanted, text: str, state: ReplicaState | None = ReplicaState.OFFLINE, *, may_retry: bool
    ) -> bool:
        """It cannot be used, for this reason; whether that is news."""
        before = self._reasons.get(wanted.key)
        self._wanted[wanted.key] = wanted
        self._reasons[wanted.key] = _Reason(text, state, may_retry)
        return before is None or before.text != text

    def gone(self, key: TopicPartition) -> None:
        """It can be used now, or is no longer this broker's."""
        self._wanted.pop(key, None)
        self._reasons.pop(key, None)
        self._in_doubt.discard(key)

    def why(self, key: TopicPartition) -> str:
        """What stands in its way."""
        reason = self._reasons.get(key)
        return "it is being opened" if reason is None else reason.text

    def to_retry(self) -> list[Wanted]:
        """Those that may be there by now."""
        reasons = self._reasons
        return [each for key, each in self._wanted.items() if (reason := reasons.get(key)) is None or reason.may_retry]

    # --- what may be gone --------------------------------------------------------------------

    def doubt(self, keys: Iterable[TopicPartition]) -> None:
        """These are not found, and may be on a directory that is not here."""
        self._in_doubt.update(keys)

    def may_begin(self, wanted: Wanted) -> bool:
        """Whether a partition that has no directory here may be made, empty."""
        return wanted.key not in self._in_doubt and self.broker_id not in wanted.partition.offline_replicas

    def cut(self, number: Number) -> None:
        """It can be used, and lacks something that it had."""
        self._cut[number] = None

    # --- what the cluster is to know ---------------------------------------------------------

    def noted(self, number: Number, partition: Partition) -> None:
        """The metadata says this of a partition now."""
        if self.broker_id in partition.offline_replicas:
            self._marked[number] = None
        else:
            self._marked.pop(number, None)

    def reports(self, image: Image, is_open: Callable[[Number], bool]) -> dict[Number, ReplicaState]:
        """What the metadata is to be told of this broker's replicas."""
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
        for number in list(self._cut):
            topic = image.topic_by_id(number[0])
            if topic is None or not _counts_on(self.broker_id, topic.partitions[number[1]]):
                del self._cut[number]
            else:
                found[number] = ReplicaState.TRUNCATED
        return found

    def reported(self, number: Number, image: Image) -> None:
        """The cluster has been told of a partition, and has decided: what it was in doubt about is settled."""
        self._cut.pop(number, None)
        topic = image.topic_by_id(number[0])
        if topic is None:
            return
        key = TopicPartition(topic.name, number[1])
        self._in_doubt.discard(key)
        reason, wanted = self._reasons.get(key), self._wanted.get(key)
        if reason is not None and wanted is not None and reason.state is ReplicaState.LOST and self.may_begin(wanted):
            self._reasons[key] = reason._replace(state=None, may_retry=True)


def _counts_on(broker_id: BrokerId, partition: Partition) -> bool:
    """Whether it might be elected for what it has."""
    return broker_id in partition.isr or broker_id in partition.eligible_leader_replicas
