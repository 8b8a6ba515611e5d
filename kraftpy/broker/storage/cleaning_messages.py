"""The messages between a broker and its cleaner process: pickles, each preceded by its length.

Both ends are this program, and no one else has access to the pipe. All that is sent is made of named tuples: a frozen
data class cannot be unpickled where it is compiled.
"""

from __future__ import annotations

import pickle
from typing import Final, NamedTuple

from kraftpy.log.compaction_work import Cleaned, CleaningPlan, Done

LENGTH_BYTES: Final = 4


class Order(NamedTuple):
    """A partition's directory, and the cleaning to do in it."""

    path: str
    plan: CleaningPlan
    bytes_per_second: float


class Failure(NamedTuple):
    """A failed cleaning: the text of a `CorruptBatch`, an OSError's number, text and file, or an error of ours."""

    reason: str
    errno: int | None = None
    filename: str | None = None
    is_unexpected: bool = False
    """An error of ours: it would happen again."""


Message = Cleaned | Done | Failure


def encode(message: Order | Message) -> bytes:
    """Encode a message with its length."""
    body = pickle.dumps(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
