"""Fetch (key 1): return whole batches from an offset on, right away or once there are enough.

At least one batch is returned, however small the limits are, so that a consumer always makes progress (KIP-74). An
answer waits for `min_bytes`, at most `max_wait_ms`, and only if no partition has an error or a diverging epoch. The
right to read a topic is checked at each read, so that a waiting fetch ends if the right is revoked. A partition that
does not exist when the request arrives neither delays nor hurries the answer, as in Kafka: clients keep asking for
deleted topics, and would ask in a tight loop. Fetch sessions: KIP-227. Epoch checks and diverging epochs: KIP-320,
KIP-595. Topic ids from version 13: KIP-516; a session whose topic was recreated is refused. Isolation levels: KIP-98.

Followers' fetches (a `replica_id` of 0 or more) are in `replica_fetch`. A consumer may read from a follower, up to the
high watermark that the follower knows; if `replica.selector.class` is Kafka's rack-aware one, the leader tells the
consumer which follower is nearest (KIP-392). If another broker leads the partition, the answer names it (KIP-951).

A leader reports an offset past the end of its log only after confirming that it still leads
(`replication.leadership_check`). A leader that is cut off lacks its successor's records, and a consumer that believed
it would start over. Kafka leaves that to the epoch in the request, which is only as fresh as the consumer's metadata.

Left out: other classes for `replica.selector.class`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers import replica_fetch as followers
from kraftpy.broker.handlers.offsets import committed_only
from kraftpy.broker.handlers.replica_fetch import replica_fetch
from kraftpy.broker.replication.fetch_responses import Answers, count_fetched, name_leaders, respond, respond_long
from kraftpy.broker.replication.fetch_sessions import FIRST_TOPIC_ID_VERSION, asked_for
from kraftpy.broker.rights import ASK_UNITS
from kraftpy.broker.services import HasImage, HasNodeId, HasSlices
from kraftpy.broker.waiting import Watch
from kraftpy.config.broker import RACK_AWARE_SELECTOR
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.types import BrokerId, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.replication.fetch_sessions import FetchContext, FetchedPartition, PartitionKey
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.request_memory import RequestMemory
    from kraftpy.broker.rights import Rights


class Broker(followers.Broker, HasImage, HasNodeId, HasSlices, Protocol):
    """The part of a broker that these handlers need."""

    @property
    def request_memory(self) -> RequestMemory:
        """The memory budget of requests and answers."""


_FIRST_FROM_FOLLOWERS_VERSION = 11
_LONG = 250
"""How many partitions are read without a pause."""
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_UNREADABLE = (*_UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Errors with which Kafka sends an empty list of aborted transactions instead of null."""


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Read what is there; wait if that is too little; answer."""
    if _replica_id(request, context) >= 0:
        return await replica_fetch(broker, request, context)
    if committed_only(request.isolation_level) is None:
        return _refused(request, ErrorCode.INVALID_REQUEST, context)
    try:
        asked = await broker.slices.apart(asked_for, request) if context.is_long else asked_for(request)
        fetched = broker.fetch_sessions.open(request, context.api_version, broker.clock.now(), asked=asked)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    reader = _Reader(broker, request, context)
    missing: set[PartitionKey] = set()
    answers, enough = await _read(reader, fetched, missing, is_first=True)
    if not enough and request.max_wait_ms > 0:
        answers = await _wait(reader, fetched, answers, missing)
    await _confirm_ends(reader, answers)
    if fetched.is_overtaken:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if context.quota is not None and context.quota.must_wait_to_fetch(
        sum(len(each.records or b"") for _, each in answers)
    ):
        return FetchResponse(session_id=broker.fetch_sessions.keep_unanswered(fetched))
    count_fetched(broker.replicas, answers, is_follower=False)
    answers.sort(key=lambda each: each[1].error_code in _UNKNOWN)  # these come last, as in Kafka
    if len(answers) > 2 * _LONG:
        return await respond_long(broker, fetched, answers, context)
    return respond(fetched, answers, name_leaders(broker, answers, context))


def _refused(request: FetchRequest, error: ErrorCode, context: RequestContext) -> FetchResponse:
    """Refuse a whole request; versions that name topics repeat the error for each partition."""
    if context.api_version >= FIRST_TOPIC_ID_VERSION:
        return FetchResponse(error_code=error)
    topics = [
        FetchableTopicResponse(
            topic=topic.topic,
            partitions=[PartitionData(partition_index=each.partition, error_code=error) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(error_code=error, responses=topics)


class _Reader:
    """The client of one request, and what applies to all partitions it reads."""

    def __init__(self, broker: Broker, request: FetchRequest, context: RequestContext) -> None:
        self.broker = broker
        self.request = request
        self.may_read_followers = context.api_version >= _FIRST_FROM_FOLLOWERS_VERSION
        self.uses_topic_ids = context.api_version >= FIRST_TOPIC_ID_VERSION
        self.read_committed = committed_only(request.isolation_level) is True
        self.budget = min(request.max_bytes, broker.config.fetch_max_bytes, max(1, broker.request_memory.room()))
        self.rights = None if context.rights.are_unlimited else context.rights
        self._refused: set[str] = set()
        """The topics that the client may not read; each is written to the audit log once."""
        if context.quota is not None and (most_bytes := context.quota.most_fetch_bytes()) is not None:
            self.budget = min(self.budget, most_bytes)
        self.racks: dict[BrokerId, str] | None = None
        """The racks of the brokers; None if this reader is not sent to the nearest replica."""
        if request.rack_id and broker.config.replica_selector_class == RACK_AWARE_SELECTOR:
            self.racks = {each.broker_id: each.rack for each in broker.image.brokers() if each.rack and not each.fenced}

    def replica(self, partition: FetchedPartition) -> Replica:
        """Return the replica to read. Raises KafkaError if the client may not read it, or cannot on this broker."""
        if self.rights is not None:
            self._check_rights(self.rights, partition)
        replicas = self.broker.replicas
        if not self.uses_topic_ids:
            if self.may_read_followers:
                return replicas.readable(partition.topic, partition.partition)
            held = replicas.held(TopicPartition(partition.topic, partition.partition))
            if held is not None and held.following is not None:  # check the epoch before the role, as Kafka does
                held.check_leader_epoch(partition.current_leader_epoch)
            return replicas.leader(partition.topic, partition.partition)
        try:
            found = replicas.readable_by_id(partition.topic_id, partition.partition)
        except KafkaError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_ID and partition.found_name:
                raise self._deleted(partition) from None
            raise
        partition.found_name = found.topic_partition.topic
        return found

    def _check_rights(self, rights: Rights, partition: FetchedPartition) -> None:
        """Check that the client may read the topic. Raises KafkaError. Unknown ids need no right."""
        topic = partition.topic
        if self.uses_topic_ids:
            known = self.broker.image.topic_by_id(partition.topic_id)
            if known is None:
                return
            topic = known.name
        if not rights.allows(Operation.READ, ResourceType.TOPIC, topic, is_asked_for=topic not in self._refused):
            self._refused.add(topic)
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _deleted(self, partition: FetchedPartition) -> KafkaError:
        """Return why a topic that this session has read is unknown now: it was deleted, or recreated."""
        topic = partition.found_name
        if self.broker.image.topic(topic) is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {topic} was deleted")
        return KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"the topic {topic} has another id now")

    def nearest(self, replica: Replica, partition: FetchedPartition) -> int:
        """Return the replica that the reader should use instead (rule 48), or -1."""
        if self.racks is None or replica.leading is None:
            return -1
        found = replica.leading.nearest(self.request.rack_id, self.racks, partition.fetch_offset)
        return -1 if found is None or found == self.broker.node_id else found


async def _wait(reader: _Reader, fetched: FetchContext, answers: Answers, missing: set[PartitionKey]) -> Answers:
    """Read again after every change, until there is enough or time is up.

    There is no await between a read and the watch, except for a long request, which is read and watched in slices;
    that one is therefore read a second time at once.
    """
    deadline = asyncio.get_running_loop().time() + reader.request.max_wait_ms / 1000
    watched: list[Replica] = []
    for number, partition in enumerate(fetched.partitions, 1):
        if not number % _LONG:
            await reader.broker.slices.breathe((1 if reader.rights is None else ASK_UNITS) * _LONG)
        with suppress(KafkaError):
            watched.append(reader.replica(partition))
    with Watch(watched) as watch:
        if reader.rights is not None:
            watch.add(reader.rights)
        if len(fetched.partitions) >= _LONG:
            watch.wake()
        enough = False
        while not enough and await watch.wait_until(deadline):
            reader.budget = min(reader.budget, max(1, reader.broker.request_memory.room()))
            answers, enough = await _read(reader, fetched, missing)
    return answers


async def _read(
    reader: _Reader, fetched: FetchContext, missing: set[PartitionKey], *, is_first: bool = False
) -> tuple[Answers, bool]:
    """Return every partition's answer, and whether they should be sent without waiting.

    `missing` holds the partitions that did not exist when the request arrived; the first call fills it.
    """
    budget = reader.budget
    answers: Answers = []
    total_bytes = 0
    failed = False
    for number, partition in enumerate(fetched.partitions, 1):
        if not number % _LONG:
            await reader.broker.slices.breathe((2 if reader.rights is None else ASK_UNITS) * _LONG)
        answer = _read_partition(reader, partition, budget - total_bytes, first=total_bytes == 0)
        total_bytes += len(answer.records or b"")
        if answer.error_code != ErrorCode.NONE:
            if is_first and answer.error_code in _UNKNOWN:
                missing.add(partition.key)
            failed = failed or partition.key not in missing
        elif answer.diverging_epoch.epoch >= 0 or answer.preferred_read_replica >= 0:
            failed = True
        answers.append((partition, answer))
    nothing_to_wait_for = len(missing) == len(fetched.partitions)
    # No more than the limit can ever arrive, so do not wait for more.
    return answers, failed or nothing_to_wait_for or total_bytes >= min(reader.request.min_bytes, budget)


def _read_partition(reader: _Reader, partition: FetchedPartition, budget: int, *, first: bool) -> PartitionData:
    answer = PartitionData(partition_index=partition.partition, high_watermark=-1, records=b"")
    try:
        replica = reader.replica(partition)
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
        if reader.racks is not None:
            answer.preferred_read_replica = reader.nearest(replica, partition)
            if answer.preferred_read_replica >= 0:
                return answer
        read_committed = reader.read_committed
        read = replica.read(
            Offset(partition.fetch_offset),
            max(0, min(partition.max_bytes, budget)),
            read_committed=read_committed,
            min_one_batch=first,
            slice_from=reader.broker.config.kraftpy_fetch_zero_copy_min_bytes,
        )
        records: Any = read.records  # a file slice has a length too; the connection sends it
        answer.records = records
        is_at_end = partition.fetch_offset >= replica.last_stable_offset
        if read_committed and (answer.records or is_at_end):  # as in Kafka, not for partitions that did not fit
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in read.aborted_transactions
            ]
    except KafkaError as error:
        failed = PartitionData(partition_index=partition.partition, error_code=error.code)
        if error.code in _UNREADABLE:
            failed.aborted_transactions = []
        return failed
    return answer


async def _confirm_ends(reader: _Reader, answers: Answers) -> None:
    """Withdraw answers about offsets past the end of a log if another broker may have become leader."""
    unsure: list[tuple[Replica, PartitionData]] = []
    for partition, answer in answers:
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            with suppress(KafkaError):
                replica = reader.replica(partition)
                if replica.leading is not None and partition.fetch_offset > replica.log.log_end_offset:
                    unsure.append((replica, answer))
    if not unsure:
        return
    led = [(replica, replica.leadership) for replica, _ in unsure]
    found = await reader.broker.replicas.confirmations.confirm_each(led, reader.request.max_wait_ms)
    for (_, answer), is_sure in zip(unsure, found, strict=True):
        if not is_sure:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def _replica_id(request: FetchRequest, context: RequestContext) -> int:
    return request.replica_state.replica_id if context.api_version >= 15 else request.replica_id
