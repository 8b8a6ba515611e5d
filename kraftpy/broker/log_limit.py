"""How many lines of one kind a minute the log of a node may have: legal requests write lines too.

A kind is a logger, a level and the message before its arguments are filled in, so that no place that logs can forget
the limit. Lines beyond `LINES_PER_MINUTE` are left out; the first line of the kind that is written again says how many.
Errors are not limited here: `Complaints` and `Incidents` do that where peers cause them, and one of a disk or a
partition must not be lost among others. DEBUG is for those who want all.

Invariant: kinds are places in the code, so there are few; a message that is put together before it is logged counts as
one with all others of its logger once `MOST_KINDS` are known.
"""

from __future__ import annotations

import logging
from typing import Final

LINES_PER_MINUTE: Final = 200
MOST_KINDS: Final = 1_000
_MINUTE_SECONDS: Final = 60.0


class _Minute:
    """What was logged of a kind since the minute began."""

    __slots__ = ("began_at", "left_out", "written")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.written = 0
        self.left_out = 0


class LineLimit(logging.Filter):
    """Leaves out lines of INFO and WARNING of which there were too many in a minute. A filter of a handler."""

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[tuple[str, int, str], _Minute] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record, with a count if any of its kind were left out before."""
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
