"""Limits the log lines of one kind per minute: legal requests write lines too.

A kind is a logger, a level and the message before its arguments are filled in, so no call site can forget the limit.
Lines beyond `LINES_PER_MINUTE` are left out; the first line of the kind to be written again says how many. Errors are
not limited here: `Complaints` and `Incidents` limit those that peers cause, and an error of a disk or a partition must
not be lost among others. DEBUG is not limited either.

Invariant: kinds are places in the code, so there are few of them. Messages that are formatted before they are logged
all count as one kind per logger once `MOST_KINDS` are known.
"""

from __future__ import annotations

import logging
from typing import Final

LINES_PER_MINUTE: Final = 200
MOST_KINDS: Final = 1_000
_MINUTE_SECONDS: Final = 60.0


class _Minute:
    """Counts the lines of one kind since the minute began."""

    __slots__ = ("began_at", "left_out", "written")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.written = 0
        self.left_out = 0


class LineLimit(logging.Filter):
    """A handler's filter that drops lines of INFO and WARNING when there are too many in a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[tuple[str, int, str], _Minute] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record; adds the number of earlier records of its kind that were dropped."""
        if not logging.INFO <= record.levelno < logging.ERROR:
            return True
        key = (record.name, record.levelno, str(record.msg))
        minute = self._minutes.get(key)
        if minute is None:
            if len(self._minutes) >= MOST_KINDS:
                key = (record.name, record.levelno, "")
            minute = self._minutes.setdefault(key, _Minute(record.created))
        if not 0 <= record.created - minute.began_at < _MINUTE_SECONDS:  # the clock may have been set back
            minute.began_at, minute.written = record.created, 0
        if minute.written >= LINES_PER_MINUTE:
            minute.left_out += 1
            return False
        minute.written += 1
        if minute.left_out:
            record.msg = f"{str(record.msg).rstrip()} ({minute.left_out} more like it were not logged)"
            minute.left_out = 0
        return True
