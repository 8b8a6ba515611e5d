"""InitProducerId (key 22) and DescribeProducers (key 61): producers and their ids.

A producer id is unique in the cluster forever: ids come in blocks from the metadata log, and the rest of a block is
abandoned at a restart (KIP-98, KIP-730). A producer that names its previous id still gets a new one: only transactional
producers keep theirs (KIP-360), and those are handled by `transactions.coordinator`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.handlers.transactions import fenced
from kraftpy.broker.slicing import PIECE
from kraftpy.metadata.topics import topic_name_problem
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kraftpy.transactions.events import InitProducerId
from kraftpy.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasReplicas, HasTransactions
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasSlices
    from kraftpy.broker.transactions.producer_ids import ProducerIds
    from kraftpy.log.producer_states import ProducerDescription

    class Broker(HasReplicas, HasSlices, HasTransactions, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def producer_ids(self) -> ProducerIds:
            """Allocates producer ids."""


_FIRST_FENCED_VERSION = 4
_DESCRIBE_UNITS = 2
"""The cost of looking up a partition to describe, in units of `slicing`."""


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Return a new producer id at epoch 0, or a transactional id's own at an epoch that fences its former owner."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    if request.transactional_id is not None:
        result = await broker.transactions.ask(
            InitProducerId(
                transactional_id=request.transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
        )
        return InitProducerIdResponse(
            error_code=fenced(result.error_code, context.api_version, _FIRST_FENCED_VERSION),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )
    try:
        producer_id = await broker.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """Describe the producers that a partition's log knows; followers answer too (KIP-664)."""
    topics = []
    unpaused = 0
    # Each topic once, even if it is named often: a small request must not get an answer of unbounded size.
    for topic in {topic.name: topic for topic in request.topics}.values():
        partitions = []
        unpaused += 1
        for index in dict.fromkeys(topic.partition_indexes):
            unpaused += 1
            if unpaused >= PIECE // _DESCRIBE_UNITS:
                await broker.slices.breathe(_DESCRIBE_UNITS * unpaused)
                unpaused = 0
            answer = PartitionResponse(partition_index=index, active_producers=[])
            try:
                if (problem := topic_name_problem(topic.name)) is not None:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
                replica = broker.replicas.any_role(topic.name, index)
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = shortened(error.message)
            else:
                described = replica.log.producers.describe()
                while some := list(islice(described, PIECE)):
                    if answer.active_producers:
                        await broker.slices.breathe(PIECE)
                    answer.active_producers += map(_described, some)
                unpaused += min(PIECE, len(answer.active_producers))
            partitions.append(answer)
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _described(producer: ProducerDescription) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.current_txn_start_offset,
    )
