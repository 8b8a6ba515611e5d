"""Cluster membership (§6): one voter is added or removed at a time (§4.1 of Ongaro's dissertation).

The voters are those of the newest entry that sets them, committed or not, so truncation reverts a change. A server
catches up as a learner before it is added (D29). A removed server is still sent entries, as a learner, so that it
learns of its removal (D28).

The first voters of a quorum with directory ids are what its nodes were formatted with. Its first leader writes them
into the log: from then on, a server that was formatted without them learns them there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.raft.leader import Leader
from kraftpy.metadata.raft.state import State
from kraftpy.metadata.voters import node_of

_CAUGHT_UP_ENTRIES = 100
NO_LEADER: Final = "this node does not lead the quorum"
NEW_LEADER: Final = "the leader is new: its first entry is not committed yet"
LEADER_ITSELF: Final = "the leader cannot remove itself: it has to resign first"
"""Reasons against a change of the voters that pass with the next leader, or with the first entry of this one."""


class Membership:
    """The changes of the voters, as one server sees and makes them."""

    def __init__(self, state: State, leader: Leader) -> None:
        self._state = state
        self._leader = leader
        self._known = state.log.voting

    def follow_log(self) -> None:
        """Act on a change of the newest entry that sets the voters."""
        state = self._state
        first = state.log.voting
        if state.is_leader and not first.since and first.voters.directories:
            self._leader.append(messages.voters_entry(first.voters))
        if self._known is state.log.voting:
            return
        self._known = state.log.voting
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

    def why_no_change(self, add: int | None, remove: int | None, directory_id: bytes | None) -> str | None:
        """Return the reason why the voters cannot be changed this way now, or None.

        `directory_id` is that of the node to add, or must be that of the voter to remove; None stands for any voter's.
        """
        state, voting = self._state, self._state.log.voting
        first = state.library.first_index_of_term
        if not state.is_leader or self._leader.resigning_until_ms is not None:
            return NO_LEADER
        if first is None or state.commit_index < first:
            return NEW_LEADER
        if voting.since > state.commit_index:
            return "another change of the voters is under way"
        if (add is None) == (remove is None):
            return "one voter is added or removed at a time"
        if add is not None:
            return self._why_not_added(add, directory_id)
        assert remove is not None
        return self._why_not_removed(remove, directory_id)

    def _why_not_added(self, node_id: int, directory_id: bytes | None) -> str | None:
        state, voters = self._state, self._state.log.voting.voters
        if node_id in voters.addresses:
            return f"node {node_id} is a voter already"
        if voters.directories and directory_id is None:
            return f"the id of node {node_id}'s metadata directory is not known"
        server = voters.number_of(node_id, directory_id)
        behind = state.log.last_index - state.library.match_index(server)
        if server not in self._leader.followers or behind > _CAUGHT_UP_ENTRIES:
            return f"node {node_id} has not caught up with the log"
        return None

    def _why_not_removed(self, node_id: int, directory_id: bytes | None) -> str | None:
        state, voters = self._state, self._state.log.voting.voters
        if node_id not in voters.addresses:
            return f"node {node_id} is not a voter"
        if voters.directories and directory_id not in (None, voters.directories[node_id]):
            return f"node {node_id} is a voter with another metadata directory"
        if len(voters.addresses) == 1:
            return "the last voter cannot be removed"
        left = {server for server in state.voters() if node_of(server) != node_id}
        if silent := [node_of(server) for server in self._too_many_silent(left)]:
            rest = sorted(map(node_of, left))
            return f"without node {node_id} too few voters are left: of {rest} {silent} are silent"
        return LEADER_ITSELF if node_id == state.id else None

    def _too_many_silent(self, voters: Collection[int]) -> list[int]:
        """Return the voters that do not answer this leader, if without them it has no majority and cannot commit."""
        silent = [voter for voter in sorted(voters) if voter != self._state.id and self._leader.is_silent(voter)]
        return silent if 2 * len(silent) >= len(voters) else []
