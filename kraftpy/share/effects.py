"""The data of a share partition: the ranges it reads and hands out, and its effects (`share.partition`)."""

from __future__ import annotations

from typing import NamedTuple

from kraftpy.frozen import frozen
from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.batches import StateBatch
from kraftpy.share.in_flight import GivenUp


class Stretch(NamedTuple):
    """A range of offsets that was read: one batch, or a stretch without records for consumers (markers, aborted)."""

    first_offset: int
    last_offset: int
    has_records: bool = True


class Acquired(NamedTuple):
    """A range of records that a member has just acquired."""

    first_offset: int
    last_offset: int
    delivery_count: int

    @property
    def size(self) -> int:
        """The number of offsets in the range."""
        return self.last_offset - self.first_offset + 1


@frozen
class Write:
    """Write this to the coordinator, then report the outcome by `written`."""

    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@frozen
class Reply:
    """Answer this acknowledgement."""

    request_id: int
    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@frozen
class Available:
    """Records may be available now: waiting fetches should look again."""


@frozen
class DeadLetters:
    """Write these records to the group's dead letter queue, then report by `dead_letters_written`."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: GivenUp


Effect = Write | Reply | Available | DeadLetters
