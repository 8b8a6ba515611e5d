"""Plans one broker's fetches from one leader: many partitions, one Fetch at a time, one incremental session (KIP-227).

The leader remembers the session's partitions and positions, so a request names only those that changed since the last
one, and those to forget. If a session is lost, the next request starts a new one and names all partitions.

The work for a request or an answer grows with the number of changed partitions, not with the number fetched. If many
have changed (at the beginning, or after a failover), a request names `most_named` of them and does not wait at the
leader, and the next request names more; so neither side handles tens of thousands of partitions at a time. A leader
that grants no session is sent all partitions in every request.

Usage: call `set` and `forget` as followers advance. `request` returns the next Fetch, or None if there is nothing to
fetch; then call exactly one of `handle_response` (the response has arrived) and `lost` (it never will). One request may
be in flight.

Invariants: between requests, `_in_session` equals the leader's session; a partition that is not in the session is named
in a request before any answer about it is used.

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

MOST_NAMED: Final = 500
"""The most partitions that one request names: the leader reads and answers them in some 10 ms."""
_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_MAX_EPOCH: Final = 2**31 - 1

_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
"""Errors that a new session resolves."""


class PartitionKey(NamedTuple):
    """A partition, by the id of its topic."""

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
    """The leader's answer for one partition, with the position it was fetched from, for `Follower.answered`."""

    key: PartitionKey
    asked: FetchPosition
    answer: FetchAnswer


class FetchPlan:
    """The fetches of one broker from one leader; the plan outlives any single connection."""

    def __init__(self, *, replica_id: BrokerId, broker_epoch: int) -> None:
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        """This broker's epoch; set it after the broker has registered again."""
        self._wanted: dict[PartitionKey, FetchPosition] = {}
        self._in_session: dict[PartitionKey, FetchPosition | None] = {}  # None: to be forgotten by the leader
        self._changed: dict[PartitionKey, None] = {}  # partitions for which the two differ, in order
        self._session_id = _NO_SESSION
        self._epoch = _INITIAL_EPOCH
        self._has_no_session = False
        """The leader answered the last request that asked for a session without granting one."""
        self._partition_max_bytes = -1
        self._is_in_flight = False

    def __len__(self) -> int:
        return len(self._wanted)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._wanted

    @property
    def positions(self) -> Mapping[PartitionKey, FetchPosition]:
        """The partitions to fetch, with their positions."""
        return self._wanted

    # --- partitions ---------------------------------------------------------------------------------------------------

    def set(self, key: PartitionKey, position: FetchPosition) -> None:
        """Fetch this partition from this position, beginning with the next request."""
        self._wanted[key] = position
        if self._in_session.get(key) == position:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def forget(self, key: PartitionKey) -> None:
        """Stop fetching this partition, for now or for good. An answer in flight about it is ignored."""
        if self._wanted.pop(key, None) is not None:
            if key in self._in_session:
                # If it is set to the same position again, it must be named again: the leader sends only changes.
                self._in_session[key] = None
                self._changed[key] = None
            else:
                self._changed.pop(key, None)

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, limits: FetchLimits, max_wait_ms: int | None = None) -> FetchRequest | None:
        """Return the next Fetch (version 15 or later); None if there is nothing to fetch.

        `max_wait_ms` overrides that of `limits`. A request that cannot name all changed partitions does not wait.
        """
        if self._is_in_flight:
            raise RuntimeError("a fetch is in flight")
        if not self._wanted:
            return None
        if limits.partition_max_bytes != self._partition_max_bytes:
            self._partition_max_bytes = limits.partition_max_bytes
            self._changed = dict.fromkeys([*self._wanted, *self._changed])
        topics: dict[TopicId, FetchTopic] = {}
        forgotten: dict[TopicId, ForgottenTopic] = {}
        if self._epoch == _INITIAL_EPOCH:
            self._in_session.clear()
            self._changed = dict.fromkeys(self._wanted)
        named = [*self._changed] if self._has_no_session else [*islice(self._changed, limits.most_named)]
        for key in named:
            del self._changed[key]
            topic_id, partition = key
            position = self._wanted.get(key)
            if position is None:
                if key in self._in_session:
                    del self._in_session[key]
                    forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(partition)
                continue
            self._in_session[key] = position
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
        self._is_in_flight = True
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

    # --- responses ----------------------------------------------------------------------------------------------------

    def handle_response(self, response: FetchResponse) -> list[Fetched]:
        """Return the answers for partitions that are still to be fetched from the position in the request.

        If the leader refused the session, the list is empty and the next request starts a new session. Raises
        KafkaError for any other error of the whole response: back off before the next request.
        """
        self._is_in_flight = False
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            self._reset_session(close=error is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if error in _SESSION_ERRORS:
                return []
            raise KafkaError(error, "the leader refused the fetch")
        if self._epoch == _INITIAL_EPOCH:
            self._session_id = response.session_id
            self._has_no_session = response.session_id == _NO_SESSION
            if not self._has_no_session:
                self._epoch = 1
        elif response.session_id == self._session_id:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        else:  # the leader dropped the session while it answered
            self._reset_session(close=False)
        fetched: list[Fetched] = []
        for topic in response.responses:
            topic_id = TopicId(topic.topic_id)
            for data in topic.partitions:
                key = PartitionKey(topic_id, data.partition_index)
                asked = self._in_session.get(key)
                if asked is not None and self._wanted.get(key) == asked:
                    fetched.append(Fetched(key, asked, _answer(data)))
        return fetched

    def lost(self) -> None:
        """Give up on the response, which will not arrive: the state of the leader's session is unknown."""
        self._is_in_flight = False
        self._reset_session(close=True)

    def _reset_session(self, *, close: bool) -> None:
        """Start a new session with the next request, which makes the leader drop the old one if `close`."""
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
