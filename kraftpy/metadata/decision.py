"""The outcome of a command: the records to replay and the reply.

A command that names several resources gets one result for each, in request order, each with its own error. The
decision's own `error` is for a command that was refused as a whole; for topics, each result repeats it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from kraftpy.frozen import frozen
from kraftpy.metadata.image import Partition
from kraftpy.metadata.records import Record
from kraftpy.metadata.submissions import SubmissionId
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import ProducerId, TopicId

R_co = TypeVar("R_co", covariant=True)


@frozen
class Decision(Generic[R_co]):
    """The records to replay (empty if nothing changes) and the reply. `result` is None if the reply has no content."""

    records: tuple[Record, ...] = ()
    result: R_co | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class TopicResult:
    """The result for one topic of a request; counts are -1 if it was refused."""

    name: str | None
    topic_id: TopicId
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1


@frozen
class ConfigResult:
    """The result of changing one resource's settings."""

    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class PartitionResult:
    """The result of one partition's proposal or report; `state` is the partition after this decision, if known."""

    topic_id: TopicId
    partition: int
    error: ErrorCode = ErrorCode.NONE
    state: Partition | None = None


@frozen
class ElectionResult:
    """The result of electing one partition's leader on request."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class ReassignmentResult:
    """The result of starting or cancelling one partition's reassignment."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class FeatureResult:
    """The result of one feature update."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class BrokerResult:
    """The epoch that identifies a broker's registration."""

    broker_epoch: int
    is_partial: bool = False
    """More partitions are affected than the command may change at once: it must be repeated. A registration is not
    made before its last part; its epoch is then -1."""


@frozen
class ProducerIdBlock:
    """Producer ids from `first_producer_id` up to but not including `first_producer_id + count`."""

    first_producer_id: ProducerId
    count: int


@frozen
class Applied:
    """The outcome of applying one committed entry. A duplicate changed nothing: its first copy had the decision."""

    submission: SubmissionId | None
    decision: Decision[Any]
    is_duplicate: bool = False
    is_unusable: bool = False
    """The entry was not a command, or deciding it failed: it changed nothing, here and on every other node."""


class Refused(Exception):
    """Raised within a decision to refuse one item, with the error code for its result."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message
