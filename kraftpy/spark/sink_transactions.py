"""`delivery=exactly_once`: each task writes in a transaction that also stores the batch number; the driver commits.

A transactional id, made of the query and the task's partition, identifies the writer. An attempt first requests its
producer epoch, which fences every earlier attempt, wherever it may still run, and waits until the transaction of that
attempt has ended either way. Only then does it look up which batch was committed last. If that is the current one (a
replay), the rows are read but not written. Otherwise they are written, the batch number is stored in the same
transaction, and the transaction is left open. When all tasks have succeeded, the driver commits their transactions one
after another. If it dies in between, the replay finds some of them committed, aborts the others and writes those again.

It is essential that a task does not commit its own transaction: the end of its rows proves nothing. If computing them
fails, Spark ends the sink's iterator as if there were no more rows, and fails the task after `write` has returned. Only
a message that reaches the driver's `commit` comes from a task that had all its rows.

The number is stored as the committed offset of a group with the same name, because offsets are what the broker itself
keeps within a transaction (KIP-98, KIP-447); the number of rows is stored beside it. If the checkpoint is set back, its
old batches are found to be written, too.

Requirements: a replayed batch must fall into the same partitions. Spark guarantees this while the query's settings and
options stay the same; if the number of rows of a partition differs, the batch fails rather than write some rows twice
and others never. Groups forget their offsets after `offsets.retention.minutes` (a week): a query that died during a
commit must be restarted before that. A whole batch must fit into `kafka.transaction.timeout.ms`; if it does not, it
fails and is replayed. With `spark.speculation`, a second attempt may fence one that has succeeded; the batch then
fails, too.

Left out: one decision for all tasks of a batch: while the driver commits, readers under read_committed may see some
tasks' rows before the others'. Transactions of version 2 (KIP-890): an attempt has one transaction, and its epoch is
new anyway. The client's `TransactionMachine` (docs/decisions/0032). Two-phase commit (KIP-939): no broker has it yet.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kraftpy.client.model import ConsumerGroupMetadata, CoordinatorType, OffsetAndMetadata
from kraftpy.client.offsets import by_topic
from kraftpy.client.producer.transaction_events import (
    Answered,
    Request,
    SendAddOffsets,
    SendAddPartitions,
    SendCommitOffsets,
    SendEndTransaction,
    SendInitProducerId,
)
from kraftpy.client.producer.transaction_messages import Question, answered, question
from kraftpy.client.ranges.cluster import BlockingCluster
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kraftpy.spark.sink_options import ProducerSettings
from kraftpy.types import TopicPartition

T = TypeVar("T")

logger = logging.getLogger("kraftpy.spark")

_MARK_TOPIC = "__consumer_offsets"  # exists as soon as any group has stored an offset
_MARK_PARTITION = 0

_VERSION = 1  # of transactions
_OFFSET_FETCH_VERSION = 7  # the only one with `require_stable` and one group


MAX_METADATA_BYTES = 4096
"""The default of a broker's `offset.metadata.max.bytes`."""


class ReplayError(RuntimeError):
    """A batch that was written before was replayed with other rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """The identity of a task's rows in every attempt and replay. `batch_id` rises with the query's batches."""

    query_id: str
    batch_id: int
    partition: int

    def transactional_id(self, prefix: str) -> str:
        """Return the name of its transactional id, and of the group that keeps its mark."""
        return f"{prefix}-{self.query_id}-{self.partition}"


class Mark(NamedTuple):
    """The last batch a task wrote, its number of rows, and their audit counts if these are few enough."""

    batch_id: int
    rows: int
    counts: tuple[tuple[str, int, int], ...] = ()
    """Topic, start of the window in ms, rows."""

    def metadata(self) -> str:
        """Return the text to store beside the offset, at most `MAX_METADATA_BYTES` long."""
        text = json.dumps({"rows": self.rows, "counts": self.counts})
        return text if len(text) <= MAX_METADATA_BYTES else json.dumps({"rows": self.rows})


class Prepared(NamedTuple):
    """The identity of an open transaction, for the driver to end it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Transaction(BlockingCluster):
    """One transaction: `begin`, `mark`, `add` for each new partition, `store`; then `commit` or `abort`.

    With `prepared`, it was begun by another process.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        transactional_id: str,
        *,
        prepared: Prepared | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            settings.bootstrap_servers,
            runtime=runtime,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            default_api_timeout_ms=settings.max_block_ms,
            **dict(settings.security),
        )
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = (-1, -1) if prepared is None else prepared[1:]
        self._timeout_ms = settings.transaction_timeout_ms
        self._added: set[TopicPartition] = set()
        self._coordinators: dict[CoordinatorType, tuple[str, int]] = {}

    def begin(self) -> Prepared:
        """Get a producer epoch, which fences earlier attempts, once their transaction has ended. Raises KafkaError."""
        try:
            granted = self._ask(SendInitProducerId(producer_id=-1, producer_epoch=-1))
        except KafkaError as failed:
            if failed.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                text = f"kafka.transaction.timeout.ms: the broker does not allow {self._timeout_ms} ms"
                raise KafkaError(failed.code, text) from None
            raise
        self.producer_id, self.producer_epoch = granted.producer_id, granted.producer_epoch
        return Prepared(self.transactional_id, self.producer_id, self.producer_epoch)

    def mark(self) -> Mark | None:
        """Return what an earlier transaction stored last. Raises KafkaError."""
        request = OffsetFetchRequest(
            group_id=self.transactional_id,
            topics=[OffsetFetchRequestTopic(name=_MARK_TOPIC, partition_indexes=[_MARK_PARTITION])],
            require_stable=True,
        )
        asked = Question(
            CoordinatorType.GROUP, self.transactional_id, ApiKey.OFFSET_FETCH, request, high=_OFFSET_FETCH_VERSION
        )

        def read(answer: OffsetFetchResponse) -> OffsetFetchResponse:
            for code in (answer.error_code, *(each.error_code for t in answer.topics for each in t.partitions)):
                _raise_for(code, f"the last batch's mark of {self.transactional_id}")
            return answer

        answer = self._answer(asked, read)
        for topic in answer.topics:
            for each in topic.partitions:
                if each.committed_offset >= 0:
                    stored = json.loads(each.metadata or "")  # written by `store`
                    return Mark(each.committed_offset, stored["rows"], tuple(map(tuple, stored.get("counts", ()))))
        return None

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that are not yet part of the transaction. Raises KafkaError."""
        new = sorted(set(partitions) - self._added)
        if not new:
            return
        request = SendAddPartitions(
            producer_id=self.producer_id, producer_epoch=self.producer_epoch, partitions=tuple(new)
        )
        self._ask(request, f" with {', '.join(by_topic(new))}")
        self._added.update(new)

    def store(self, mark: Mark) -> None:
        """Store the batch number as part of the transaction. Raises KafkaError."""
        group = ConsumerGroupMetadata(self.transactional_id)
        self._ask(
            SendAddOffsets(producer_id=self.producer_id, producer_epoch=self.producer_epoch, group_id=group.group_id)
        )
        position = OffsetAndMetadata(mark.batch_id, mark.metadata())
        self._ask(
            SendCommitOffsets(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                version=_VERSION,
                group=group,
                offsets={TopicPartition(_MARK_TOPIC, _MARK_PARTITION): position},
            )
        )

    def commit(self) -> None:
        """Commit. If this raises, the outcome is unknown; a replay finds it out."""
        self._end(is_commit=True)

    def abort(self) -> None:
        """Abort, so that readers need not wait for the timeout; a failure is only logged."""
        if self.producer_id < 0:
            return
        try:
            self._end(is_commit=False)
        except KafkaError as failed:
            logger.warning("cannot abort transaction %s, leaving it to its timeout: %s", self.transactional_id, failed)

    def _end(self, *, is_commit: bool) -> None:
        self._ask(
            SendEndTransaction(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                version=_VERSION,
                is_commit=is_commit,
            )
        )

    # --- coordinators -------------------------------------------------------------------------------------------------

    def _ask(self, request: Request, about: str = "") -> Answered:
        asked = question(request, self.transactional_id, self._timeout_ms)

        def read(answer: Any) -> Answered:
            outcome = answered(request, answer)
            _raise_for(outcome.error, f"{asked.key.name} of {self.transactional_id}{about}")
            return outcome

        return self._answer(asked, read)

    def _answer(self, asked: Question, read: Callable[[Any], T]) -> T:
        """Ask a coordinator and retry passing errors. `read` raises for errors within the answer."""

        def attempt() -> T:
            try:
                with self._lent(self._coordinator(asked.kind)) as connection:
                    return read(connection.request(asked.key, asked.message, low=asked.low, high=asked.high))
            except KafkaError:
                self._coordinators.pop(asked.kind, None)  # it may have moved, and looking it up again is cheap
                raise

        return self._retry(attempt)

    def _coordinator(self, kind: CoordinatorType) -> BlockingConnection:
        address = self._coordinators.get(kind)
        if address is None:
            with self._lent(self._any()) as connection:
                request = FindCoordinatorRequest(key=self.transactional_id, key_type=kind)
                answer: FindCoordinatorResponse = connection.request(
                    ApiKey.FIND_COORDINATOR,
                    request,
                    low=1,
                    high=3,  # version 4 has several keys
                )
            _raise_for(answer.error_code, f"the coordinator of {self.transactional_id}")
            address = self._coordinators[kind] = (answer.host, answer.port)
        return self._take(*address)


def _raise_for(error_code: int, what: str) -> None:
    code = ErrorCode.of(error_code)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{what}: {code.meaning}")
