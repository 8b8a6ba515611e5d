"""A follower's part: it receives AppendEntries (§5.3) and InstallSnapshot (§7).

The library truncates everything after the entry that precedes the leader's entries, and commits up to the leader's
commit index. A message is therefore rewritten before the library sees it, so that the library drops only conflicting
entries and commits only entries that were compared.

Invariants: an entry is truncated only if its term conflicts with the leader's, and never at or below the commit index
(that would mean a broken quorum, and stops this server). An answer acknowledges only entries that were compared with
the leader's. A snapshot is checked and decoded as a whole, in a thread, before it replaces anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.journal import Snapshot
from kraftpy.metadata.quorum_messages import BadMessageError, unpack_snapshot
from kraftpy.metadata.raft.election import Election
from kraftpy.metadata.raft.library import QuorumStoppedError, logger
from kraftpy.metadata.raft.snapshots import Snapshots
from kraftpy.metadata.raft.state import State, StateMachine


class _Answer(NamedTuple):
    """The answer to the AppendEntries that is being processed."""

    round: int
    matched: int | None = None
    """The newest entry that was compared and equals the leader's."""
    next_try: int | None = None
    """The entry from which the leader should send next, if the logs differ before the entries that it sent."""


@dataclass(slots=True)
class _Incoming:
    """A snapshot whose chunks the leader is sending to this server."""

    leader: int
    term: int
    index: int
    last_term: int
    size: int
    checksum: int
    data: bytearray = field(default_factory=bytearray)

    def is_of(self, body: dict[str, Any]) -> bool:
        """Return whether a chunk belongs to this snapshot."""
        described = (body["index"], body["last_term"], body["size"], body["checksum"])
        return described == (self.index, self.last_term, self.size, self.checksum)


class Follower:
    """The rules by which a server processes a leader's messages."""

    def __init__(self, state: State, machine: StateMachine, election: Election, snapshots: Snapshots) -> None:
        self._state = state
        self._machine = machine
        self._election = election
        self._snapshots = snapshots
        self._answer = _Answer(0)
        self._incoming: _Incoming | None = None
        self._decoding: _Incoming | None = None
        """A complete snapshot that is being decoded; messages are processed meanwhile as if it were not there."""

    def forget_incoming(self, peer: int | None = None) -> None:
        """Forget the chunks of a snapshot that is incomplete; with `peer`, only if it is their sender."""
        if self._incoming is not None and peer in (None, self._incoming.leader):
            self._incoming = None

    def _accepts(self, peer: int, body: dict[str, Any]) -> bool:
        """Return whether to process a leader's message: not if its term is outdated."""
        term = self._state.current_term
        if body["term"] < term:
            self._state.send_term(peer)
            return False
        if body["term"] == term and self._state.is_leader:
            raise BadMessageError(f"node {peer} says that it leads term {body['term']}, and so does this node")
        self._election.leader_heard()
        if self._incoming is not None and (self._incoming.leader, self._incoming.term) != (peer, body["term"]):
            self._incoming = None
        return True

    def _hear(self, peer: int, term: int) -> None:
        """Process a leader's message without log content, which commits nothing (D2)."""
        body = {"type": "append_entries", "term": term, "commit_index": self._state.commit_index}
        self._state.library.receive(peer, body)

    # -- AppendEntries

    def on_heartbeat(self, peer: int, body: dict[str, Any]) -> None:
        """Answer a message that says only that the leader leads."""
        if self._accepts(peer, body):
            self._hear(peer, body["term"])
            self._answer = _Answer(body["round"])
            self.answer_entries(peer, is_appended=False)

    def on_append_entries(self, peer: int, body: dict[str, Any]) -> None:
        """Append a leader's entries, and advance the commit index."""
        if not self._accepts(peer, body):
            return
        if self._state.installing is not None:  # do not touch the log while it is saved; the leader will resend
            self._hear(peer, body["term"])
            return
        self._state.library.receive(peer, self._only_new_entries(body))

    def _only_new_entries(self, body: dict[str, Any]) -> dict[str, Any]:
        """Rewrite AppendEntries so that the library drops no matching entries (D1), and commits only compared ones."""
        log, previous, entries = self._state.log, body["prevLogIdx"], body["entries"]
        previous_term = body["prevLogTerm"]
        if previous < log.first_index:  # everything before our snapshot is committed, and equal on the leader
            entries = entries[log.first_index - previous :]
            previous, previous_term = log.first_index, log.first_term
        if log.term_at(previous) != previous_term:
            self._answer = _Answer(body["round"], next_try=self._next_try(previous))
            return {**body, "prevLogIdx": previous, "prevLogTerm": previous_term, "entries": []}
        same = 0
        while same < len(entries) and log.term_at(entries[same][1]) == entries[same][2]:
            same += 1
        matched = previous + len(entries)
        self._answer = _Answer(body["round"], matched=matched)
        body = {**body, "commit_index": min(body["commit_index"], matched)}
        agree = previous + same
        if same == len(entries):
            agree = log.last_index  # nothing is new: later entries stay
        elif agree < log.last_index and agree < self._state.commit_index:
            raise QuorumStoppedError(
                f"entry {agree + 1} of the leader of term {body['term']} differs from this node's, which is committed: "
                "the quorum's logs do not have one history; this node stops"
            )
        return {**body, "prevLogIdx": agree, "prevLogTerm": log.term_at(agree), "entries": entries[same:]}

    def _next_try(self, previous: int) -> int:
        """Return the entry from which the leader should send next: the first of the conflicting term (end of §5.3).

        The answer fits however many messages the leader has sent meanwhile (D13, D25).
        """
        log, commit_index = self._state.log, self._state.commit_index
        if previous > log.last_index:
            return log.last_index + 1
        term, index = log.term_at(previous), previous
        while index > commit_index + 1 and log.term_at(index - 1) == term:
            index -= 1
        return max(index, commit_index + 1)

    def answer_entries(self, leader: int, *, is_appended: bool) -> None:
        """Answer with the term (D3), and acknowledge only entries that were compared, not the whole log (D1, D26)."""
        round_, matched, next_try = self._answer
        success = is_appended and matched is not None and next_try is None
        next_index = 0
        if next_try is not None:
            next_index = next_try
        elif success and matched is not None:
            next_index = matched + 1
        body = {
            "type": "next_node_idx", "term": self._state.current_term, "next_node_idx": next_index,
            "reset": next_try is not None, "success": success, "round": round_,
            "last_index": self._state.log.last_index,
        }  # fmt: skip
        self._state.send(leader, body, after_sync=True)

    # -- InstallSnapshot

    def on_snapshot(self, peer: int, body: dict[str, Any]) -> None:
        """Add a chunk to the snapshot that the leader sends; once it is complete, install it."""
        if not self._accepts(peer, body):
            return
        self._hear(peer, body["term"])
        if self._state.installing is not None or self._decoding is not None:
            return
        if self._is_stale(body["index"]):
            self._answer_snapshot(peer, body["index"], self._state.commit_index + 1, messages.SNAPSHOT_STALE)
            return
        incoming = self._incoming
        if incoming is None or not incoming.is_of(body):
            described = (body["index"], body["last_term"], body["size"], body["checksum"])
            self._incoming = incoming = _Incoming(peer, body["term"], *described)
        data = incoming.data
        if body["offset"] == len(data) and len(data) + len(body["data"]) <= incoming.size:
            data += body["data"]
        if len(data) < incoming.size:
            self._answer_snapshot(peer, incoming.index, len(data), messages.SNAPSHOT_MORE)
            return
        self._incoming, self._decoding = None, incoming

    def _is_stale(self, index: int) -> bool:
        """Return whether a snapshot's entries are all committed here: installing it would set this node back (D6)."""
        return index <= self._state.commit_index

    @property
    def to_decode(self) -> Callable[[], Callable[[], None]] | None:
        """A function that checks and decodes a complete snapshot, in any thread, if there is one (D6, D7)."""
        return None if self._decoding is None else functools.partial(self._decode, self._decoding)

    def _decode(self, incoming: _Incoming) -> Callable[[], None]:
        data = bytes(incoming.data)
        if messages.checksum(data) != incoming.checksum:
            raise BadMessageError("its checksum does not match")
        return self._machine.decode(unpack_snapshot(data).state)

    def decoded(self, outcome: Callable[[], None] | Exception) -> None:
        """Restore the state machine from the decoded snapshot, unless it is refused or has come too late."""
        incoming, self._decoding = self._decoding, None
        assert incoming is not None
        leader = incoming.leader
        if isinstance(outcome, Exception):
            logger.error(
                "the metadata snapshot of entry %d that node %d sent is refused: %s", incoming.index, leader, outcome
            )
            if leader in self._state.connected_peers:
                self._answer_snapshot(leader, incoming.index, 0, messages.SNAPSHOT_REFUSED)
        elif not self._state.is_leader and not self._is_stale(incoming.index):
            outcome()
            data = bytes(incoming.data)
            self._state.installing = Snapshot(index=incoming.index, term=incoming.last_term, data=data)
        elif leader in self._state.connected_peers:
            self._answer_snapshot(leader, incoming.index, self._state.commit_index + 1, messages.SNAPSHOT_STALE)

    def installed(self) -> Snapshot:
        """Continue with a snapshot that is on disk now; the journal kept the entries that match it (D5, D6)."""
        state = self._state
        snapshot = state.installing
        assert snapshot is not None
        state.installing = None
        state.log.restart_at(snapshot.index, snapshot.term, unpack_snapshot(snapshot.data))
        state.library.snapshot_installed(snapshot.index)
        self._commit(snapshot.index)
        self._snapshots.installed(snapshot.index)
        return snapshot

    def acknowledge_installed(self, snapshot: Snapshot) -> None:
        """Tell the leader, if there is one, that its snapshot is on disk."""
        leader = self._state.leader
        if leader is not None and leader in self._state.connected_peers:
            verified = self._verified_after_install(snapshot)
            self._commit(verified)
            self._answer_snapshot(leader, snapshot.index, verified + 1, messages.SNAPSHOT_INSTALLED)

    def _verified_after_install(self, snapshot: Snapshot) -> int:
        """Return the newest entry that is known to be the leader's: later ones stay, but are not compared yet (D26)."""
        return snapshot.index

    def _commit(self, index: int) -> None:
        self._state.commit_index = max(self._state.commit_index, index)
        self._state.library.set_commit_index(self._state.commit_index)

    def _answer_snapshot(self, peer: int, index: int, offset: int, status: int) -> None:
        body = {
            "type": "snapshot_ack", "term": self._state.current_term, "index": index, "offset": offset,
            "status": status,
        }  # fmt: skip
        self._state.send(peer, body, after_sync=True)
