"""The answer to a command: what becomes true, and what to tell the one who asked.

A command that names several things has one result for each, in the order asked, each with its own error. The decision's
own `error` is for a command that was refused as a whole; where its things are topics, each result says so too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kraftpy.metadata.image import Partition
from kraftpy.metadata.records import Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import ProducerId, TopicId

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R_co]):
    """Records to replay, none where nothing changes, and the reply. `result` is None where there is nothing to tell."""

    records: tuple[Record, ...] = ()
    result: R_co | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What became of one topic of a request; counts are -1 where it was refused."""

    name: str | None
    topic_id: TopicId
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """What became of one resource's settings."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What became of one partition's proposal: how it stands after this decision, where it is known."""

    topic_id: TopicId
    partition: int
    error: ErrorCode = ErrorCode.NONE
    state: Partition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResult:
    """The epoch that a broker's session is known by."""

    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """Producer ids `first_producer_id` up to, not including, `first_producer_id + count`."""

    first_producer_id: ProducerId
    count: int


class Refused(Exception):
    """Within a decision: this one thing is refused, with an error code for its result."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message
