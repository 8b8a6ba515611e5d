"""The event loop of a node's process: asyncio's own, with a selector that runs readers as soon as it finds them.

asyncio lets its selector make a list of what is ready, turns that into a list of callbacks, and runs those. This one
runs a callback that reads within `select`, which spares a small request some of its cost (decision 55). All others,
such as those that write, are left to the loop.

Callbacks that read run before those that are due already; within one call of `select`, each runs once at most.
Exceptions are handled by asyncio (`Handle._run`), as if the loop had run the callback.

Only Linux has `epoll`; elsewhere the loop is asyncio's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_EVENTS: Final = 1024
"""The most events that one call returns; the others are found by the next."""
_READABLE: Final = 1
"""EPOLLIN, alone: there is something to read, and no error."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for a node."""
    if not hasattr(select, "epoll"):
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(PromptSelector())


class PromptSelector(selectors.BaseSelector):
    """A selector for asyncio's event loop, whose data are the two handles of a file: its reader's and its writer's."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._epoll = select.epoll()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a file. Raises KeyError if it is watched already."""
        fd = _descriptor(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} (FD {fd}) is already registered")
        self._epoll.register(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching a file, which may be closed. Raises KeyError if it is not watched."""
        key = self._keys.pop(_descriptor(fileobj))
        with contextlib.suppress(OSError):  # it is closed
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a file for other events, or with other data. Raises KeyError if it is not watched."""
        fd = _descriptor(fileobj)
        if events != self._keys[fd].events:
            self._epoll.modify(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until a file is ready, for `timeout` seconds at most; run those that read, and return the others."""
        others: list[tuple[selectors.SelectorKey, int]] = []
        wait = -1.0 if timeout is None else max(0.0, timeout)
        try:
            found = self._epoll.poll(wait, _MOST_EVENTS)
        except InterruptedError:
            return others
        keys = self._keys
        ready = [(keys.get(fd), events) for fd, events in found]  # now: a callback may close a file, and open another
        for key, events in ready:
            if key is None or keys.get(key.fd) is not key:  # it was closed or changed: the next call finds the rest
                continue
            reader: asyncio.Handle | None = key.data[0]
            if events == _READABLE and reader is not None and not reader.cancelled():
                reader._run()
            else:
                others.append((key, _events(events) & key.events))
        return others

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return what is watched, by descriptor."""
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return what is watched of a file. Raises KeyError if it is not watched."""
        return self._keys[_descriptor(fileobj)]

    def close(self) -> None:
        """Stop watching everything."""
        self._epoll.close()
        self._keys.clear()


def _descriptor(file: Any) -> int:
    return file if isinstance(file, int) else int(file.fileno())


def _mask(events: int) -> int:
    read = select.EPOLLIN if events & selectors.EVENT_READ else 0
    return read | (select.EPOLLOUT if events & selectors.EVENT_WRITE else 0)


def _events(found: int) -> int:
    """Return the events as `selectors` has them; an error is both, so that whoever reads or writes meets it."""
    read = selectors.EVENT_READ if found & ~select.EPOLLOUT else 0
    return read | (selectors.EVENT_WRITE if found & ~select.EPOLLIN else 0)
