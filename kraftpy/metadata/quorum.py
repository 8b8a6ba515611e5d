"""The metadata quorum: Raft by pysyncobj, hardened, without its sockets, threads, clock, files and pickles.

    Quorum: inputs (tick, connected, disconnected, receive, propose) -> messages, entries applied to the state machine
      _Raft(SyncObj): the library's roles, votes, terms, log matching, commit and apply; each override closes a defect
      _Log: the library's journal interface over ours; _Follower: what a leader knows of a peer, and its flow control

The shell's loop, on one event loop:

    feed inputs -> take_messages() -> send those without after_sync
                -> if needs_sync: await to_thread(journal.sync), then synced(its result) -> send the rest -> repeat

A message with `after_sync` may leave only when `needs_sync` was false as it was taken, or once a sync that began after
it was taken has returned. Syncs and snapshots run one at a time; inputs may come meanwhile.

Snapshots. Ours: when `snapshot_due`, `begin_snapshot()`, `journal.save_snapshot` in a thread, `snapshot_saved(index)`.
A leader's: when `received_snapshot` is not None it is checked and the machine has restored
it; `journal.save_snapshot` in a thread, nothing else of the journal meanwhile, then `snapshot_installed()`. Entries and
snapshots are as the log has them: `command_in(entry.data)` and `unpack_snapshot(data)` of `quorum_messages` read them.

Invariants:
* An entry, a term or a vote is on disk before it is answered, and a leader's own entry before it counts for the commit.
* No entry that may be committed is ever dropped: the log is cut only where terms conflict, and never at or below the
  commit index (that would be a broken quorum, and stops this node).
* What the machine raises stops this node for good: `QuorumStoppedError`, from then on, from every input.
* A node that is not among the voters of its own log never campaigns. It asks to be fed (it learns); once it has caught
  up the leader may add it. One voter at a time; the voters are those of the newest such entry in the log, committed or
  not, so truncation takes a change back by itself. Voters that were only configured, never changed, stay configuration.
* A campaign is preceded by a poll that changes no term, and nobody votes who hears a leader: a node that comes back
  from a partition disturbs nothing. One whose connection to the leader breaks polls within 50 to 200 ms.

Left out: the library's forwarding, callbacks and code versions (a command is proposed at the leader, by bytes, and its
submitter watches what is applied), reads without a log entry, and learners that outlive their connection.
See docs/raft-library.md for each defect of the library; D1 and the like are its numbers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.journal import MAX_ENTRY_BYTES, Entry, Journal, Loaded, Snapshot
from kraftpy.metadata.quorum_messages import BadMessageError, SnapshotContents, pack_snapshot, unpack_snapshot

LIBRARY_VERSION = "0.3.17"
SNAPSHOT_AFTER_ENTRIES = 10_000
SNAPSHOT_AFTER_BYTES = 64 << 20
BATCH_BYTES = 256 << 10
CHUNK_BYTES = 512 << 10
MAX_UNCOMMITTED_BYTES = 2 * MAX_ENTRY_BYTES
_IN_FLIGHT_MESSAGES = 32
_IN_FLIGHT_BYTES = 4 << 20
_KEPT_BYTES = 1 << 20  # of entries before a snapshot, for those who are a little behind
_CAUGHT_UP_ENTRIES = 100
_REFUSED_SNAPSHOT_WAIT_MS = 5_000
_SNAPSHOT_CACHE_MS = 10_000


class QuorumStoppedError(Exception):
    """This node cannot take part any more until it is restarted; the message is for the person who runs it."""


class Chance(Protocol):
    """Random numbers, as an argument: `random.Random`."""

    def random(self) -> float:
        """From 0 up to, not including, 1."""
        ...


class StateMachine(Protocol):
    """What the log is for."""

    def apply(self, index: int, term: int, data: bytes) -> object:
        """Take in a committed command. Total and deterministic; what it raises stops the node."""
        ...

    def snapshot(self) -> bytes:
        """The state, as `restore` takes it."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state. Raises where it cannot, and then has changed nothing."""
        ...


class Message(NamedTuple):
    """For a peer; `after_sync`: what it says has to be on disk first."""

    peer: int
    body: dict[str, Any]
    after_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterProgress:
    """How far a node of the quorum is, as the leader knows it. Times are of the caller's clock; -1: never."""

    id: int
    log_end_index: int
    """The newest entry that it has on disk."""
    last_contact_ms: int
    last_caught_up_ms: int
    is_voter: bool


# -- the library, in a copy of its own


class _Pickle:
    """In the place of the library's pickle: nothing is ever read or written with it (D16)."""

    def __getattr__(self, name: str) -> object:
        raise QuorumStoppedError(f"pysyncobj asked for pickle.{name}: that must not happen")


class _Nothing:
    """In the place of what opens sockets, pipes and files: it takes every call and does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


_NOW_S: ContextVar[float] = ContextVar("_NOW_S", default=0.0)  # of the Quorum whose turn it is


def _load_library() -> Any:
    """The library's module a second time, so that what is put into it is seen by no other user of the library."""
    absent = "cryptography" not in sys.modules
    if absent:
        sys.modules["cryptography"] = None  # type: ignore[assignment]  # slow to import, and for its transport only
    try:
        spec = importlib.util.find_spec("pysyncobj.syncobj")
        assert spec is not None
        assert spec.loader is not None
        library: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
    finally:
        if absent:
            del sys.modules["cryptography"]
    replaced = {
        "monotonicTime": _NOW_S.get,
        "createJournal": lambda log: log,
        "createPoller": _Nothing,
        "globalDnsResolver": _Nothing,
        "Serializer": _Nothing,
        "pickle": _Pickle(),
        "random": None,
        "time": None,
        "os": None,
    }
    missing = sorted(replaced.keys() - vars(library).keys())
    if missing or library.VERSION != LIBRARY_VERSION:
        raise ImportError(f"kraftpy needs pysyncobj {LIBRARY_VERSION} exactly; found {library.VERSION} {missing or ''}")
    vars(library).update(replaced)
    return library


_library: Any = _load_library()
_FOLLOWER, _CANDIDATE, _LEADER = range(3)
_Node: Any = _library.Node


def _check_names(subject: object, names: frozenset[str]) -> None:
    """An override whose name the library does not have would silently do nothing."""
    missing = sorted(name for name in names if not hasattr(subject, "_SyncObj__" + name))
    if missing:
        raise ImportError(f"pysyncobj {_library.VERSION} has no {', '.join(missing)}")


_LIBRARY_STATE = frozenset(
    {
        "connectedNodes", "otherNodes", "raftCommitIndex", "raftCurrentTerm", "raftElectionDeadline", "raftLastApplied",
        "raftLeader", "raftLog", "raftMatchIndex", "raftState", "votedForNodeId", "lastResponseTime", "noopIDx",
        "newAppendEntriesTime", "transferInProgress", "onReadyCalled", "raftNextIndex", "votesCount",
    }
)  # fmt: skip


class _Log:
    """The library's view of the log: entries in memory, each handed to our journal, which makes them durable.

    Position 0 is the entry before the first one: that of a snapshot, or of index and term 0.
    """

    def __init__(self, journal: Journal, base_index: int, base_term: int, voters: Mapping[int, str]) -> None:
        self.journal = journal
        self.entries: list[tuple[bytes, int, int]] = [(messages.NO_OP, base_index, base_term)]
        self.configured = dict(voters)
        self.voters: list[tuple[int, dict[int, str]]] = [(0, self.configured)]  # since which index, ascending
        self.term = max(journal.term, journal.last_term)
        self.voted_for = journal.voted_for if journal.term == self.term else None
        self.on_commit: Callable[[int], None] = lambda index: None

    @property
    def first_index(self) -> int:
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    def term_at(self, index: int) -> int | None:
        if not self.first_index <= index <= self.last_index:
            return None
        return self.entries[index - self.first_index][2]

    def load(self, entry: tuple[bytes, int, int]) -> None:
        """Take in what the journal already has."""
        self.entries.append(entry)
        voters = messages.voters_in(entry[0])
        if voters is not None:
            self.voters.append((entry[1], voters))

    def voters_at(self, index: int) -> tuple[int, dict[int, str]]:
        return next(voters for voters in reversed(self.voters) if voters[0] <= index)

    def restart_at(self, index: int, term: int, contents: SnapshotContents) -> None:
        """Begin after a snapshot, with those entries after it that the journal has kept."""
        kept = [entry for entry in self.entries[1:] if index < entry[1] <= self.journal.last_index]
        self.entries = [(messages.NO_OP, index, term)]
        self.set_snapshot_voters(contents)
        for entry in kept:
            self.load(entry)

    def set_snapshot_voters(self, contents: SnapshotContents) -> None:
        voters = self.configured if contents.voters is None or not contents.voters_index else contents.voters
        self.voters = [(contents.voters_index, voters)]

    def forget_to(self, index: int) -> None:
        """Entries up to `index` are in a snapshot; some stay in memory, for those who are a little behind."""
        position, kept_bytes = index - self.first_index, 0
        while position > 0 and kept_bytes < _KEPT_BYTES:
            kept_bytes += len(self.entries[position][0]) + 100
            position -= 1
        if position > 0:
            _, base_index, base_term = self.entries[position]
            self.entries[: position + 1] = [(messages.NO_OP, base_index, base_term)]
        self.voters = [self.voters_at(index), *(voters for voters in self.voters if voters[0] > index)]

    # the library's interface

    def add(self, command: bytes, index: int, term: int) -> None:
        added = self.journal.append(term, command)
        assert added == index, (added, index)
        self.load((command, index, term))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802
        index = self.first_index + position
        self.journal.truncate_from(index)
        del self.entries[position:]
        while self.voters[-1][0] >= index:
            self.voters.pop()

    def __getitem__(self, place: Any) -> Any:
        return self.entries[place]

    def __len__(self) -> int:
        return len(self.entries)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        self.on_commit(index)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self.first_index  # what is committed is learnt anew, from a leader

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:  # noqa: N802
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, None if voted_for is None else str(voted_for)
            self.journal.note_vote(self.term, self.voted_for)

    def onOneSecondTimer(self) -> None: ...  # noqa: N802

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self.term

    def getVotedForNodeId(self) -> int | str | None:  # noqa: N802
        return int(self.voted_for) if self.voted_for is not None and self.voted_for.isdecimal() else self.voted_for


class _Transport(_library.Transport):  # type: ignore[misc]
    """The library's way out: what it sends is put beside our own messages."""

    def __init__(self, send: Callable[[int, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, ())
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        return self._send(node.id, message)


# -- what a leader knows of another node


class _Mode(Enum):
    PROBE = 1  # one message at a time, until it is known where the logs agree
    REPLICATE = 2  # several in flight
    SNAPSHOT = 3


@dataclass(slots=True)
class _Sending:
    """A snapshot on its way to a follower."""

    snapshot: Snapshot
    checksum: int
    sent: int = 0
    acknowledged: int = 0
    moved_ms: int = 0


@dataclass(slots=True)
class _Follower:
    """A voter or learner, as its leader sees it."""

    id: int
    next_index: int
    mode: _Mode = _Mode.PROBE
    in_flight: deque[tuple[int, int, int]] = field(default_factory=deque)  # round, bytes, sent at
    in_flight_bytes: int = 0
    told_commit: int = -1
    heartbeat_ms: int = 0
    refused_until_ms: int = 0
    sending: _Sending | None = None
    last_contact_ms: int = -1
    last_caught_up_ms: int = -1
    log_end_at_contact: int = 0

    def probe(self, next_index: int) -> None:
        """Begin anew: nothing is known to be on its way."""
        self.mode, self.next_index, self.told_commit = _Mode.PROBE, next_index, -1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.sending = None

    def has_room(self) -> bool:
        if self.mode is _Mode.PROBE:
            return not self.in_flight
        return len(self.in_flight) < _IN_FLIGHT_MESSAGES and self.in_flight_bytes < _IN_FLIGHT_BYTES

    def answered(self, round_: int) -> bool:
        """An answer to the message of that round, and so to all before it. False: to one that is forgotten."""
        if not self.in_flight or not self.in_flight[0][0] <= round_ <= self.in_flight[-1][0]:
            return False
        while self.in_flight and self.in_flight[0][0] <= round_:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        return True


@dataclass(slots=True)
class _Receiving:
    """A snapshot that a leader is sending us."""

    leader: int
    term: int
    index: int
    last_term: int
    size: int
    checksum: int
    data: bytearray = field(default_factory=bytearray)


_OVERRIDDEN = frozenset(
    {
        "onBecomeLeader", "connectedToAnyone", "doApplyCommand", "generateRaftTimeout", "loadDumpFile",
        "onMessageReceived", "parseChangeClusterRequest", "sendAppendEntries", "sendNextNodeIdx", "tryLogCompaction",
    }
)  # fmt: skip
_CALLED = frozenset({"setCurrentTerm", "setState", "getCurrentLogIndex", "getCurrentLogTerm", "onNodeConnected"})


class _Raft(_library.SyncObj):  # type: ignore[misc]
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
        self, *, node_id: int, log: _Log, machine: StateMachine, chance: Chance, now_ms: int, election_timeout_ms: int,
        fetch_timeout_ms: int, snapshot_after_entries: int,
    ) -> None:  # fmt: skip
        self.id = node_id
        self.log = log
        self.machine = machine
        self.chance = chance
        self.now_ms = now_ms
        self.election_timeout_ms = election_timeout_ms
        self.heartbeat_every_ms = max(1, election_timeout_ms // 5)
        self.snapshot_after_entries = snapshot_after_entries
        self.connected_peers: set[int] = set()
        self.learner_ids: set[int] = set()  # connected, and asked to be fed
        self.followers: dict[int, _Follower] = {}  # of a leader
        self.outbox: list[Message] = []
        self.commit_index = log.first_index
        self.snapshot_index = log.first_index
        self.applied_bytes = 0  # since the snapshot
        self.uncommitted_bytes = 0
        self.heard_ms = -1  # the leader
        self.round = 0  # of messages that are answered
        self.resigning_until_ms: int | None = None
        self.receiving: _Receiving | None = None
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
        configuration = _library.SyncObjConf(
            autoTick=False,
            journalFile=log,
            useFork=False,
            appendEntriesUseBatch=True,  # here: send when messages are taken, not at each command
            raftMinTimeout=election_timeout_ms / 1000,
            raftMaxTimeout=election_timeout_ms / 1000 * 1.5,
            appendEntriesPeriod=self.heartbeat_every_ms / 1000,
            leaderFallbackTimeout=max(self.heartbeat_every_ms * 3, fetch_timeout_ms * 3 // 4) / 1000,
            connectionTimeout=1e9,
            commandsWaitLeader=False,
            onStateChanged=self._state_changed,
        )
        others = [_Node(voter) for voter in sorted(log.voters[-1][1]) if voter != node_id]
        super().__init__(_Node(node_id), others, configuration, transport=_Transport(self._send))
        _check_names(self, _LIBRARY_STATE)
        self._SyncObj__raftLastApplied = log.first_index
        self._SyncObj__onReadyCalled = True
        log.on_commit = self._commit_changed
        self._SyncObj__raftElectionDeadline = 0.0 if not others else self._in_s(self._soon_ms())

    # -- state

    def state(self) -> int:
        return int(self._SyncObj__raftState)

    def term_now(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    def leader(self) -> int | None:
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    def voter_ids(self) -> set[int]:
        return set(self.log.voters[-1][1])

    def match_index(self, peer: int) -> int:
        return int(self._SyncObj__raftMatchIndex.get(_Node(peer), 0))

    def _in_s(self, delay_ms: float) -> float:
        return (self.now_ms + delay_ms) / 1000

    def _soon_ms(self) -> float:
        """How long to wait without a leader: 50 to 200 ms, more after each poll in vain, up to the election timeout."""
        least = min(50 << min(self._polls, 8), self.election_timeout_ms // 2)
        return least + self.chance.random() * min(150 << min(self._polls, 8), self.election_timeout_ms)

    # -- the turn of each input

    def advance(self) -> None:
        """Whatever time and what was just taken in lead to: polls, campaigns, commits, applied entries."""
        self._consider_campaign()
        self._onTick(0.0)
        self._may_campaign = self._is_transfer = False
        if self.resigning_until_ms is not None:
            self._go_on_resigning()
        if self.sent_snapshot is not None and self.now_ms - self.sent_snapshot[1] > _SNAPSHOT_CACHE_MS:
            self.sent_snapshot = None

    def _consider_campaign(self) -> None:
        if self._may_campaign or self.state() == _LEADER or self._SyncObj__raftElectionDeadline >= self.now_ms / 1000:
            return
        if self.id not in self.voter_ids() or self.received is not None:
            self._SyncObj__raftElectionDeadline = self._in_s(self.election_timeout_ms)
        elif self.voter_ids() == {self.id}:
            self._may_campaign = True
        elif self._SyncObj__transferInProgress:
            self._may_campaign = self._is_transfer = True
        else:
            self._poll()

    def _poll(self) -> None:
        """Ask the others whether they would vote for us, which changes no term (the library has no such poll)."""
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
        if self._polls > 2:  # perhaps it was removed while it was away, and those that it knows do not even lead
            self._ask_to_learn()

    def _ask_to_learn(self) -> None:
        for peer in sorted(self.connected_peers):
            self.outbox.append(Message(peer, {"type": "learn"}, False))

    def _has_majority(self, nodes: set[int]) -> bool:
        voters = self.voter_ids()
        return 2 * len(nodes & voters) > len(voters)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """Asked by the library before it campaigns."""
        return self._may_campaign

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        if getattr(self, "_may_campaign", False):
            return self._soon_ms() / 1000  # a split vote
        return self.election_timeout_ms * (1 + self.chance.random() / 2) / 1000

    def _state_changed(self, old: int, new: int) -> None:
        if old == _LEADER:
            self.followers.clear()
            self.resigning_until_ms = None
            self.uncommitted_bytes = 0
            self.sent_snapshot = None
            self._SyncObj__raftElectionDeadline = self._in_s(self.election_timeout_ms / 2 + self._soon_ms())

    def _adopt_term(self, term: int) -> None:
        """Somebody has a higher term: so do we now, and no leader."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    # -- connections

    def connect(self, peer: int) -> None:
        self.disconnect(peer)
        self.connected_peers.add(peer)
        self._SyncObj__onNodeConnected(_Node(peer))
        if self.id not in self.voter_ids():
            self.outbox.append(Message(peer, {"type": "learn"}, False))
        if self.state() == _LEADER:
            if peer in self.voter_ids():
                self._feed_from(peer)
        elif self.leader() is None and peer in self.voter_ids():
            self._polls = 0
            deadline = min(self._SyncObj__raftElectionDeadline, self._in_s(self._soon_ms()))
            self._SyncObj__raftElectionDeadline = deadline

    def disconnect(self, peer: int) -> None:
        self.connected_peers.discard(peer)
        self.learner_ids.discard(peer)
        self._SyncObj__connectedNodes.discard(_Node(peer))
        self.outbox = [message for message in self.outbox if message.peer != peer]
        if self.receiving is not None and self.receiving.leader == peer:
            self.receiving = None
        if self.state() == _LEADER:
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
        """What the library sends: votes, and the word to a successor."""
        if peer not in self.connected_peers:
            return False
        if message["type"] == "request_vote":
            message = {**message, "transfer": self._is_transfer}
        self.outbox.append(Message(peer, message, message["type"] != "timeout_now"))
        return True

    # -- messages

    def handle(self, peer: int, body: dict[str, Any]) -> None:
        """A checked body of a connected peer. Raises BadMessageError where it contradicts what cannot be otherwise."""
        handler: Callable[[int, dict[str, Any]], None] = getattr(self, "_on_" + body["type"])
        handler(peer, body)

    def _to_library(self, peer: int, body: dict[str, Any]) -> None:
        super()._SyncObj__onMessageReceived(_Node(peer), body)

    def _SyncObj__onMessageReceived(self, node: Any, message: dict[str, Any]) -> None:  # noqa: N802
        raise AssertionError("messages come by way of handle()")

    def _tell_term(self, peer: int) -> None:
        """The sender is behind; the library leaves it so (D24)."""
        self.outbox.append(Message(peer, {"type": "term", "term": self.term_now()}, True))

    def _on_term(self, peer: int, body: dict[str, Any]) -> None:
        if body["term"] > self.term_now():
            self._adopt_term(body["term"])

    def _on_learn(self, peer: int, body: dict[str, Any]) -> None:
        self.learner_ids.add(peer)
        if self.state() == _LEADER and peer not in self.followers:
            self._feed_from(peer)

    # votes

    def hears_leader(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        if leader == self.id:
            return self.state() == _LEADER
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
        if self.state() != _LEADER and self.received is None and self._has_majority(self._polled):
            self._poll_term = 0
            self._may_campaign = True
            self._SyncObj__raftElectionDeadline = self._in_s(-1)

    def _on_request_vote(self, peer: int, body: dict[str, Any]) -> None:
        if body["term"] < self.term_now():
            self._tell_term(peer)
        elif body["transfer"] or not self.hears_leader():  # else: it was cut off, or removed; it disturbs nobody
            self._to_library(peer, body)

    def _on_response_vote(self, peer: int, body: dict[str, Any]) -> None:
        """Each voter counts once, and only voters (D20)."""
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
        self._SyncObj__raftMatchIndex.clear()  # a learner's of an earlier leadership too, which the library leaves
        super()._SyncObj__onBecomeLeader()
        for peer in sorted(self.voter_ids() - {self.id} | self.learner_ids):
            self._feed_from(peer)

    # a follower's part

    def _follow(self, peer: int, body: dict[str, Any]) -> bool:
        """Whether what a leader says is to be listened to."""
        if body["term"] < self.term_now():
            self._tell_term(peer)
            return False
        if body["term"] == self.term_now() and self.state() == _LEADER:
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
            self._SyncObj__sendNextNodeIdx(_Node(peer))

    def _hear(self, peer: int, term: int) -> None:
        """A word of the leader that says nothing of the log, and so commits nothing (D2)."""
        self._to_library(peer, {"type": "append_entries", "term": term, "commit_index": self.commit_index})

    def _on_append_entries(self, peer: int, body: dict[str, Any]) -> None:
        if not self._follow(peer, body):
            return
        if self.received is not None:  # a snapshot is being saved: the log is not to be touched; it will come again
            self._hear(peer, body["term"])
            return
        self._to_library(peer, self._harmless(body))

    def _harmless(self, body: dict[str, Any]) -> dict[str, Any]:
        """The same entries so put that the library drops none that match (D1), and commits only what was compared."""
        log, previous, entries = self.log, body["prevLogIdx"], body["entries"]
        previous_term = body["prevLogTerm"]
        if previous < log.first_index:  # before our snapshot all is committed, and so the leader's too
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
            agree = log.last_index  # nothing is new: whatever follows stays
        elif agree < log.last_index and agree < self.commit_index:
            raise QuorumStoppedError(
                f"the leader of term {body['term']} has another entry {agree + 1} than ours, which is committed: "
                "the quorum's logs are not of one history; this node stops"
            )
        return {**body, "prevLogIdx": agree, "prevLogTerm": log.term_at(agree), "entries": entries[same:]}

    def _back_off_to(self, previous: int) -> int:
        """Where the leader should try next: one answer that is good however many messages it had sent (D13, D25)."""
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
        """The library's answer, with its term (D3) and with what was compared rather than what there is (D1, D26)."""
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
        """The library has moved the commit index. A leader's own copy counts only where it is on disk."""
        durable = self.log.journal.durable_index
        if self.state() == _LEADER and index > max(durable, self.commit_index):
            may_commit = durable > self.commit_index and self.log.term_at(durable) == self.term_now()
            index = durable if may_commit else self.commit_index
            self._SyncObj__raftCommitIndex = index
        for committed in range(self.commit_index + 1, index + 1) if self.uncommitted_bytes else ():
            self.uncommitted_bytes -= len(self.log.entries[committed - self.log.first_index][0])
        self.uncommitted_bytes = max(0, self.uncommitted_bytes)
        self.commit_index = index

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        """One committed entry. What the machine raises stops the node (D11), once; the library would try for ever."""
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
        """The voters are read by the log, from our encoding; the library's are pickles."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise AssertionError("the library has no dump file")

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """The shell asks `snapshot_due`."""

    # snapshots that come

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
            self.receiving = receiving = _Receiving(peer, body["term"], *described)
        data = receiving.data
        if body["offset"] == len(data) and len(data) + len(body["data"]) <= receiving.size:
            data += body["data"]
        if len(data) < receiving.size:
            self._answer_snapshot(peer, receiving.index, len(data), messages.SNAPSHOT_MORE)
            return
        self.receiving = None
        self._accept(peer, receiving)

    def _is_stale(self, index: int) -> bool:
        """All of it is committed here already: it would only take us back (D6)."""
        return index <= self.commit_index

    def _accept(self, peer: int, receiving: _Receiving) -> None:
        """The whole of a snapshot: checked before anything is replaced (D6, D7)."""
        data = bytes(receiving.data)
        try:
            if messages.checksum(data) != receiving.checksum:
                raise BadMessageError("its checksum does not match")
            self.machine.restore(unpack_snapshot(data).state)
        except Exception as error:
            _library.logger.error(
                "the metadata snapshot of entry %d that node %d sent is refused: %s", receiving.index, peer, error
            )
            self._answer_snapshot(peer, receiving.index, 0, messages.SNAPSHOT_REFUSED)
            return
        self.received = Snapshot(index=receiving.index, term=receiving.last_term, data=data)

    def installed(self) -> None:
        """The received snapshot is on disk, and the journal has kept of its entries what agrees with it (D5, D6)."""
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
        """Begin, or begin again, to send to a voter or learner."""
        follower = self.followers.get(peer)
        node = _Node(peer)
        if follower is None:
            follower = self.followers[peer] = _Follower(peer, self.log.last_index + 1)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__lastResponseTime.setdefault(node, self.now_ms / 1000)
            if peer not in self._SyncObj__raftNextIndex:
                self._SyncObj__raftNextIndex[node] = 0
        match = self.match_index(peer)
        follower.probe(match + 1 if match else self.log.last_index + 1)
        follower.heartbeat_ms = self.now_ms

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """When messages are taken, and no faster than they are answered (D13): see `feed`."""
        self._SyncObj__newAppendEntriesTime = self._in_s(self.heartbeat_every_ms)

    def feed(self) -> None:
        """Put into the outbox what followers may be sent now."""
        if self.state() == _LEADER:
            for peer in sorted(self.followers.keys() & self.connected_peers):
                self._feed(self.followers[peer])

    def _feed(self, follower: _Follower) -> None:
        sent = len(self.outbox)
        patience_ms = 2 * self.election_timeout_ms
        if follower.in_flight and self.now_ms - follower.in_flight[0][2] > patience_ms:
            follower.probe(self.match_index(follower.id) + 1)
        if follower.mode is _Mode.SNAPSHOT:
            self._send_chunks(follower, patience_ms)
        while follower.mode is not _Mode.SNAPSHOT and follower.has_room():
            if follower.next_index <= self.log.first_index:
                self._begin_sending(follower)
                break
            if follower.next_index > self.log.last_index and follower.told_commit >= self.commit_index:
                break
            self._send_entries(follower)
        if len(self.outbox) == sent and self.now_ms >= follower.heartbeat_ms:
            self.round += 1
            heartbeat = {"type": "heartbeat", "term": self.term_now(), "round": self.round}
            self.outbox.append(Message(follower.id, heartbeat, False))
            sent -= 1
        if len(self.outbox) != sent:
            follower.heartbeat_ms = self.now_ms + self.heartbeat_every_ms

    def _send_entries(self, follower: _Follower) -> None:
        log = self.log
        previous = follower.next_index - 1
        position, size = previous - log.first_index + 1, 0
        batch: list[list[Any]] = []
        while position < len(log.entries) and (not batch or size + len(log.entries[position][0]) <= self.batch_bytes):
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

    def _begin_sending(self, follower: _Follower) -> None:
        if self.now_ms < follower.refused_until_ms:
            follower.probe(self.log.first_index)
            follower.in_flight.append((self.round, 0, self.now_ms))  # nothing to be said; it will be asked again
            return
        snapshot = self.snapshot_for()
        follower.mode = _Mode.SNAPSHOT
        follower.sending = _Sending(snapshot, messages.checksum(snapshot.data), moved_ms=self.now_ms)
        self._send_chunks(follower, 0)

    def _send_chunks(self, follower: _Follower, patience_ms: int) -> None:
        sending = follower.sending
        assert sending is not None
        data = sending.snapshot.data
        if patience_ms and self.now_ms - sending.moved_ms > patience_ms:
            if sending.acknowledged == len(data) and self.now_ms - sending.moved_ms < 10 * patience_ms:
                return  # it is saving
            sending.sent, sending.acknowledged, sending.moved_ms = 0, 0, self.now_ms
        while sending.sent == 0 or (
            sending.sent < len(data) and sending.sent - sending.acknowledged < _IN_FLIGHT_BYTES
        ):
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
        """The state as it is applied, with who votes; made anew unless the last one still connects to the log."""
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
        """An answer of an earlier leadership says nothing of this one (D3)."""
        return bool(body["term"] == self.term_now())

    def _answers(self, peer: int, body: dict[str, Any]) -> _Follower | None:
        """The follower, if this node leads it and the answer counts."""
        if body["term"] > self.term_now():
            self._adopt_term(body["term"])
        follower = self.followers.get(peer)
        if self.state() != _LEADER or follower is None or not self._is_of_this_term(body):
            return None
        self._SyncObj__lastResponseTime[_Node(peer)] = self.now_ms / 1000
        return follower

    def _contacted(self, follower: _Follower) -> None:
        match = self.match_index(follower.id)
        if match >= self.log.last_index:
            follower.last_caught_up_ms = self.now_ms
        elif follower.last_contact_ms >= 0 and match >= follower.log_end_at_contact:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.last_contact_ms)
        follower.last_contact_ms, follower.log_end_at_contact = self.now_ms, self.log.last_index

    def _matched(self, follower: _Follower, index: int) -> None:
        index = min(index, self.log.last_index)
        if index > self.match_index(follower.id):
            self._SyncObj__raftMatchIndex[_Node(follower.id)] = index

    def _on_next_node_idx(self, peer: int, body: dict[str, Any]) -> None:
        follower = self._answers(peer, body)
        if follower is None:
            return
        is_current = follower.answered(body["round"])
        if body["success"]:
            self._matched(follower, body["next_node_idx"] - 1)
            if is_current and follower.mode is _Mode.PROBE:
                follower.mode = _Mode.REPLICATE
            follower.next_index = max(follower.next_index, self.match_index(peer) + 1)
        elif body["reset"] and is_current and follower.mode is not _Mode.SNAPSHOT:
            if body["last_index"] < self.match_index(peer):  # it has lost what it had: do not count it
                self._SyncObj__raftMatchIndex[_Node(peer)] = max(0, body["last_index"])
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
        """The newest entry that sets the voters is another: the library's set follows."""
        if self._known_voters is self.log.voters[-1][1]:
            return
        self._known_voters = self.log.voters[-1][1]
        voters = self.voter_ids()
        before = {node.id for node in self._SyncObj__otherNodes}
        others = voters - {self.id}
        self._SyncObj__otherNodes = {_Node(voter) for voter in sorted(others)}
        for peer in sorted(others - before):
            self._SyncObj__raftNextIndex.setdefault(_Node(peer), 0)
            self._SyncObj__raftMatchIndex.setdefault(_Node(peer), 0)
            self._SyncObj__lastResponseTime[_Node(peer)] = self.now_ms / 1000
        if self.state() == _LEADER:
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
        """Why the voters cannot be changed so, now; None: they can."""
        voters = self.voter_ids()
        first = self._SyncObj__noopIDx
        if self.state() != _LEADER or self.resigning_until_ms is not None:
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
        return None

    # -- commands

    def append(self, entry: bytes) -> tuple[int, int]:
        """Add to the leader's log, by the library's own way in."""
        self.uncommitted_bytes += len(entry)
        self._applyCommand(entry, None)
        self._checkCommandsToApply()
        return self.log.last_index, self.term_now()

    # -- handing over

    def resign(self) -> None:
        if self.state() == _LEADER and self.resigning_until_ms is None:
            self.resigning_until_ms = self.now_ms + self.election_timeout_ms
            self._go_on_resigning()

    def _go_on_resigning(self) -> None:
        """Hand over to a voter that has everything; when there is none for too long, only stop leading."""
        assert self.resigning_until_ms is not None
        if self.state() != _LEADER:
            self.resigning_until_ms = None
            return
        ready = sorted(self.connected_peers & self.voter_ids(), key=lambda peer: (-self.match_index(peer), peer))
        was_told = any(message.body["type"] == "timeout_now" for message in self.outbox)
        if ready and not was_told and self.match_index(ready[0]) == self.log.last_index:
            self.transferLeadership(_Node(ready[0]))
        if self.now_ms >= self.resigning_until_ms:
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = None


_check_names(_library.SyncObj, _OVERRIDDEN | _CALLED)
_unlisted = {name.removeprefix("_SyncObj__") for name in vars(_Raft) if name.startswith("_SyncObj__")} - _OVERRIDDEN
if _unlisted:
    raise ImportError(f"overridden without being checked: {sorted(_unlisted)}")


# -- what the shell holds


class Quorum:
    """One node's part in the quorum. Times are milliseconds of one clock that does not go back."""

    raft_class: type[_Raft] = _Raft
    """For tests, which switch single fixes off."""

    def __init__(
        self, *, node_id: int, voters: Mapping[int, str], journal: Journal, loaded: Loaded, machine: StateMachine,
        rng: Chance, now_ms: int, election_timeout_ms: int = 1000, fetch_timeout_ms: int = 2000,
        snapshot_after_entries: int = SNAPSHOT_AFTER_ENTRIES,
    ) -> None:  # fmt: skip
        """Restores the machine from the snapshot that was loaded; raises what that raises. Entries are applied once
        they are known to be committed."""
        snapshot = loaded.snapshot
        log = _Log(journal, snapshot.index if snapshot else 0, snapshot.term if snapshot else 0, voters)
        if snapshot is not None:
            contents = unpack_snapshot(snapshot.data)
            machine.restore(contents.state)
            log.set_snapshot_voters(contents)
        for entry in loaded.entries:
            log.load((messages.entry_of(entry.data), entry.index, entry.term))
        self._journal = journal
        self._failure: QuorumStoppedError | None = None
        with self._clock(now_ms):
            self._raft = self.raft_class(
                node_id=node_id,
                log=log,
                machine=machine,
                chance=rng,
                now_ms=now_ms,
                election_timeout_ms=election_timeout_ms,
                fetch_timeout_ms=fetch_timeout_ms,
                snapshot_after_entries=snapshot_after_entries,
            )

    @contextmanager
    def _clock(self, now_ms: int) -> Iterator[None]:
        token = _NOW_S.set(now_ms / 1000)
        try:
            yield
        finally:
            _NOW_S.reset(token)

    @contextmanager
    def _turn(self, now_ms: int | None = None, *, advances: bool = True) -> Iterator[_Raft]:
        """One input: with its time, and the last one if it fails."""
        if self._failure is not None:
            raise self._failure
        raft = self._raft
        if now_ms is not None and now_ms > raft.now_ms:
            raft.now_ms = now_ms
        token = _NOW_S.set(raft.now_ms / 1000)
        try:
            yield raft
            raft.voters_changed()
            if advances:
                raft.advance()
                raft.voters_changed()
        except BadMessageError:
            raise
        except QuorumStoppedError as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = QuorumStoppedError(f"the metadata quorum has failed on this node: {error!r}")
            raise self._failure from error
        finally:
            _NOW_S.reset(token)

    # -- inputs

    def tick(self, now_ms: int) -> None:
        """Time has passed: at the latest when `next_tick_ms` said."""
        with self._turn(now_ms):
            pass

    def connected(self, peer: int, now_ms: int) -> None:
        """There is a connection to a peer, in order and without loss until `disconnected`; it replaces an older one."""
        with self._turn(now_ms) as raft:
            raft.connect(peer)

    def disconnected(self, peer: int, now_ms: int) -> None:
        """The connection has ended: what was not yet taken for it is dropped."""
        with self._turn(now_ms) as raft:
            raft.disconnect(peer)

    def receive(self, peer: int, body: dict[str, Any], now_ms: int) -> None:
        """A message of a peer. Raises BadMessageError, a ValueError, for one that no sound peer sends."""
        read = messages.read_body(body)
        with self._turn(now_ms) as raft:
            if peer in raft.connected_peers:
                raft.handle(peer, read)

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Append a command on the leader: index and term, to be watched for in `apply`. None: this node does not lead,
        or too much is waiting to be committed."""
        if len(data) >= MAX_ENTRY_BYTES:
            raise ValueError(f"a metadata command of {len(data)} bytes is too large")
        if not self.is_leader or self._raft.uncommitted_bytes + len(data) > MAX_UNCOMMITTED_BYTES:
            return None
        with self._turn(advances=False) as raft:  # it is on no disk yet: nothing comes of it now
            return raft.append(messages.COMMAND + data)

    def why_no_change(self, *, add: int | None = None, remove: int | None = None) -> str | None:
        """Why `change_voter` would give None."""
        return self._raft.why_no_change(add, remove)

    def change_voter(self, *, add: tuple[int, str] | None = None, remove: int | None = None) -> tuple[int, int] | None:
        """Add a voter that has caught up, or remove one: index and term of the entry. None: not here, or not now."""
        if self._raft.why_no_change(None if add is None else add[0], remove) is not None:
            return None
        changed = dict(self.voters)
        if add is not None:
            changed[add[0]] = add[1]
        if remove is not None:
            del changed[remove]
        with self._turn() as raft:
            return raft.append(messages.voters_entry(changed))

    def resign(self) -> None:
        """Hand the lead over, before a clean stop. Takes a moment; `is_leader` says when."""
        with self._turn() as raft:
            raft.resign()

    # -- outputs

    def take_messages(self) -> list[Message]:
        """What is to be sent, in order for each peer."""
        with self._turn(advances=False) as raft:
            raft.advance()
            raft.feed()
        taken, self._raft.outbox = self._raft.outbox, []
        return taken

    @property
    def needs_sync(self) -> bool:
        """Whether `journal.sync` has something to do, or is doing it."""
        return self._journal.is_dirty

    def synced(self, durable_index: int) -> None:
        """`journal.sync` has returned that index: entries may now be committed, and are applied."""
        with self._turn():
            pass

    def next_tick_ms(self, now_ms: int) -> int:
        """The time of the caller's clock at which `tick` has to be called, at the latest."""
        raft = self._raft
        latest = now_ms + 1000
        if raft.state() == _LEADER:
            times = [raft.followers[peer].heartbeat_ms for peer in raft.followers.keys() & raft.connected_peers]
            if raft.resigning_until_ms is not None:
                times.append(raft.resigning_until_ms)
            return max(now_ms, min([latest, *times]))
        return max(now_ms, min(latest, int(raft._SyncObj__raftElectionDeadline * 1000) + 1))

    # -- state

    @property
    def node_id(self) -> int:
        """This node."""
        return self._raft.id

    @property
    def leader_id(self) -> int | None:
        """Who leads, as far as is known here."""
        return self._raft.leader()

    @property
    def term(self) -> int:
        """The newest term known here."""
        return self._raft.term_now()

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and takes commands; another may have been elected already, unknown to it."""
        return self._failure is None and self._raft.state() == _LEADER and self._raft.resigning_until_ms is None

    @property
    def is_active(self) -> bool:
        """Whether this node leads and has applied everything of earlier terms."""
        first = self._raft._SyncObj__noopIDx
        return self.is_leader and first is not None and self.applied_index >= first

    @property
    def commit_index(self) -> int:
        """The newest entry known to be committed."""
        return self._raft.commit_index

    @property
    def applied_index(self) -> int:
        """The newest entry that the machine has."""
        return self._raft.applied_index()

    @property
    def last_index(self) -> int:
        """The newest entry here."""
        return self._raft.log.last_index

    @property
    def voters(self) -> Mapping[int, str]:
        """Who votes, with their endpoints, by the newest entry that says so."""
        return dict(self._raft.log.voters[-1][1])

    @property
    def connected_peers(self) -> frozenset[int]:
        """To whom there is a connection."""
        return frozenset(self._raft.connected_peers)

    def committed_after(self, index: int, max_bytes: int) -> list[Entry] | None:
        """Applied entries after `index`, at least one where there is one. None: only a snapshot helps."""
        log, applied = self._raft.log, self.applied_index
        if index < log.first_index:
            return None
        found: list[Entry] = []
        size = 0
        for data, entry_index, term in log.entries[index + 1 - log.first_index : applied + 1 - log.first_index]:
            size += len(data)
            if found and size > max_bytes:
                break
            found.append(Entry(index=entry_index, term=term, data=data))
        return found

    def snapshot_for(self) -> Snapshot:
        """A snapshot for somebody who is behind; `committed_after` its index goes on from there."""
        return self._raft.snapshot_for()

    def progress(self) -> list[VoterProgress]:
        """How far each node is, this one first; of others only a leader knows."""
        raft = self._raft
        own = VoterProgress(
            id=raft.id, log_end_index=self._journal.durable_index, last_contact_ms=raft.now_ms,
            last_caught_up_ms=raft.now_ms, is_voter=raft.id in raft.voter_ids(),
        )  # fmt: skip
        return [
            own,
            *(
                VoterProgress(
                    id=peer, log_end_index=raft.match_index(peer), last_contact_ms=follower.last_contact_ms,
                    last_caught_up_ms=follower.last_caught_up_ms, is_voter=peer in raft.voter_ids(),
                )
                for peer, follower in sorted(raft.followers.items())
            ),
        ]  # fmt: skip

    # -- snapshots

    @property
    def snapshot_due(self) -> bool:
        """Whether the log has grown enough since the last one, and one can be taken now."""
        raft = self._raft
        applied = raft.applied_index()
        grown = (
            applied - raft.snapshot_index >= raft.snapshot_after_entries or raft.applied_bytes >= SNAPSHOT_AFTER_BYTES
        )
        return grown and raft.saving_index is None and raft.received is None and self._can_begin(applied)

    def _can_begin(self, applied: int) -> bool:
        return self._raft.snapshot_index < applied <= self._journal.durable_index

    def begin_snapshot(self) -> tuple[int, int, bytes]:
        """Index, term and data for `journal.save_snapshot`."""
        raft = self._raft
        if raft.saving_index is not None or raft.received is not None or not self._can_begin(raft.applied_index()):
            raise ValueError("there is nothing to take a snapshot of now")
        raft.sent_snapshot = None
        with self._clock(raft.now_ms):
            snapshot = raft.snapshot_for()
        raft.saving_index = snapshot.index
        raft.applied_bytes = 0
        return snapshot.index, snapshot.term, snapshot.data

    def snapshot_saved(self, index: int) -> None:
        """It is on disk: the entries before it need not be kept."""
        raft = self._raft
        assert index == raft.saving_index
        raft.saving_index = None
        raft.snapshot_index = index
        raft.log.forget_to(index)

    @property
    def received_snapshot(self) -> Snapshot | None:
        """A leader's snapshot, checked and restored, that has to be saved now."""
        return self._raft.received if self._raft.saving_index is None else None

    def snapshot_installed(self) -> None:
        """The received snapshot is on disk."""
        with self._turn() as raft:
            raft.installed()
