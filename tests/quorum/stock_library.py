"""The Raft library as published, in copies of its own: only its clock, its sockets and its files are given to it.

For tests that show what it does. Nothing here repairs anything, and nothing of ours sees it.
"""

from __future__ import annotations

import importlib.util
import pickle
import random
from collections.abc import Callable
from typing import Any

from pysyncobj.journal import MemoryJournal
from pysyncobj.node import Node


class _NoPoller:
    def __init__(self, *_: object) -> None: ...

    def poll(self, _: float) -> None: ...

    def subscribe(self, *_: object) -> None: ...


def load_stock() -> Any:
    """A copy of the library's main module."""
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    library.__dict__["createPoller"] = _NoPoller
    library.__dict__["PIPE_NOTIFIER_ENABLED"] = False
    library.__dict__["logger"].disabled = True
    return library


def kept_journal() -> Any:
    """The library's own journal in memory, as if on a disk that loses nothing."""

    class Kept(MemoryJournal):
        commit = 1

        def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
            self.commit = raftCommitIndex

        def getRaftCommitIndex(self) -> int:  # noqa: N802
            return self.commit

    return Kept()


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0


class Stock:
    """Some stock nodes in one process: a table of keys, messages delivered by hand."""

    def __init__(self) -> None:
        self.clock = clock = Clock()
        self.library = library = load_stock()
        library.monotonicTime = lambda: clock.now_s
        library.random = random.Random(1)

        class Transport(library.Transport):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__(None, None, ())
                self.sent: list[tuple[str, Any]] = []
                self.on_send: Callable[[], None] = lambda: None

            def send(self, node: Any, message: Any) -> bool:
                self.on_send()
                self.sent.append((node.id, pickle.loads(pickle.dumps(message))))
                return True

        class Table(library.SyncObj):  # type: ignore[misc, name-defined]
            def __init__(self, name: str, others: str, **settings: Any) -> None:
                configuration = library.SyncObjConf(autoTick=False, **settings)
                self.wire = Transport()
                super().__init__(Node(name), [Node(other) for other in others], configuration, transport=self.wire)
                self.table: dict[str, Any] = {}
                self.election_at(clock.now_s + 1e6)

            @library.replicated  # type: ignore[misc]
            def put(self, key: str, value: Any) -> Any:
                self.table[key] = value
                return value

            @library.replicated  # type: ignore[misc]
            def count(self, key: str, *, fails: bool = False) -> None:
                self.table[key] = self.table.get(key, 0) + 1
                if fails:
                    raise RuntimeError("as a replicated method may")

            def election_at(self, at_s: float) -> None:
                self._SyncObj__raftElectionDeadline = at_s

            def connect(self, others: str) -> None:
                for other in others:
                    self._SyncObj__onNodeConnected(Node(other))

            def receive(self, sender: str, message: Any) -> None:
                self._SyncObj__onMessageReceived(Node(sender), message)

            def tick(self, seconds: float = 0.0) -> None:
                clock.now_s += seconds
                self.doTick(0.0)

            def lead(self, *voters: str) -> None:
                """Be elected, now."""
                clock.now_s += 5
                self.election_at(clock.now_s - 1)
                self.tick()
                for voter in voters:
                    self.receive(voter, {"type": "response_vote", "term": self.raftCurrentTerm})
                assert self._isLeader()

            def take(self, receiver: str) -> list[Any]:
                """Take the messages that were sent to one node."""
                taken = [message for node, message in self.wire.sent if node == receiver]
                self.wire.sent = [(node, message) for node, message in self.wire.sent if node != receiver]
                return taken

            def places(self) -> list[tuple[int, int]]:
                return [(entry[1], entry[2]) for entry in self._SyncObj__raftLog[:]]

            def append(self, sender: str, first: int, last: int, *, term: int, commit: int, previous_term: int) -> None:
                """Receive entries from a leader."""
                entries = [(self.command(f"key {index}", index), index, term) for index in range(first, last + 1)]
                self.receive(
                    sender,
                    {
                        "type": "append_entries", "term": term, "commit_index": commit, "prevLogIdx": first - 1,
                        "prevLogTerm": previous_term, "entries": entries,
                    },
                )  # fmt: skip

            def command(self, key: str, value: Any) -> bytes:
                return b"\0" + pickle.dumps((self._methodToID["put_v0"], (key, value)), 2)

        self.Table = Table

    def table(self, name: str, others: str = "bc", **settings: Any) -> Any:
        """A node, connected to the others."""
        node = self.Table(name, others, **settings)
        node.connect(others)
        return node
