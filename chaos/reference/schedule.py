"""Interleaves clients in virtual time: each is an iterator of the nanoseconds it lets pass."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

MS = 1_000_000
SECOND = 1000 * MS


class Schedule:
    """Runs tasks in order of their time; equal times in the order of insertion."""

    def __init__(self) -> None:
        self.now = 0
        self._order = itertools.count()
        self._due: list[tuple[int, int, Iterator[int]]] = []

    def add(self, task: Iterator[int], after: int = 0) -> None:
        """Begin the task after a delay."""
        heapq.heappush(self._due, (self.now + after, next(self._order), task))

    def run(self) -> None:
        """Run until every task has ended."""
        while self._due:
            self.now, _, task = heapq.heappop(self._due)
            pause = next(task, None)
            if pause is not None:
                self.add(task, pause)
