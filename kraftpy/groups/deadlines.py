"""Many deadlines, most of which are postponed again and again before they fall due.

A heap holds one live entry per key. Postponing a deadline only updates the dictionary; the stale heap entry is
corrected when it surfaces. A heartbeat, which postpones the end of a session, therefore costs one dictionary write.

Invariant: every key has a heap entry at or before its deadline. Ties are broken by key, so deadlines fall due in the
same order in every run.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from kraftpy.types import Millis


class Key(NamedTuple):
    """Identifies a deadline: a `kind` of event for a group or one of its members."""

    group_id: str
    kind: str
    member_id: str = ""


class Deadlines:
    """The deadline of each key, and the earliest of them."""

    def __init__(self) -> None:
        self._due: dict[Key, Millis] = {}
        self._heap: list[tuple[Millis, Key]] = []
        self._entry: dict[Key, Millis] = {}  # time of the key's live heap entry; others are stale

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def all(self) -> dict[Key, Millis]:
        """Return all deadlines, sorted by key. For tests and messages."""
        return dict(sorted(self._due.items()))

    def set(self, key: Key, deadline: Millis) -> None:
        """Set the deadline of `key`, replacing an earlier one."""
        self._due[key] = deadline
        entry = self._entry.get(key)
        if entry is None or deadline < entry:
            self._push(key, deadline)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._due.pop(key, None)

    def next(self) -> Millis | None:
        """The earliest deadline, or None."""
        while self._heap:
            at, key = self._heap[0]
            if self._entry.get(key) == at:
                due = self._due.get(key)
                if due == at:
                    return at
                del self._entry[key]
                if due is not None:
                    self._push(key, due)
            heapq.heappop(self._heap)  # still the same entry: the pushed one is later
        return None

    def pop_due(self, now: Millis) -> Key | None:
        """Remove and return the earliest key whose deadline is at or before `now`; None if nothing is due."""
        at = self.next()
        if at is None or at > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        del self._entry[key]
        return key

    def _push(self, key: Key, at: Millis) -> None:
        self._entry[key] = at
        heapq.heappush(self._heap, (at, key))
