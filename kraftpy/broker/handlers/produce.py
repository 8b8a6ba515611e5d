"""Produce (key 0): append every batch, then wait for the requested acks.

Records are never decoded: the log checks a batch's header and CRC, stamps offset and epoch in place and writes it once
(KIP-98). Only if the topic is compacted, or has a codec of its own, are the records inspected before that, while other
requests are served (`storage.record_inspection`). Partitions succeed and fail independently. Versions 0 to 2 are
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
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kraftpy.broker.leader_hints import LeaderHints
from kraftpy.broker.replication.replica import Replica
from kraftpy.log.appending import Prepared
from kraftpy.log.producer_states import ProducerStates, Verification
from kraftpy.log.results import Origin
from kraftpy.metadata.controller import is_internal
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError, shortened
from kraftpy.protocol.messages.fetch import NodeEndpoint
from kraftpy.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kraftpy.protocol.record_batch import HEADER_BYTES, BatchHeader, read_header
from kraftpy.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasReplicas, HasTransactions
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices

    class Broker(HasClock, HasConfig, HasImage, HasReplicas, HasSlices, HasTransactions, Protocol):
        """The part of a broker that these handlers need."""


ALL_IN_SYNC = -1
NONE = 0
_FIRST_BATCH_VERSION = 3
_APPEND_UNITS = 8
"""The cost of one append, in units of `slicing`."""
_ATTRIBUTES_AT, _TRANSACTIONAL = 22, 0x10  # the low byte of a batch's attributes, read without parsing the header
_FIRST_ABORTABLE_VERSION = 11
"""Clients from before Kafka 3.8 do not know TRANSACTION_ABORTABLE."""
_FIRST_ADDING_VERSION = 12
_FIRST_TOPIC_ID_VERSION = 13
_TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
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
"""A verification that this request waits for, its producer's id, and where it is stored."""


class _Unanswered(NamedTuple):
    """An append without its final answer, and what it waits for."""

    replica: Replica
    leadership: int
    answer: PartitionProduceResponse
    end_offset: int
    flush_due: bool


async def produce(broker: Broker, request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    """Append, wait for the requested acks, answer; None for acks=0."""
    unanswered: list[_Unanswered] = []
    if request.transactional_id is None:
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
        _tell_by_closing(responses)
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
    for topic, response in zip(request.topic_data, responses, strict=True):
        for partition in topic.partition_data:
            if context.is_long:
                await broker.slices.breathe(_APPEND_UNITS)
            batch = None
            try:
                _check(request, context)
                replica = _replica(broker, context, topic, partition)
                if replica.log.demand is not None:
                    if looked_at:
                        await asyncio.sleep(0)  # yield between inspections, but not before the first
                    looked_at += 1
                    replica, batch = await _prepared(broker, context, topic, partition, verified)
                answer = _append(broker, request, context, replica, partition, verified, unanswered, batch)
            except KafkaError as error:
                answer = PartitionProduceResponse(
                    index=partition.index,
                    base_offset=-1,
                    error_code=error.code,
                    error_message=shortened(str(error)),
                )
            response.partition_responses.append(answer)
    return responses


def _append(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    replica: Replica,
    partition: PartitionProduceData,
    verified: _Verified,
    unanswered: list[_Unanswered],
    batch: Prepared | None,
) -> PartitionProduceResponse:
    """Append one batch, which `_prepared` returned; nothing may be awaited between finding the replica and this.

    Raises KafkaError.
    """
    if is_internal(replica.topic_partition.topic):
        problem = f"Cannot append to internal topic {replica.topic_partition.topic}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    records, header = partition.records or b"", None
    if len(records) >= HEADER_BYTES and records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
        header = _check_verified(request, context, replica, records, verified)
    if request.acks == ALL_IN_SYNC:
        replica.check_in_sync()
    appended = replica.append(records, Origin.CLIENT, broker.clock.now(), batch, header)
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
    verified: _Verified,
) -> tuple[Replica, Prepared | None]:
    """Return the leader, and the batch in the form its topic requires, redone if settings change. Raises KafkaError."""
    batch: Prepared | None = None
    while True:
        replica = _replica(broker, context, topic, partition)
        if is_internal(replica.topic_partition.topic) or replica.log.is_prepared(batch):
            return replica, batch
        records = partition.records or b""
        work = replica.log.prepare(records, _known_header(verified.get(replica.topic_partition), records))
        if work is None:
            return replica, None
        batch = await broker.replicas.decoding.carry_out(work)


def _check(request: ProduceRequest, context: RequestContext) -> None:
    if context.api_version < _FIRST_BATCH_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "message sets (Produce 0 to 2) are not supported; send record batches",
        )
    if request.acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")


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
            records = partition.records or b""
            if len(records) < HEADER_BYTES or not records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
                continue
            try:
                replica = _replica(broker, context, topic, partition)
            except KafkaError:
                continue  # it is refused later, at its turn
            header = read_header(records)
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
    request: ProduceRequest, context: RequestContext, replica: Replica, records: Buffer, verified: _Verified
) -> BatchHeader:
    """Check that this batch is part of an ongoing transaction: otherwise no marker would ever end it (rule 30).

    Returns the batch's header.
    """
    found = verified.get(replica.topic_partition)
    header = _known_header(found, records) or read_header(records)
    if request.transactional_id is None or header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch needs a transactional id")
    if found is None or found.replica is not replica or found.leadership != replica.leadership:
        # What was verified concerns the log as another leadership had it, and the client can ask again at once.
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leadership changed while the coordinator was asked")
    code = found.code
    is_adding = context.api_version >= _FIRST_ADDING_VERSION
    match code:
        case ErrorCode.NONE:
            replica.log.producers.check_verified(header.producer_id, header.producer_epoch, found.verification)
            return header
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


def _known_header(found: _TransactionalBatch | None, records: Buffer) -> BatchHeader | None:
    """Return the header of the batch in `records` if the verification has read it."""
    return found.header if found is not None and found.records is records else None


def _tell_by_closing(responses: list[TopicProduceResponse]) -> None:
    for topic in responses:
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NONE:
                raise ProtocolError(f"closing the connection after an error with acks=0: {partition.error_message}")


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
        answer.error_message = shortened(str(error))
        answer.base_offset = -1


async def _committed(unanswered: list[_Unanswered], timeout_ms: int) -> None:
    deadline = None
    for replica, leadership, answer, end_offset, _ in unanswered:
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
