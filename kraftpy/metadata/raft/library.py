"""The Raft library, pysyncobj: the only module that imports it or knows its private names.

`library` is pysyncobj's `syncobj` loaded a second time, so that our patches do not affect its other users: without its
sockets, threads, clock, files and pickles. `RaftLibrary` names the library's state as the paper does; `_Hardened`
overrides what the library does with peers, disks, clocks and chance. The import fails if the library's version is
another one, or lacks a name that is overridden, called, read or written here.

The library keeps terms and roles, grants and counts votes, appends a new leader's first entry, matches, appends and
truncates entries, applies the commit rule, steps down, and applies entries in order. The other modules of this package
do the rest, and make every message harmless before they pass it to the library. D16 and the like are numbers of
docs/explanation/raft-library.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from contextvars import ContextVar
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kraftpy.metadata.raft.log import RaftLog

LIBRARY_VERSION = "0.3.17"


class QuorumStoppedError(Exception):
    """This node cannot take part in the quorum until it is restarted; the message is for its operator."""


class Role(IntEnum):
    """The role of a server (§5.1), numbered as the library does."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


# -- the copy of the library


class _Pickle:
    """Replaces the library's pickle module, which must never be used (D16)."""

    def __getattr__(self, name: str) -> object:
        raise QuorumStoppedError(f"pysyncobj used pickle.{name}, which must not happen")


class _Nothing:
    """Replaces the parts that open sockets, pipes and files: it accepts every call and does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


_NOT_IMPORTED = {
    "cryptography": None,  # slow to import, and for its transport only
    "pysyncobj.win_inet_pton": ModuleType("pysyncobj.win_inet_pton"),  # it replaces socket.inet_ntop by that of Windows
}
NOW_S: ContextVar[float] = ContextVar("NOW_S", default=0.0)
"""The library's clock: the time of the `Quorum` that is processing an input."""


def load_library() -> Any:
    """Load the library's module a second time, so that our patches do not affect other users of it."""
    absent = {name: module for name, module in _NOT_IMPORTED.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        spec = importlib.util.find_spec("pysyncobj.syncobj")
        assert spec is not None
        assert spec.loader is not None
        loaded: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    finally:
        for name in absent:
            del sys.modules[name]
    replaced = {
        "monotonicTime": NOW_S.get,
        "createJournal": lambda log: log,
        "createPoller": _Nothing,
        "globalDnsResolver": _Nothing,
        "Serializer": _Nothing,
        "pickle": _Pickle(),
        "random": None,
        "time": None,
        "os": None,
    }
    missing = sorted(replaced.keys() - vars(loaded).keys())
    if missing or loaded.VERSION != LIBRARY_VERSION:
        raise ImportError(f"kraftpy needs pysyncobj {LIBRARY_VERSION} exactly; found {loaded.VERSION} {missing or ''}")
    vars(loaded).update(replaced)
    return loaded


library: Any = load_library()
Node: Any = library.Node
logger: Any = library.logger
"""The library's logger."""


# -- its private names

_STATE = frozenset(
    {
        "lastResponseTime", "noopIDx", "onReadyCalled", "otherNodes", "raftCommitIndex", "raftCurrentTerm",
        "raftElectionDeadline", "raftLastApplied", "raftLeader", "raftMatchIndex", "raftState", "transferInProgress",
        "votedForNodeId",
    }
)  # fmt: skip
_OVERRIDDEN = frozenset(
    {
        "applyLogEntries", "connectedToAnyone", "doApplyCommand", "generateRaftTimeout", "loadDumpFile",
        "onBecomeLeader", "onMessageReceived", "parseChangeClusterRequest", "sendAppendEntries", "sendNextNodeIdx",
        "tryLogCompaction",
    }
)  # fmt: skip
_CALLED = frozenset({"setCurrentTerm", "setState"})


def check_names(subject: object, names: frozenset[str]) -> None:
    """Check that the library has every name that we use: a wrong override would silently do nothing."""
    missing = sorted(name for name in names if not hasattr(subject, "_SyncObj__" + name))
    if missing:
        raise ImportError(f"pysyncobj {library.VERSION} has no {', '.join(missing)}")


class Events(Protocol):
    """The questions that the library asks us, and the events that it reports."""

    def may_campaign(self) -> bool:
        """Return whether to campaign now that the election deadline has passed."""
        ...

    def election_timeout_ms(self) -> float:
        """Return the time from now to the next election deadline."""
        ...

    def send_for_library(self, peer: int, body: dict[str, Any]) -> bool:
        """Queue a vote, a request for one, or the request to a successor; return whether the peer is connected."""
        ...

    def role_changed(self, old: Role, new: Role) -> None:
        """Act on a change of role."""
        ...

    def leadership_begins(self) -> None:
        """Act on an election won; the leader's first entry is in the log."""
        ...

    def answer_entries(self, leader: int, *, is_appended: bool) -> None:
        """Answer AppendEntries."""
        ...

    def may_apply(self) -> bool:
        """Return whether to apply another committed entry now."""
        ...

    def apply(self, entry: bytes) -> None:
        """Apply the committed entry after the last applied one."""
        ...


class _Transport(library.Transport):  # type: ignore[misc]
    """The library's transport: it puts the library's messages into our outbox."""

    def __init__(self, send: Callable[[int, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, ())
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Queue a message; return whether that was possible."""
        return self._send(node.id, message)


class _Hardened(library.SyncObj):  # type: ignore[misc]
    """The library's Raft with its defects closed from outside, by overriding."""

    _SyncObj__raftCommitIndex: int

    events: Events | None = None
    """None during construction, when the library asks for a timeout already."""

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """Return whether to campaign; the library calls this before it does."""
        return self.events is not None and self.events.may_campaign()

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return 0.0 if self.events is None else self.events.election_timeout_ms() / 1000

    def _SyncObj__onMessageReceived(self, node: Any, message: dict[str, Any]) -> None:  # noqa: N802
        raise AssertionError("messages come by way of RaftLibrary.receive()")

    def receive(self, node: Any, message: dict[str, Any]) -> None:
        super()._SyncObj__onMessageReceived(node, message)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._SyncObj__raftMatchIndex.clear()  # also a learner's from an earlier leadership, which the library keeps
        super()._SyncObj__onBecomeLeader()
        assert self.events is not None
        self.events.leadership_begins()

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self, node: Any, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False,  # noqa: N803
    ) -> None:  # fmt: skip
        assert self.events is not None
        self.events.answer_entries(node.id, is_appended=success)

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Do nothing: `Leader.send_due` sends, no faster than it is answered (D13)."""

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply committed entries one by one, for as long as we allow; the library would apply all of them at once."""
        assert self.events is not None
        committed: int = self._SyncObj__raftCommitIndex
        try:
            while self._SyncObj__raftLastApplied < committed and self.events.may_apply():
                self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied + 1
                super()._SyncObj__applyLogEntries()
        finally:
            self._SyncObj__raftCommitIndex = committed
        return False

    def _SyncObj__doApplyCommand(self, entry: bytes) -> None:  # noqa: N802
        assert self.events is not None
        self.events.apply(entry)

    def _SyncObj__parseChangeClusterRequest(self, entry: bytes) -> None:  # noqa: N802
        """Do nothing: the log reads the voters from our encoding; the library's is pickle."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise AssertionError("the library has no dump file")

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Do nothing: the broker asks `Snapshots.is_due`."""


check_names(library.SyncObj, _OVERRIDDEN | _CALLED)
_unlisted = {name.removeprefix("_SyncObj__") for name in vars(_Hardened) if name.startswith("_SyncObj__")} - _OVERRIDDEN
if _unlisted:
    raise ImportError(f"overridden without being checked: {sorted(_unlisted)}")


class RaftLibrary:
    """The library's state and actions, by the paper's names.

    Times are seconds of the clock `NOW_S`. `connect_events` must be called before any action.
    """

    def __init__(
        self, *, node_id: int, voters: Collection[int], log: RaftLog, election_timeout_ms: int, fallback_ms: int
    ) -> None:
        configuration = library.SyncObjConf(
            autoTick=False,
            journalFile=log,
            useFork=False,
            appendEntriesUseBatch=True,  # no sending at each command
            raftMinTimeout=election_timeout_ms / 1000,
            raftMaxTimeout=election_timeout_ms / 1000 * 1.5,
            appendEntriesPeriod=max(1, election_timeout_ms // 5) / 1000,
            leaderFallbackTimeout=fallback_ms / 1000,
            connectionTimeout=1e9,
            commandsWaitLeader=False,
            onStateChanged=self._state_changed,
        )
        others = [Node(voter) for voter in sorted(voters) if voter != node_id]
        self._raft = _Hardened(Node(node_id), others, configuration, transport=_Transport(self._send))
        check_names(self._raft, _STATE)
        self._raft._SyncObj__raftLastApplied = log.first_index
        self._raft._SyncObj__onReadyCalled = True
        self._raft._SyncObj__raftElectionDeadline = 0.0

    def connect_events(self, events: Events) -> None:
        """Set the receiver of the library's questions and events."""
        self._raft.events = events

    def _send(self, peer: int, body: dict[str, Any]) -> bool:
        assert self._raft.events is not None
        return self._raft.events.send_for_library(peer, body)

    def _state_changed(self, old: int, new: int) -> None:
        assert self._raft.events is not None
        self._raft.events.role_changed(Role(old), Role(new))

    # -- state

    @property
    def role(self) -> Role:
        """The role of this server."""
        return Role(self._raft._SyncObj__raftState)

    @property
    def current_term(self) -> int:
        """The newest term this server has seen."""
        return int(self._raft._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> int | str | None:
        """The candidate that got this server's vote in the current term."""
        voted_for: int | str | None = self._raft._SyncObj__votedForNodeId
        return voted_for

    @property
    def leader(self) -> int | None:
        """The leader of the current term, if known."""
        node = self._raft._SyncObj__raftLeader
        return None if node is None else int(node.id)

    def forget_leader(self) -> None:
        """Note that no leader is known."""
        self._raft._SyncObj__raftLeader = None

    @property
    def last_applied(self) -> int:
        """The newest entry applied to the state machine."""
        return int(self._raft._SyncObj__raftLastApplied)

    def set_commit_index(self, index: int) -> None:
        """Set the newest entry known to be committed; `RaftLog.on_commit` is not called."""
        self._raft._SyncObj__raftCommitIndex = index

    def snapshot_installed(self, index: int) -> None:
        """Note that the state machine has the state as of an entry."""
        self._raft._SyncObj__raftLastApplied = index

    @property
    def first_index_of_term(self) -> int | None:
        """The no-op that begins this server's newest leadership (§8), or None if it never led."""
        index: int | None = self._raft._SyncObj__noopIDx
        return index

    @property
    def election_deadline_s(self) -> float:
        """The time from which this server asks to campaign, if it does not lead."""
        return float(self._raft._SyncObj__raftElectionDeadline)

    @election_deadline_s.setter
    def election_deadline_s(self, time_s: float) -> None:
        self._raft._SyncObj__raftElectionDeadline = time_s

    @property
    def is_transfer_target(self) -> bool:
        """True if the leader has asked this server to take over."""
        return bool(self._raft._SyncObj__transferInProgress)

    def forget_transfer(self) -> None:
        """Note that the leader that asked this server to take over is gone."""
        self._raft._SyncObj__transferInProgress = False

    # -- the other servers

    @property
    def other_voters(self) -> set[int]:
        """The voters without this server."""
        return {node.id for node in self._raft._SyncObj__otherNodes}

    def set_other_voters(self, voters: Collection[int]) -> None:
        """Set the voters, this server excepted."""
        self._raft._SyncObj__otherNodes = {Node(voter) for voter in sorted(voters)}

    def match_index(self, peer: int) -> int:
        """Return, on a leader, the newest entry that the peer is known to have; 0 if unknown."""
        return int(self._raft._SyncObj__raftMatchIndex.get(Node(peer), 0))

    def set_match_index(self, peer: int, index: int) -> None:
        """Set the newest entry that a peer is known to have."""
        self._raft._SyncObj__raftMatchIndex[Node(peer)] = index

    def follow(self, peer: int) -> None:
        """Add a peer to the tables that the library's leader reads, unless they have it."""
        self._raft._SyncObj__raftMatchIndex.setdefault(Node(peer), 0)
        self._raft._SyncObj__lastResponseTime.setdefault(Node(peer), NOW_S.get())

    def note_response(self, peer: int) -> None:
        """Note that a peer has answered this leader now; without a majority's answers it steps down."""
        self._raft._SyncObj__lastResponseTime[Node(peer)] = NOW_S.get()

    # -- actions

    def tick(self) -> None:
        """Act on the time: campaign, commit, step down, apply committed entries."""
        self._raft._onTick(0.0)

    def receive(self, peer: int, body: dict[str, Any]) -> None:
        """Process a message that was made harmless."""
        self._raft.receive(Node(peer), body)

    def append(self, entry: bytes) -> None:
        """Append to the leader's log."""
        self._raft._applyCommand(entry, None)
        self._raft._checkCommandsToApply()

    def adopt_term(self, term: int) -> None:
        """Become a follower in a newer term, whose leader is not known."""
        self._raft._SyncObj__setCurrentTerm(term, None)
        self.step_down()

    def step_down(self) -> None:
        """Become a follower without a leader."""
        self._raft._SyncObj__setState(Role.FOLLOWER)
        self._raft._SyncObj__raftLeader = None

    def transfer_leadership(self, peer: int) -> None:
        """Ask a voter that has the whole log to campaign at once."""
        self._raft.transferLeadership(Node(peer))
