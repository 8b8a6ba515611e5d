"""ShareFetch (78) and ShareAcknowledge (79): members of share groups acquire records and acknowledge them.

Acknowledgements in a ShareFetch are written before the fetch acquires records, and both are answered together. If it
were the other way round, the acquired records would be locked, with no member working on them, for as long as a write
takes that finds no coordinator. A fetch waits for `min_bytes`, at most `max_wait_ms` from its arrival. If another
broker leads a partition, the answer comes at once and names that broker (KIP-951), so that members do not keep asking
in the wrong place. A partition that cannot be loaded yet, or does not exist, hurries no fetch. A fetch that waits ends
when a right to read is taken away.

Acquired records are handed out once this broker has confirmed that it still leads (`replication.leadership_check`);
otherwise they are given back, and the member is sent to look for the new leader. A leader that is cut off does not know
its successor's acknowledgements, and would hand out records that were accepted there.

Records travel in whole batches of the log, and only batches with acquired records are sent. The answer lists beside
them which records are acquired; these need not be contiguous.

KIP-932; KIP-1206 (`share_acquire_mode`), KIP-1222 (renewing locks).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.leader_hints import LeaderHints
from kraftpy.broker.share.reading import Piece, read_pieces, with_acquired
from kraftpy.broker.share.sessions import (
    CLOSING_EPOCH,
    OPENING_EPOCH,
    SessionKey,
    SharedPartition,
    ShareSession,
)
from kraftpy.broker.waiting import Watch
from kraftpy.metadata.features import SHARE_FEATURE
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages import share_acknowledge as acknowledging
from kraftpy.protocol.messages import share_fetch as fetching
from kraftpy.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from kraftpy.protocol.messages.share_fetch import LeaderIdAndEpoch, NodeEndpoint, ShareFetchRequest, ShareFetchResponse
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.share.acknowledgements import Acknowledgement, BadAcknowledgement, read_batch
from kraftpy.share.effects import Acquired, Reply
from kraftpy.share.records import ShareKey
from kraftpy.types import TopicId

if TYPE_CHECKING:
    from kraftpy.broker.groups.settings import GroupSettingsNow
    from kraftpy.broker.handlers.services import HasReplicas
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.rights import Rights
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices
    from kraftpy.broker.share.partitions import HeldPartition, SharePartitions
    from kraftpy.broker.share.sessions import ShareSessions

    class Broker(HasClock, HasConfig, HasImage, HasReplicas, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def share_sessions(self) -> ShareSessions:
            """The share sessions on this node."""

        @property
        def share_partitions(self) -> SharePartitions:
            """The share partitions led by this node."""

        @property
        def group_settings(self) -> GroupSettingsNow:
            """The current settings of each group."""


_RECORD_LIMIT = 1
_READ_BYTES = 1 << 20
"""How many bytes of one partition a fetch looks at, however many the member would take: records are limited too."""
_LOOKED_AT_ONCE = 50
"""How many partitions of a session are looked at in one go."""
_LOOK_UNITS = 1_000
"""The cost of looking at a partition that has to be loaded, in units of `slicing`."""
_SAID_UNITS = 20
"""The cost of acknowledging records of one partition."""
_MOST_SAID = 1_000
"""More acknowledgements of one partition are read in a thread."""
_TOLD_UNITS = 2
"""The cost of one partition in an answer."""
_SHORT = 50
_NOBODY = -1
_MOST_MEMBER_CHARACTERS = 36
"""The size of a UUID as text."""
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(slots=True)
class _Acknowledgements:
    """The acknowledgements of a request, by partition, and their results."""

    waiting: dict[SharedPartition, asyncio.Future[Reply]] = field(default_factory=dict)
    refused: dict[SharedPartition, Reply] = field(default_factory=dict)

    async def results(self) -> dict[SharedPartition, Reply]:
        """Wait for the result of every acknowledgement."""
        written = {partition: await answer for partition, answer in self.waiting.items()}
        return {**self.refused, **written}


# --- ShareFetch -------------------------------------------------------------------------------------------------------


async def share_fetch(broker: Broker, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
    """Apply acknowledgements and acquire records; wait if there are too few; answer."""
    try:
        _check_served(broker)
        key = _session_key(request.group_id, request.member_id)
        _check_fetch(request)
        if request.share_session_epoch == OPENING_EPOCH:
            await _prepare_opening(broker, key, request)
        session = _session_of_fetch(broker, key, request, context)
        if session.partitions:  # an empty session acquires nothing in any mode
            _check_mode(request)
    except KafkaError as error:
        return ShareFetchResponse(error_code=error.code, error_message=shortened(error.message))
    is_closing = request.share_session_epoch == CLOSING_EPOCH
    try:
        fetch = _Fetch(broker, request, session, context.rights)
        said = await _acknowledge(broker, key, _batches(request.topics), context, is_renewing=request.is_renew_ack)
        results = await said.results()
        if not is_closing and not request.is_renew_ack and request.max_records > 0:
            await fetch.wait()
            await fetch.confirm()
    except KafkaError as error:
        return ShareFetchResponse(error_code=error.code, error_message=shortened(error.message))
    finally:
        if is_closing:
            close_session(broker, key)
    told = fetch.told(results)
    answers = []
    for partition in told:
        if len(told) > _SHORT:
            await broker.slices.breathe(_TOLD_UNITS)
        answers.append(_answer(partition, fetch.taken.get(partition), results))
    for taken in fetch.taken.values():
        if taken.held is not None and (traffic := taken.held.replica.traffic) is not None:
            traffic.share_fetch_requests += 1
            traffic.bytes_out += len(taken.records)
    endpoints = _name_leaders(broker, context, answers)
    response = ShareFetchResponse(
        acquisition_lock_timeout_ms=broker.share_partitions.lock_duration_ms(key.group_id), node_endpoints=endpoints
    )
    response.responses = _by_topic(answers, fetching.ShareFetchableTopicResponse)
    return response


async def _prepare_opening(broker: Broker, key: SessionKey, request: ShareFetchRequest) -> None:
    """Wait until nothing is left of the member's last session, and of a group without sessions. Raises KafkaError.

    Share partitions that a group without members has left are loaded again: their states may have been altered.
    """
    if any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a new share session cannot begin with acknowledgements")
    if broker.share_sessions.find(key) is not None:
        close_session(broker, key)
    await broker.share_partitions.released(key.group_id)


def _session_of_fetch(
    broker: Broker, key: SessionKey, request: ShareFetchRequest, context: RequestContext
) -> ShareSession:
    """Return the session as the request leaves it. Raises KafkaError."""
    sessions = broker.share_sessions
    if request.share_session_epoch == OPENING_EPOCH:
        if sessions.find(key) is not None:
            close_session(broker, key)
        session = sessions.open(key, context.connection)
        try:
            sessions.change(session, request)
        except KafkaError:
            close_session(broker, key)
            raise
        return session
    session = sessions.take(key, request.share_session_epoch)
    if request.share_session_epoch == CLOSING_EPOCH and request.forgotten_topics_data:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a request that closes the share session cannot forget topics")
    if request.share_session_epoch != CLOSING_EPOCH:
        sessions.change(session, request)
    return session


def _check_served(broker: Broker) -> None:
    """Check that the cluster has share groups. Raises KafkaError (UNSUPPORTED_VERSION)."""
    if broker.image.feature_level(SHARE_FEATURE) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{SHARE_FEATURE} is 0: this cluster has no share groups")


def _check_fetch(request: ShareFetchRequest) -> None:
    asks_for = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(asks_for):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a request that renews locks must set all fetch limits to 0")


def _check_mode(request: ShareFetchRequest) -> None:
    if not 0 <= request.share_acquire_mode <= _RECORD_LIMIT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown share acquire mode {request.share_acquire_mode}")


@dataclass(slots=True)
class _Taken:
    """The part of a fetch that comes from one partition: an error, or acquired records."""

    error: KafkaError | None = None
    held: HeldPartition | None = None
    records: bytes = b""
    acquired: list[Acquired] = field(default_factory=list)


class _Fetch:
    """One fetch, and what it acquires in the partitions of its session."""

    def __init__(self, broker: Broker, request: ShareFetchRequest, session: ShareSession, rights: Rights) -> None:
        self._broker = broker
        self._rights = rights
        self._request = request
        self._session = session
        self._has_skipped = False
        self._has_acquired = False
        self._allowed: set[SharedPartition] = set()
        """The partitions that the client could read when they were looked at last."""
        self._has_lost_right = False
        self._deadline = asyncio.get_running_loop().time() + max(0, request.max_wait_ms) / 1000
        self.taken: dict[SharedPartition, _Taken] = {}

    def told(self, results: dict[SharedPartition, Reply]) -> list[SharedPartition]:
        """Return the partitions to put in the answer: those with something to report.

        As in Kafka, the first answer of a session names every partition, even those without records.
        """
        told = {partition: None for partition, taken in self.taken.items() if taken.error or taken.acquired}
        if self._request.share_session_epoch == OPENING_EPOCH and self._request.max_records:
            told |= dict.fromkeys(self._session.partitions)
        return [*told, *(partition for partition in results if partition not in told)]

    async def wait(self) -> None:
        """Acquire records once there are enough, or when time is up; none if the session has ended.

        Raises KafkaError (GROUP_AUTHORIZATION_FAILED) if the right to read the group is taken away.
        """
        loop = asyncio.get_running_loop()
        while self._is_open:
            is_late = loop.time() >= self._deadline
            self._has_skipped = False
            with Watch(()) as watch:
                self._check_group_right(watch)
                if await self._look(watch, is_late=is_late) or is_late:
                    return
                if self._has_skipped:  # nothing here was of use, but there may be records further on
                    await asyncio.sleep(0)
                    continue
                await watch.wait_until(self._deadline)

    def _check_group_right(self, watch: Watch) -> None:
        """Check that the client may read the group, and watch its rights. Raises KafkaError."""
        if self._rights.are_unlimited:
            return
        watch.add(self._rights)
        if not self._rights.allows(Operation.READ, ResourceType.GROUP, self._session.key.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    async def _look(self, watch: Watch, *, is_late: bool) -> bool:
        """Acquire what there is, and watch all partitions looked at; return whether the answer should be sent.

        A session of many partitions is looked through in pieces, up to the first that has records to hand out;
        `min_bytes` then applies to that piece.
        """
        partitions = list(self._session.partitions)
        must_answer = False
        for start in range(0, len(partitions), _LOOKED_AT_ONCE):
            if start:
                await self._broker.slices.breathe(_LOOK_UNITS)
                if not self._is_open:
                    return True
            some = partitions[start : start + _LOOKED_AT_ONCE]
            held = self._held(some)
            must_answer = self._take(some, held, is_late=is_late) or must_answer
            if self._has_acquired:
                break
            for each in held.values():  # nothing has been awaited since they were looked at
                watch.add(each)
                watch.add(each.replica)
        return must_answer

    async def confirm(self) -> None:
        """Give back records that another leader may have handed out; keep none if the session has ended."""
        broker, member_id = self._broker, self._session.key.member_id
        found = [(partition, taken, taken.held) for partition, taken in self.taken.items() if taken.held is not None]
        if not found:
            return
        led = [(held.replica, held.leadership) for _, _, held in found]
        confirmed = await broker.replicas.confirmations.confirm_each(led, self._request.max_wait_ms)
        for (partition, taken, held), is_confirmed in zip(found, confirmed, strict=True):
            if not is_confirmed:
                broker.share_partitions.give_back(held, member_id, taken.acquired)
                self.taken[partition] = _Taken(
                    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker could not confirm that it still leads")
                )
        if not self._is_open:  # its records are available to other members by now
            self.taken.clear()

    @property
    def _is_open(self) -> bool:
        return self._broker.share_sessions.find(self._session.key) is self._session

    def _held(self, partitions: Sequence[SharedPartition]) -> dict[SharedPartition, HeldPartition]:
        """Return those that are served here, and note the others."""
        held = {}
        for partition in partitions:
            key = ShareKey(self._session.key.group_id, partition.topic_id, partition.partition)
            try:
                self._check_topic_right(partition)
                held[partition] = self._broker.share_partitions.get(key)
            except KafkaError as error:
                self.taken[partition] = _Taken(error)
        return held

    def _check_topic_right(self, partition: SharedPartition) -> None:
        """Check that the client may read the topic, and note if it could a moment ago. Raises KafkaError."""
        try:
            _check_rights(self._broker, self._rights, partition, is_asked_for=partition not in self.taken)
        except KafkaError:
            self._has_lost_right |= partition in self._allowed
            raise
        if not self._rights.are_unlimited:
            self._allowed.add(partition)

    def _take(
        self, looked_at: Sequence[SharedPartition], held: dict[SharedPartition, HeldPartition], *, is_late: bool
    ) -> bool:
        """Acquire records if there are enough, or it is late; return whether the answer should be sent."""
        known = (self.taken.get(partition) for partition in looked_at)
        is_elsewhere = any(taken and taken.error and taken.error.code in _LED_ELSEWHERE for taken in known)
        must_answer = is_elsewhere or self._has_lost_right
        found: list[tuple[SharedPartition, HeldPartition, int, list[Piece]]] = []
        remaining_bytes = min(self._request.max_bytes, self._broker.config.fetch_max_bytes)
        total_bytes = 0
        for partition, each in held.items():
            self.taken.pop(partition, None)
            if not each.is_loaded:
                if each.error is not None and is_late:
                    self._note_unloaded(partition, each.error)
                continue
            if total_bytes and total_bytes >= remaining_bytes:
                break
            try:
                offset, pieces = self._read(each, max(0, remaining_bytes - total_bytes))
            except KafkaError as error:
                self.taken[partition] = _Taken(error)
                must_answer = True
                continue
            if pieces:
                found.append((partition, each, offset, pieces))
                total_bytes += sum(len(piece.batch) for piece in pieces if piece.stretch.has_records)
        is_enough = total_bytes >= min(self._request.min_bytes, remaining_bytes, _READ_BYTES)
        if not (must_answer or is_late or total_bytes == 0 or is_enough):
            return False
        has_any = self._acquire(found)
        return must_answer or has_any

    def _note_unloaded(self, partition: SharedPartition, error: KafkaError) -> None:
        """Report that there is no state, but not that a coordinator is unreachable now: members cannot help that."""
        if error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self.taken[partition] = _Taken(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message))
        elif error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self.taken[partition] = _Taken(error)

    def _read(self, held: HeldPartition, max_bytes: int) -> tuple[int, list[Piece]]:
        partitions = self._broker.share_partitions
        if held.replica.log_start_offset > held.machine.start_offset:
            partitions.log_start_advanced(held)
        offset = held.machine.next_fetch_offset()
        if offset is None:
            return 0, []
        isolation = self._broker.group_settings(held.key.group_id).share_isolation_level
        is_committed = isolation == "read_committed"
        return offset, read_pieces(held.replica, offset, min(max_bytes, _READ_BYTES), read_committed=is_committed)

    def _acquire(self, found: Iterable[tuple[SharedPartition, HeldPartition, int, list[Piece]]]) -> bool:
        """Acquire from what was read; return whether that gave any records."""
        request = self._request
        remaining = request.max_records
        has_any = False
        for partition, held, offset, pieces in found:
            if remaining <= 0:
                break
            try:
                acquired = held.machine.acquire(
                    self._session.key.member_id,
                    [piece.stretch for piece in pieces],
                    fetch_offset=offset,
                    max_records=remaining,
                    batch_size=max(1, request.batch_size),
                    is_record_limit=request.share_acquire_mode == _RECORD_LIMIT,
                    now=self._broker.clock.monotonic_ms(),
                )
            except Exception as error:
                self._broker.share_partitions.failed(held, "an acquisition", error)
                self.taken[partition] = _Taken(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
                continue
            if not acquired:
                if held.machine.next_fetch_offset() != offset:
                    self._has_skipped = True
                    self._broker.share_partitions.skipped(held)
                continue
            has_any = self._has_acquired = True
            remaining -= sum(each.size for each in acquired)
            self._broker.share_partitions.acquired(held)
            self._session.served(partition)
            self.taken[partition] = _Taken(held=held, records=with_acquired(pieces, acquired), acquired=acquired)
        return has_any


def _answer(
    partition: SharedPartition, taken: _Taken | None, results: dict[SharedPartition, Reply]
) -> tuple[SharedPartition, fetching.PartitionData]:
    answer = fetching.PartitionData(partition_index=partition.partition)
    if taken is not None:
        answer.records = taken.records
        answer.acquired_records = [
            fetching.AcquiredRecords(
                first_offset=each.first_offset, last_offset=each.last_offset, delivery_count=each.delivery_count
            )
            for each in taken.acquired
        ]
        if taken.error is not None:
            answer.error_code, answer.error_message = taken.error.code, shortened(taken.error.message)
    result = results.get(partition)
    if result is not None:
        answer.acknowledge_error_code = result.error_code
        answer.acknowledge_error_message = shortened(result.message)
    return partition, answer


# --- ShareAcknowledge -------------------------------------------------------------------------------------------------


async def share_acknowledge(
    broker: Broker, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    """Apply acknowledgements; answered once they are written."""
    try:
        _check_served(broker)
        key = _session_key(request.group_id, request.member_id)
        if request.share_session_epoch == OPENING_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session begins with a ShareFetch")
        broker.share_sessions.take(key, request.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=shortened(error.message))
    try:
        said = await _acknowledge(broker, key, _batches(request.topics), context, is_renewing=request.is_renew_ack)
        results = await said.results()
    finally:
        if request.share_session_epoch == CLOSING_EPOCH:
            close_session(broker, key)
    answers = [
        (
            partition,
            acknowledging.PartitionData(
                partition_index=partition.partition,
                error_code=result.error_code,
                error_message=shortened(result.message),
            ),
        )
        for partition, result in results.items()
    ]
    endpoints = _name_leaders(broker, context, answers)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.share_partitions.lock_duration_ms(key.group_id), node_endpoints=endpoints
    )
    response.responses = _by_topic(answers, acknowledging.ShareAcknowledgeTopicResponse)
    return response


def _batches(topics: Iterable[Any]) -> dict[SharedPartition, list[fetching.AcknowledgementBatch]]:
    """Return the acknowledgements of a request by partition, without partitions that have none."""
    found: dict[SharedPartition, list[fetching.AcknowledgementBatch]] = {}
    for topic in topics:
        for part in topic.partitions:
            if part.acknowledgement_batches:
                partition = SharedPartition(TopicId(topic.topic_id), part.partition_index)
                found.setdefault(partition, []).extend(part.acknowledgement_batches)
    return found


async def _acknowledge(
    broker: Broker,
    key: SessionKey,
    batches: dict[SharedPartition, list[fetching.AcknowledgementBatch]],
    context: RequestContext,
    *,
    is_renewing: bool,
) -> _Acknowledgements:
    """Pass acknowledgements to the share partitions, many of them in slices, without waiting for results."""
    said = _Acknowledgements()
    for partition, each in batches.items():
        count = len(each) + sum(len(batch.acknowledge_types) for batch in each)
        if len(batches) > _SHORT or count > _MOST_SAID:
            await broker.slices.breathe(_SAID_UNITS + count)
        try:
            _check_rights(broker, context.rights, partition)
            if count > _MOST_SAID:
                acknowledgements = await broker.slices.apart(partial(_read_batches, may_renew=is_renewing), each)
                _check_rights(broker, context.rights, partition)
            else:
                acknowledgements = _read_batches(each, may_renew=is_renewing)
            held = _acknowledged(broker, ShareKey(key.group_id, partition.topic_id, partition.partition))
        except BadAcknowledgement as bad:
            said.refused[partition] = Reply(request_id=0, error_code=bad.error_code, message=str(bad))
        except KafkaError as error:
            said.refused[partition] = Reply(request_id=0, error_code=error.code, message=error.message)
        else:
            said.waiting[partition] = broker.share_partitions.acknowledge(held, key.member_id, acknowledgements)
    return said


def _check_rights(broker: Broker, rights: Rights, partition: SharedPartition, *, is_asked_for: bool = True) -> None:
    """Check that the client may read the topic. Raises KafkaError. Unknown ids need no right."""
    if rights.are_unlimited:
        return
    topic = broker.image.topic_by_id(partition.topic_id)
    read, kind = Operation.READ, ResourceType.TOPIC
    if topic is not None and not rights.allows(read, kind, topic.name, is_asked_for=is_asked_for):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _acknowledged(broker: Broker, key: ShareKey) -> HeldPartition:
    """Return the share partition that handed out the records. Raises KafkaError."""
    held = broker.share_partitions.find(key)
    if held is not None and held.is_loaded:
        return held
    broker.replicas.leader_by_id(key.topic_id, key.partition)
    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "this member has acquired no records of the partition")


def _read_batches(batches: Sequence[fetching.AcknowledgementBatch], *, may_renew: bool) -> list[Acknowledgement]:
    said: list[Acknowledgement] = []
    for each in batches:
        said += read_batch(each.first_offset, each.last_offset, each.acknowledge_types, may_renew=may_renew)
    return said


# --- sessions ---------------------------------------------------------------------------------------------------------


def _session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > _MOST_MEMBER_CHARACTERS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return SessionKey(group_id, member_id)


def close_session(broker: Broker, key: SessionKey) -> None:
    """End a member's session and release everything it holds."""
    broker.share_sessions.close(key)
    broker.share_partitions.release(key.group_id, key.member_id)


# --- answers ----------------------------------------------------------------------------------------------------------


def _name_leaders(
    broker: Broker, context: RequestContext, answers: Iterable[tuple[SharedPartition, Any]]
) -> list[NodeEndpoint]:
    """Name the leaders of partitions that this broker does not lead (KIP-951)."""
    hints: LeaderHints | None = None
    for partition, answer in answers:
        codes = (answer.error_code, getattr(answer, "acknowledge_error_code", ErrorCode.NONE))
        if any(code in _LED_ELSEWHERE for code in codes):
            hints = hints or LeaderHints(broker, context.listener)
            leader = hints.of("", partition.topic_id, partition.partition)
            known = (_NOBODY, _NOBODY) if leader is None else (leader.leader_id, leader.leader_epoch)
            answer.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])
    if hints is None:
        return []
    return [
        NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack) for each in hints.endpoints
    ]


def _by_topic(answers: Iterable[tuple[SharedPartition, Any]], kind: type[Any]) -> list[Any]:
    topics: dict[bytes, Any] = {}
    for partition, answer in answers:
        if partition.topic_id not in topics:
            topics[partition.topic_id] = kind(topic_id=partition.topic_id, partitions=[])
        topics[partition.topic_id].partitions.append(answer)
    return list(topics.values())
