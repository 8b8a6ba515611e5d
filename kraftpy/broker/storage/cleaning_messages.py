"""What a broker and its cleaner's process say to each other: pickles, each with its length before it.

Both ends are this program, and nobody else has the pipe.
"""

from __future__ import annotations

import pickle
from typing import Final, NamedTuple

from kraftpy.log.compaction_work import Cleaned, CleaningPlan, Done

LENGTH_BYTES: Final = 4


class Order(NamedTuple):
    """A partition's directory, and what to do in it."""

    path: str
    plan: CleaningPlan
    bytes_per_second: float


class Failure(NamedTuple):
    """It could not be done: the text of a `CorruptBatch`, an OSError's number, text and file, or a mistake of ours."""

    reason: str
    errno: int | None = None
    filename: str | None = None
    is_unexpected: bool = False
    """A mistake of ours: it would happen again."""


Message = Cleaned | Done | Failure


def encode(message: Order | Message) -> bytes:
    """A message with its length."""
    body = pickle.dumps(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
