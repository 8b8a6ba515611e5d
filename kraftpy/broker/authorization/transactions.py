"""Guards of requests about producers and transactions."""

from __future__ import annotations

from typing import Any

from kraftpy.broker.authorization.guards import Handler, allows, commit_allowed, divided, needs, visible
from kraftpy.broker.request import RequestContext
from kraftpy.groups.transactional_offsets import refuse
from kraftpy.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kraftpy.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kraftpy.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from kraftpy.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kraftpy.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_FIRST_BATCHED_VERSION = 4


async def init_producer_id(
    broker: Any, request: InitProducerIdRequest, context: RequestContext, handler: Handler
) -> InitProducerIdResponse:
    """Give a producer id to a client that may write in the transaction, or to some topic if it names none."""
    of_transaction, of_cluster, of_any_topic = needs(context)
    if request.transactional_id is not None:
        error = None if allows(context, of_transaction, request.transactional_id) else of_transaction.error
    elif allows(context, of_cluster, is_asked_for=False):
        error = None
    else:
        may_write = context.rights.allows_on_any(of_any_topic.operation, of_any_topic.resource)
        error = None if may_write else of_cluster.error
    if error is not None:
        return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    answer: InitProducerIdResponse = await handler(broker, request, context)
    return answer


async def add_partitions_to_txn(
    broker: Any, request: AddPartitionsToTxnRequest, context: RequestContext, handler: Handler
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions that the client may write in; the handler asks for topics."""
    need = needs(context)[0]
    is_refused = context.api_version < _FIRST_BATCHED_VERSION and not allows(
        context, need, request.v3_and_below_transactional_id
    )
    if not is_refused:
        answer: AddPartitionsToTxnResponse = await handler(broker, request, context)
        return answer
    answer = AddPartitionsToTxnResponse()
    async for topics in broker.slices.pieces(request.v3_and_below_topics):
        for topic in topics:
            results = [
                AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=need.error)
                for each in topic.partitions
            ]
            answer.results_by_topic_v3_and_below.append(
                AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)
            )
    return answer


async def add_offsets_to_txn(
    broker: Any, request: AddOffsetsToTxnRequest, context: RequestContext, handler: Handler
) -> AddOffsetsToTxnResponse:
    """Add a group's offsets to a transaction, if the client may write in the one and read with the other."""
    of_transaction, of_group = needs(context)
    if not allows(context, of_transaction, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=of_transaction.error)
    if not allows(context, of_group, request.group_id):
        return AddOffsetsToTxnResponse(error_code=of_group.error)
    answer: AddOffsetsToTxnResponse = await handler(broker, request, context)
    return answer


async def end_txn(broker: Any, request: EndTxnRequest, context: RequestContext, handler: Handler) -> EndTxnResponse:
    """End a transaction that the client may write in."""
    (need,) = needs(context)
    if not allows(context, need, request.transactional_id):
        return EndTxnResponse(error_code=need.error)
    answer: EndTxnResponse = await handler(broker, request, context)
    return answer


async def write_txn_markers(
    broker: Any, request: WriteTxnMarkersRequest, context: RequestContext, handler: Handler
) -> WriteTxnMarkersResponse:
    """Write markers for brokers, and for clients that may alter the cluster."""
    as_operator, as_broker = needs(context)
    if allows(context, as_operator, is_asked_for=False) or allows(context, as_broker):
        answer: WriteTxnMarkersResponse = await handler(broker, request, context)
        return answer
    answer = WriteTxnMarkersResponse()
    async for markers in broker.slices.pieces(request.markers):
        for marker in markers:
            topics = [
                WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=[
                        WritableTxnMarkerPartitionResult(partition_index=each, error_code=as_broker.error)
                        for each in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ]
            answer.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    return answer


async def txn_offset_commit(
    broker: Any, request: TxnOffsetCommitRequest, context: RequestContext, handler: Handler
) -> TxnOffsetCommitResponse:
    """Commit the offsets of topics that the client may read, if it may use the transaction and the group."""
    of_transaction, of_group, of_topic = needs(context)
    if not allows(context, of_transaction, request.transactional_id):
        return refuse(request, of_transaction.error)
    if not allows(context, of_group, request.group_id):
        return refuse(request, of_group.error)
    answer: TxnOffsetCommitResponse = await commit_allowed(
        broker, request, context, handler, of_topic, lambda topic: topic.name, refuse
    )
    return answer


async def describe_transactions(
    broker: Any, request: DescribeTransactionsRequest, context: RequestContext, handler: Handler
) -> DescribeTransactionsResponse:
    """Describe the transactions that the client may describe, without the topics that it may not."""
    of_transaction, of_topic = needs(context)
    request.transactional_ids, refused = await divided(
        broker, context, of_transaction, request.transactional_ids, lambda each: each
    )
    answer: DescribeTransactionsResponse = await handler(broker, request, context)
    for state in answer.transaction_states:
        state.topics = await visible(broker, context, of_topic, state.topics, lambda topic: topic.topic)
    answer.transaction_states += [
        TransactionState(
            transactional_id=each,
            error_code=of_transaction.error,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
        )
        for each in dict.fromkeys(refused)
    ]
    return answer


async def list_transactions(
    broker: Any, request: ListTransactionsRequest, context: RequestContext, handler: Handler
) -> ListTransactionsResponse:
    """List the transactions that the client may describe."""
    (need,) = needs(context)
    answer: ListTransactionsResponse = await handler(broker, request, context)
    answer.transaction_states = await visible(
        broker, context, need, answer.transaction_states, lambda state: state.transactional_id
    )
    return answer
