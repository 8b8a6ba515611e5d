"""The state of one server in the paper's terms (Figure 2), with its peers, clock and outbox, which its parts share.

The library and the log hold the state; here it has the paper's names. `now_ms` only moves forward, and is the library's
clock as well (`NOW_S`) while an input is processed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kraftpy.frozen import frozen
from kraftpy.metadata.journal import Snapshot
from kraftpy.metadata.raft.library import RaftLibrary, Role
from kraftpy.metadata.raft.log import RaftLog

BATCH_BYTES = 256 << 10
CHUNK_BYTES = 512 << 10
UNITS_PER_TICK = 1_000
"""The units of work on committed entries between two ticks, 10 to 40 ms; further entries wait for the next tick."""


class Chance(Protocol):
    """Random numbers, as an argument: `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 up to but not including 1."""
        ...


class StateMachine(Protocol):
    """The state machine that the log drives."""

    def apply(self, index: int, term: int, data: bytes) -> int | None:
        """Apply a committed command; return the units of work that it took, of some ten microseconds each (None: 0).

        Total and deterministic; an exception stops the node.
        """
        ...

    def capture(self) -> Callable[[], bytes]:
        """Capture the state; the returned function encodes it as bytes for `decode`, in any thread and at any time."""
        ...

    def decode(self, data: bytes) -> Callable[[], None]:
        """Check and decode a state, in any thread, and change nothing; the returned function replaces the state."""
        ...


class Message(NamedTuple):
    """A message for a peer; with `after_sync`, its content must be on disk before it is sent."""

    peer: int
    body: dict[str, Any]
    after_sync: bool


@frozen
class RaftSettings:
    """Timeouts and sizes of one server."""

    election_timeout_ms: int
    fetch_timeout_ms: int
    """A leader without answers from a majority for three quarters of this time steps down."""
    snapshot_after_entries: int
    snapshot_after_bytes: int
    batch_bytes: int = BATCH_BYTES
    """Entries in one AppendEntries message; a larger entry is sent alone."""
    chunk_bytes: int = CHUNK_BYTES
    """Data in one InstallSnapshot message."""

    @property
    def heartbeat_ms(self) -> int:
        """The time between a leader's messages to a follower."""
        return max(1, self.election_timeout_ms // 5)

    @property
    def fallback_ms(self) -> int:
        """The time after which a leader without answers from a majority steps down (dissertation, §6.2)."""
        return max(self.heartbeat_ms * 3, self.fetch_timeout_ms * 3 // 4)


class State:
    """The state that the parts of one server share."""

    def __init__(
        self, *, node_id: int, log: RaftLog, library: RaftLibrary, settings: RaftSettings, chance: Chance, now_ms: int
    ) -> None:
        self.id = node_id
        self.log = log
        self.library = library
        self.settings = settings
        self.chance = chance
        self.now_ms = now_ms
        self.commit_index = log.first_index
        self.connected_peers: set[int] = set()
        self.learners: set[int] = set()
        """Connected peers that asked to be sent the log, voters or not."""
        self.outbox: list[Message] = []
        self.installing: Snapshot | None = None
        """A leader's snapshot that the state machine has restored and that is being written to disk."""

    # -- Figure 2

    @property
    def current_term(self) -> int:
        """The newest term this server has seen."""
        return self.library.current_term

    @property
    def role(self) -> Role:
        """The role of this server."""
        return self.library.role

    @property
    def is_leader(self) -> bool:
        """True if this server leads its term."""
        return self.library.role is Role.LEADER

    @property
    def leader(self) -> int | None:
        """The leader of this term, if known."""
        return self.library.leader

    @property
    def last_applied(self) -> int:
        """The newest entry applied to the state machine."""
        return self.library.last_applied

    def voters(self) -> set[int]:
        """Return the voters by the newest entry that sets them, committed or not (§6)."""
        return set(self.log.voting.servers)

    @property
    def is_voter(self) -> bool:
        """True if this server has a vote."""
        return self.id in self.log.voting.servers

    def is_majority(self, servers: set[int]) -> bool:
        """Return whether a majority of the voters is among these servers."""
        voters = self.voters()
        return 2 * len(servers & voters) > len(voters)

    def adopt_newer_term(self, term: int) -> None:
        """Become a follower if a peer is in a newer term (§5.1)."""
        if term > self.current_term:
            self.library.adopt_term(term)

    # -- the clock

    def seconds_after(self, delay_ms: float) -> float:
        """Return a time of the library's clock, given how long it is from now."""
        return (self.now_ms + delay_ms) / 1000

    # -- messages to peers

    def send(self, peer: int, body: dict[str, Any], *, after_sync: bool) -> None:
        """Queue a message for a peer."""
        self.outbox.append(Message(peer, body, after_sync))

    def send_term(self, peer: int) -> None:
        """Tell a sender that its term is outdated (§5.1), which the library does not do (D24)."""
        self.send(peer, {"type": "term", "term": self.current_term}, after_sync=True)

    def ask_to_learn(self) -> None:
        """Ask all connected peers for the log; the leader among them sends it, to a voter or not."""
        for peer in sorted(self.connected_peers):
            self.send(peer, {"type": "learn"}, after_sync=False)
