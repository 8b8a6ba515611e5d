"""Builds the requests of the transactions' machine and reads their answers, without I/O.

Used with an event loop (`transaction_manager`) and without one (`kraftpy.spark.sink_transactions`).

Left out: InitProducerId below version 3 once a producer id is held (KIP-360), two-phase commit (KIP-939).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from kraftpy.client.model import CoordinatorType, OffsetAndMetadata
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
from kraftpy.client.producer.transaction_state import EPOCH_BUMPS
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kraftpy.protocol.messages.end_txn import EndTxnRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.types import TopicPartition

FEATURE = "transaction.version"
LATEST = 0x7FFF
_NEXT_EPOCH_VERSION = 3  # InitProducerId, KIP-360
_ONE_TRANSACTION_VERSION = 3  # AddPartitionsToTxn: clients ask for one, brokers for several
_MEMBER_VERSION = 3  # TxnOffsetCommit, KIP-447


class Question(NamedTuple):
    """A message, the versions it may have, and the coordinator it is for."""

    kind: CoordinatorType
    coordinator_key: str
    key: ApiKey
    message: Any
    low: int = 0
    high: int = LATEST


def question(request: Request, transactional_id: str, transaction_timeout_ms: int) -> Question:
    """Build the message for a request of the machine."""
    kind = CoordinatorType.TRANSACTION
    match request:
        case SendInitProducerId(producer_id=producer_id, producer_epoch=producer_epoch):
            init = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
            low = _NEXT_EPOCH_VERSION if producer_id >= 0 else 0
            return Question(kind, transactional_id, ApiKey.INIT_PRODUCER_ID, init, low)
        case SendAddPartitions():
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=request.producer_id,
                v3_and_below_producer_epoch=request.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=partitions)
                    for topic, partitions in by_topic(request.partitions).items()
                ],
            )
            return Question(kind, transactional_id, ApiKey.ADD_PARTITIONS_TO_TXN, add, high=_ONE_TRANSACTION_VERSION)
        case SendAddOffsets():
            offsets = AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                group_id=request.group_id,
            )
            return Question(kind, transactional_id, ApiKey.ADD_OFFSETS_TO_TXN, offsets)
        case SendCommitOffsets():
            return _commit_offsets(request, transactional_id)
        case SendEndTransaction():
            end = EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                committed=request.is_commit,
            )
            low, high = (5, LATEST) if request.version >= EPOCH_BUMPS else (0, 4)
            return Question(kind, transactional_id, ApiKey.END_TXN, end, low, high)
        case _:
            assert_never(request)


def _commit_offsets(request: SendCommitOffsets, transactional_id: str) -> Question:
    group = request.group
    message = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[_position(index, request.offsets[TopicPartition(topic, index)]) for index in indexes],
            )
            for topic, indexes in by_topic(request.offsets).items()
        ],
    )
    is_member = group.generation_id >= 0 or group.member_id != "" or group.group_instance_id is not None
    low = _MEMBER_VERSION if is_member else 0
    low, high = (5, LATEST) if request.version >= EPOCH_BUMPS else (low, 4)
    return Question(CoordinatorType.GROUP, group.group_id, ApiKey.TXN_OFFSET_COMMIT, message, low, high)


def _position(index: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def answered(request: Request, answer: Any) -> Answered:
    """Turn the answer to `question` into an event of the machine."""
    match request:
        case SendInitProducerId() | SendEndTransaction():
            return Answered(
                error=ErrorCode.of(answer.error_code),
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
            )
        case SendAddPartitions():
            topics = answer.results_by_topic_v3_and_below
            return Answered(error=_worst(each.partition_error_code for t in topics for each in t.results_by_partition))
        case SendAddOffsets():
            return Answered(error=ErrorCode.of(answer.error_code))
        case SendCommitOffsets():
            return Answered(error=_worst(each.error_code for topic in answer.topics for each in topic.partitions))
        case _:
            assert_never(request)


def _worst(codes: Iterable[int]) -> ErrorCode:
    """Return the error that decides: final before retriable ones, OPERATION_NOT_ATTEMPTED last."""
    found = [ErrorCode.of(code) for code in codes]
    for wanted in (
        lambda error: not error.retriable and error not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED),
        lambda error: error.retriable,
        lambda error: error is not ErrorCode.NONE,
    ):
        for error in found:
            if wanted(error):
                return error
    return ErrorCode.NONE
