"""Cluster membership (§6): one voter is added or removed at a time (§4.1 of Ongaro's dissertation).

The voters are those of the newest entry that sets them, committed or not, so truncation reverts a change. A server
catches up as a learner before it is added (D29). A removed server is still sent entries, as a learner, so that it
learns of its removal (D28).
"""

from __future__ import annotations

from collections.abc import Collection

from kraftpy.metadata.raft.leader import Leader
from kraftpy.metadata.raft.state import State

_CAUGHT_UP_ENTRIES = 100


class Membership:
    """The changes of the voters, as one server sees and makes them."""

    def __init__(self, state: State, leader: Leader) -> None:
        self._state = state
        self._leader = leader
        self._known = state.log.voters[-1][1]

    def follow_log(self) -> None:
        """Act on a change of the newest entry that sets the voters."""
        state = self._state
        if self._known is state.log.voters[-1][1]:
            return
        self._known = state.log.voters[-1][1]
        before = state.library.other_voters
        others = state.voters() - {state.id}
        state.library.set_other_voters(others)
        for peer in sorted(others - before):
            state.library.follow(peer)
            state.library.note_response(peer)
        if state.is_leader:
            for peer in sorted(others - before):
                if peer not in self._leader.followers:
                    self._leader.follow(peer)
            for peer in sorted(before - others):  # as a learner it sees its removal
                if peer in state.connected_peers:
                    state.learners.add(peer)
                else:
                    self._leader.unfollow(peer)
        if not state.is_voter:
            state.ask_to_learn()

    def why_no_change(self, add: int | None, remove: int | None) -> str | None:
        """Return the reason why the voters cannot be changed this way now, or None."""
        state, voters = self._state, self._state.voters()
        first = state.library.first_index_of_term
        if not state.is_leader or self._leader.resigning_until_ms is not None:
            return "this node does not lead the quorum"
        if first is None or state.commit_index < first:
            return "the leader is new: its first entry is not committed yet"
        if state.log.voters[-1][0] > state.commit_index:
            return "another change of the voters is under way"
        if (add is None) == (remove is None):
            return "one voter is added or removed at a time"
        if add is not None:
            if add in voters:
                return f"node {add} is a voter already"
            behind = state.log.last_index - state.library.match_index(add)
            if add not in self._leader.followers or behind > _CAUGHT_UP_ENTRIES:
                return f"node {add} has not caught up with the log"
        elif remove not in voters:
            return f"node {remove} is not a voter"
        elif len(voters) == 1:
            return "the last voter cannot be removed"
        elif remove == state.id:
            return "the leader cannot remove itself: it has to resign first"
        elif silent := self._too_many_silent(voters - {remove}):
            return f"without node {remove} too few voters are left: of {sorted(voters - {remove})} {silent} are silent"
        return None

    def _too_many_silent(self, voters: Collection[int]) -> list[int]:
        """Return the voters that do not answer this leader, if without them it has no majority and cannot commit."""
        silent = [voter for voter in sorted(voters) if voter != self._state.id and self._leader.is_silent(voter)]
        return silent if 2 * len(silent) >= len(voters) else []
