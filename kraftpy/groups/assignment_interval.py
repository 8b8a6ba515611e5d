"""The minimum time between two assignments of a group that the coordinator assigns to (KIP-1263).

While members come and go in quick succession, the group's epoch rises with each of them, and its targets are computed
once, at the first heartbeat after the interval. Until then members continue with the previous targets; a new member has
none. The time of the last assignment is stored with its epoch, so the interval holds across coordinators. A group whose
targets were never computed, or come from a classic leader, has no such time and does not wait.
"""

from __future__ import annotations

import struct

from kraftpy.groups.records import RecordReader
from kraftpy.protocol.primitives import uvarint
from kraftpy.types import Millis

NEVER_ASSIGNED = 0
_TAG = 0
_LENGTH = 8


def may_assign(assigned_at: int, interval_ms: int, timestamp: Millis) -> bool:
    """Return True if the last targets are old enough for new ones, or the wall clock was set back since."""
    return assigned_at == NEVER_ASSIGNED or not assigned_at <= timestamp < assigned_at + interval_ms


def write_assigned_at(assigned_at: int) -> bytes:
    """Encode the tagged fields of the record with an assignment's epoch, which are the same for all kinds of groups."""
    if assigned_at == NEVER_ASSIGNED:
        return b"\x00"
    return b"\x01" + uvarint(_TAG) + uvarint(_LENGTH) + struct.pack(">q", assigned_at)


def read_assigned_at(reader: RecordReader) -> int:
    """Parse these tagged fields. Raises ProtocolError."""
    return RecordReader(reader.tagged_fields().get(_TAG, bytes(_LENGTH))).int64()
