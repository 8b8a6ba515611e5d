"""A leader's part: it sends AppendEntries (§5.3) and InstallSnapshot (§7), and hands over leadership.

The library's leader appends its first entry, applies the commit rule (§5.4.2), and steps down without a majority's
answers. This sends to followers, no faster than they answer (D13): one message until it is known where the logs agree,
then several in flight. Every AppendEntries has the number of a round, and its answer repeats it.

Invariants: only answers of this leadership count (D3). The leader's own copy of an entry counts for the commit once it
is on this disk. The next index of a follower goes back only if the follower refuses entries, or answers nothing for two
election timeouts. No follower is sent a change of the voters that is not on this disk.
"""

from __future__ import annotations

from typing import Any

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.raft.progress import IN_FLIGHT_BYTES, Mode, Outgoing, Progress
from kraftpy.metadata.raft.snapshots import Snapshots
from kraftpy.metadata.raft.state import State

_REFUSED_SNAPSHOT_WAIT_MS = 5_000


class Leader:
    """The rules by which a server leads."""

    def __init__(self, state: State, snapshots: Snapshots) -> None:
        self._state = state
        self._snapshots = snapshots
        self.followers: dict[int, Progress] = {}
        """The voters and learners that this leader sends to."""
        self._round = 0
        """The number of the newest message that is answered."""
        self.uncommitted_bytes = 0
        self.resigning_until_ms: int | None = None

    # -- begin and end

    def begins(self) -> None:
        """Start sending to all voters and learners: this server was elected."""
        self.followers.clear()
        for peer in sorted(self._state.voters() - {self._state.id} | self._state.learners):
            self.follow(peer)

    def ends(self) -> None:
        """Forget the followers: this server has stepped down."""
        self.followers.clear()
        self.resigning_until_ms = None
        self.uncommitted_bytes = 0

    # -- followers

    def follow(self, peer: int) -> None:
        """Start or restart sending to a voter or learner."""
        follower = self.followers.get(peer)
        if follower is None:
            follower = self.followers[peer] = Progress(peer, self._state.log.last_index + 1)
            self._state.library.follow(peer)
        match = self._state.library.match_index(peer)
        follower.probe(match + 1 if match else self._state.log.last_index + 1)
        follower.heartbeat_due_ms = self._state.now_ms

    def unfollow(self, peer: int) -> None:
        """Stop sending to a peer."""
        self.followers.pop(peer, None)

    def connected(self, peer: int) -> None:
        """Send to a voter that has become reachable; nothing is in flight to it any more."""
        if peer in self._state.voters():
            self.follow(peer)

    def disconnected(self, peer: int) -> None:
        """Note that a peer is no longer reachable: all messages in flight are lost, and a learner has to ask again."""
        if peer not in self._state.voters():
            self.unfollow(peer)
        elif peer in self.followers:
            self.followers[peer].probe(self._state.library.match_index(peer) + 1)

    def on_learn(self, peer: int, body: dict[str, Any]) -> None:
        """Send the log to a peer that asks for it, voter or not (dissertation, §4.2.1)."""
        self._state.learners.add(peer)
        if self._state.is_leader and peer not in self.followers:
            self.follow(peer)

    # -- sending

    def send_due(self) -> None:
        """Queue the messages that may be sent to followers now."""
        for peer in sorted(self.followers.keys() & self._state.connected_peers):
            self._send_to(self.followers[peer])

    def _send_to(self, follower: Progress) -> None:
        state = self._state
        before = len(state.outbox)
        patience_ms = 2 * state.settings.election_timeout_ms
        if follower.in_flight and state.now_ms - follower.in_flight[0].sent_ms > patience_ms:
            follower.probe(state.library.match_index(follower.id) + 1)
        if follower.mode is Mode.SNAPSHOT:
            self._send_chunks(follower, patience_ms)
        while follower.mode is not Mode.SNAPSHOT and follower.has_room():
            if follower.next_index <= state.log.first_index:
                self._begin_snapshot(follower)
                break
            if follower.next_index >= self._end_for_followers() and follower.sent_commit_index >= state.commit_index:
                break
            self._send_entries(follower)
        has_sent = len(state.outbox) > before
        if not has_sent and state.now_ms >= follower.heartbeat_due_ms:
            self._round += 1
            heartbeat = {"type": "heartbeat", "term": state.current_term, "round": self._round}
            state.send(follower.id, heartbeat, after_sync=False)
            has_sent = True
        if has_sent:
            follower.heartbeat_due_ms = state.now_ms + state.settings.heartbeat_ms

    def _end_for_followers(self) -> int:
        """Return one past the last entry that followers may be sent.

        A change of the voters is not sent before it is on this disk. If the disk lost it, only the voters that it
        removes might still have it: they would not campaign, and no other node, whose log is shorter, would get their
        votes.
        """
        log = self._state.log
        changed_at = log.voting.since
        return changed_at if changed_at > log.journal.durable_index else log.last_index + 1

    def _send_entries(self, follower: Progress) -> None:
        state, log = self._state, self._state.log
        previous = follower.next_index - 1
        position, size = previous - log.first_index + 1, 0
        batch: list[list[Any]] = []
        end = self._end_for_followers() - log.first_index
        while position < end and (not batch or size + len(log.entries[position][0]) <= state.settings.batch_bytes):
            batch.append(list(log.entries[position]))
            size += len(log.entries[position][0])
            position += 1
        self._round += 1
        body = {
            "type": "append_entries", "term": state.current_term, "commit_index": state.commit_index,
            "prevLogIdx": previous, "prevLogTerm": log.term_at(previous), "entries": batch, "round": self._round,
        }  # fmt: skip
        state.send(follower.id, body, after_sync=False)
        follower.sent(self._round, size, state.now_ms)
        follower.next_index += len(batch)
        follower.sent_commit_index = state.commit_index

    def _begin_snapshot(self, follower: Progress) -> None:
        state = self._state
        if state.now_ms < follower.refused_until_ms:
            follower.probe(state.log.first_index)
            follower.sent(self._round, 0, state.now_ms)  # nothing is sent: this only delays the next attempt
            return
        snapshot = self._snapshots.for_followers()
        if snapshot is None:
            follower.probe(state.log.first_index)
            follower.sent(self._round, 0, state.now_ms)  # nothing; it is tried again when the snapshot is encoded
            return
        follower.mode = Mode.SNAPSHOT
        follower.outgoing = Outgoing(snapshot, messages.checksum(snapshot.data), moved_ms=state.now_ms)
        self._send_chunks(follower, 0)

    def snapshot_encoded(self) -> None:
        """Try again to send a snapshot to the followers that wait for one."""
        for _, follower in sorted(self.followers.items()):
            if follower.mode is Mode.PROBE and follower.next_index <= self._state.log.first_index:
                follower.probe(follower.next_index)

    def _send_chunks(self, follower: Progress, patience_ms: int) -> None:
        state, outgoing = self._state, follower.outgoing
        assert outgoing is not None
        data = outgoing.snapshot.data
        if patience_ms and state.now_ms - outgoing.moved_ms > patience_ms:
            if outgoing.acknowledged == len(data) and state.now_ms - outgoing.moved_ms < 10 * patience_ms:
                return  # it is saving
            outgoing.sent, outgoing.acknowledged, outgoing.moved_ms = 0, 0, state.now_ms
        while outgoing.sent == 0 or (
            outgoing.sent < len(data) and outgoing.sent - outgoing.acknowledged < IN_FLIGHT_BYTES
        ):
            chunk = data[outgoing.sent : outgoing.sent + state.settings.chunk_bytes]
            body = {
                "type": "snapshot", "term": state.current_term, "index": outgoing.snapshot.index,
                "last_term": outgoing.snapshot.term, "size": len(data), "checksum": outgoing.checksum,
                "offset": outgoing.sent, "data": chunk,
            }  # fmt: skip
            state.send(follower.id, body, after_sync=False)
            outgoing.sent += len(chunk)
        self._snapshots.keep_for_followers(outgoing.snapshot)

    # -- answers

    def _is_of_this_leadership(self, body: dict[str, Any]) -> bool:
        """Return whether an answer is from this leadership; one from an earlier leadership proves nothing (D3)."""
        return bool(body["term"] == self._state.current_term)

    def _answering(self, peer: int, body: dict[str, Any]) -> Progress | None:
        """Return the follower that answers, or None if its answer does not count."""
        state = self._state
        state.adopt_newer_term(body["term"])
        follower = self.followers.get(peer)
        if not state.is_leader or follower is None or not self._is_of_this_leadership(body):
            return None
        state.library.note_response(peer)
        return follower

    def _matches(self, follower: Progress, index: int) -> None:
        """Note that a follower has the leader's entries up to an index on its disk."""
        index = min(index, self._state.log.last_index)
        if index > self._state.library.match_index(follower.id):
            self._state.library.set_match_index(follower.id, index)

    def on_next_node_idx(self, peer: int, body: dict[str, Any]) -> None:
        """Process a follower's answer to AppendEntries or a heartbeat."""
        follower = self._answering(peer, body)
        if follower is None:
            return
        library, log = self._state.library, self._state.log
        is_current = follower.answered(body["round"])
        if body["success"]:
            self._matches(follower, body["next_node_idx"] - 1)
            if is_current and follower.mode is Mode.PROBE:
                follower.mode = Mode.REPLICATE
            follower.next_index = max(follower.next_index, library.match_index(peer) + 1)
        elif body["reset"] and is_current and follower.mode is not Mode.SNAPSHOT:
            if body["last_index"] < library.match_index(peer):  # it has lost entries: do not count it
                library.set_match_index(peer, max(0, body["last_index"]))
            match = library.match_index(peer)
            follower.probe(max(match + 1, min(body["next_node_idx"], log.last_index + 1)))
        self._note_contact(follower)

    def on_snapshot_ack(self, peer: int, body: dict[str, Any]) -> None:
        """Process a follower's answer to a chunk of a snapshot, or to the whole of it."""
        follower = self._answering(peer, body)
        if follower is None:
            return
        outgoing, now_ms = follower.outgoing, self._state.now_ms
        if outgoing is not None and outgoing.snapshot.index == body["index"]:
            outgoing.moved_ms = now_ms
            if body["status"] == messages.SNAPSHOT_MORE:
                outgoing.wants_from(body["offset"])
            elif body["status"] == messages.SNAPSHOT_REFUSED:
                follower.refused_until_ms = now_ms + _REFUSED_SNAPSHOT_WAIT_MS
                follower.probe(self._state.log.first_index)
            else:
                if body["status"] == messages.SNAPSHOT_INSTALLED:
                    self._matches(follower, body["offset"] - 1)
                match = self._state.library.match_index(peer)
                follower.probe(max(match + 1, min(body["offset"], self._state.log.last_index + 1)))
        self._note_contact(follower)

    def _note_contact(self, follower: Progress) -> None:
        match = self._state.library.match_index(follower.id)
        follower.note_contact(match, self._state.log.last_index, self._state.now_ms)

    def is_silent(self, voter: int) -> bool:
        """Return whether another voter has not answered this leader for so long that it counts as gone."""
        follower = self.followers.get(voter)
        return follower is None or follower.last_contact_ms < self._state.now_ms - self._state.settings.fallback_ms

    # -- commands

    def append(self, entry: bytes) -> tuple[int, int]:
        """Append an entry to this leader's log; return its index and term."""
        self.uncommitted_bytes += len(entry)
        self._state.library.append(entry)
        return self._state.log.last_index, self._state.current_term

    def commit(self, index: int) -> None:
        """Handle the commit index that the library has computed. This leader's own copy counts only once it is on
        disk (dissertation, §10.2.1; D8)."""
        state, log = self._state, self._state.log
        durable = log.journal.durable_index
        if index > max(durable, state.commit_index):
            may_commit = durable > state.commit_index and log.term_at(durable) == state.current_term
            index = durable if may_commit else state.commit_index
            state.library.set_commit_index(index)
        for committed in range(state.commit_index + 1, index + 1) if self.uncommitted_bytes else ():
            self.uncommitted_bytes -= len(log.entries[committed - log.first_index][0])
        self.uncommitted_bytes = max(0, self.uncommitted_bytes)
        state.commit_index = index

    # -- leadership transfer (dissertation, §3.10)

    def resign(self) -> None:
        """Hand over leadership as soon as a voter has the whole log."""
        if self._state.is_leader and self.resigning_until_ms is None:
            self.resigning_until_ms = self._state.now_ms + self._state.settings.election_timeout_ms
            self.continue_resigning()

    def continue_resigning(self) -> None:
        """Hand over to a voter that has the whole log, if this leader resigns; if none has it in time, stop leading."""
        state = self._state
        if self.resigning_until_ms is None:
            return
        if not state.is_leader:
            self.resigning_until_ms = None
            return
        match_index = state.library.match_index
        ready = sorted(state.connected_peers & state.voters(), key=lambda peer: (-match_index(peer), peer))
        has_asked = any(message.body["type"] == "timeout_now" for message in state.outbox)
        if ready and not has_asked and match_index(ready[0]) == state.log.last_index:
            state.library.transfer_leadership(ready[0])
        if state.now_ms >= self.resigning_until_ms:
            state.library.step_down()
