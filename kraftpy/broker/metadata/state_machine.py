"""The metadata state machine with a note of what it has applied: the quorum drives it, the broker reads the notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Applied


class Note(NamedTuple):
    """One entry that was applied; None: a snapshot has replaced the image."""

    applied: Applied | None


class NotingMachine:
    """The metadata state machine as the quorum drives it, with a note of what has changed."""

    def __init__(self, unusable: Callable[[int, str], None] | None = None) -> None:
        """`unusable` is told of an entry that changed nothing because it is no command, and why."""
        self._unusable = unusable
        self.state = MetadataStateMachine()
        self._notes: list[Note] = []

    def apply(self, index: int, term: int, data: bytes) -> object:
        """Decide a committed command."""
        applied = self.state.apply(index, term, data)
        self._notes.append(Note(applied))
        if applied.is_unusable and self._unusable is not None:
            self._unusable(index, applied.decision.message or "")
        return applied

    def snapshot(self) -> bytes:
        """The whole state."""
        return self.state.snapshot()

    def restore(self, data: bytes) -> None:
        """Take a whole state. Raises CodecError."""
        self.state.restore(data)
        self._notes.append(Note(None))

    def take(self) -> list[Note]:
        """What has changed since the last call."""
        notes, self._notes = self._notes, []
        return notes
