"""One server of the cluster: it passes each input to the part of Raft that has the rule for it.

Inputs are processed one at a time, under the clock of the `Quorum`, which is the only user. Messages to peers wait in
the outbox. The invariants are those of `quorum` and of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.raft.election import Election
from kraftpy.metadata.raft.follower import Follower
from kraftpy.metadata.raft.leader import Leader
from kraftpy.metadata.raft.library import QuorumStoppedError, RaftLibrary, Role
from kraftpy.metadata.raft.log import RaftLog
from kraftpy.metadata.raft.membership import Membership
from kraftpy.metadata.raft.snapshots import Snapshots
from kraftpy.metadata.raft.state import UNITS_PER_TICK, Chance, Message, RaftSettings, State, StateMachine


class Raft:
    """One server of the cluster."""

    def __init__(
        self, *, node_id: int, log: RaftLog, machine: StateMachine, chance: Chance, now_ms: int, settings: RaftSettings
    ) -> None:
        library = RaftLibrary(
            node_id=node_id,
            voters=log.voting.servers,
            log=log,
            election_timeout_ms=settings.election_timeout_ms,
            fallback_ms=settings.fallback_ms,
        )
        self._machine = machine
        self._applied_units = 0
        """The work of the entries applied since the tick."""
        self.state = State(node_id=node_id, log=log, library=library, settings=settings, chance=chance, now_ms=now_ms)
        self.election = Election(self.state)
        self.snapshots = Snapshots(self.state, machine)
        self.follower = Follower(self.state, machine, self.election, self.snapshots)
        self.leader = Leader(self.state, self.snapshots)
        self.membership = Membership(self.state, self.leader)
        self._handlers: dict[str, Callable[[int, dict[str, Any]], None]] = {
            "request_prevote": self.election.on_request_prevote,
            "response_prevote": self.election.on_response_prevote,
            "request_vote": self.election.on_request_vote,
            "response_vote": self.election.on_response_vote,
            "timeout_now": self.election.on_timeout_now,
            "heartbeat": self.follower.on_heartbeat,
            "append_entries": self.follower.on_append_entries,
            "snapshot": self.follower.on_snapshot,
            "next_node_idx": self.leader.on_next_node_idx,
            "snapshot_ack": self.leader.on_snapshot_ack,
            "learn": self.leader.on_learn,
            "term": self._on_term,
        }
        library.connect_events(self)
        log.on_commit = self._commit_index_computed

    # -- inputs

    def begin_tick(self) -> None:
        """Allow more committed entries to be applied: a node that is behind lets others run in between."""
        self._applied_units = 0

    def advance(self) -> None:
        """Act on the time and the last input: polls, campaigns, commits, applied entries."""
        self.election.before_tick()
        self.state.library.tick()
        self.election.after_tick()
        self.leader.continue_resigning()
        self.snapshots.drop_unused()

    def progress_mark(self) -> tuple[object, ...]:
        """Return a value that changes if `advance` did anything; if not, repeating it at the same time is pointless."""
        state = self.state
        indexes = (state.commit_index, state.last_applied, state.log.last_index)
        return (state.role, state.current_term, *indexes, len(state.outbox))

    def connect(self, peer: int) -> None:
        """Note that a peer is reachable; messages in flight on an earlier connection are lost."""
        self.disconnect(peer)
        self.state.connected_peers.add(peer)
        if not self.state.is_voter:
            self.state.send(peer, {"type": "learn"}, after_sync=False)
        if self.state.is_leader:
            self.leader.connected(peer)
        else:
            self.election.connected(peer)

    def disconnect(self, peer: int) -> None:
        """Note that a peer is no longer reachable."""
        state = self.state
        state.connected_peers.discard(peer)
        state.learners.discard(peer)
        state.outbox = [message for message in state.outbox if message.peer != peer]
        self.follower.forget_incoming(peer)
        if state.is_leader:
            self.leader.disconnected(peer)
        else:
            self.election.disconnected(peer)

    def receive(self, peer: int, body: dict[str, Any]) -> None:
        """Process a validated body from a connected peer. Raises BadMessageError if it contradicts an invariant."""
        self._handlers[body["type"]](peer, body)

    def _on_term(self, peer: int, body: dict[str, Any]) -> None:
        self.state.adopt_newer_term(body["term"])

    def snapshot_installed(self) -> None:
        """Note that the leader's snapshot that was being installed is on disk."""
        snapshot = self.follower.installed()
        self.membership.follow_log()
        self.follower.acknowledge_installed(snapshot)

    def send_due(self) -> None:
        """Queue the messages that a leader may send to followers now."""
        if self.state.is_leader:
            self.leader.send_due()

    def take_outbox(self) -> list[Message]:
        """Return the queued messages, in order for each peer, and forget them."""
        taken, self.state.outbox = self.state.outbox, []
        return taken

    # -- what the library asks and reports

    def may_campaign(self) -> bool:
        """Return whether the library may campaign."""
        return self.election.may_campaign

    def election_timeout_ms(self) -> float:
        """Return the time to the next election deadline."""
        return self.election.timeout_ms()

    def send_for_library(self, peer: int, body: dict[str, Any]) -> bool:
        """Queue a vote, a request for one, or the request to a successor; return whether the peer is connected."""
        if peer not in self.state.connected_peers:
            return False
        if body["type"] == "request_vote":
            body = self.election.request_vote(body)
        self.state.send(peer, body, after_sync=body["type"] != "timeout_now")
        return True

    def role_changed(self, old: Role, new: Role) -> None:
        """Give up what belongs to a leader."""
        if old is Role.LEADER:
            self.leader.ends()
            self.snapshots.stepped_down()
            self.election.stepped_down()

    def leadership_begins(self) -> None:
        """Start to lead."""
        self.election.end_poll()
        self.follower.forget_incoming()
        self.leader.begins()

    def answer_entries(self, leader: int, *, is_appended: bool) -> None:
        """Answer AppendEntries."""
        self.follower.answer_entries(leader, is_appended=is_appended)

    def _commit_index_computed(self, index: int) -> None:
        if self.state.is_leader:
            self.leader.commit(index)
        else:
            self.state.commit_index = index

    def may_apply(self) -> bool:
        """Return whether to apply another committed entry before the next tick."""
        return self._applied_units < UNITS_PER_TICK

    @property
    def has_more_to_apply(self) -> bool:
        """True if committed entries wait for the next tick."""
        return not self.may_apply() and self.state.last_applied < self.state.commit_index

    def apply(self, entry: bytes) -> None:
        """Apply one committed entry. An exception stops the node at once (D11); the library would retry forever."""
        self.snapshots.applied_bytes += len(entry)
        data = messages.command_in(entry)
        if data is not None:
            index = self.state.last_applied + 1
            term = self.state.log.term_at(index)
            assert term is not None
            try:
                self._applied_units += self._machine.apply(index, term, data) or 0
            except Exception as error:
                raise QuorumStoppedError(
                    f"the metadata entry {index} of term {term} cannot be applied: {error}"
                ) from error
