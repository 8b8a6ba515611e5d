"""Incremental fetch sessions: the broker remembers what a client fetches and sends only changes (KIP-227).

A session is a dictionary of partitions in the order they are served; one that returned data moves to the end, so that
a small `max_bytes` starves none. A consumer's may begin empty; one that becomes empty ends. A request names its
session and the session's epoch, which must match exactly: this is the only protection against a lost or repeated
request.

Invariants: there are at most `max.incremental.fetch.session.cache.slots` sessions, and those of clients have at most
`kraftpy.fetch.session.partitions.max` partitions in total. A new session evicts only one unused for `EVICTION_MS` or,
failing that (and for a slot only), a smaller one that has existed for that long. A session that grows beyond the
partitions available ends: its client begins another, or continues without. A partition is left out of an incremental
response only if it has no records, no error, and the same high watermark and log start offset as were last sent.

A follower's session keeps `ChangedKeys` of its partitions, so that a request touches those that changed and no others;
the leaders of the others see by `FetchedPartition.asked_at` that the follower still asks for them.
It is privileged: it may take the slot of a client's, and gives up its own only to that follower's next session that has
a partition in common with it. (A follower has one session for partitions that it syncs before it acknowledges, and one
for the rest.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kraftpy.broker.waiting import ChangedKeys
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchRequest, PartitionData
from kraftpy.types import Millis, TopicId

FIRST_TOPIC_ID_VERSION = 13
NO_EPOCH = -1
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
NO_FOLLOWER = -1
EVICTION_MS = 120_000
_MAX_EPOCH = 2**31 - 1
_NO_LIMIT = 2**31 - 1

PartitionKey = tuple[str, bytes, int]
"""Topic name ("" if the client sent an id), topic id (zeros if it sent a name), partition."""


class LastRequest:
    """When a follower last sent a request in a session."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = Millis(0)


class FetchedPartition:
    """A client's request for one partition, and the state it was last sent."""

    __slots__ = (
        "current_leader_epoch", "fetch_offset", "found_name", "is_accepted", "last_fetched_epoch", "last_request",
        "log_start_offset", "max_bytes", "partition", "sent_high_watermark", "sent_log_start_offset", "topic",
        "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        topic: str,
        topic_id: TopicId,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        log_start_offset: int = -1,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        """The log start offset of the follower that fetches."""
        self.found_name = ""
        """The topic's name, once it was found by id: the session keeps asking for that topic."""
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.is_accepted = False
        """The leader took a follower's fetch offset as proof of what it has; reset when it fetches from another offset,
        or forgets the partition."""
        self.last_request: LastRequest | None = None
        """That of the follower's session; None if it has none."""

    @property
    def key(self) -> PartitionKey:
        """The partition's identity within a session."""
        return (self.topic, self.topic_id, self.partition)

    @property
    def asked_at(self) -> Millis | None:
        """When a follower last asked for what it was last sent; None if it does so no more."""
        return self.last_request.at if self.is_accepted and self.last_request is not None else None

    def must_send(self, answer: PartitionData) -> bool:
        """Return whether an incremental response must include this partition; if so, remember what is sent."""
        changed = (
            bool(answer.records)
            or answer.error_code != ErrorCode.NONE
            or self.has_moved(answer)
            or answer.preferred_read_replica >= 0
            or answer.diverging_epoch.epoch >= 0
        )
        # After an error the cached values are invalid, so that the partition is sent again once it has recovered.
        failed = answer.error_code != ErrorCode.NONE
        self.sent_high_watermark = -1 if failed else answer.high_watermark
        self.sent_log_start_offset = -1 if failed else answer.log_start_offset
        return changed

    def has_moved(self, answer: PartitionData) -> bool:
        """Return whether the high watermark or log start offset differs from what was last sent."""
        return (
            answer.high_watermark != self.sent_high_watermark or answer.log_start_offset != self.sent_log_start_offset
        )


@dataclass(slots=True, kw_only=True)
class Session:
    """The remembered partitions of one client."""

    id: int
    epoch: int
    uses_topic_ids: bool
    partitions: dict[PartitionKey, FetchedPartition]
    created_at: Millis
    used_at: Millis
    follower_id: int = NO_FOLLOWER
    """The broker that fetches with this session, if it is a follower's."""
    changed_keys: ChangedKeys[PartitionKey] | None = None
    """The partitions that changed since the last response; only a follower's session has it."""
    last_request: LastRequest = field(default_factory=LastRequest)
    """When the follower last sent a request, on the monotonic clock."""
    joining: dict[PartitionKey, FetchedPartition] = field(default_factory=dict)
    """Partitions in whose maximal ISR the follower was not when it was last recorded what it has."""
    swept_at: float = 0.0
    """When the follower was last recorded as still having what it fetched from of `joining`; in the event loop's
    time."""

    def served(self, key: PartitionKey) -> None:
        """Move a partition that returned records to the end of the order."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


class FetchContext:
    """The partitions of one Fetch request, whether it named them or its session did."""

    __slots__ = ("asked", "epoch", "incremental", "partitions", "session")

    def __init__(
        self,
        *,
        partitions: list[FetchedPartition],
        session: Session | None,
        incremental: bool,
        asked: list[FetchedPartition],
        epoch: int = INITIAL_EPOCH,
    ) -> None:
        self.partitions = partitions
        """Empty in a follower's session, of which only the changed partitions are of interest."""
        self.session = session
        self.incremental = incremental
        self.asked = asked
        """The partitions that the request named, at their new offsets."""
        self.epoch = epoch
        """The session's epoch once this request is answered."""

    @property
    def session_id(self) -> int:
        """The session id to respond with: 0 without a session."""
        return NO_SESSION if self.session is None else self.session.id

    @property
    def is_overtaken(self) -> bool:
        """True if another request has used the session meanwhile: then this one's response must not touch it."""
        return self.session is not None and self.session.epoch != self.epoch

    def include(self, partition: FetchedPartition, answer: PartitionData) -> bool:
        """Return whether the response includes a partition; call it once for each, when its answer is final."""
        changed = partition.must_send(answer)
        if self.session is not None and answer.records:
            self.session.served(partition.key)
        return changed or not self.incremental


class FetchSessions:
    """Every session of this broker.

    `new_id` draws a random positive int32; `slots` bounds the number of sessions, `most_partitions` the partitions that
    the clients' sessions remember in total.
    """

    def __init__(self, slots: int, new_id: Callable[[], int], most_partitions: int = _NO_LIMIT) -> None:
        self._slots = slots
        self._most_partitions = most_partitions
        self._partitions = 0
        self._new_id = new_id
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __bool__(self) -> bool:
        return len(self) > 0

    @property
    def remembered(self) -> int:
        """The number of partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(
        self,
        request: FetchRequest,
        api_version: int,
        now: Millis,
        *,
        follower_id: int = NO_FOLLOWER,
        asked: list[FetchedPartition] | None = None,
    ) -> FetchContext:
        """Return the partitions of a request. `asked` are those it names (`asked_for`), if they are known already.

        Raises KafkaError (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR).
        """
        if asked is None:
            asked = asked_for(request)
        uses_topic_ids = api_version >= FIRST_TOPIC_ID_VERSION
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            ended = self._sessions.get(request.session_id)
            if ended is not None and ended.follower_id == follower_id:  # a consumer cannot end a follower's session
                self._drop(request.session_id)
            partitions = list({partition.key: partition for partition in asked}.values())
            session = None
            if request.session_epoch == INITIAL_EPOCH and api_version >= 7:
                session = self._create(partitions, uses_topic_ids, now, follower_id=follower_id)
            epoch = INITIAL_EPOCH if session is None else session.epoch
            return FetchContext(
                partitions=partitions, session=session, incremental=False, asked=partitions, epoch=epoch
            )
        return self._continue(request, asked, uses_topic_ids, now, follower_id)

    def keep_unanswered(self, fetched: FetchContext) -> int:
        """Return the session to name in the empty answer that throttles a client (KIP-219).

        A session that has just begun ends with this answer: the client has to ask for all partitions again.
        """
        if fetched.session is not None and not fetched.incremental:
            self._drop(fetched.session.id)
            return NO_SESSION
        return fetched.session_id

    def _continue(
        self,
        request: FetchRequest,
        asked: list[FetchedPartition],
        uses_topic_ids: bool,
        now: Millis,
        follower_id: int,
    ) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session.id} is at epoch {session.epoch}, not {request.session_epoch}",
            )
        if session.follower_id != follower_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session.id} is not this client's")
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "topic ids and names mixed in one fetch session")
        before, is_follower = len(session.partitions), session.changed_keys is not None
        updated: dict[PartitionKey, FetchedPartition] = {}
        for partition in asked:
            known = session.partitions.get(partition.key)
            if known is None:
                partition.last_request = session.last_request if is_follower else None
                session.partitions[partition.key] = updated[partition.key] = partition
            else:
                updated[partition.key] = known
                known.log_start_offset = partition.log_start_offset
                known.is_accepted = False
                known.fetch_offset = partition.fetch_offset
                known.max_bytes = partition.max_bytes
                known.current_leader_epoch = partition.current_leader_epoch
                known.last_fetched_epoch = partition.last_fetched_epoch
        for forgotten in request.forgotten_topics_data:  # last, so that a partition that is also asked for is forgotten
            for index in forgotten.partitions:
                key = (forgotten.topic, forgotten.topic_id, index)
                gone = session.partitions.pop(key, None)
                if gone is not None:
                    gone.is_accepted = False
                session.joining.pop(key, None)
                updated.pop(key, None)
        session.used_at = now
        if session.changed_keys is None:
            self._partitions += len(session.partitions) - before
            if len(session.partitions) > before and not self._has_room(0, now, session):
                self._drop(session.id)
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no room for fetch session {session.id}")
        if not session.partitions:
            self._drop(session.id)
            return FetchContext(partitions=[], session=None, incremental=False, asked=[])
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        partitions = [] if is_follower else [*session.partitions.values()]
        return FetchContext(
            partitions=partitions, session=session, incremental=True, asked=[*updated.values()], epoch=session.epoch
        )

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.changed_keys is not None:
            session.changed_keys.is_over = True
        elif session is not None:
            self._partitions -= len(session.partitions)

    def _create(
        self, partitions: list[FetchedPartition], uses_topic_ids: bool, now: Millis, *, follower_id: int
    ) -> Session | None:
        is_follower = follower_id != NO_FOLLOWER
        if is_follower:  # it fetches a partition in one session at a time: others date from before a restart
            for former in [each for each in self._sessions.values() if each.follower_id == follower_id]:
                is_idle = now - former.used_at > EVICTION_MS
                if is_idle or any(partition.key in former.partitions for partition in partitions):
                    self._drop(former.id)
        if is_follower and not partitions:  # nothing would ever end such a session
            return None
        if not self._make_room(len(partitions), now, is_follower=is_follower):
            return None
        if not is_follower and not self._has_room(len(partitions), now):
            return None
        session_id = self._new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = Session(
            id=session_id,
            epoch=INITIAL_EPOCH + 1,
            uses_topic_ids=uses_topic_ids,
            partitions={partition.key: partition for partition in partitions},
            created_at=now,
            used_at=now,
            follower_id=follower_id,
            changed_keys=ChangedKeys() if is_follower else None,
        )
        self._sessions[session_id] = session
        if is_follower:
            for partition in partitions:
                partition.last_request = session.last_request
        else:
            self._partitions += len(session.partitions)
        return session

    def _has_room(self, count: int, now: Millis, growing: Session | None = None) -> bool:
        """Return whether `count` more partitions may be remembered, if necessary by evicting unused sessions."""
        if self._partitions + count <= self._most_partitions:
            return True
        for session in sorted(self._sessions.values(), key=lambda session: session.used_at):
            if session.changed_keys is None and session is not growing and now - session.used_at > EVICTION_MS:
                self._drop(session.id)
                if self._partitions + count <= self._most_partitions:
                    return True
        return False

    def _make_room(self, size: int, now: Millis, *, is_follower: bool) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = min(self._sessions.values(), key=lambda session: session.used_at, default=None)
        if oldest is not None and now - oldest.used_at > EVICTION_MS:
            self._drop(oldest.id)
            return True
        clients = [session for session in self._sessions.values() if session.changed_keys is None]
        old = [session for session in clients if is_follower or now - session.created_at > EVICTION_MS]
        smallest = min(old, key=lambda session: len(session.partitions), default=None)
        if smallest is not None and (is_follower or len(smallest.partitions) < size):
            self._drop(smallest.id)
            return True
        return False


def asked_for(request: FetchRequest) -> list[FetchedPartition]:
    """Return the partitions that a request names."""
    return [
        FetchedPartition(
            topic=topic.topic,
            topic_id=TopicId(topic.topic_id),
            partition=partition.partition,
            fetch_offset=partition.fetch_offset,
            max_bytes=partition.partition_max_bytes,
            current_leader_epoch=max(NO_EPOCH, partition.current_leader_epoch),  # only here, as in Kafka
            last_fetched_epoch=partition.last_fetched_epoch,
            log_start_offset=partition.log_start_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
