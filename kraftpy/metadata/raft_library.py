"""The Raft library's module, in a copy of our own: without its sockets, threads, clock, files and pickles.

`library` is pysyncobj's `syncobj` loaded a second time, so that what is put into it is seen by no other user of it. Of
another version, or without a name that is overridden or called, it is refused at import. Nothing else in this package
imports pysyncobj.

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
    """This node cannot take part any more until it is restarted; the message is for the person who runs it."""


class _Pickle:
    """In the place of the library's pickle: nothing is ever read or written with it (D16)."""

    def __getattr__(self, name: str) -> object:
        raise QuorumStoppedError(f"pysyncobj asked for pickle.{name}: that must not happen")


class _Nothing:
    """In the place of what opens sockets, pipes and files: it takes every call and does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


_NOT_IMPORTED = {
    "cryptography": None,  # slow to import, and for its transport only
    "pysyncobj.win_inet_pton": ModuleType("pysyncobj.win_inet_pton"),  # it makes everybody's socket.inet_ntop Windows'
}
NOW_S: ContextVar[float] = ContextVar("NOW_S", default=0.0)  # of the Quorum whose turn it is


def load_library() -> Any:
    """The library's module a second time, so that what is put into it is seen by no other user of the library."""
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
    """An override whose name the library does not have would silently do nothing."""
    missing = sorted(name for name in names if not hasattr(subject, "_SyncObj__" + name))
    if missing:
        raise ImportError(f"pysyncobj {library.VERSION} has no {', '.join(missing)}")


class Transport(library.Transport):  # type: ignore[misc]
    """The library's way out: what it sends is put beside our own messages."""

    def __init__(self, send: Callable[[int, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, ())
        self._send = send

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Whether it could be sent."""
        return self._send(node.id, message)
