"""Transactions (keys 24 to 28, 65, 66): requests to coordinators, and markers for partition leaders.

The protocol itself is in `transactions.coordinator`. These handlers translate the versions of each API, check that
partitions exist, and find the partition with a group's offsets. A fenced producer gets PRODUCER_FENCED or, in versions
from before KIP-588, INVALID_PRODUCER_EPOCH.

AddPartitionsToTxn from version 4 on and WriteTxnMarkers are sent only by brokers (KIP-890, KIP-98).

Left out: TxnOffsetCommit 6 (KIP-1319), which belongs to Kafka 4.4; two-phase commit (KIP-939), of which Kafka 4.3 has
only a version of InitProducerId that it does not advertise.
"""

from __future__ import annotations

import asyncio
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.broker_proof import who_asks
from kraftpy.broker.handlers.pieces import in_pieces
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS
from kraftpy.broker.metadata.auto_creation import found_or_created
from kraftpy.broker.slicing import PIECE, cut
from kraftpy.groups.patterns import Pattern, PatternError, shown
from kraftpy.groups.request_pieces import with_refused
from kraftpy.groups.routing import partition_for_group
from kraftpy.groups.transactional_offsets import refuse
from kraftpy.metadata.controller import is_internal
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kraftpy.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from kraftpy.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kraftpy.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kraftpy.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kraftpy.protocol.messages.list_transactions import TransactionState as ListedTransaction
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kraftpy.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.transactions.events import AddPartitions, EndTransaction
from kraftpy.transactions.records import by_topic
from kraftpy.transactions.transaction import EPOCH_BUMPS, PREPARED, State, Transaction
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kraftpy.broker.containment import Complaints
    from kraftpy.broker.handlers.services import HasCoordinators, HasMetadata, HasProof, HasReplicas, HasTransactions
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.rights import Rights
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices
    from kraftpy.broker.transactions.markers import MarkerWriter

    class Broker(
        HasClock,
        HasConfig,
        HasCoordinators,
        HasImage,
        HasMetadata,
        HasProof,
        HasReplicas,
        HasSlices,
        HasTransactions,
        Protocol,
    ):
        """The part of a broker that these handlers need."""

        @property
        def marker_writer(self) -> MarkerWriter:
            """Writes the markers of completed transactions."""

        @property
        def complaints(self) -> Complaints:
            """Logs complaints at a limited rate."""


logger = logging.getLogger(__name__)

_SLICE_UNITS = 1_000
"""Units spent on listing transactional ids before other requests are served: about 5 ms (`groups.patterns`)."""
_IDS_PER_UNIT = 5
_SORTED_AT_ONCE = 10_000
"""More ids than this are sorted in a thread."""
_HASHED_CHARACTERS = 50
"""How many characters of a transactional id are hashed in one unit of `slicing`."""
_SHORT_ID = 250
_TOPIC_UNITS = 2
"""The cost of a topic of AddPartitionsToTxn, in addition to its partitions."""
_TRANSACTION_UNITS = 20
"""The cost of a transaction of AddPartitionsToTxn, in addition to its topics."""

_FIRST_FENCED_VERSION = 2
_FIRST_BATCHED_VERSION = 4
_FIRST_BUMPING_VERSION = 5
_FIRST_ABORTABLE_VERSION = 4
"""In TxnOffsetCommit: clients from before Kafka 3.8 do not know TRANSACTION_ABORTABLE."""


def fenced(error_code: ErrorCode, version: int, first_version: int) -> ErrorCode:
    """Return the error as that version of the API knows it (KIP-588)."""
    is_old = error_code == ErrorCode.PRODUCER_FENCED and version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old else error_code


# --- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


async def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction: all that are named, or none."""
    if context.api_version >= _FIRST_BATCHED_VERSION:
        if await who_asks(broker, context) is None:  # KIP-890: clients stay below it
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await _add_batched(broker, request, is_long=context.is_long)
    topics = request.v3_and_below_topics
    codes = await _existing(broker, topics, is_long=context.is_long, rights=context.rights)
    exist = not any(codes.values())
    if exist:
        result = await broker.transactions.ask(
            AddPartitions(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                partitions=frozenset(codes),
            )
        )
        codes = dict.fromkeys(codes, fenced(result.error_code, context.api_version, _FIRST_FENCED_VERSION))
    results = await _results(broker, topics, codes, is_long=context.is_long, as_named=exist)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def _add_batched(
    broker: Broker, request: AddPartitionsToTxnRequest, *, is_long: bool
) -> AddPartitionsToTxnResponse:
    results = []
    for asked in {each.transactional_id: each for each in request.transactions}.values():
        if is_long:
            await broker.slices.breathe(_TRANSACTION_UNITS)
        codes: Mapping[TopicPartition, ErrorCode] = await _existing(broker, asked.topics, is_long=is_long)
        if not any(codes.values()):
            codes = await broker.transactions.add_or_verify(
                asked.transactional_id,
                asked.producer_id,
                asked.producer_epoch,
                frozenset(codes),
                is_adding=not asked.verify_only,
            )
        results.append(
            AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id,
                topic_results=await _results(broker, asked.topics, codes, is_long=is_long),
            )
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _existing(
    broker: Broker, topics: list[AddPartitionsToTxnTopic], *, is_long: bool, rights: Rights | None = None
) -> dict[TopicPartition, ErrorCode]:
    """Return NONE per partition if all exist; otherwise the errors of some, and OPERATION_NOT_ATTEMPTED for the others.

    Clients may not add partitions of internal topics, to which they cannot write. The partition with a group's offsets
    is added by AddOffsetsToTxn, or by its leader.
    """
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in topics:
        is_refused = rights is not None and (
            is_internal(topic.name) or not rights.allows(Operation.WRITE, ResourceType.TOPIC, topic.name)
        )
        for indexes in cut(topic.partitions):
            if is_long:
                await broker.slices.breathe(_TOPIC_UNITS + len(indexes))
            found = broker.image.topic(topic.name)
            count = 0 if found is None else len(found.partitions)
            for index in indexes:
                code = ErrorCode.NONE if 0 <= index < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                codes[TopicPartition(topic.name, index)] = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_refused else code
    if any(codes.values()):
        for partitions in cut(list(codes)):
            if is_long:
                await broker.slices.breathe(len(partitions))
            for partition in partitions:
                codes[partition] = codes[partition] or ErrorCode.OPERATION_NOT_ATTEMPTED
    return codes


async def _results(
    broker: Broker,
    topics: list[AddPartitionsToTxnTopic],
    codes: Mapping[TopicPartition, ErrorCode],
    *,
    is_long: bool,
    as_named: bool = False,
) -> list[AddPartitionsToTxnTopicResult]:
    """Return each partition's result: once, by topic, or as often as the request names it.

    Kafka repeats the topics and partitions of the request if the coordinator has decided; otherwise it names each once.
    """
    results: list[AddPartitionsToTxnTopicResult] = []
    known: dict[str, AddPartitionsToTxnTopicResult] = {}
    told: set[TopicPartition] = set()
    for topic in topics:
        result = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[])
        if as_named:
            results.append(result)
        elif topic.partitions:
            result = known.setdefault(topic.name, result)
        for indexes in cut(topic.partitions):
            if is_long:
                await broker.slices.breathe(_TOPIC_UNITS + len(indexes))
            for partition in (TopicPartition(topic.name, index) for index in indexes):
                if as_named or partition not in told:
                    told.add(partition)
                    result.results_by_partition.append(
                        AddPartitionsToTxnPartitionResult(
                            partition_index=partition.partition, partition_error_code=codes[partition]
                        )
                    )
    return results if as_named else list(known.values())


# --- offsets ----------------------------------------------------------------------------------------------------------


def _offsets_partition(broker: Broker, group_id: str) -> TopicPartition | None:
    topic = broker.image.topic(CONSUMER_OFFSETS)
    if topic is None:
        return None
    return TopicPartition(CONSUMER_OFFSETS, partition_for_group(group_id, len(topic.partitions)))


async def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Add the partition with a group's offsets to the transaction; the first request creates the topic.

    A client asks for the group's coordinator only afterwards (KIP-98), so no other request would create it.
    """
    await found_or_created(CONSUMER_OFFSETS, broker.metadata, broker.config, broker.clock)
    partition = _offsets_partition(broker, request.group_id)
    if partition is None:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    result = await broker.transactions.ask(
        AddPartitions(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset({partition}),
        )
    )
    return AddOffsetsToTxnResponse(error_code=fenced(result.error_code, context.api_version, _FIRST_FENCED_VERSION))


async def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Store offsets that count once the transaction commits; from version 5 on this adds them to it (KIP-890).

    Many offsets are stored in pieces. Each piece checks again that the transaction is open: it may have been aborted.
    """
    if context.is_long:
        answered: TxnOffsetCommitResponse = await in_pieces(broker, request, context, _txn_offset_commit)
        return answered
    return await _txn_offset_commit(broker, request, context)


async def _txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Refuse the offsets of missing partitions, and have the others stored."""
    known: list[TxnOffsetCommitRequestTopic] = []
    unknown: list[TxnOffsetCommitRequestTopic] = []
    for topic in request.topics:
        found = broker.image.topic(topic.name)
        count = 0 if found is None else len(found.partitions)
        for parts, is_known in ((known, True), (unknown, False)):
            chosen = [each for each in topic.partitions if (0 <= each.partition_index < count) == is_known]
            if chosen or (found is None and not is_known):
                parts.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=chosen))
    request.topics = unknown
    refused = refuse(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refused.topics = with_refused(refused.topics, [])
    if not known:
        return refused
    request.topics = known
    answered = await _commit_existing(broker, request, context)
    answered.topics = with_refused(refused.topics, answered.topics)
    return answered


async def _commit_existing(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    if not request.group_id:
        return refuse(request, ErrorCode.INVALID_GROUP_ID)
    partition = _offsets_partition(broker, request.group_id)
    if partition is None:
        return refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    error_code = broker.coordinators.check_ready(partition.partition)
    if error_code != ErrorCode.NONE:
        return refuse(request, error_code)  # the group's coordinator, which this client looks for, is elsewhere
    try:
        producers = broker.replicas.leader(*partition).log.producers
    except KafkaError:
        return refuse(request, ErrorCode.NOT_COORDINATOR)
    needed = producers.verification(request.producer_id, request.producer_epoch)
    if needed is None:  # as for Produce: its transaction is open in the partition
        return await _store_offsets(broker, request, context)
    needed.waiting += 1
    try:
        codes = await broker.transactions.begin_writing(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset({partition}),
            is_adding=context.api_version >= _FIRST_BUMPING_VERSION,
        )
        error_code = codes[partition]
        if error_code != ErrorCode.NONE:
            return refuse(request, _of_offsets(error_code, context.api_version))
        needed.is_confirmed = True
        return await _store_offsets(broker, request, context)
    finally:
        producers.answered(request.producer_id, needed)


async def _store_offsets(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    answered = await broker.coordinators.ask(request, context)
    assert isinstance(answered, TxnOffsetCommitResponse)
    return answered


def _of_offsets(error_code: ErrorCode, version: int) -> ErrorCode:
    """Translate a refusal of the transaction's coordinator, or a failure to reach it, into TxnOffsetCommit's error.

    The client has found the group's coordinator, so no error may make it look for the coordinator elsewhere.
    """
    match error_code:
        case ErrorCode.NOT_COORDINATOR | ErrorCode.NETWORK_EXCEPTION | ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # retried here
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < _FIRST_BUMPING_VERSION:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case ErrorCode.TRANSACTION_ABORTABLE if version < _FIRST_ABORTABLE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
    return error_code


# --- EndTxn and markers -----------------------------------------------------------------------------------------------


async def end_txn(broker: Broker, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Decide how the transaction ends; answered once that is durable, while the markers are still being written."""
    version = context.api_version
    result = await broker.transactions.ask(
        EndTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.committed,
            client_version=EPOCH_BUMPS if version >= _FIRST_BUMPING_VERSION else 0,
        )
    )
    answer = EndTxnResponse(error_code=fenced(result.error_code, version, _FIRST_FENCED_VERSION))
    if version >= _FIRST_BUMPING_VERSION:
        answer.producer_id, answer.producer_epoch = result.producer_id, result.producer_epoch
    return answer


async def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Write transaction markers; answered once they are committed."""
    return await broker.marker_writer.write(request)


# --- for operators ----------------------------------------------------------------------------------------------------


async def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """Describe transactional ids, each once even if it is named twice (KIP-664)."""
    described = []
    for each in dict.fromkeys(request.transactional_ids):
        if context.is_long or len(each) > _SHORT_ID:
            await broker.slices.breathe(2 + len(each) // _HASHED_CHARACTERS)
        found = broker.transactions.find(each)
        partitions = 0 if isinstance(found, ErrorCode) or found.value is None else len(found.value.partitions)
        if partitions > PIECE:
            await broker.slices.breathe(partitions)
        described.append(_described(broker, each))
    return DescribeTransactionsResponse(transaction_states=described)


def _described(broker: Broker, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return _undescribed(transactional_id, ErrorCode.INVALID_REQUEST)
    found = broker.transactions.find(transactional_id)
    if not isinstance(found, Transaction) or found.value is None:
        code = found if isinstance(found, ErrorCode) else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return _undescribed(transactional_id, code)
    value = found.value
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=value.state.value,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.started_at,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(found.unmarked if value.state in PREPARED else value.partitions).items()
        ],
    )


def _undescribed(transactional_id: str, code: ErrorCode) -> TransactionState:
    """Return the error for an id, with Kafka's values in the other fields."""
    return TransactionState(
        transactional_id=transactional_id,
        error_code=code,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
    )


async def list_transactions(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List the transactional ids coordinated here that match all the filters (KIP-664, KIP-994, KIP-1152).

    Other requests are served between slices of the list. Only one request with a regular expression is handled at a
    time.
    """
    names = {state.value for state in State}
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in names]
    known = broker.transactions.known()
    if known is None:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    if request.transactional_id_pattern:
        try:
            async with broker.transactions.listing:
                pattern = Pattern(request.transactional_id_pattern)
                found = await _listed(broker, known, request, pattern)
        except PatternError as error:
            broker.complaints.write(
                logger,
                logging.INFO,
                "regular expression",
                context.client_host,
                "ListTransactions: %s is not a valid regular expression: %s",
                shown(request.transactional_id_pattern),
                error,
            )
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    else:
        found = await _listed(broker, known, request, None)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


async def _listed(
    broker: Broker, known: list[tuple[str, Transaction]], request: ListTransactionsRequest, pattern: Pattern | None
) -> list[ListedTransaction]:
    """Return those that match the filters, sorted by id."""
    now = broker.clock.now()
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    found = []
    spent = 0 if pattern is None else pattern.compile_units
    for number, (transactional_id, transaction) in enumerate(known):
        if not number % _IDS_PER_UNIT:
            spent += 1
        if pattern is not None:
            spent += pattern.units(transactional_id)
        if spent >= _SLICE_UNITS:
            spent = 0
            await asyncio.sleep(0)
        value = transaction.value
        if (
            value is None
            or (states and value.state.value not in states)
            or (producers and value.producer_id not in producers)
            or (pattern is not None and not pattern.matches(transactional_id))
            or (request.duration_filter >= 0 and now - value.started_at <= request.duration_filter)
        ):
            continue
        found.append(
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=value.producer_id,
                transaction_state=value.state.value,
            )
        )

    def in_order() -> list[ListedTransaction]:
        return sorted(found, key=attrgetter("transactional_id"))

    return in_order() if len(found) <= _SORTED_AT_ONCE else await broker.slices.apart(in_order)
