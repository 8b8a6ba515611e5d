"""The progress of each follower, as its leader knows it, and the limits on what is in flight to it.

A follower is probed with one message at a time until it is known where its log agrees with the leader's; then several
messages are in flight, or a snapshot if the leader no longer has the entries that the follower lacks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kraftpy.metadata.journal import Snapshot

IN_FLIGHT_BYTES = 4 << 20
_IN_FLIGHT_MESSAGES = 32


class Mode(Enum):
    """How entries are sent to a follower."""

    PROBE = 1  # one message at a time, until it is known where the logs agree
    REPLICATE = 2  # several in flight
    SNAPSHOT = 3


class InFlight(NamedTuple):
    """An AppendEntries that is not answered yet."""

    round: int
    size_bytes: int
    sent_ms: int


@dataclass(slots=True)
class Outgoing:
    """A snapshot on its way to a follower; positions are bytes of its data."""

    snapshot: Snapshot
    checksum: int
    sent: int = 0
    acknowledged: int = 0
    moved_ms: int = 0
    """The time of the last answer, or of the last start from the beginning."""

    def wants_from(self, position: int) -> None:
        """Note an answer: the follower has the data before a position, and may have lost chunks sent after it."""
        if position < self.acknowledged or position > self.sent:
            self.sent = min(position, len(self.snapshot.data))
        self.acknowledged = min(position, len(self.snapshot.data))


@dataclass(slots=True)
class Progress:
    """The progress of a voter or learner, as its leader knows it. Times are -1 for never."""

    id: int
    next_index: int
    mode: Mode = Mode.PROBE
    in_flight: deque[InFlight] = field(default_factory=deque)
    in_flight_bytes: int = 0
    sent_commit_index: int = -1
    heartbeat_due_ms: int = 0
    refused_until_ms: int = 0
    """No snapshot is sent until then: the follower refused one."""
    outgoing: Outgoing | None = None
    last_contact_ms: int = -1
    last_caught_up_ms: int = -1
    """The newest time at which it is known to have had all that the leader had then."""
    _log_end_at_contact: int = field(default=0, init=False)

    def probe(self, next_index: int) -> None:
        """Start over: nothing is known to be in flight."""
        self.mode, self.next_index, self.sent_commit_index = Mode.PROBE, next_index, -1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.outgoing = None

    def has_room(self) -> bool:
        """Return whether one more message may be sent before an answer arrives."""
        if self.mode is Mode.PROBE:
            return not self.in_flight
        return len(self.in_flight) < _IN_FLIGHT_MESSAGES and self.in_flight_bytes < IN_FLIGHT_BYTES

    def sent(self, round_: int, size_bytes: int, now_ms: int) -> None:
        """Note a message that was sent."""
        self.in_flight.append(InFlight(round_, size_bytes, now_ms))
        self.in_flight_bytes += size_bytes

    def answered(self, round_: int) -> bool:
        """Note an answer to a round's message and all before it. False if that message is no longer tracked."""
        if not self.in_flight or not self.in_flight[0].round <= round_ <= self.in_flight[-1].round:
            return False
        while self.in_flight and self.in_flight[0].round <= round_:
            self.in_flight_bytes -= self.in_flight.popleft().size_bytes
        return True

    def note_contact(self, match_index: int, log_end_index: int, now_ms: int) -> None:
        """Note an answer, and whether the follower has caught up: it has all that there was at the last answer."""
        if match_index >= log_end_index:
            self.last_caught_up_ms = now_ms
        elif self.last_contact_ms >= 0 and match_index >= self._log_end_at_contact:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_contact_ms)
        self.last_contact_ms, self._log_end_at_contact = now_ms, log_end_index
