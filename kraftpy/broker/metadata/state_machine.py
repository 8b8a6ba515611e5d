"""The metadata state machine with a record of applied entries: the quorum drives it, the broker reads the notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Applied
from kraftpy.metadata.image import Image


class Note(NamedTuple):
    """One applied entry, or None if a snapshot replaced the image."""

    applied: Applied | None


class RecordingMachine:
    """The metadata state machine that the quorum drives; it records what has changed for the broker."""

    def __init__(self, unusable: Callable[[int, str], None] | None = None) -> None:
        """`unusable` is called with the index of an entry that is not a command, and the reason."""
        self._unusable = unusable
        self.state = MetadataStateMachine()
        self._notes: list[Note] = []

    def apply(self, index: int, term: int, data: bytes) -> int:
        """Decide a committed command; return the units of work, which are its records and itself."""
        applied = self.state.apply(index, term, data)
        self._notes.append(Note(applied))
        if applied.is_unusable and self._unusable is not None:
            self._unusable(index, applied.decision.message or "")
        return 1 + len(applied.decision.records)

    def capture(self) -> Callable[[], bytes]:
        """Capture the whole state; the returned function encodes it, in any thread."""
        return self.state.capture()

    def decode(self, data: bytes) -> Callable[[], None]:
        """Decode a whole state, in any thread; the returned function replaces the state. Raises CodecError."""
        image = Image.from_bytes(data)

        def replace() -> None:
            self.state.image = image
            self._notes.append(Note(None))

        return replace

    def take(self) -> list[Note]:
        """Return and clear the notes recorded since the last call."""
        notes, self._notes = self._notes, []
        return notes
