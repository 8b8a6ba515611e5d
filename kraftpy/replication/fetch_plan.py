"""What one broker fetches from one leader: many partitions, one Fetch at a time, one incremental session (KIP-227).

The leader remembers the session's partitions and positions, so a request names only what has changed since the last one
and what to forget. If a session is lost, however that happens, the next request begins a new one and names everything.

Work for a request and for an answer grows with what changed, not with what is fetched. If that is much (at the
beginning, or after a failover), a request names `most_named` partitions and does not wait at the leader, and the next
one names more; so neither side handles tens of thousands of partitions at a time. A leader that grants no session is
named everything in every request.

Use: `set` and `forget` as followers move; `request` makes the next Fetch, or None where there is nothing to fetch;
then exactly one of `digest` (the answer has come) and `lost` (it never will). One request may be under way.

Invariants: between requests, `_held` is what the leader's session holds; a partition that is not in it is named before
anything is taken from an answer about it.

Left out: topic names (Fetch before version 13), the follower's high watermark (KIP-1166), closing a session when its
last partition is gone (the leader evicts it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from kraftpy.replication.follower import DivergingEpoch, FetchAnswer, FetchPosition
from kraftpy.types import BrokerId, TopicId

MOST_NAMED: Final = 1_000
"""The most partitions that one request names: the leader reads and answers them in some 15 ms."""
_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_MAX_EPOCH: Final = 2**31 - 1

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
"""Errors that a new session cures."""


class PartitionKey(NamedTuple):
    """A partition by its topic's id."""

    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits on the size and wait of a fetch: `replica.fetch.*`."""

    partition_max_bytes: int = 1 << 20  # replica.fetch.max.bytes
    response_max_bytes: int = 10 << 20  # replica.fetch.response.max.bytes
    min_bytes: int = 1  # replica.fetch.min.bytes
    max_wait_ms: int = 500  # replica.fetch.wait.max.ms
    most_named: int = MOST_NAMED


class Fetched(NamedTuple):
    """The leader's answer for one partition with the position asked for, to pass to `Follower.answered`."""

    key: PartitionKey
    asked: FetchPosition
    answer: FetchAnswer


class FetchPlan:
    """The fetches of one broker from one leader over one connection after another."""

    def __init__(self, *, replica_id: BrokerId, broker_epoch: int) -> None:
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        """This broker's own; may be changed when it has registered again."""
        self._wanted: dict[PartitionKey, FetchPosition] = {}
        self._held: dict[PartitionKey, FetchPosition | None] = {}  # None: forgotten, and the leader does not know yet
        self._changed: dict[PartitionKey, None] = {}  # where the two differ; a dict for its order
        self._session_id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._has_no_session = False
        """The leader answered the last request that asked for a session without granting one."""
        self._partition_max_bytes = -1
        self._is_under_way = False

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._wanted

    @property
    def positions(self) -> Mapping[PartitionKey, FetchPosition]:
        """The partitions to fetch, each with its position."""
        return self._wanted

    # --- what to fetch ------------------------------------------------------------------------------------------------

    def set(self, key: PartitionKey, position: FetchPosition) -> None:
        """Fetch this partition from there, from the next request on."""
        self._wanted[key] = position
        if self._held.get(key) == position:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def forget(self, key: PartitionKey) -> None:
        """Stop fetching this partition, for now or for good. An answer in flight may still name it; it is ignored."""
        if self._wanted.pop(key, None) is not None:
            if key in self._held:
                # Wanted again from there, it must be named again: the leader has told what it has to tell of it.
                self._held[key] = None
                self._changed[key] = None
            else:
                self._changed.pop(key, None)

    # --- asking -------------------------------------------------------------------------------------------------------

    def request(self, limits: FetchLimits, max_wait_ms: int | None = None) -> FetchRequest | None:
        """Return the next Fetch (version 15 or later); None if there is nothing to fetch. `max_wait_ms` overrides the
        limit's. If more partitions are to be named than one request may name, it does not wait at all."""
        if self._is_under_way:
            raise RuntimeError("a fetch is under way")
        if not self._wanted:
            return None
        if limits.partition_max_bytes != self._partition_max_bytes:
            self._partition_max_bytes = limits.partition_max_bytes
            self._changed = dict.fromkeys([*self._wanted, *self._changed])
        topics: dict[TopicId, FetchTopic] = {}
        forgotten: dict[TopicId, ForgottenTopic] = {}
        if self._epoch == _INITIAL_EPOCH:
            self._held.clear()
            self._changed = dict.fromkeys(self._wanted)
        named = [*self._changed] if self._has_no_session else [*islice(self._changed, limits.most_named)]
        for key in named:
            del self._changed[key]
            topic_id, partition = key
            position = self._wanted.get(key)
            if position is None:
                if key in self._held:
                    del self._held[key]
                    forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(partition)
                continue
            self._held[key] = position
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=limits.partition_max_bytes,
                )
            )
        if self._changed:
            max_wait_ms = 0
        self._is_under_way = True
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self.replica_id, replica_epoch=self.broker_epoch),
            max_wait_ms=limits.max_wait_ms if max_wait_ms is None else max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    # --- what came of it ----------------------------------------------------------------------------------------------

    def digest(self, response: FetchResponse) -> list[Fetched]:
        """Return the answers for partitions that are still wanted from the position they were asked for.

        If the session was refused, the list is empty and the next request begins a new session. Raises KafkaError for
        any other error of the response as a whole: back off before the next request.
        """
        self._is_under_way = False
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            self._begin_anew(close=error is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if error in _SESSION_ERRORS:
                return []
            raise KafkaError(error, "the leader refuses the fetch")
        if self._epoch == _INITIAL_EPOCH:
            self._session_id = response.session_id
            self._has_no_session = response.session_id == _NO_SESSION
            if not self._has_no_session:
                self._epoch = 1
        elif response.session_id == self._session_id:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        else:  # the leader has let go of the session while it answered
            self._begin_anew(close=False)
        fetched: list[Fetched] = []
        for topic in response.responses:
            topic_id = TopicId(topic.topic_id)
            for data in topic.partitions:
                key = PartitionKey(topic_id, data.partition_index)
                asked = self._held.get(key)
                if asked is not None and self._wanted.get(key) == asked:
                    fetched.append(Fetched(key, asked, _answer(data)))
        return fetched

    def lost(self) -> None:
        """Give up on the answer, because it will not come or the connection changed: the session's state is unknown."""
        self._is_under_way = False
        self._begin_anew(close=True)

    def _begin_anew(self, *, close: bool) -> None:
        """Name everything in the next request; `close` sends the old session's id, so that the leader drops it."""
        self._epoch = _INITIAL_EPOCH
        if not close:
            self._session_id = _NO_SESSION


def _answer(data: PartitionData) -> FetchAnswer:
    diverging = data.diverging_epoch
    return FetchAnswer(
        error=ErrorCode.of(data.error_code),
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
        records=data.records or b"",
        diverging_epoch=DivergingEpoch(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        current_leader_id=data.current_leader.leader_id,
        current_leader_epoch=data.current_leader.leader_epoch,
        preferred_read_replica=data.preferred_read_replica,
    )
