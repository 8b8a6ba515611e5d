"""Log compaction (§7): when to take a snapshot of the state machine, and the snapshot that followers are sent.

Invariants: a snapshot covers only entries that are applied and on this disk, and each covers more than the one before.
Snapshots are written to disk one at a time: none is due while another is saved or a leader's is installed.

A snapshot is captured at once and encoded later, in a thread: with many partitions, encoding takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kraftpy.metadata.journal import Snapshot
from kraftpy.metadata.quorum_messages import pack_snapshot
from kraftpy.metadata.raft.state import State, StateMachine

_KEPT_FOR_FOLLOWERS_MS = 10_000


@dataclass(frozen=True, slots=True)
class Captured:
    """A snapshot that is not encoded yet; `encode` may be called in any thread."""

    index: int
    term: int
    encode: Callable[[], bytes]


class Snapshots:
    """The snapshots of one server."""

    def __init__(self, state: State, machine: StateMachine) -> None:
        self._state = state
        self._machine = machine
        self._last_index = state.log.first_index
        """The newest entry that a snapshot on disk covers."""
        self.applied_bytes = 0
        """The size of the entries applied since a snapshot was taken."""
        self._saving_index: int | None = None
        self._for_followers: tuple[Snapshot, int] | None = None
        """The snapshot encoded for followers, and when it was last sent."""
        self.is_wanted = False
        """True if followers wait for a snapshot to be captured and encoded."""

    # -- our own

    @property
    def is_saving(self) -> bool:
        """True if a snapshot of this server is being written to disk."""
        return self._saving_index is not None

    @property
    def is_due(self) -> bool:
        """True if the log has grown enough since the last snapshot, and one can be taken now."""
        settings = self._state.settings
        has_grown = (
            self._state.last_applied - self._last_index >= settings.snapshot_after_entries
            or self.applied_bytes >= settings.snapshot_after_bytes
        )
        return has_grown and self._can_begin()

    def _can_begin(self) -> bool:
        if self.is_saving or self._state.installing is not None:
            return False
        return self._last_index < self._state.last_applied <= self._state.log.journal.durable_index

    def begin(self) -> Captured:
        """Capture a snapshot to be saved. Raises ValueError if none can be taken now."""
        if not self._can_begin():
            raise ValueError("there is nothing to take a snapshot of now")
        captured = self.capture()
        self._saving_index = captured.index
        self.applied_bytes = 0
        return captured

    def capture(self) -> Captured:
        """Capture the applied state and the voters."""
        index = self._state.last_applied
        term = self._state.log.term_at(index)
        assert term is not None
        voting = self._state.log.voters_at(index)
        encode_state = self._machine.capture()
        return Captured(index, term, lambda: pack_snapshot(voting.since, voting.voters, encode_state()))

    def saved(self, index: int) -> None:
        """Note that the snapshot is on disk: the entries before it are no longer needed."""
        assert index == self._saving_index
        self._saving_index = None
        self._last_index = index
        self._state.log.forget_to(index)

    # -- a leader's

    def installed(self, index: int) -> None:
        """Note that a leader's snapshot is on disk."""
        self._last_index, self.applied_bytes = index, 0

    # -- for followers

    def for_followers(self) -> Snapshot | None:
        """Return an encoded snapshot that the log continues; None if it must be made first, and is then `is_wanted`."""
        if self._for_followers is not None and self._for_followers[0].index >= self._state.log.first_index:
            snapshot = self._for_followers[0]
            self.keep_for_followers(snapshot)
            return snapshot
        self.is_wanted = True
        return None

    def encoded(self, snapshot: Snapshot) -> None:
        """Take the snapshot that was wanted."""
        self.is_wanted = False
        self.keep_for_followers(snapshot)

    def keep_for_followers(self, snapshot: Snapshot) -> None:
        """Note that a snapshot is being sent."""
        self._for_followers = (snapshot, self._state.now_ms)

    def drop_unused(self) -> None:
        """Free the memory of a snapshot that has not been sent for a while."""
        if self._for_followers is not None and self._state.now_ms - self._for_followers[1] > _KEPT_FOR_FOLLOWERS_MS:
            self._for_followers = None

    def stepped_down(self) -> None:
        """Free the snapshot that was sent to followers."""
        self.is_wanted = False
        self._for_followers = None
