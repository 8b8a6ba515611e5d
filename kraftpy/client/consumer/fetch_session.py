"""Fetch sessions, the reader's side (KIP-227): after the first request, only changes are sent.

There is one session per broker. The broker remembers the partitions and answers only for those with new data. Any doubt
about what it remembers (an error, a lost connection, a topic whose id changed) ends the session; the next request is a
full one and opens another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kraftpy.types import TopicPartition

_FIRST_EPOCH = 0  # a full request that asks for a session
_EPOCH_MAX = 2**31 - 1


class FetchPosition(NamedTuple):
    """A partition's fetch position, as sent to the broker."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """The partitions that a fetch request adds, changes and forgets."""

    session_id: int
    session_epoch: int
    partitions: Mapping[TopicPartition, FetchPosition]
    forgotten: tuple[tuple[TopicPartition, bytes], ...]
    """Partitions to drop, with their topic ids."""


class FetchSession:
    """One reader's session with one broker. Call `build`, send, then `answered` or `reset`; one request at a time."""

    __slots__ = ("_remembered", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = _FIRST_EPOCH
        self._remembered: dict[TopicPartition, FetchPosition] = {}

    def build(self, wanted: Mapping[TopicPartition, FetchPosition]) -> SessionRequest:
        """Build the request after which the broker remembers exactly `wanted`."""
        if self.session_id and any(
            name in self._remembered and self._remembered[name].topic_id != position.topic_id
            for name, position in wanted.items()
        ):
            self.reset()
        if not self.session_id:
            self._remembered = dict(wanted)
            return SessionRequest(session_id=0, session_epoch=_FIRST_EPOCH, partitions=dict(wanted), forgotten=())
        changed = {name: position for name, position in wanted.items() if self._remembered.get(name) != position}
        forgotten = tuple(
            (name, position.topic_id) for name, position in sorted(self._remembered.items()) if name not in wanted
        )
        self._remembered = dict(wanted)
        return SessionRequest(
            session_id=self.session_id, session_epoch=self.epoch, partitions=changed, forgotten=forgotten
        )

    def answered(self, session_id: int) -> None:
        """Advance the epoch: the broker answered without a session error. A session id of 0 means no session."""
        if session_id == 0:
            self.reset()
        elif session_id != self.session_id:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1

    def reset(self) -> None:
        """Forget the session, so that the next request is full."""
        self.session_id, self.epoch = 0, _FIRST_EPOCH
        self._remembered = {}
