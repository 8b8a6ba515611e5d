"""A private copy of the Raft library's module, without its sockets, threads, clock, files and pickles.

`library` is pysyncobj's `syncobj` loaded a second time, so that our patches do not affect its other users. The import
fails if its version is another one, or lacks a name that we override or call. Nothing else in this package imports
pysyncobj.

D16 and the like are numbers of docs/explanation/raft-library.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

LIBRARY_VERSION = "0.3.17"


class QuorumStoppedError(Exception):
    """This node cannot take part in the quorum until it is restarted; the message is for its operator."""


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
    "pysyncobj.win_inet_pton": ModuleType("pysyncobj.win_inet_pton"),  # it makes everybody's socket.inet_ntop Windows'
}
NOW_S: ContextVar[float] = ContextVar("NOW_S", default=0.0)  # of the Quorum whose turn it is


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
FOLLOWER, _, LEADER = range(3)
Node: Any = library.Node


def check_names(subject: object, names: frozenset[str]) -> None:
    """Check that the library has every name that we override: a wrong override would silently do nothing."""
    missing = sorted(name for name in names if not hasattr(subject, "_SyncObj__" + name))
    if missing:
        raise ImportError(f"pysyncobj {library.VERSION} has no {', '.join(missing)}")


class Transport(library.Transport):  # type: ignore[misc]
    """The library's transport: it puts the library's messages into our outbox."""

    def __init__(self, send: Callable[[int, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, ())
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Queue a message; return whether that was possible."""
        return self._send(node.id, message)
