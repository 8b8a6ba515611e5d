"""Enforces `controller_mutation_rate` on changes of topics: one token for each partition that is created or deleted.

In requests of a strict version, a topic is refused with THROTTLING_QUOTA_EXCEEDED once the client's tokens are used up;
the one before it may take more tokens than there are. In earlier versions every topic is allowed, and the client waits
afterwards (KIP-599). The tokens of a topic that is not changed after all are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from kraftpy.broker.request import RequestContext
from kraftpy.broker.slicing import Slices
from kraftpy.metadata.commands import NewPartitions, NewTopic, TopicReference
from kraftpy.metadata.decision import TopicResult
from kraftpy.metadata.image import Image
from kraftpy.protocol.errors import ErrorCode, KafkaError

FIRST_STRICT_CREATE_TOPICS: Final = 6
FIRST_STRICT_DELETE_TOPICS: Final = 5
FIRST_STRICT_CREATE_PARTITIONS: Final = 3

T = TypeVar("T")


def exceeded() -> KafkaError:
    """Return the error for a change that the quota does not allow now."""
    return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


class Mutations(Generic[T]):
    """The changes of one request: those that are `allowed` now, and those `refused`, each in order.

    `cost` returns how many partitions a change creates or deletes, before anything is changed. Call `count` first.
    """

    def __init__(self, slices: Slices, context: RequestContext, first_strict: int, cost: Callable[[T], int]) -> None:
        self._slices = slices
        self._quota = context.quota
        self._is_strict = context.api_version >= first_strict
        self._cost = cost
        self._costs: list[int] = []
        self.allowed: list[T] = []
        self.refused: list[T] = []

    async def count(self, wanted: Sequence[T]) -> None:
        """Divide the changes into those allowed and those refused, in slices."""
        if self._quota is None:
            self.allowed += wanted
            return
        async for some in self._slices.pieces(wanted):
            for each in some:
                partitions = max(0, self._cost(each))
                if partitions and not self._quota.may_mutate(partitions, strict=self._is_strict):
                    self.refused.append(each)
                else:
                    self.allowed.append(each)
                    self._costs.append(partitions)

    async def decided(self, results: Sequence[TopicResult]) -> None:
        """Uncount allowed changes that failed for other reasons; a change that timed out may still be made."""
        if self._quota is None:
            return
        async for some in self._slices.pieces(list(zip(self._costs, results, strict=False))):
            for partitions, result in some:
                if partitions and result.error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                    self._quota.did_not_mutate(partitions)


def cost_of_creation(topic: NewTopic, default_partitions: int) -> int:
    """Return how many partitions a new topic would have."""
    if topic.assignments:
        return len(topic.assignments)
    return default_partitions if topic.partitions == -1 else topic.partitions


def cost_of_deletion(reference: TopicReference, image: Image) -> int:
    """Return how many partitions a topic has; 0 if the topic does not exist."""
    found = image.topic(reference.name) if reference.name is not None else image.topic_by_id(reference.topic_id)
    return 0 if found is None else len(found.partitions)


def cost_of_growth(topic: NewPartitions, image: Image) -> int:
    """Return how many partitions would be added to a topic; 0 if the topic does not exist."""
    found = image.topic(topic.name)
    return 0 if found is None else topic.count - len(found.partitions)
