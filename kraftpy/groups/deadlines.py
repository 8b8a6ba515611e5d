"""Many deadlines, most of them moved later again and again before they are due.

A heap holds one live entry per key. Moving a deadline later only writes the dictionary; the stale heap entry
is put right when it surfaces. So a heartbeat, which moves a session's end, costs one dictionary write.

Invariant: for every key there is a heap entry at or before its deadline. Ties are broken by key, so the order in
which things fall due is the same in every run.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from kraftpy.types import Millis


class Key(NamedTuple):
    """What falls due: something (`kind`) of a group, or of one of its members."""

    group_id: str
    kind: str
    member_id: str = ""


class Deadlines:
    """When each key falls due, and which does next."""

    def __init__(self) -> None:
        self._due: dict[Key, Millis] = {}
        self._heap: list[tuple[Millis, Key]] = []
        self._entry: dict[Key, Millis] = {}  # where the key's live entry stands in the heap; others are stale

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def all(self) -> dict[Key, Millis]:
        """Every key that has a deadline, and that deadline, sorted by key. For tests and messages."""
        return dict(sorted(self._due.items()))

    def set(self, key: Key, deadline: Millis) -> None:
        """Let `key` fall due at `deadline`, instead of when it did before."""
        self._due[key] = deadline
        entry = self._entry.get(key)
        if entry is None or deadline < entry:
            self._push(key, deadline)

    def cancel(self, key: Key) -> None:
        """`key` no longer falls due. Unknown keys are fine."""
        self._due.pop(key, None)

    def next(self) -> Millis | None:
        """The earliest deadline, or None where there is none."""
        while self._heap:
            at, key = self._heap[0]
            if self._entry.get(key) == at:
                due = self._due.get(key)
                if due == at:
                    return at
                del self._entry[key]
                if due is not None:
                    self._push(key, due)
            heapq.heappop(self._heap)  # still the same entry: what was pushed is later
        return None

    def pop_due(self, now: Millis) -> Key | None:
        """Take the earliest key whose deadline is at or before `now`; None where nothing is due."""
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
