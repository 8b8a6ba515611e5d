"""The log as the Raft library sees it: entries in memory, each passed to our journal, which makes them durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.quorum_messages import SnapshotContents
from kraftpy.metadata.voters import VoterSet

_KEPT_BYTES = 1 << 20  # of entries before a snapshot, for followers that are slightly behind


class Voting(NamedTuple):
    """The voters that an entry sets."""

    since: int
    """The entry; 0 for the voters that this server was given at its start."""
    voters: VoterSet
    servers: frozenset[int]
    """The numbers by which this server knows them."""


class RaftLog:
    """The entries that are in memory.

    Position 0 holds the entry before the first one: a snapshot's last one, or index 0 of term 0.
    """

    def __init__(
        self,
        journal: Journal,
        base_index: int,
        base_term: int,
        voters: VoterSet,
        *,
        node_id: int,
        directory_id: bytes | None = None,
    ) -> None:
        self.journal = journal
        self.entries: list[tuple[bytes, int, int]] = [(messages.NO_OP, base_index, base_term)]
        self._own = (node_id, directory_id)
        self._configured = voters
        self._votings = [self._voting(0, voters)]
        """The entries that set voters, ascending; index 0 is the configuration, or what the directory was formatted
        with."""
        self.term = max(journal.term, journal.last_term)
        self.voted_for = journal.voted_for if journal.term == self.term else None
        self.on_commit: Callable[[int], None] = lambda index: None

    def _voting(self, index: int, voters: VoterSet) -> Voting:
        return Voting(index, voters, voters.servers(*self._own))

    @property
    def voting(self) -> Voting:
        """The voters by the newest entry that sets them, committed or not (§6)."""
        return self._votings[-1]

    @property
    def first_index(self) -> int:
        """The index before the first entry held here."""
        return self.entries[0][1]

    @property
    def first_term(self) -> int:
        """The term of the entry before the first one held here."""
        return self.entries[0][2]

    @property
    def last_index(self) -> int:
        """The newest entry."""
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        """The term of the newest entry."""
        return self.entries[-1][2]

    def term_at(self, index: int) -> int | None:
        """Return an entry's term, if it is held here."""
        if not self.first_index <= index <= self.last_index:
            return None
        return self.entries[index - self.first_index][2]

    def load(self, entry: tuple[bytes, int, int]) -> None:
        """Add an entry that is in the journal."""
        self.entries.append(entry)
        voters = messages.voters_in(entry[0])
        if voters is not None:
            self._votings.append(self._voting(entry[1], voters))

    def voters_at(self, index: int) -> Voting:
        """Return the voters as of an entry."""
        return next(voting for voting in reversed(self._votings) if voting.since <= index)

    def restart_at(self, index: int, term: int, contents: SnapshotContents) -> None:
        """Restart after a snapshot, with the entries after it that the journal has kept."""
        kept = [entry for entry in self.entries[1:] if index < entry[1] <= self.journal.last_index]
        self.entries = [(messages.NO_OP, index, term)]
        self.set_snapshot_voters(contents)
        for entry in kept:
            self.load(entry)

    def set_snapshot_voters(self, contents: SnapshotContents) -> None:
        """Set the voters from a snapshot; voters that were only configured stay configuration."""
        voters = contents.voters
        if voters is None or (not contents.voters_index and self._configured.addresses):
            voters = self._configured
        self._votings = [self._voting(contents.voters_index, voters)]

    def forget_to(self, index: int) -> None:
        """Drop entries up to `index`, which a snapshot covers, except some for followers that are slightly behind."""
        position, kept_bytes = index - self.first_index, 0
        while position > 0 and kept_bytes < _KEPT_BYTES:
            kept_bytes += len(self.entries[position][0]) + 100
            position -= 1
        if position > 0:
            _, base_index, base_term = self.entries[position]
            self.entries[: position + 1] = [(messages.NO_OP, base_index, base_term)]
        self._votings = [self.voters_at(index), *(voting for voting in self._votings if voting.since > index)]

    # -- the library's interface

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry: this leader's own, or one that this follower received."""
        added = self.journal.append(term, command)
        assert added == index, (added, index)
        self.load((command, index, term))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802
        """Truncate entries that conflict with the leader's."""
        index = self.first_index + position
        self.journal.truncate_from(index)
        del self.entries[position:]
        while self._votings[-1].since >= index:
            self._votings.pop()

    def __getitem__(self, place: Any) -> Any:
        return self.entries[place]

    def __len__(self) -> int:
        return len(self.entries)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Advance the commit index."""
        self.on_commit(index)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the commit index at start, which a leader then advances."""
        return self.first_index

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:  # noqa: N802
        """Pass a term and vote to the journal, which makes them durable."""
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, None if voted_for is None else str(voted_for)
            self.journal.note_vote(self.term, self.voted_for)

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing."""

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the newest term, for which the journal has the vote."""
        return self.term

    def getVotedForNodeId(self) -> int | str | None:  # noqa: N802
        """Return the id of the node this one voted for in the current term."""
        return int(self.voted_for) if self.voted_for is not None and self.voted_for.isdecimal() else self.voted_for
