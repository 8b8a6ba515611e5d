"""Leader election (§5.2): when a server campaigns, and which candidate it votes for.

The library campaigns, votes and counts; this module decides when it may. A campaign is preceded by a poll that changes
no term (pre-vote, §9.6 of Ongaro's dissertation), and a server that hears from a leader votes for no other (§4.2.3), so
a server that returns from a partition does not depose the leader.

Invariants: no term begins without a majority of pre-votes, except at the request of the leader (§3.10) or with a single
voter. A vote counts once and only if a voter gave it. A server without a vote never campaigns, nor does one that is
writing a leader's snapshot to disk.
"""

from __future__ import annotations

from typing import Any

from kraftpy.metadata.raft.state import State


class Election:
    """One server's part in elections."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._heard_ms = -1
        """The time of the last message from a leader."""
        self._may_campaign = False
        """True if the library may campaign while this input is processed."""
        self._is_transfer = False
        """True if it campaigns at the leader's request, so that voters who hear that leader grant their votes."""
        self._poll_term = 0
        """The term of the current poll; 0 if no poll is in progress."""
        self._pre_votes: set[int] = set()
        self._polls = 0
        """Polls since this server last had a leader."""
        self._counted: tuple[int, set[int]] = (0, set())
        """A term, and the voters whose votes in it were counted."""
        state.library.election_deadline_s = (
            0.0 if state.voters() <= {state.id} else state.seconds_after(self._poll_delay_ms())
        )

    # -- timeouts

    def _poll_delay_ms(self) -> float:
        """Return the wait before a poll: 50 to 200 ms, more after each failed one, up to the election timeout."""
        timeout_ms, polls = self._state.settings.election_timeout_ms, min(self._polls, 8)
        least = min(50 << polls, timeout_ms // 2)
        return least + self._state.chance.random() * min(150 << polls, timeout_ms)

    def timeout_ms(self) -> float:
        """Return the election timeout; for a candidate, the time after which a split vote is repeated."""
        if self._may_campaign:
            return self._poll_delay_ms()
        return self._state.settings.election_timeout_ms * (1 + self._state.chance.random() / 2)

    def connected(self, peer: int) -> None:
        """Poll soon if a voter has become reachable and there is no leader."""
        state = self._state
        if state.leader is None and peer in state.voters():
            self._polls = 0
            deadline = min(state.library.election_deadline_s, state.seconds_after(self._poll_delay_ms()))
            state.library.election_deadline_s = deadline

    def disconnected(self, peer: int) -> None:
        """Poll soon if the leader, or the candidate that has this server's vote, is no longer reachable."""
        state = self._state
        if peer not in (state.leader, state.library.voted_for):
            return
        if state.leader == peer:
            state.library.forget_leader()
            self._polls = 0
        if state.leader is None:
            state.library.forget_transfer()
            state.library.election_deadline_s = state.seconds_after(self._poll_delay_ms())

    def stepped_down(self) -> None:
        """Give the others a head start after this server has stopped leading (D30)."""
        delay_ms = self._state.settings.election_timeout_ms / 2 + self._poll_delay_ms()
        self._state.library.election_deadline_s = self._state.seconds_after(delay_ms)

    # -- campaigning

    @property
    def may_campaign(self) -> bool:
        """True if the library may campaign."""
        return self._may_campaign

    def before_tick(self) -> None:
        """If the election deadline has passed, let the library campaign, or poll first."""
        state = self._state
        if self._may_campaign or state.is_leader or state.library.election_deadline_s >= state.now_ms / 1000:
            return
        if not state.is_voter or state.installing is not None:
            state.library.election_deadline_s = state.seconds_after(state.settings.election_timeout_ms)
            if not state.is_voter:  # an earlier request may not have been processed: a disk was full
                state.ask_to_learn()
        elif state.voters() == {state.id}:
            self._may_campaign = True
        elif state.library.is_transfer_target:
            self._may_campaign = self._is_transfer = True
        else:
            self._poll()

    def after_tick(self) -> None:
        """Withdraw the permission to campaign."""
        self._may_campaign = self._is_transfer = False

    def _poll(self) -> None:
        """Ask the voters whether they would vote for this server, which changes no term."""
        state = self._state
        state.library.forget_leader()
        state.library.election_deadline_s = state.seconds_after(self._poll_delay_ms())
        self._polls += 1
        self._poll_term, self._pre_votes = state.current_term + 1, {state.id}
        body = {
            "type": "request_prevote",
            "term": self._poll_term,
            "last_log_index": state.log.last_index,
            "last_log_term": state.log.last_term,
        }
        for voter in sorted(state.voters() & state.connected_peers):
            state.send(voter, body, after_sync=False)
        if self._polls > 2:  # perhaps it was removed while it was away, and no voter it knows leads any more
            state.ask_to_learn()

    def leader_heard(self) -> None:
        """Note a message from the leader of this term or a newer one: a poll is over."""
        self._heard_ms = self._state.now_ms
        self.end_poll()

    def end_poll(self) -> None:
        """Forget the poll and the ones that failed before it: there is a leader."""
        self._poll_term, self._polls = 0, 0

    # -- voting

    def hears_leader(self) -> bool:
        """Return whether a leader was heard from lately, in which case this server votes for no other."""
        state = self._state
        leader = state.leader
        if leader is None:
            return False
        if leader == state.id:
            return state.is_leader
        is_recent = state.now_ms - self._heard_ms < state.settings.election_timeout_ms
        return leader in state.connected_peers and is_recent

    def on_request_prevote(self, peer: int, body: dict[str, Any]) -> None:
        """Grant a pre-vote if the vote would be granted: a newer term, a log as up-to-date as this one, no leader."""
        state = self._state
        granted = (
            body["term"] > state.current_term
            and (body["last_log_term"], body["last_log_index"]) >= (state.log.last_term, state.log.last_index)
            and not self.hears_leader()
        )
        if granted:  # let it go first
            deadline = max(state.library.election_deadline_s, state.seconds_after(100 + self._poll_delay_ms()))
            state.library.election_deadline_s = deadline
        answer = {
            "type": "response_prevote", "term": body["term"], "granted": granted, "current_term": state.current_term,
        }  # fmt: skip
        state.send(peer, answer, after_sync=True)

    def on_response_prevote(self, peer: int, body: dict[str, Any]) -> None:
        """Count a pre-vote; with a majority of them, campaign."""
        state = self._state
        state.adopt_newer_term(body["current_term"])
        if not body["granted"] or body["term"] != self._poll_term or self._poll_term != state.current_term + 1:
            return
        self._pre_votes.add(peer)
        if not state.is_leader and state.installing is None and state.is_majority(self._pre_votes):
            self._poll_term = 0
            self._may_campaign = True
            state.library.election_deadline_s = state.seconds_after(-1)

    def on_request_vote(self, peer: int, body: dict[str, Any]) -> None:
        """Process RequestVote. A candidate that asks while this server hears its leader was partitioned or removed,
        and must not disrupt the quorum."""
        if body["term"] < self._state.current_term:
            self._state.send_term(peer)
        elif body["transfer"] or not self.hears_leader():
            self._state.library.receive(peer, body)

    def on_response_vote(self, peer: int, body: dict[str, Any]) -> None:
        """Count each vote once, and only those of voters (D20)."""
        term, counted = self._counted
        if term != self._state.current_term:
            counted = set()
            self._counted = (self._state.current_term, counted)
        if body["term"] == self._state.current_term and peer in self._state.voters() and peer not in counted:
            counted.add(peer)
            self._state.library.receive(peer, body)

    def on_timeout_now(self, peer: int, body: dict[str, Any]) -> None:
        """Campaign at once: the leader hands over to this server (dissertation, §3.10)."""
        state = self._state
        if body["term"] == state.current_term and state.is_voter and state.installing is None:
            state.library.receive(peer, body)

    def request_vote(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the library's RequestVote with the reason for the campaign."""
        return {**body, "transfer": self._is_transfer}
