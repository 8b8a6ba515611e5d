"""Share sessions: which partitions a member of a share group fetches from this broker (KIP-932).

A session belongs to one member of a group, and lives as long as the connection that opened it. Each request carries a
session epoch, which must match exactly: 0 opens a session or replaces it, -1 closes it, and in between it rises by one
with every request, ShareFetch and ShareAcknowledge alike.

Invariants: at most `group.share.max.share.sessions` sessions at once, with `kraftpy.fetch.session.partitions.max`
partitions in total; no session is evicted for another, since its member would lose what it has acquired.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.share_fetch import ShareFetchRequest
from kraftpy.types import TopicId

OPENING_EPOCH = 0
CLOSING_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
_NO_LIMIT = 2**31 - 1


class SessionKey(NamedTuple):
    """The group and member that a session belongs to."""

    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    """A partition, by its topic's id and its index."""

    topic_id: TopicId
    partition: int


@dataclass(slots=True, kw_only=True)
class ShareSession:
    """The partitions of one member's session, in the order they are served."""

    key: SessionKey
    connection: Hashable
    epoch: int = 1
    partitions: dict[SharedPartition, None] = field(default_factory=dict)

    def moved_on(self) -> None:
        """Advance the epoch by one request."""
        self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def served(self, partition: SharedPartition) -> None:
        """Move a partition that was just served to the end."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    """Every share session of this broker."""

    def __init__(self, limit: int, most_partitions: int = _NO_LIMIT) -> None:
        self._limit = limit
        self._most_partitions = most_partitions
        self._partitions = 0
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_group: dict[str, int] = {}
        """How many sessions each group has."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def remembered(self) -> int:
        """The number of partitions in all sessions."""
        return self._partitions

    def has_group(self, group_id: str) -> bool:
        """Return whether any member of the group has a session on this broker."""
        return group_id in self._of_group

    def open(self, key: SessionKey, connection: Hashable) -> ShareSession:
        """Open a session for a member that has none. Raises KafkaError (SHARE_SESSION_LIMIT_REACHED)."""
        assert key not in self._sessions
        if len(self._sessions) >= self._limit:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"the limit of {self._limit} share sessions is reached"
            )
        session = self._sessions[key] = ShareSession(key=key, connection=connection)
        self._of_group[key.group_id] = self._of_group.get(key.group_id, 0) + 1
        return session

    def find(self, key: SessionKey) -> ShareSession | None:
        """Return the member's session, or None."""
        return self._sessions.get(key)

    def take(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return a request's session, and advance its epoch unless the request closes it.

        Raises KafkaError (SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH).
        """
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {key.member_id} has no share session")
        if epoch != CLOSING_EPOCH:
            if epoch != session.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"expected share session epoch {session.epoch}, got {epoch}"
                )
            session.moved_on()
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """Close a session and return it, or return None."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            self._of_group[key.group_id] -= 1
            if not self._of_group[key.group_id]:
                del self._of_group[key.group_id]
        return session

    def change(self, session: ShareSession, request: ShareFetchRequest) -> None:
        """Add a fetch's new partitions to its session, and remove those it forgets.

        Raises KafkaError (SHARE_SESSION_LIMIT_REACHED), and adds none, if there is no room for all of them.
        """
        forgotten = {
            SharedPartition(TopicId(topic.topic_id), index): None
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        }
        added = {
            key: None
            for topic in request.topics
            for part in topic.partitions
            if (key := SharedPartition(TopicId(topic.topic_id), part.partition_index)) not in forgotten
        }
        more = len(added.keys() - session.partitions.keys())
        if more and self._partitions + more > self._most_partitions:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"share sessions hold {self._partitions} partitions; {more} more would exceed "
                f"kraftpy.fetch.session.partitions.max={self._most_partitions}",
            )
        before = len(session.partitions)
        for each in forgotten:
            session.partitions.pop(each, None)
        for each in added:
            session.partitions.setdefault(each)
        self._partitions += len(session.partitions) - before

    def of_connection(self, connection: Hashable) -> list[SessionKey]:
        """Return the sessions that end with a connection."""
        return [session.key for session in self._sessions.values() if session.connection == connection]
