"""The events and effects of a transaction coordinator, as plain data.

Each `Request` is answered by exactly one `Reply` with its `request_id`. The shell answers each `Append` with exactly
one `Appended` of the same token, in log order; until then, nothing that depends on the record leaves the coordinator.
The shell answers `WriteMarkers` with one or more `MarkersWritten`: it tries until every partition has its marker or is
gone.

Requests use this package's own words; the shell translates each version of an API to and from them.
"""

from __future__ import annotations

from kraftpy.frozen import frozen
from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions.records import Record, transaction_record
from kraftpy.transactions.transaction import TransactionValue
from kraftpy.types import TopicPartition


@frozen
class InitProducerId:
    """Take over a transactional id or, if the producer names the id and epoch it had, recover it (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


@frozen
class AddPartitions:
    """Add partitions to the transaction. `client_version` is the producer's version of transactions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@frozen
class VerifyPartitions:
    """Ask if partitions are part of the transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@frozen
class EndTransaction:
    """Commit or abort the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = 0


Command = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction


@frozen
class Request:
    """A client's or a leader's request. `fresh_producer_id`: unused, -1 unless `needs_producer_id` asked for one."""

    request_id: int
    command: Command
    fresh_producer_id: int = -1


@frozen
class Appended:
    """The append with that token is durable (NONE), or certainly not in the log (any other code)."""

    token: int
    error_code: ErrorCode = ErrorCode.NONE


@frozen
class MarkersWritten:
    """These partitions durably have the marker of that producer and epoch, or no longer exist."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@frozen
class Tick:
    """Time has passed, at least up to `next_deadline`."""


Event = Request | Appended | MarkersWritten | Tick


@frozen
class Result:
    """The result of a request. `missing`: the partitions it named that are not part of the transaction."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = -1
    producer_epoch: int = -1
    missing: frozenset[TopicPartition] = frozenset()


@frozen
class Reply:
    """Answer this request."""

    request_id: int
    result: Result


@frozen
class Append:
    """Write this record to the coordinator's partition with acks=all, then report `Appended(token)`.

    A value of None deletes the id.
    """

    transactional_id: str
    value: TransactionValue | None
    token: int

    @property
    def record(self) -> Record:
        """The record's bytes. Encoding the partitions of a large transaction takes long."""
        return transaction_record(self.transactional_id, self.value)

    @property
    def partition_count(self) -> int:
        """The number of partitions in the record."""
        return 0 if self.value is None else len(self.value.partitions)


@frozen
class WriteMarkers:
    """Have the leaders of these partitions write the transaction's outcome, and retry until they have."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[TopicPartition]
    client_version: int


@frozen
class Note:
    """A line for the operator in the broker's log."""

    transactional_id: str
    text: str


@frozen
class Survived:
    """An unexpected error cost one request, or one piece of due work for one transactional id, and nothing else.

    `kind` says what was attempted; `name` is the transactional id.
    """

    kind: str
    name: str
    error: Exception


Effect = Reply | Append | WriteMarkers | Note | Survived
