"""A leader's knowledge of another node, including flow control; and a snapshot being received."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from kraftpy.metadata.journal import Snapshot

IN_FLIGHT_BYTES = 4 << 20
_IN_FLIGHT_MESSAGES = 32


class Mode(Enum):
    """How entries are sent to a follower."""

    PROBE = 1  # one message at a time, until it is known where the logs agree
    REPLICATE = 2  # several in flight
    SNAPSHOT = 3


@dataclass(slots=True)
class Sending:
    """A snapshot on its way to a follower."""

    snapshot: Snapshot
    checksum: int
    sent: int = 0
    acknowledged: int = 0
    moved_ms: int = 0


@dataclass(slots=True)
class Follower:
    """A voter or learner, as its leader sees it."""

    id: int
    next_index: int
    mode: Mode = Mode.PROBE
    in_flight: deque[tuple[int, int, int]] = field(default_factory=deque)  # round, bytes, sent at
    in_flight_bytes: int = 0
    told_commit: int = -1
    heartbeat_ms: int = 0
    refused_until_ms: int = 0
    sending: Sending | None = None
    last_contact_ms: int = -1
    last_caught_up_ms: int = -1
    log_end_at_contact: int = 0

    def probe(self, next_index: int) -> None:
        """Start over: nothing is known to be in flight."""
        self.mode, self.next_index, self.told_commit = Mode.PROBE, next_index, -1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.sending = None

    def has_room(self) -> bool:
        """Return whether one more message may be sent before an answer arrives."""
        if self.mode is Mode.PROBE:
            return not self.in_flight
        return len(self.in_flight) < _IN_FLIGHT_MESSAGES and self.in_flight_bytes < IN_FLIGHT_BYTES

    def answered(self, round_: int) -> bool:
        """Note an answer to a round's message and all before it. False if that message is no longer tracked."""
        if not self.in_flight or not self.in_flight[0][0] <= round_ <= self.in_flight[-1][0]:
            return False
        while self.in_flight and self.in_flight[0][0] <= round_:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        return True


@dataclass(slots=True)
class Receiving:
    """A snapshot that the leader is sending to this node."""

    leader: int
    term: int
    index: int
    last_term: int
    size: int
    checksum: int
    data: bytearray = field(default_factory=bytearray)
