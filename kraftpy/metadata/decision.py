"""The answer to a command: what becomes true, and what to tell the one who asked.

A command that names several things has one result for each, in the order asked, each with its own error. The decision's
own `error` is for a command that was refused as a whole; where its things are topics, each result says so too.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kraftpy.metadata.commands import SubmissionId
from kraftpy.metadata.frozen import frozen
from kraftpy.metadata.image import Partition
from kraftpy.metadata.records import Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import ProducerId, TopicId

R_co = TypeVar("R_co", covariant=True)


@frozen
class Decision(Generic[R_co]):
    """Records to replay, none where nothing changes, and the reply. `result` is None where there is nothing to tell."""

    records: tuple[Record, ...] = ()
    result: R_co | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class TopicResult:
    """What became of one topic of a request; counts are -1 where it was refused."""

    name: str | None
    topic_id: TopicId
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1


@frozen
class ConfigResult:
    """What became of one resource's settings."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class PartitionResult:
    """What became of one partition's proposal or report: how it stands after this decision, where it is known."""

    topic_id: TopicId
    partition: int
    error: ErrorCode = ErrorCode.NONE
    state: Partition | None = None


@frozen
class ElectionResult:
    """What became of one partition's election on request."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class ReassignmentResult:
    """What became of one partition's reassignment, or of the end of one."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class FeatureResult:
    """What became of one feature's update."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class BrokerResult:
    """The epoch that a broker's session is known by."""

    broker_epoch: int


@frozen
class ProducerIdBlock:
    """Producer ids `first_producer_id` up to, not including, `first_producer_id + count`."""

    first_producer_id: ProducerId
    count: int


@frozen
class Applied:
    """One committed entry, taken in. A duplicate changed nothing: its decision was told when it came first."""

    submission: SubmissionId | None
    decision: Decision[Any]
    is_duplicate: bool = False
    is_unusable: bool = False
    """It was no command at all, or its decision failed: it changed nothing, here and on every node."""


class Refused(Exception):
    """Within a decision: this one thing is refused, with an error code for its result."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message
