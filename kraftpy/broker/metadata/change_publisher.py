"""Publishes decided changes of the metadata to the broker, in order, each before its submitter gets the result.

The image is always current; the broker acts on it a little later. If acting fails with an unexpected error, the broker
acts on the whole image instead, again and again until that succeeds. Until then it is behind, and submitters get an
error that says so.

Invariant: `acted_index` never exceeds the newest entry that the broker has acted on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kraftpy.broker.containment import Fatal, Incidents
from kraftpy.broker.metadata.state_machine import Note
from kraftpy.metadata.decision import Applied
from kraftpy.metadata.records import Record

_CATCH_UP_SECONDS, _MOST_CATCH_UP_SECONDS = 1.0, 60.0
"""The pause before the broker tries again to act on the image after an unexpected error."""

Changed = Callable[[Sequence[Record] | None], Awaitable[None]]
"""Called with decided records, in order, before their submitters get the result; None after a whole new image."""


class _Changes(NamedTuple):
    """Notes that wait to be acted on, and how far the image was with them."""

    notes: list[Note]
    applied_index: int


class ChangePublisher:
    """The decided changes on their way to the broker.

    `resolve` is called with each applied command and whether the broker has acted on it; `acted` after each round.
    """

    def __init__(
        self,
        changed: Changed,
        resolve: Callable[[Applied, bool], None],
        acted: Callable[[], None],
        incidents: Incidents,
    ) -> None:
        self._changed = changed
        self._resolve = resolve
        self._acted = acted
        self._incidents = incidents
        self._waiting: asyncio.Queue[_Changes] = asyncio.Queue()
        self._is_publishing = False
        self._is_behind = False
        """The broker has not acted on the whole image, because of an unexpected error."""
        self._catch_up_seconds = _CATCH_UP_SECONDS
        self._applied_index = 0
        """The newest entry in the image."""
        self.acted_index = 0
        """The newest entry that the broker has acted on."""

    def add(self, notes: list[Note], applied_index: int) -> None:
        """Add what was applied to the image since the last call."""
        self._applied_index = applied_index
        if notes or applied_index != self.acted_index:
            self._waiting.put_nowait(_Changes(notes, applied_index))

    def start_publishing(self) -> None:
        """Publish every change from now on; the broker acts on the image as it is now by other means."""
        while not self._waiting.empty():
            self._resolve_all(self._waiting.get_nowait())
        self._is_publishing = True

    async def run(self) -> None:
        """Publish changes as they come; this never returns."""
        while True:
            changes = await self._next()
            while not self._waiting.empty():
                more = self._waiting.get_nowait()
                changes = _Changes(changes.notes + more.notes, more.applied_index)
            await self._publish(changes)
            self._resolve_all(changes)

    async def finish(self) -> None:
        """Publish the changes that wait; `run` must have ended."""
        while not self._waiting.empty():
            changes = self._waiting.get_nowait()
            await self._publish(changes)
            self._resolve_all(changes)

    async def _next(self) -> _Changes:
        """Wait for the next changes; if the broker is behind, wait only briefly, so that it can catch up."""
        if not self._is_behind:
            return await self._waiting.get()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._catch_up_seconds):
                return await self._waiting.get()
        return _Changes([], self._applied_index if self._waiting.empty() else self.acted_index)

    async def _publish(self, changes: _Changes) -> None:
        """Let the broker act on the changes, or on the whole image if it is behind."""
        if not self._is_publishing:
            return
        is_whole = self._is_behind or any(applied is None for (applied,) in changes.notes)
        records = [record for (applied,) in changes.notes if applied for record in applied.decision.records]
        if not is_whole and not records:
            return
        if not is_whole and await self._try_to_act(records):
            return
        self._is_behind = not await self._try_to_act(None)
        pause = self._catch_up_seconds * 2 if self._is_behind else _CATCH_UP_SECONDS
        self._catch_up_seconds = min(pause, _MOST_CATCH_UP_SECONDS)

    async def _try_to_act(self, records: Sequence[Record] | None) -> bool:
        """Let the broker act on records, or on the whole image (None); return whether it did without an error."""
        try:
            await self._changed(records)
        except Fatal:
            raise
        except Exception as error:
            self._incidents.note("acting on changed metadata", error)
            return False
        return True

    def _resolve_all(self, changes: _Changes) -> None:
        if not self._is_behind:
            self.acted_index = changes.applied_index
        for (applied,) in changes.notes:
            if applied is not None:
                self._resolve(applied, not self._is_behind)
        self._acted()
