"""What can happen to a transaction coordinator, and what may follow from it: plain data, both ways.

A `Request` is answered by exactly one `Reply` with its `request_id`. An `Append` is answered by the shell with exactly
one `Appended` of the same token, in the order of the log; until then nothing that depends on the record is told to
anyone. `WriteMarkers` is answered by `MarkersWritten`, in as many parts as it takes: the shell tries until every
partition has its marker or is gone.

Requests are in words of this package: how each version of an API says it, the shell knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.records import Record
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """A producer takes a transactional id over, or goes on after an error (then it names what it had, KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Make partitions part of the transaction; `client_version` is that of the producer's transactions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Whether partitions are part of the transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = 0


Command = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Somebody asks. `fresh_producer_id` is one that nobody has, where `needs_producer_id` says so; -1 for none."""

    request_id: int
    command: Command
    fresh_producer_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The append of that token is durable (NONE), or is known not to be in the log (any other code)."""

    token: int
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """These partitions have the marker of that producer and epoch, durably, or do not exist any more."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed, at least to `next_deadline`."""


Event = Request | Appended | MarkersWritten | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a request comes to. `missing`: what it asked about and is not part of the transaction."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = -1
    producer_epoch: int = -1
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer that request."""

    request_id: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write this record to this coordinator's partition, acks=all; then report `Appended(token)`."""

    record: Record
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """Have the leaders of these partitions write how the transaction ended, again and again until they have."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[TopicPartition]
    client_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something an operator may want to read in the broker's log."""

    transactional_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """An unexpected error cost one request, or one thing that was due of one transactional id, and nothing else.

    `kind` is what was tried, `name` the transactional id.
    """

    kind: str
    name: str
    error: Exception


Effect = Reply | Append | WriteMarkers | Note | Survived
