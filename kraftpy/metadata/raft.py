"""Raft by pysyncobj, its defects closed by overriding: what goes to or comes from a peer, a disk, a clock is ours.

One input at a time, under the clock of the `Quorum` whose turn it is; what is to be sent is left in `outbox`. Its
invariants are those of `quorum`, which is its only user. D1 and the like are numbers of
docs/explanation/raft-library.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.journal import Snapshot
from kraftpy.metadata.quorum_messages import BadMessageError, pack_snapshot, unpack_snapshot
from kraftpy.metadata.raft_followers import IN_FLIGHT_BYTES, Follower, Mode, Receiving, Sending
from kraftpy.metadata.raft_library import FOLLOWER, LEADER, Node, QuorumStoppedError, Transport, check_names, library
from kraftpy.metadata.raft_log import RaftLog

BATCH_BYTES = 256 << 10
CHUNK_BYTES = 512 << 10
_CAUGHT_UP_ENTRIES = 100
_REFUSED_SNAPSHOT_WAIT_MS = 5_000
_SNAPSHOT_CACHE_MS = 10_000


class Chance(Protocol):
    """Random numbers, as an argument: `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 up to but not including 1."""
        ...


class StateMachine(Protocol):
    """The state machine that the log drives."""

    def apply(self, index: int, term: int, data: bytes) -> object:
        """Apply a committed command. Total and deterministic; an exception stops the node."""
        ...

    def snapshot(self) -> bytes:
        """Return the state as bytes for `restore`."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state. If it raises, nothing was changed."""
        ...


class Message(NamedTuple):
    """A message for a peer; with `after_sync`, its content must be on disk before it is sent."""

    peer: int
    body: dict[str, Any]
    after_sync: bool


_LIBRARY_STATE = frozenset(
    {
        "connectedNodes", "otherNodes", "raftCommitIndex", "raftCurrentTerm", "raftElectionDeadline", "raftLastApplied",
        "raftLeader", "raftLog", "raftMatchIndex", "raftState", "votedForNodeId", "lastResponseTime", "noopIDx",
        "newAppendEntriesTime", "transferInProgress", "onReadyCalled", "raftNextIndex", "votesCount",
    }
)  # fmt: skip
_OVERRIDDEN = frozenset(
    {
        "onBecomeLeader", "connectedToAnyone", "doApplyCommand", "generateRaftTimeout", "loadDumpFile",
        "onMessageReceived", "parseChangeClusterRequest", "sendAppendEntries", "sendNextNodeIdx", "tryLogCompaction",
    }
)  # fmt: skip
_CALLED = frozenset({"setCurrentTerm", "setState", "getCurrentLogIndex", "getCurrentLogTerm", "onNodeConnected"})


class Raft(library.SyncObj):  # type: ignore[misc]
    """The library's Raft with its defects closed from outside, by overriding.

    The library keeps: terms, roles, counting and giving votes, a new leader's first entry, matching and appending,
    rolling back, the commit rule, stepping down, the order of applying. Ours: everything that goes to or comes from a
    peer, a disk, a clock or chance, and what is told to it is first made harmless.
    """

    batch_bytes = BATCH_BYTES
    chunk_bytes = CHUNK_BYTES

    _SyncObj__otherNodes: set[Any]
    _SyncObj__raftLeader: Any

    def __init__(
        self, *, node_id: int, log: RaftLog, machine: StateMachine, chance: Chance, now_ms: int,
        election_timeout_ms: int, fetch_timeout_ms: int, snapshot_after_entries: int,
        snapshot_after_bytes: int,
    ) -> None:  # fmt: skip
        self.id = node_id
        self.log = log
        self.machine = machine
        self.chance = chance
        self.now_ms = now_ms
        self.election_timeout_ms = election_timeout_ms
        self.heartbeat_every_ms = max(1, election_timeout_ms // 5)
        self.fallback_ms = max(self.heartbeat_every_ms * 3, fetch_timeout_ms * 3 // 4)  # without a majority's answers
        self.snapshot_after_entries = snapshot_after_entries
        self.snapshot_after_bytes = snapshot_after_bytes
        self.connected_peers: set[int] = set()
        self.learner_ids: set[int] = set()  # connected, and asked to be fed
        self.followers: dict[int, Follower] = {}  # of a leader
        self.outbox: list[Message] = []
        self.commit_index = log.first_index
        self.snapshot_index = log.first_index
        self.applied_bytes = 0  # since the snapshot
        self.uncommitted_bytes = 0
        self.heard_ms = -1  # the leader
        self.round = 0  # of messages that are answered
        self.resigning_until_ms: int | None = None
        self.receiving: Receiving | None = None
        self.received: Snapshot | None = None
        self.saving_index: int | None = None
        self.sent_snapshot: tuple[Snapshot, int] | None = None  # made newly, and when it was used
        self._known_voters = log.voters[-1][1]
        self._may_campaign = False
        self._is_transfer = False
        self._poll_term = 0
        self._polled: set[int] = set()
        self._polls = 0  # without a leader
        self._voted: tuple[int, set[int]] = (0, set())
        self._answering: tuple[int, int | None, int | None] = (0, None, None)  # round, matched up to, back off to
        configuration = library.SyncObjConf(
            autoTick=False,
            journalFile=log,
            useFork=False,
            appendEntriesUseBatch=True,  # here: send when messages are taken, not at each command
            raftMinTimeout=election_timeout_ms / 1000,
            raftMaxTimeout=election_timeout_ms / 1000 * 1.5,
            appendEntriesPeriod=self.heartbeat_every_ms / 1000,
            leaderFallbackTimeout=self.fallback_ms / 1000,
            connectionTimeout=1e9,
            commandsWaitLeader=False,
            onStateChanged=self._state_changed,
        )
        others = [Node(voter) for voter in sorted(log.voters[-1][1]) if voter != node_id]
        super().__init__(Node(node_id), others, configuration, transport=Transport(self._send))
        check_names(self, _LIBRARY_STATE)
        self._SyncObj__raftLastApplied = log.first_index
        self._SyncObj__onReadyCalled = True
        log.on_commit = self._commit_changed
        self._SyncObj__raftElectionDeadline = 0.0 if not others else self._in_s(self._soon_ms())

    # -- state

    def state(self) -> int:
        """The library's role: FOLLOWER, LEADER, or the candidate's."""
        return int(self._SyncObj__raftState)

    def term_now(self) -> int:
        """The term this node is in."""
        return int(self._SyncObj__raftCurrentTerm)

    def applied_index(self) -> int:
        """The newest entry applied to the machine."""
        return int(self._SyncObj__raftLastApplied)

    def leader(self) -> int | None:
        """The leader of this term, if known."""
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    def voter_ids(self) -> set[int]:
        """Return the voters by the newest entry that sets them, committed or not."""
        return set(self.log.voters[-1][1])

    def match_index(self, peer: int) -> int:
        """Return, on a leader, the newest entry that the peer is known to have; 0 if unknown."""
        return int(self._SyncObj__raftMatchIndex.get(Node(peer), 0))

    def _in_s(self, delay_ms: float) -> float:
        return (self.now_ms + delay_ms) / 1000

    def _soon_ms(self) -> float:
        """Return the wait without a leader: 50 to 200 ms, more after each failed poll, up to the election timeout."""
        least = min(50 << min(self._polls, 8), self.election_timeout_ms // 2)
        return least + self.chance.random() * min(150 << min(self._polls, 8), self.election_timeout_ms)

    # -- after each input

    def advance(self) -> None:
        """Act on the time and the last input: polls, campaigns, commits, applied entries."""
        self._consider_campaign()
        self._onTick(0.0)
        self._may_campaign = self._is_transfer = False
        if self.resigning_until_ms is not None:
            self._go_on_resigning()
        if self.sent_snapshot is not None and self.now_ms - self.sent_snapshot[1] > _SNAPSHOT_CACHE_MS:
            self.sent_snapshot = None

    def progress_mark(self) -> tuple[object, ...]:
        """Return a value that changes if `advance` did anything; if not, repeating it at the same time is pointless."""
        log = self.log
        applied = self._SyncObj__raftLastApplied
        return (self.state(), self.term_now(), self.commit_index, applied, log.last_index, len(self.outbox))

    def _consider_campaign(self) -> None:
        if self._may_campaign or self.state() == LEADER or self._SyncObj__raftElectionDeadline >= self.now_ms / 1000:
            return
        if self.id not in self.voter_ids() or self.received is not None:
            self._SyncObj__raftElectionDeadline = self._in_s(self.election_timeout_ms)
            if self.id not in self.voter_ids():  # an earlier request may not have been processed: a disk was full
                self._ask_to_learn()
        elif self.voter_ids() == {self.id}:
            self._may_campaign = True
        elif self._SyncObj__transferInProgress:
            self._may_campaign = self._is_transfer = True
        else:
            self._poll()

    def _poll(self) -> None:
        """Ask the others whether they would vote for this node, without changing a term (pre-vote, which the library
        lacks)."""
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = self._in_s(self._soon_ms())
        self._polls += 1
        self._poll_term, self._polled = self.term_now() + 1, {self.id}
        body = {
            "type": "request_prevote",
            "term": self._poll_term,
            "last_log_index": self.log.last_index,
            "last_log_term": self.log.entries[-1][2],
        }
        for voter in sorted(self.voter_ids() & self.connected_peers):
            self.outbox.append(Message(voter, body, False))
        if self._polls > 2:  # perhaps it was removed while away, and no voter it knows leads any more
            self._ask_to_learn()

    def _ask_to_learn(self) -> None:
        for peer in sorted(self.connected_peers):
            self.outbox.append(Message(peer, {"type": "learn"}, False))

    def _has_majority(self, nodes: set[int]) -> bool:
        voters = self.voter_ids()
        return 2 * len(nodes & voters) > len(voters)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """Return whether to campaign; the library calls this before it does."""
        return self._may_campaign

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        if getattr(self, "_may_campaign", False):
            return self._soon_ms() / 1000  # a split vote
        return self.election_timeout_ms * (1 + self.chance.random() / 2) / 1000

    def _state_changed(self, old: int, new: int) -> None:
        if old == LEADER:
            self.followers.clear()
            self.resigning_until_ms = None
            self.uncommitted_bytes = 0
            self.sent_snapshot = None
            self._SyncObj__raftElectionDeadline = self._in_s(self.election_timeout_ms / 2 + self._soon_ms())

    def _adopt_term(self, term: int) -> None:
        """Adopt a higher term from a peer, with no known leader."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    # -- connections

    def connect(self, peer: int) -> None:
        """Note that a peer is reachable; messages in flight on an earlier connection are lost."""
        self.disconnect(peer)
        self.connected_peers.add(peer)
        self._SyncObj__onNodeConnected(Node(peer))
        if self.id not in self.voter_ids():
            self.outbox.append(Message(peer, {"type": "learn"}, False))
        if self.state() == LEADER:
            if peer in self.voter_ids():
                self._feed_from(peer)
        elif self.leader() is None and peer in self.voter_ids():
            self._polls = 0
            deadline = min(self._SyncObj__raftElectionDeadline, self._in_s(self._soon_ms()))
            self._SyncObj__raftElectionDeadline = deadline

    def disconnect(self, peer: int) -> None:
        """Note that a peer is no longer reachable."""
        self.connected_peers.discard(peer)
        self.learner_ids.discard(peer)
        self._SyncObj__connectedNodes.discard(Node(peer))
        self.outbox = [message for message in self.outbox if message.peer != peer]
        if self.receiving is not None and self.receiving.leader == peer:
            self.receiving = None
        if self.state() == LEADER:
            if peer in self.voter_ids():
                if peer in self.followers:
                    self.followers[peer].probe(self.match_index(peer) + 1)
            else:
                self.followers.pop(peer, None)
        elif peer in (self.leader(), self._SyncObj__votedForNodeId):
            if self.leader() == peer:
                self._SyncObj__raftLeader = None
                self._polls = 0
            if self.leader() is None:
                self._SyncObj__transferInProgress = False
                self._SyncObj__raftElectionDeadline = self._in_s(self._soon_ms())

    def _send(self, peer: int, message: dict[str, Any]) -> bool:
        """Queue a message of the library: a vote, or the request to a successor."""
        if peer not in self.connected_peers:
            return False
        if message["type"] == "request_vote":
            message = {**message, "transfer": self._is_transfer}
        self.outbox.append(Message(peer, message, message["type"] != "timeout_now"))
        return True

    # -- messages

    def handle(self, peer: int, body: dict[str, Any]) -> None:
        """Process a validated body from a connected peer. Raises BadMessageError if it contradicts an invariant."""
        handler: Callable[[int, dict[str, Any]], None] = getattr(self, "_on_" + body["type"])
        handler(peer, body)

    def _to_library(self, peer: int, body: dict[str, Any]) -> None:
        super()._SyncObj__onMessageReceived(Node(peer), body)

    def _SyncObj__onMessageReceived(self, node: Any, message: dict[str, Any]) -> None:  # noqa: N802
        raise AssertionError("messages come by way of handle()")

    def _tell_term(self, peer: int) -> None:
        """Tell a sender that its term is outdated, which the library does not do (D24)."""
        self.outbox.append(Message(peer, {"type": "term", "term": self.term_now()}, True))

    def _on_term(self, peer: int, body: dict[str, Any]) -> None:
        if body["term"] > self.term_now():
            self._adopt_term(body["term"])

    def _on_learn(self, peer: int, body: dict[str, Any]) -> None:
        self.learner_ids.add(peer)
        if self.state() == LEADER and peer not in self.followers:
            self._feed_from(peer)

    # votes

    def hears_leader(self) -> bool:
        """Return whether a leader was heard from lately, in which case this node votes for no other."""
        leader = self.leader()
        if leader is None:
            return False
        if leader == self.id:
            return self.state() == LEADER
        return leader in self.connected_peers and self.now_ms - self.heard_ms < self.election_timeout_ms

    def _on_request_prevote(self, peer: int, body: dict[str, Any]) -> None:
        ours = (self.log.entries[-1][2], self.log.last_index)
        granted = (
            body["term"] > self.term_now()
            and (body["last_log_term"], body["last_log_index"]) >= ours
            and not self.hears_leader()
        )
        if granted:  # let it go first
            deadline = max(self._SyncObj__raftElectionDeadline, self._in_s(100 + self._soon_ms()))
            self._SyncObj__raftElectionDeadline = deadline
        answer = {
            "type": "response_prevote", "term": body["term"], "granted": granted, "current_term": self.term_now(),
        }  # fmt: skip
        self.outbox.append(Message(peer, answer, True))

    def _on_response_prevote(self, peer: int, body: dict[str, Any]) -> None:
        if body["current_term"] > self.term_now():
            self._adopt_term(body["current_term"])
        if not body["granted"] or body["term"] != self._poll_term or self._poll_term != self.term_now() + 1:
            return
        self._polled.add(peer)
        if self.state() != LEADER and self.received is None and self._has_majority(self._polled):
            self._poll_term = 0
            self._may_campaign = True
            self._SyncObj__raftElectionDeadline = self._in_s(-1)

    def _on_request_vote(self, peer: int, body: dict[str, Any]) -> None:
        if body["term"] < self.term_now():
            self._tell_term(peer)
        elif (
            body["transfer"] or not self.hears_leader()
        ):  # else it was partitioned or removed, and must not disrupt the quorum
            self._to_library(peer, body)

    def _on_response_vote(self, peer: int, body: dict[str, Any]) -> None:
        """Count each vote once, and only those of voters (D20)."""
        term, voted = self._voted
        if term != self.term_now():
            voted = set()
            self._voted = (self.term_now(), voted)
        if body["term"] == self.term_now() and self._counts_vote(peer, voted):
            voted.add(peer)
            self._to_library(peer, body)

    def _counts_vote(self, peer: int, voted: set[int]) -> bool:
        return peer in self.voter_ids() and peer not in voted

    def _on_timeout_now(self, peer: int, body: dict[str, Any]) -> None:
        if body["term"] == self.term_now() and self.id in self.voter_ids() and self.received is None:
            self._to_library(peer, body)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._poll_term, self._polls = 0, 0
        self.receiving = None
        self.followers.clear()
        self._SyncObj__raftMatchIndex.clear()  # also a learner's from an earlier leadership, which the library keeps
        super()._SyncObj__onBecomeLeader()
        for peer in sorted(self.voter_ids() - {self.id} | self.learner_ids):
            self._feed_from(peer)

    # a follower's part

    def _follow(self, peer: int, body: dict[str, Any]) -> bool:
        """Return whether to process a leader's message."""
        if body["term"] < self.term_now():
            self._tell_term(peer)
            return False
        if body["term"] == self.term_now() and self.state() == LEADER:
            raise BadMessageError(f"node {peer} says that it leads term {body['term']}, and so do we")
        self.heard_ms = self.now_ms
        self._poll_term, self._polls = 0, 0
        if self.receiving is not None and (self.receiving.leader, self.receiving.term) != (peer, body["term"]):
            self.receiving = None
        return True

    def _on_heartbeat(self, peer: int, body: dict[str, Any]) -> None:
        if self._follow(peer, body):
            self._hear(peer, body["term"])
            self._answering = (body["round"], None, None)
            self._SyncObj__sendNextNodeIdx(Node(peer))

    def _hear(self, peer: int, term: int) -> None:
        """Process a leader's message without log content, which commits nothing (D2)."""
        self._to_library(peer, {"type": "append_entries", "term": term, "commit_index": self.commit_index})

    def _on_append_entries(self, peer: int, body: dict[str, Any]) -> None:
        if not self._follow(peer, body):
            return
        if self.received is not None:  # a snapshot is being saved: do not touch the log; the leader will resend
            self._hear(peer, body["term"])
            return
        self._to_library(peer, self._harmless(body))

    def _harmless(self, body: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the entries so that the library drops no matching ones (D1), and commits only compared ones."""
        log, previous, entries = self.log, body["prevLogIdx"], body["entries"]
        previous_term = body["prevLogTerm"]
        if previous < log.first_index:  # everything before our snapshot is committed, and equal on the leader
            entries = entries[log.first_index - previous :]
            previous, previous_term = log.first_index, log.entries[0][2]
        if log.term_at(previous) != previous_term:
            self._answering = (body["round"], None, self._back_off_to(previous))
            return {**body, "prevLogIdx": previous, "prevLogTerm": previous_term, "entries": []}
        same = 0
        while same < len(entries) and log.term_at(entries[same][1]) == entries[same][2]:
            same += 1
        matched = previous + len(entries)
        self._answering = (body["round"], matched, None)
        body = {**body, "commit_index": min(body["commit_index"], matched)}
        agree = previous + same
        if same == len(entries):
            agree = log.last_index  # nothing is new: later entries stay
        elif agree < log.last_index and agree < self.commit_index:
            raise QuorumStoppedError(
                f"the leader of term {body['term']} has another entry {agree + 1} than ours, which is committed: "
                "the quorum's logs are not of one history; this node stops"
            )
        return {**body, "prevLogIdx": agree, "prevLogTerm": log.term_at(agree), "entries": entries[same:]}

    def _back_off_to(self, previous: int) -> int:
        """Return where the leader should try next: an answer that fits however many messages it sent (D13, D25)."""
        log = self.log
        if previous > log.last_index:
            return log.last_index + 1
        term, index = log.term_at(previous), previous
        while index > self.commit_index + 1 and log.term_at(index - 1) == term:
            index -= 1
        return max(index, self.commit_index + 1)

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self, node: Any, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False,  # noqa: N803
    ) -> None:  # fmt: skip
        """Send the library's answer with its term (D3), and up to the entries compared, not all there are (D1, D26)."""
        round_, matched, back_off_to = self._answering
        if back_off_to is not None:
            reset, success, next_index = True, False, back_off_to
        else:
            success = success and matched is not None
            next_index = matched + 1 if success and matched is not None else 0
        body = {
            "type": "next_node_idx", "term": self.term_now(), "next_node_idx": next_index, "reset": reset,
            "success": success, "round": round_, "last_index": self.log.last_index,
        }  # fmt: skip
        self.outbox.append(Message(node.id, body, True))

    def _commit_changed(self, index: int) -> None:
        """Handle a commit index moved by the library. A leader's own copy counts only once it is on disk."""
        durable = self.log.journal.durable_index
        if self.state() == LEADER and index > max(durable, self.commit_index):
            may_commit = durable > self.commit_index and self.log.term_at(durable) == self.term_now()
            index = durable if may_commit else self.commit_index
            self._SyncObj__raftCommitIndex = index
        for committed in range(self.commit_index + 1, index + 1) if self.uncommitted_bytes else ():
            self.uncommitted_bytes -= len(self.log.entries[committed - self.log.first_index][0])
        self.uncommitted_bytes = max(0, self.uncommitted_bytes)
        self.commit_index = index

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        """Apply one committed entry. An exception stops the node at once (D11); the library would retry forever."""
        self.applied_bytes += len(command)
        data = messages.command_in(command)
        if data is not None:
            index = self.applied_index() + 1
            term = self.log.term_at(index)
            assert term is not None
            try:
                self.machine.apply(index, term, data)
            except Exception as error:
                raise QuorumStoppedError(
                    f"the metadata entry {index} of term {term} cannot be applied: {error}"
                ) from error

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:  # noqa: N802
        """Do nothing: the log reads the voters from our encoding; the library's is pickle."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise AssertionError("the library has no dump file")

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Do nothing: the broker uses `snapshot_due`."""

    # incoming snapshots

    def _on_snapshot(self, peer: int, body: dict[str, Any]) -> None:
        if not self._follow(peer, body):
            return
        self._hear(peer, body["term"])
        if self.received is not None:
            return
        if self._is_stale(body["index"]):
            self._answer_snapshot(peer, body["index"], self.commit_index + 1, messages.SNAPSHOT_STALE)
            return
        receiving = self.receiving
        described = (body["index"], body["last_term"], body["size"], body["checksum"])
        if receiving is None or described != (
            receiving.index, receiving.last_term, receiving.size, receiving.checksum,
        ):  # fmt: skip
            self.receiving = receiving = Receiving(peer, body["term"], *described)
        data = receiving.data
        if body["offset"] == len(data) and len(data) + len(body["data"]) <= receiving.size:
            data += body["data"]
        if len(data) < receiving.size:
            self._answer_snapshot(peer, receiving.index, len(data), messages.SNAPSHOT_MORE)
            return
        self.receiving = None
        self._accept(peer, receiving)

    def _is_stale(self, index: int) -> bool:
        """Return whether a snapshot's entries are all committed here: installing it would set this node back (D6)."""
        return index <= self.commit_index

    def _accept(self, peer: int, receiving: Receiving) -> None:
        """Install a complete snapshot, validated before anything is replaced (D6, D7)."""
        data = bytes(receiving.data)
        try:
            if messages.checksum(data) != receiving.checksum:
                raise BadMessageError("its checksum does not match")
            self.machine.restore(unpack_snapshot(data).state)
        except Exception as error:
            library.logger.error(
                "the metadata snapshot of entry %d that node %d sent is refused: %s", receiving.index, peer, error
            )
            self._answer_snapshot(peer, receiving.index, 0, messages.SNAPSHOT_REFUSED)
            return
        self.received = Snapshot(index=receiving.index, term=receiving.last_term, data=data)

    def installed(self) -> None:
        """Continue after a received snapshot is on disk; the journal kept the entries that match it (D5, D6)."""
        snapshot = self.received
        assert snapshot is not None
        self.received = None
        self.log.restart_at(snapshot.index, snapshot.term, unpack_snapshot(snapshot.data))
        self._SyncObj__raftLastApplied = snapshot.index
        self._SyncObj__raftCommitIndex = self.commit_index = max(self.commit_index, snapshot.index)
        self.snapshot_index, self.applied_bytes = snapshot.index, 0
        self.voters_changed()
        leader = self.leader()
        if leader is not None and leader in self.connected_peers:
            verified = self._verified_after_install(snapshot)
            self._SyncObj__raftCommitIndex = self.commit_index = max(self.commit_index, verified)
            self._answer_snapshot(leader, snapshot.index, verified + 1, messages.SNAPSHOT_INSTALLED)

    def _verified_after_install(self, snapshot: Snapshot) -> int:
        """Entries that stayed behind the snapshot are ours, not yet the leader's: neither committed nor told (D26)."""
        return snapshot.index

    def _answer_snapshot(self, peer: int, index: int, offset: int, status: int) -> None:
        body = {"type": "snapshot_ack", "term": self.term_now(), "index": index, "offset": offset, "status": status}
        self.outbox.append(Message(peer, body, True))

    # a leader's part

    def _feed_from(self, peer: int) -> None:
        """Start or restart sending to a voter or learner."""
        follower = self.followers.get(peer)
        node = Node(peer)
        if follower is None:
            follower = self.followers[peer] = Follower(peer, self.log.last_index + 1)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__lastResponseTime.setdefault(node, self.now_ms / 1000)
            if peer not in self._SyncObj__raftNextIndex:
                self._SyncObj__raftNextIndex[node] = 0
        match = self.match_index(peer)
        follower.probe(match + 1 if match else self.log.last_index + 1)
        follower.heartbeat_ms = self.now_ms

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Only schedule the next call: `feed` sends when messages are taken, no faster than they are answered (D13)."""
        self._SyncObj__newAppendEntriesTime = self._in_s(self.heartbeat_every_ms)

    def feed(self) -> None:
        """Queue the messages that may be sent to followers now."""
        if self.state() == LEADER:
            for peer in sorted(self.followers.keys() & self.connected_peers):
                self._feed(self.followers[peer])

    def _feed(self, follower: Follower) -> None:
        sent = len(self.outbox)
        patience_ms = 2 * self.election_timeout_ms
        if follower.in_flight and self.now_ms - follower.in_flight[0][2] > patience_ms:
            follower.probe(self.match_index(follower.id) + 1)
        if follower.mode is Mode.SNAPSHOT:
            self._send_chunks(follower, patience_ms)
        while follower.mode is not Mode.SNAPSHOT and follower.has_room():
            if follower.next_index <= self.log.first_index:
                self._begin_sending(follower)
                break
            if follower.next_index >= self._end_for_followers() and follower.told_commit >= self.commit_index:
                break
            self._send_entries(follower)
        if len(self.outbox) == sent and self.now_ms >= follower.heartbeat_ms:
            self.round += 1
            heartbeat = {"type": "heartbeat", "term": self.term_now(), "round": self.round}
            self.outbox.append(Message(follower.id, heartbeat, False))
            sent -= 1
        if len(self.outbox) != sent:
            follower.heartbeat_ms = self.now_ms + self.heartbeat_every_ms

    def _end_for_followers(self) -> int:
        """One past the last entry that followers may be sent: to a change of the voters that is not on this disk yet.

        If this disk lost it, only the voters it removes might still have it: they would not campaign, and no other
        node, whose log is shorter, would get their votes.
        """
        changed_at = self.log.voters[-1][0]
        return changed_at if changed_at > self.log.journal.durable_index else self.log.last_index + 1

    def _send_entries(self, follower: Follower) -> None:
        log = self.log
        previous = follower.next_index - 1
        position, size = previous - log.first_index + 1, 0
        batch: list[list[Any]] = []
        end = self._end_for_followers() - log.first_index
        while position < end and (not batch or size + len(log.entries[position][0]) <= self.batch_bytes):
            batch.append(list(log.entries[position]))
            size += len(log.entries[position][0])
            position += 1
        self.round += 1
        body = {
            "type": "append_entries", "term": self.term_now(), "commit_index": self.commit_index,
            "prevLogIdx": previous, "prevLogTerm": log.term_at(previous), "entries": batch, "round": self.round,
        }  # fmt: skip
        self.outbox.append(Message(follower.id, body, False))
        follower.in_flight.append((self.round, size, self.now_ms))
        follower.in_flight_bytes += size
        follower.next_index += len(batch)
        follower.told_commit = self.commit_index

    def _begin_sending(self, follower: Follower) -> None:
        if self.now_ms < follower.refused_until_ms:
            follower.probe(self.log.first_index)
            follower.in_flight.append((self.round, 0, self.now_ms))  # nothing to send; it will be asked again
            return
        snapshot = self.snapshot_for()
        follower.mode = Mode.SNAPSHOT
        follower.sending = Sending(snapshot, messages.checksum(snapshot.data), moved_ms=self.now_ms)
        self._send_chunks(follower, 0)

    def _send_chunks(self, follower: Follower, patience_ms: int) -> None:
        sending = follower.sending
        assert sending is not None
        data = sending.snapshot.data
        if patience_ms and self.now_ms - sending.moved_ms > patience_ms:
            if sending.acknowledged == len(data) and self.now_ms - sending.moved_ms < 10 * patience_ms:
                return  # it is saving
            sending.sent, sending.acknowledged, sending.moved_ms = 0, 0, self.now_ms
        while sending.sent == 0 or (sending.sent < len(data) and sending.sent - sending.acknowledged < IN_FLIGHT_BYTES):
            chunk = data[sending.sent : sending.sent + self.chunk_bytes]
            body = {
                "type": "snapshot", "term": self.term_now(), "index": sending.snapshot.index,
                "last_term": sending.snapshot.term, "size": len(data), "checksum": sending.checksum,
                "offset": sending.sent, "data": chunk,
            }  # fmt: skip
            self.outbox.append(Message(follower.id, body, False))
            sending.sent += len(chunk)
        self.sent_snapshot = (sending.snapshot, self.now_ms)

    def snapshot_for(self) -> Snapshot:
        """Return a snapshot of the applied state and voters; the last one is reused if it still connects to the log."""
        if self.sent_snapshot is not None and self.sent_snapshot[0].index >= self.log.first_index:
            snapshot = self.sent_snapshot[0]
        else:
            index = self.applied_index()
            term = self.log.term_at(index)
            assert term is not None
            voters_index, voters = self.log.voters_at(index)
            data = pack_snapshot(voters_index, voters, self.machine.snapshot())
            snapshot = Snapshot(index=index, term=term, data=data)
        self.sent_snapshot = (snapshot, self.now_ms)
        return snapshot

    def _is_of_this_term(self, body: dict[str, Any]) -> bool:
        """Return whether an answer is from this leadership; one from an earlier leadership proves nothing (D3)."""
        return bool(body["term"] == self.term_now())

    def _answers(self, peer: int, body: dict[str, Any]) -> Follower | None:
        """Return the follower if this node leads it and its answer counts."""
        if body["term"] > self.term_now():
            self._adopt_term(body["term"])
        follower = self.followers.get(peer)
        if self.state() != LEADER or follower is None or not self._is_of_this_term(body):
            return None
        self._SyncObj__lastResponseTime[Node(peer)] = self.now_ms / 1000
        return follower

    def _contacted(self, follower: Follower) -> None:
        match = self.match_index(follower.id)
        if match >= self.log.last_index:
            follower.last_caught_up_ms = self.now_ms
        elif follower.last_contact_ms >= 0 and match >= follower.log_end_at_contact:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.last_contact_ms)
        follower.last_contact_ms, follower.log_end_at_contact = self.now_ms, self.log.last_index

    def _matched(self, follower: Follower, index: int) -> None:
        index = min(index, self.log.last_index)
        if index > self.match_index(follower.id):
            self._SyncObj__raftMatchIndex[Node(follower.id)] = index

    def _on_next_node_idx(self, peer: int, body: dict[str, Any]) -> None:
        follower = self._answers(peer, body)
        if follower is None:
            return
        is_current = follower.answered(body["round"])
        if body["success"]:
            self._matched(follower, body["next_node_idx"] - 1)
            if is_current and follower.mode is Mode.PROBE:
                follower.mode = Mode.REPLICATE
            follower.next_index = max(follower.next_index, self.match_index(peer) + 1)
        elif body["reset"] and is_current and follower.mode is not Mode.SNAPSHOT:
            if body["last_index"] < self.match_index(peer):  # it has lost entries: do not count it
                self._SyncObj__raftMatchIndex[Node(peer)] = max(0, body["last_index"])
            match = self.match_index(peer)
            follower.probe(max(match + 1, min(body["next_node_idx"], self.log.last_index + 1)))
        self._contacted(follower)

    def _on_snapshot_ack(self, peer: int, body: dict[str, Any]) -> None:
        follower = self._answers(peer, body)
        if follower is None:
            return
        sending = follower.sending
        if sending is not None and sending.snapshot.index == body["index"]:
            sending.moved_ms = self.now_ms
            if body["status"] == messages.SNAPSHOT_MORE:
                if body["offset"] < sending.acknowledged or body["offset"] > sending.sent:
                    sending.sent = min(body["offset"], len(sending.snapshot.data))
                sending.acknowledged = min(body["offset"], len(sending.snapshot.data))
            elif body["status"] == messages.SNAPSHOT_REFUSED:
                follower.refused_until_ms = self.now_ms + _REFUSED_SNAPSHOT_WAIT_MS
                follower.probe(self.log.first_index)
            else:
                if body["status"] == messages.SNAPSHOT_INSTALLED:
                    self._matched(follower, body["offset"] - 1)
                follower.probe(max(self.match_index(peer) + 1, min(body["offset"], self.log.last_index + 1)))
        self._contacted(follower)

    # -- voters

    def voters_changed(self) -> None:
        """Update the library's set of nodes after a change of the newest entry that sets the voters."""
        if self._known_voters is self.log.voters[-1][1]:
            return
        self._known_voters = self.log.voters[-1][1]
        voters = self.voter_ids()
        before = {node.id for node in self._SyncObj__otherNodes}
        others = voters - {self.id}
        self._SyncObj__otherNodes = {Node(voter) for voter in sorted(others)}
        for peer in sorted(others - before):
            self._SyncObj__raftNextIndex.setdefault(Node(peer), 0)
            self._SyncObj__raftMatchIndex.setdefault(Node(peer), 0)
            self._SyncObj__lastResponseTime[Node(peer)] = self.now_ms / 1000
        if self.state() == LEADER:
            for peer in sorted(others - before):
                if peer not in self.followers:
                    self._feed_from(peer)
            for peer in sorted(before - others):  # it is told of its removal as a learner
                if peer in self.connected_peers:
                    self.learner_ids.add(peer)
                else:
                    self.followers.pop(peer, None)
        if self.id not in voters:
            self._ask_to_learn()

    def why_no_change(self, add: int | None, remove: int | None) -> str | None:
        """Return the reason why the voters cannot be changed this way now, or None."""
        voters = self.voter_ids()
        first = self._SyncObj__noopIDx
        if self.state() != LEADER or self.resigning_until_ms is not None:
            return "this node does not lead the quorum"
        if first is None or self.commit_index < first:
            return "the leader is new: its first entry is not committed yet"
        if self.log.voters[-1][0] > self.commit_index:
            return "another change of the voters is under way"
        if (add is None) == (remove is None):
            return "one voter is added or removed at a time"
        if add is not None:
            if add in voters:
                return f"node {add} is a voter already"
            follower = self.followers.get(add)
            if follower is None or self.log.last_index - self.match_index(add) > _CAUGHT_UP_ENTRIES:
                return f"node {add} has not caught up with the log"
        elif remove not in voters:
            return f"node {remove} is no voter"
        elif len(voters) == 1:
            return "the last voter cannot be removed"
        elif remove == self.id:
            return "the leader cannot remove itself: it has to resign first"
        elif silent := self._too_many_silent(voters - {remove}):
            return f"without node {remove} too few voters are left: of {sorted(voters - {remove})} {silent} are silent"
        return None

    def _too_many_silent(self, voters: Collection[int]) -> list[int]:
        """Return the voters that do not answer this leader, if without them it has no majority and cannot commit."""
        silent = [
            voter
            for voter in sorted(voters)
            if voter != self.id
            and ((peer := self.followers.get(voter)) is None or peer.last_contact_ms < self.now_ms - self.fallback_ms)
        ]
        return silent if 2 * len(silent) >= len(voters) else []

    # -- commands

    def append(self, entry: bytes) -> tuple[int, int]:
        """Append to the leader's log through the library's own entry point."""
        self.uncommitted_bytes += len(entry)
        self._applyCommand(entry, None)
        self._checkCommandsToApply()
        return self.log.last_index, self.term_now()

    # -- handing over

    def resign(self) -> None:
        """Hand over leadership as soon as a voter has the whole log."""
        if self.state() == LEADER and self.resigning_until_ms is None:
            self.resigning_until_ms = self.now_ms + self.election_timeout_ms
            self._go_on_resigning()

    def _go_on_resigning(self) -> None:
        """Hand over to a voter that has everything; if there is none for too long, just stop leading."""
        assert self.resigning_until_ms is not None
        if self.state() != LEADER:
            self.resigning_until_ms = None
            return
        ready = sorted(self.connected_peers & self.voter_ids(), key=lambda peer: (-self.match_index(peer), peer))
        was_told = any(message.body["type"] == "timeout_now" for message in self.outbox)
        if ready and not was_told and self.match_index(ready[0]) == self.log.last_index:
            self.transferLeadership(Node(ready[0]))
        if self.now_ms >= self.resigning_until_ms:
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None


check_names(library.SyncObj, _OVERRIDDEN | _CALLED)
_unlisted = {name.removeprefix("_SyncObj__") for name in vars(Raft) if name.startswith("_SyncObj__")} - _OVERRIDDEN
if _unlisted:
    raise ImportError(f"overridden without being checked: {sorted(_unlisted)}")
