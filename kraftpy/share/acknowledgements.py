"""Acknowledgements, in the form ShareFetch and ShareAcknowledge have them, and the check that they are valid."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from kraftpy.protocol.errors import ErrorCode


class AcknowledgeType(IntEnum):
    """The outcome of a record; the numbers are those of the protocol."""

    GAP = 0  # there is no record at that offset
    ACCEPT = 1  # it was processed
    RELEASE = 2  # it becomes available to any member
    REJECT = 3  # no member gets it again
    RENEW = 4  # processing takes longer: the lock starts over (KIP-1222)


class Acknowledgement(NamedTuple):
    """One outcome for all offsets from the first to the last."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType


class BadAcknowledgement(Exception):
    """An acknowledgement is invalid; the message says why."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


def read_batch(first_offset: int, last_offset: int, types: Sequence[int], *, may_renew: bool) -> list[Acknowledgement]:
    """Parse a request's batch of acknowledgements: it has one type for all offsets, or one for each.

    Raises BadAcknowledgement (INVALID_REQUEST).
    """
    if not 0 <= first_offset <= last_offset:
        raise BadAcknowledgement(ErrorCode.INVALID_REQUEST, f"invalid offset range {first_offset} to {last_offset}")
    if len(types) not in (1, last_offset - first_offset + 1):
        message = f"{len(types)} types for {last_offset - first_offset + 1} offsets"
        raise BadAcknowledgement(ErrorCode.INVALID_REQUEST, message)
    for each in types:
        if each not in AcknowledgeType._value2member_map_ or (each == AcknowledgeType.RENEW and not may_renew):
            raise BadAcknowledgement(ErrorCode.INVALID_REQUEST, f"unknown acknowledgement type {each}")
    if len(types) == 1:
        return [Acknowledgement(first_offset, last_offset, AcknowledgeType(types[0]))]
    found: list[Acknowledgement] = []
    for offset, number in enumerate(types, first_offset):
        if found and found[-1].type == number:
            found[-1] = found[-1]._replace(last_offset=offset)
        else:
            found.append(Acknowledgement(offset, offset, AcknowledgeType(number)))
    return found


def check(acknowledgements: Sequence[Acknowledgement]) -> Sequence[Acknowledgement]:
    """Return them in order if they name no offset twice. Raises BadAcknowledgement (INVALID_RECORD_STATE)."""
    acknowledgements = sorted(acknowledgements, key=attrgetter("first_offset"))
    for before, after in pairwise(acknowledgements):
        if after.first_offset <= before.last_offset:  # as if the second one came in a separate request
            message = f"offset {after.first_offset} is acknowledged twice"
            raise BadAcknowledgement(ErrorCode.INVALID_RECORD_STATE, message)
    return acknowledgements
