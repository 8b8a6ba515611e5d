"""Fetch (key 1): whole batches from an offset on, now or when enough have arrived.

At least one batch is returned however small the limits are, so that a consumer always gets on (KIP-74). Answers
wait for `min_bytes` at most `max_wait_ms`, but not where a partition has something else to tell: an error, or a
diverging epoch. A partition that does not exist when the request comes holds up nothing and hurries nothing, as in
Kafka: clients go on asking for deleted topics, and would ask without a pause. Fetch sessions: KIP-227. Epoch checks and
diverging epochs: KIP-320, KIP-595. Topic ids from version 13: KIP-516. Isolation levels: KIP-98.

Left out: followers' fetches (a `replica_id` of 0 or more is refused; see CVE-2018-1288), fetching from followers
(KIP-392).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kraftpy.broker.waiting import Watch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kraftpy.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.fetch_sessions import FetchContext, FetchedPartition, PartitionKey
    from kraftpy.broker.replica import Replica
    from kraftpy.broker.request import RequestContext

READ_COMMITTED = 1
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

Answers = list[tuple["FetchedPartition", PartitionData]]


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Read what is there; wait when it is too little; answer."""
    if _replica_id(request, context) >= 0:
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        fetched = broker.fetch_sessions.open(request, context.api_version, broker.clock.now())
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    missing: set[PartitionKey] = set()
    answers, enough = _read(broker, request, fetched, missing, is_first=True)
    if not enough and request.max_wait_ms > 0:
        answers = await _wait(broker, request, fetched, answers, missing)
    if fetched.is_overtaken:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    return _respond(fetched, answers)


async def _wait(
    broker: Broker, request: FetchRequest, fetched: FetchContext, answers: Answers, missing: set[PartitionKey]
) -> Answers:
    """Read again whenever something changed, until there is enough or the time is up. No await before the watch."""
    deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
    watched: list[Replica] = []
    for partition in fetched.partitions:
        with suppress(KafkaError):
            watched.append(_replica(broker, partition))
    with Watch(watched) as watch:
        enough = False
        while not enough and await watch.wait_until(deadline):
            answers, enough = _read(broker, request, fetched, missing)
    return answers


def _read(
    broker: Broker,
    request: FetchRequest,
    fetched: FetchContext,
    missing: set[PartitionKey],
    *,
    is_first: bool = False,
) -> tuple[Answers, bool]:
    """Every partition's answer, and whether they are to be sent without waiting.

    `missing` are the partitions that did not exist when the request came; the first call notes them.
    """
    budget = min(request.max_bytes, broker.config.fetch_max_bytes)
    read_committed = request.isolation_level == READ_COMMITTED
    answers: Answers = []
    total_bytes = 0
    failed = False
    for partition in fetched.partitions:
        answer = _read_partition(broker, partition, budget - total_bytes, read_committed, first=total_bytes == 0)
        total_bytes += len(answer.records or b"")
        if answer.error_code != ErrorCode.NONE:
            if is_first and answer.error_code in _UNKNOWN:
                missing.add(partition.key)
            failed = failed or partition.key not in missing
        elif answer.diverging_epoch.epoch >= 0:
            failed = True
        answers.append((partition, answer))
    nothing_to_wait_for = len(missing) == len(fetched.partitions)
    # More than the limit never comes: to wait for it would be to wait in vain.
    return answers, failed or nothing_to_wait_for or total_bytes >= min(request.min_bytes, budget)


def _read_partition(
    broker: Broker, partition: FetchedPartition, budget: int, read_committed: bool, *, first: bool
) -> PartitionData:
    answer = PartitionData(partition_index=partition.partition, high_watermark=-1, records=b"")
    try:
        replica = _replica(broker, partition)
        replica.check_leader_epoch(partition.current_leader_epoch)
        answer.high_watermark = replica.high_watermark
        answer.last_stable_offset = replica.last_stable_offset
        answer.log_start_offset = replica.log.log_start_offset
        if partition.last_fetched_epoch >= 0:
            diverging = replica.diverging_epoch(
                LeaderEpoch(partition.last_fetched_epoch), Offset(partition.fetch_offset)
            )
            if diverging is not None:
                answer.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
                return answer
        read = replica.read(
            Offset(partition.fetch_offset),
            max(0, min(partition.max_bytes, budget)),
            read_committed=read_committed,
            min_one_batch=first,
        )
        answer.records = read.records
        if read_committed:
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in read.aborted_transactions
            ]
    except KafkaError as error:
        return PartitionData(partition_index=partition.partition, error_code=error.code)
    return answer


def _replica(broker: Broker, partition: FetchedPartition) -> Replica:
    if partition.topic:
        return broker.replicas.leader(partition.topic, partition.partition)
    return broker.replicas.leader_by_id(partition.topic_id, partition.partition)


def _replica_id(request: FetchRequest, context: RequestContext) -> int:
    return request.replica_state.replica_id if context.api_version >= 15 else request.replica_id


def _respond(fetched: FetchContext, answers: Answers) -> FetchResponse:
    topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
    for partition, answer in answers:
        if not fetched.include(partition, answer):
            continue
        key = (partition.topic, partition.topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = FetchableTopicResponse(
                topic=partition.topic, topic_id=partition.topic_id, partitions=[]
            )
        topic.partitions.append(answer)
    return FetchResponse(session_id=fetched.session_id, responses=list(topics.values()))
