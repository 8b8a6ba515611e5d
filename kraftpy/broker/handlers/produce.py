"""Produce (key 0): append every batch, then wait for the requested acks.

Records are never decoded: the log checks a batch's header and CRC, stamps offset and epoch in place and writes it once
(KIP-98). Only if the topic is compacted, or has a codec of its own, or if the header's timestamps are doubtful, are the
records inspected before that, while other requests are served (`storage.record_inspection`); the answer names the
records that cause a refusal (KIP-467). Partitions succeed and fail independently. Versions 0 to 2 are
advertised because clients look for them (KIP-896), but they carry message sets, a format that is not stored, and get
UNSUPPORTED_FOR_MESSAGE_FORMAT. Topic ids from version 13 (KIP-516); the current leader on an error from version 10
(KIP-951).

acks=all requires `min.insync.replicas` before the append (NOT_ENOUGH_REPLICAS: nothing was written) and again when the
records are committed (NOT_ENOUGH_REPLICAS_AFTER_APPEND). After that second error, after REQUEST_TIMED_OUT, or if the
leadership is lost meanwhile (NOT_LEADER_OR_FOLLOWER), the records may or may not be read later: an idempotent producer
sends them again.

If the topic has `kraftpy.flush.before.ack`, or `flush.messages` is reached, acks=1 and acks=all also wait until this
broker has synced the batch; acks=0 starts the sync and waits for nothing.

A producer with acks=0 learns of an error because its connection is closed, as with Kafka; it then refreshes its
metadata. Only the broker itself may write to its internal topics (INVALID_TOPIC_EXCEPTION).

A batch that opens a transaction in its partition is written only if the transaction's coordinator confirms that the
partition belongs to it; from version 12 on, the coordinator adds it (KIP-890). If that cannot be decided yet, a
transactional producer gets NOT_ENOUGH_REPLICAS, which clients retry without looking for another leader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kraftpy.broker.handlers.services import HasReplicas, HasTransactions
from kraftpy.broker.leader_hints import LeaderHints
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices
from kraftpy.log.appending import Prepared
from kraftpy.log.producer_states import ProducerStates, Verification
from kraftpy.log.results import Origin
from kraftpy.log.timestamps import Trust
from kraftpy.metadata.controller import is_internal
from kraftpy.ports import Buffer
from kraftpy.protocol.batch_header import CODEC_MASK, TRANSACTIONAL
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError, shortened
from kraftpy.protocol.messages.fetch import NodeEndpoint
from kraftpy.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kraftpy.protocol.record_batch import HEADER_BYTES, MAGIC, BatchHeader, one_batch
from kraftpy.protocol.records import BadRecords
from kraftpy.types import Millis, TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.request import RequestContext


class Broker(HasClock, HasConfig, HasImage, HasReplicas, HasSlices, HasTransactions, Protocol):
    """The part of a broker that these handlers need."""


ALL_IN_SYNC: Final = -1
NONE: Final = 0
_FIRST_BATCH_VERSION: Final = 3
_APPEND_UNITS: Final = 8
"""The cost of one append, in units of `slicing`."""
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
"""The position of a batch's low attributes, which are read here without parsing the header."""
_FIRST_ZSTD_VERSION: Final = 7
_FIRST_ABORTABLE_VERSION: Final = 11
"""Clients from before Kafka 3.8 do not know TRANSACTION_ABORTABLE."""
_FIRST_ADDING_VERSION: Final = 12
_FIRST_TOPIC_ID_VERSION: Final = 13
_TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_WITHOUT_LOG_START = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Errors of the log with which Kafka does not send its start offset."""
_WHY_NOT_COMMITTED = {
    ErrorCode.REQUEST_TIMED_OUT: "the records were not replicated in time",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leadership was lost before the records were committed",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records were replicated to fewer than min.insync.replicas",
}


class _TransactionalBatch(NamedTuple):
    """A batch that is part of a transaction, with its header, read once, and the result of its verification."""

    replica: Replica
    leadership: int
    records: Buffer
    header: BatchHeader
    verification: Verification | None
    """None if the producer's transaction was open in the partition already."""
    code: ErrorCode
    """The coordinator's answer."""


_Verified = dict[TopicPartition, _TransactionalBatch]


_Asked = tuple[ProducerStates, int, Verification]
"""A verification that this request waits for, its producer's id, and the producer states that hold it."""


class _Unanswered:
    """An append without its final answer, and what it waits for."""

    __slots__ = ("answer", "end_offset", "flush_due", "leadership", "replica")

    def __init__(
        self, replica: Replica, leadership: int, answer: PartitionProduceResponse, end_offset: int, flush_due: bool
    ) -> None:
        self.replica = replica
        self.leadership = leadership
        self.answer = answer
        self.end_offset = end_offset
        self.flush_due = flush_due


async def produce(broker: Broker, request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    """Append, wait for the requested acks, answer; None for acks=0."""
    unanswered: list[_Unanswered] = []
    if request.transactional_id is None:
        if has_transactional(request):
            return refuse_all(request)
        responses = await _append_all(broker, request, context, {}, unanswered)
    else:
        asked: list[_Asked] = []
        try:
            verified = await _verify(broker, request, context, asked)
            responses = await _append_all(broker, request, context, verified, unanswered)
        finally:
            for producers, producer_id, verification in asked:
                producers.answered(producer_id, verification)
    flushes = [_flush(waiting) for waiting in unanswered if waiting.flush_due] if request.acks != NONE else []
    if flushes:
        await asyncio.gather(*flushes)
    if request.acks == ALL_IN_SYNC and unanswered:
        await _committed(unanswered, request.timeout_ms)
    if request.acks == NONE:
        tell_by_closing(responses)
        return None
    return ProduceResponse(responses=responses, node_endpoints=_name_leaders(broker, responses, context))


async def _append_all(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    verified: _Verified,
    unanswered: list[_Unanswered],
) -> list[TopicProduceResponse]:
    responses = [
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[])
        for topic in request.topic_data
    ]
    looked_at = 0
    traffic = broker.replicas.traffic
    for topic, response in zip(request.topic_data, responses, strict=True):
        for partition in topic.partition_data:
            if context.is_long:
                await broker.slices.breathe(_APPEND_UNITS)
            batch = replica = None
            attempt = _Attempt()
            try:
                _check_version(context)
                replica = _replica(broker, context, topic, partition)
                header = _header(context, partition, verified.get(replica.topic_partition) if verified else None)
                _check_acks(request)  # after the checks of the partition and the batch, as in Kafka
                now = broker.clock.now()
                if not replica.log.is_prepared(None, partition.records or b"", now, header, _trust(context)):
                    if looked_at:
                        await asyncio.sleep(0)  # yield between inspections, but not before the first
                    looked_at += 1
                    replica, batch = await _prepared(broker, context, topic, partition, header, attempt)
                    now = broker.clock.now()
                answer = _append(
                    request, context, replica, partition, verified, unanswered, batch, header, attempt, now
                )
            except KafkaError as error:
                answer = _refused(partition.index, error, attempt.replica)
            if traffic is not None:
                counters = None if replica is None else replica.traffic
                traffic.produced(counters, answer.error_code, len(partition.records or b""))
            response.partition_responses.append(answer)
    return [response for response in responses if response.partition_responses]


class _Attempt:
    """The progress of one batch's append."""

    replica: Replica | None = None
    """The leader, once its log handles the batch: the answer then has the log start offset."""


def _refused(index: int, error: KafkaError, replica: Replica | None) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=index, base_offset=-1, error_code=error.code, error_message=shortened(error.message)
    )
    if replica is not None and error.code not in _WITHOUT_LOG_START:
        answer.log_start_offset = replica.log_start_offset
    if isinstance(error, BadRecords):
        where = "" if error.code == ErrorCode.INVALID_TIMESTAMP else f" in topic partition {_name(replica)}"
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.batch_index, batch_index_error_message=f"{each.message}{where}")
            for each in error.errors
        ]
    return answer


def _name(replica: Replica | None) -> str:
    return "" if replica is None else str(replica.topic_partition)


def refuse_all(request: ProduceRequest) -> ProduceResponse | None:
    """Refuse a whole request with transactional batches but no transactional id, as Kafka does."""
    error = KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id"
    )
    responses = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_refused(each.index, error, None) for each in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    if request.acks == NONE:
        tell_by_closing(responses)
        return None
    return ProduceResponse(responses=responses)


def _append(
    request: ProduceRequest,
    context: RequestContext,
    replica: Replica,
    partition: PartitionProduceData,
    verified: _Verified,
    unanswered: list[_Unanswered],
    batch: Prepared | None,
    header: BatchHeader,
    attempt: _Attempt,
    now: Millis,
) -> PartitionProduceResponse:
    """Append one batch, which `_prepared` returned; nothing may be awaited between finding the replica and this.

    Raises KafkaError.
    """
    if is_internal(replica.topic_partition.topic):
        problem = f"Cannot append to internal topic {replica.topic_partition.topic}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    records = partition.records or b""
    if header.is_transactional:
        _check_verified(request, context, replica, header, verified, attempt)
    attempt.replica = replica
    if request.acks == ALL_IN_SYNC:
        replica.check_in_sync()
    appended = replica.append(records, Origin.CLIENT, now, batch, header)
    answer = PartitionProduceResponse(
        index=partition.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
    )
    waiting = _Unanswered(replica, replica.leadership, answer, appended.last_offset + 1, appended.flush_due)
    unanswered.append(waiting)
    return answer


async def _prepared(
    broker: Broker,
    context: RequestContext,
    topic: TopicProduceData,
    partition: PartitionProduceData,
    header: BatchHeader,
    attempt: _Attempt,
) -> tuple[Replica, Prepared | None]:
    """Return the leader, and the batch in the form its topic requires, redone if settings change. Raises KafkaError."""
    batch: Prepared | None = None
    records = partition.records or b""
    while True:
        replica = _replica(broker, context, topic, partition)
        now, trust = broker.clock.now(), _trust(context)
        if is_internal(replica.topic_partition.topic) or replica.log.is_prepared(batch, records, now, header, trust):
            attempt.replica = None
            return replica, batch
        attempt.replica = replica
        work = replica.log.prepare(records, now, header, trust)
        if work is None:
            attempt.replica = None
            return replica, None
        batch = await broker.replicas.decoding.carry_out(work)


def _check_version(context: RequestContext) -> None:
    if context.api_version < _FIRST_BATCH_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "message sets (Produce 0 to 2) are not supported; send record batches",
        )


def _check_acks(request: ProduceRequest) -> None:
    if request.acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")


def _trust(context: RequestContext) -> Trust | None:
    return None if context.connection is None else context.connection.header_trust


def _header(context: RequestContext, partition: PartitionProduceData, found: _TransactionalBatch | None) -> BatchHeader:
    """Return the header of the one batch that the request may have for a partition; cut off any bytes after it.

    Raises KafkaError for anything but a whole batch of this format, as Kafka does before it looks for the log.
    """
    records = partition.records or b""
    if found is not None and found.records is records:
        return found.header
    header, batch = one_batch(records, context.api_version)
    if batch is not records:
        partition.records = memoryview(batch)
    if context.api_version < _FIRST_ZSTD_VERSION and header.attributes & CODEC_MASK == Compression.ZSTD:
        problem = f"Produce requests with version {context.api_version} are not allowed to use ZStandard compression"
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, problem)
    return header


def has_transactional(request: ProduceRequest) -> bool:
    """Return whether a request has a batch that is part of a transaction."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records or b""
            if len(records) >= HEADER_BYTES and records[_ATTRIBUTES_AT] & TRANSACTIONAL and records[_MAGIC_AT] == MAGIC:
                return True
    return False


def _is_transactional(partition: PartitionProduceData) -> bool:
    """Return whether a partition's first batch is part of a transaction."""
    records = partition.records or b""
    is_one = len(records) >= HEADER_BYTES and records[_MAGIC_AT] == MAGIC
    return is_one and bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL)


def _replica(
    broker: Broker, context: RequestContext, topic: TopicProduceData, partition: PartitionProduceData
) -> Replica:
    if context.api_version >= _FIRST_TOPIC_ID_VERSION:
        return broker.replicas.leader_by_id(TopicId(topic.topic_id), partition.index)
    return broker.replicas.leader(topic.name, partition.index)


# --- transactions -----------------------------------------------------------------------------------------------------


async def _verify(broker: Broker, request: ProduceRequest, context: RequestContext, waiting: list[_Asked]) -> _Verified:
    """Ask the coordinator about partitions in which the producer has no open transaction yet.

    Verifications that this starts are added to `waiting`; the caller ends them.
    """
    verified: _Verified = {}
    asked: dict[tuple[int, int], list[TopicPartition]] = {}
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if not _is_transactional(partition):
                continue
            try:
                replica = _replica(broker, context, topic, partition)
                header = _header(context, partition, None)
            except KafkaError:
                continue  # it is refused later, at its turn
            records = partition.records or b""
            needed = replica.log.producers.verification(header.producer_id, header.producer_epoch)
            found = _TransactionalBatch(replica, replica.leadership, records, header, needed, ErrorCode.NONE)
            if needed is None:
                verified.setdefault(replica.topic_partition, found)
            else:
                verified[replica.topic_partition] = found
                needed.waiting += 1
                waiting.append((replica.log.producers, header.producer_id, needed))
                asked.setdefault((header.producer_id, header.producer_epoch), []).append(replica.topic_partition)
    if context.api_version < _FIRST_ADDING_VERSION and not broker.config.transaction_partition_verification_enable:
        return verified
    for (producer_id, producer_epoch), partitions in asked.items():
        codes = await broker.transactions.begin_writing(
            request.transactional_id or "",
            producer_id,
            producer_epoch,
            frozenset(partitions),
            is_adding=context.api_version >= _FIRST_ADDING_VERSION,
        )
        for each, code in codes.items():
            verified[each] = verified[each]._replace(code=code)
    return verified


def _check_verified(
    request: ProduceRequest,
    context: RequestContext,
    replica: Replica,
    header: BatchHeader,
    verified: _Verified,
    attempt: _Attempt,
) -> None:
    """Check that this batch is part of an ongoing transaction: otherwise no marker would ever end it (rule 30)."""
    found = verified.get(replica.topic_partition)
    if header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    if found is None or found.replica is not replica or found.leadership != replica.leadership:
        # The check was made under another leadership; the client can retry at once.
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership changed while the coordinator was asked")
    code = found.code
    is_adding = context.api_version >= _FIRST_ADDING_VERSION
    match code:
        case ErrorCode.NONE:
            attempt.replica = replica
            replica.log.producers.check_verified(header.producer_id, header.producer_epoch, found.verification)
        case ErrorCode.TRANSACTION_ABORTABLE:
            is_known = context.api_version >= _FIRST_ABORTABLE_VERSION
            problem = "Partition was not added to the transaction"
            raise KafkaError(code if is_known else ErrorCode.INVALID_TXN_STATE, problem)
        case ErrorCode.PRODUCER_FENCED:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED.meaning)
        case ErrorCode.CONCURRENT_TRANSACTIONS if is_adding:
            raise KafkaError(code, "the previous transaction is still being completed")
        case _ if code in _TRY_AGAIN:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
            )
        case _:
            raise KafkaError(code)


def tell_by_closing(responses: list[TopicProduceResponse]) -> None:
    """Close the connection if one of these has an error: with acks=0, there is no other way to tell the client."""
    for topic in responses:
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NONE:
                problem = f"{ErrorCode.of(partition.error_code).name}: {partition.error_message}"
                raise ProtocolError(f"closing the connection after an error with acks=0: {problem}")


async def _flush(waiting: _Unanswered) -> None:
    """Sync the append: `flush.messages` is reached, or the topic syncs before it acknowledges."""
    replica, answer = waiting.replica, waiting.answer
    try:
        await replica.flush(waiting.end_offset)
        if replica.leading is None or replica.leadership != waiting.leadership:
            code = ErrorCode.KAFKA_STORAGE_ERROR if replica.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise KafkaError(code, "the leadership was lost before the records were synced")
    except KafkaError as error:
        answer.error_code = error.code
        answer.error_message = shortened(error.message)
        answer.base_offset = -1


async def _committed(unanswered: list[_Unanswered], timeout_ms: int) -> None:
    deadline = None
    for waiting in unanswered:
        replica, leadership, end_offset, answer = (
            waiting.replica, waiting.leadership, waiting.end_offset, waiting.answer,
        )  # fmt: skip
        if answer.error_code != ErrorCode.NONE:
            continue
        error_code = replica.outcome(end_offset, leadership)
        if error_code is None:
            if deadline is None:
                deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
            error_code = await replica.committed(end_offset, leadership, deadline)
        if error_code != ErrorCode.NONE:
            answer.error_code = error_code
            answer.error_message = _WHY_NOT_COMMITTED.get(error_code, error_code.name)
            answer.base_offset = -1


def _name_leaders(broker: Broker, responses: list[TopicProduceResponse], context: RequestContext) -> list[NodeEndpoint]:
    """Name the leaders of partitions that this broker does not lead."""
    hints: LeaderHints | None = None
    for topic in responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                hints = hints or LeaderHints(broker, context.listener)
                leader = hints.of(topic.name, topic.topic_id, answer.index)
                if leader is not None:
                    answer.current_leader = leader
    return [] if hints is None else hints.endpoints
