"""Answers of the cluster, kept for a few seconds: a bounded cache that asks once for all who wait.

    answers = Answers(most=256)
    topics = await answers.get("topics", 2.0, admin.describe_topics)

Invariants: at most `most` answers are kept, the oldest go first; no answer older than its time is handed out; while a
question is being asked, others who ask it wait for the same answer. A failure is raised to all of them and not kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that is awaited or known, and when it was asked for."""

    task: asyncio.Future[Any]
    asked_at: float


class Answers:
    """Answers by question, the least recently asked first."""

    def __init__(self, most: int, clock: Callable[[], float] | None = None) -> None:
        self._most = most
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, question: Hashable, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer if it is younger than `seconds`; ask for it otherwise. Raises what `ask` raises."""
        now = self._now()
        kept = self._kept.get(question)
        if kept is None or (kept.task.done() and now - kept.asked_at >= seconds):
            kept = _Answer(asyncio.ensure_future(ask()), now)
            self._kept[question] = kept
            self._kept.move_to_end(question)
            kept.task.add_done_callback(lambda task: self._forget_failure(question, task))
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        # One who stops waiting (a closed browser) must not cancel the question for the others.
        return cast(T, await asyncio.shield(kept.task))

    def forget(self) -> None:
        """Forget all answers: the cluster was changed."""
        self._kept.clear()

    def _forget_failure(self, question: Hashable, task: asyncio.Future[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            kept = self._kept.get(question)
            if kept is not None and kept.task is task:
                del self._kept[question]

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()
