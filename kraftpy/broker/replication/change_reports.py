"""Tells followers' fetch sessions that a partition has changed, so that they look at it and at no other.

A session stays registered until it no longer fetches the partition, or is over; a session that is over is dropped with
the next change.
"""

from __future__ import annotations

from kraftpy.broker.replication.fetch_sessions import PartitionKey
from kraftpy.broker.waiting import ChangedKeys

NEWS_WAITS_S = 0.01
"""How long an answer that has no records waits for some to travel with."""


class ChangeReports:
    """The fetch sessions that hear of each change of one partition."""

    __slots__ = ("_key", "sessions")

    def __init__(self, key: PartitionKey) -> None:
        self._key = key
        self.sessions: dict[ChangedKeys[PartitionKey], None] = {}
        """The registered sessions, in order of arrival."""

    def add(self, session: ChangedKeys[PartitionKey]) -> None:
        """Report every change to a session from now on."""
        self.sessions[session] = None

    def remove(self, session: ChangedKeys[PartitionKey]) -> None:
        """Stop reporting to a session that no longer fetches this partition."""
        self.sessions.pop(session, None)

    def send(self) -> None:
        """Make all sessions look at this partition."""
        self._drop_those_over()
        for each in self.sessions:
            each.add(self._key)

    def send_news(self) -> None:
        """Let all sessions know within `NEWS_WAITS_S`: only the high watermark has moved, and records may follow."""
        self._drop_those_over()
        for each in self.sessions:
            each.add_for_later(self._key, NEWS_WAITS_S)

    def _drop_those_over(self) -> None:
        for each in [each for each in self.sessions if each.is_over]:
            del self.sessions[each]
