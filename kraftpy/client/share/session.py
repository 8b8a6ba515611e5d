"""One share session between a member and a broker, from opening to end. No I/O, no clock of its own.

A session has an epoch: a ShareFetch opens it with 0, every request, ShareFetch or ShareAcknowledge, raises it, and -1
closes it. So one request is outstanding at a time; acknowledgements made meanwhile go with the next. When a session
ends, the broker releases what the member acquired in it: acknowledgements of these records fail from then on.

Invariants: an offset is finally acknowledged once, RENEW aside; every acknowledgement has one `Outcome`; the request
that opens a session carries no acknowledgement.

KIP-932; KIP-1222 (RENEW).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kraftpy.client.model import AcknowledgeType
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition

OPENING_EPOCH = 0
CLOSING_EPOCH = -1
GAP = 0
"""The acknowledgement type that says that there is no record at the offset."""
_LAST_EPOCH = 2**31 - 1


class AcknowledgementRun(NamedTuple):
    """The same acknowledgement for the offsets from first to last."""

    first_offset: int
    last_offset: int
    type: int


class Outcome(NamedTuple):
    """The outcome of acknowledging these offsets."""

    partition: TopicPartition
    offsets: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """The contents of a ShareFetch or ShareAcknowledge."""

    session_epoch: int
    added: tuple[TopicPartition, ...] = ()
    forgotten: tuple[TopicPartition, ...] = ()
    acknowledgements: Mapping[TopicPartition, tuple[AcknowledgementRun, ...]] = field(default_factory=dict)
    is_renew: bool = False


Acknowledgements = dict[TopicPartition, dict[int, int]]


@dataclass(slots=True)
class ShareSession:
    """The state machine. Ask it for a request, then report the result."""

    epoch: int = OPENING_EPOCH
    is_over: bool = False
    is_busy: bool = False  # a request is outstanding
    partitions: dict[TopicPartition, None] = field(default_factory=dict)  # as the broker knows them
    held: dict[TopicPartition, set[int]] = field(default_factory=dict)  # acquired and not finally acknowledged yet
    pending_since_ms: float | None = None  # when the oldest pending acknowledgement was made
    _pending: Acknowledgements = field(default_factory=dict)
    _sent: Acknowledgements = field(default_factory=dict)

    # --- what is acquired, and what is said of it -----------------------------------------------------------------

    def acquired(self, partition: TopicPartition, offsets: Iterable[int]) -> None:
        """Note that the member acquired these offsets."""
        self.held.setdefault(partition, set()).update(offsets)

    def holds(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the offset may be acknowledged."""
        return offset in self.held.get(partition, ())

    def acknowledge(self, partition: TopicPartition, offset: int, kind: int, now: float) -> Outcome | None:
        """Acknowledge a record that is held; a later call replaces a RENEW that was not sent yet.

        Returns an outcome at once if the session is over.
        """
        offsets = self.held[partition]
        if kind != AcknowledgeType.RENEW:
            offsets.discard(offset)
        if self.is_over:
            return Outcome(partition, (offset,), ErrorCode.INVALID_RECORD_STATE)
        self._pending.setdefault(partition, {})[offset] = kind
        if self.pending_since_ms is None:
            self.pending_since_ms = now
        return None

    def release_held(self, now: float) -> None:
        """Release every record that was not acknowledged."""
        for partition, offsets in self.held.items():
            for offset in sorted(offsets):
                self.acknowledge(partition, offset, AcknowledgeType.RELEASE, now)

    @property
    def has_pending(self) -> bool:
        """True if acknowledgements wait to be sent."""
        return bool(self._pending)

    @property
    def awaits_outcomes(self) -> bool:
        """True if the outcome of some acknowledgement is unknown."""
        return bool(self._pending or self._sent)

    @property
    def renews(self) -> bool:
        """True if locks have to be renewed, which no fetch can do."""
        return any(kind == AcknowledgeType.RENEW for kinds in self._pending.values() for kind in kinds.values())

    # --- requests -------------------------------------------------------------------------------------------------

    def fetch(self, wanted: Iterable[TopicPartition]) -> ShareRequest:
        """Build a fetch of these partitions, with the pending acknowledgements."""
        names = dict.fromkeys(wanted)
        added = tuple(name for name in names if name not in self.partitions)
        forgotten = tuple(name for name in self.partitions if name not in names)
        self.partitions = names
        if self.epoch == OPENING_EPOCH:
            return self._request(added=added)
        return self._request(added=added, forgotten=forgotten, says=True)

    def acknowledge_now(self) -> ShareRequest:
        """Build a request with the pending acknowledgements that asks for no records."""
        assert self.epoch != OPENING_EPOCH, "what is acknowledged was acquired in the session"
        return self._request(says=True)

    def close(self) -> ShareRequest | None:
        """Build the last request of the session; None if there is no session to end."""
        if self.is_over or self.epoch == OPENING_EPOCH:
            return None
        self.epoch = CLOSING_EPOCH
        return self._request(says=True)

    def _request(
        self, *, added: tuple[TopicPartition, ...] = (), forgotten: tuple[TopicPartition, ...] = (), says: bool = False
    ) -> ShareRequest:
        assert not self.is_busy, "one request at a time"
        assert not self.is_over, "a session that is over asks for nothing"
        self.is_busy = True
        is_renew = self.renews
        if says:
            self._sent, self._pending, self.pending_since_ms = self._pending, {}, None
        return ShareRequest(
            session_epoch=self.epoch,
            added=added,
            forgotten=forgotten,
            acknowledgements={name: runs(kinds) for name, kinds in sorted(self._sent.items())},
            is_renew=is_renew and says,
        )

    # --- answers --------------------------------------------------------------------------------------------------

    def answered(self, errors: Mapping[TopicPartition, ErrorCode]) -> list[Outcome]:
        """Take in the answer to a request; `errors` are those of partitions whose acknowledgements were refused."""
        self.is_busy = False
        sent, self._sent = self._sent, {}
        outcomes = [
            Outcome(name, tuple(sorted(kinds)), errors.get(name, ErrorCode.NONE))
            for name, kinds in sorted(sent.items())
        ]
        for name, _, error in outcomes:
            if error is not ErrorCode.NONE:  # if a lock was not renewed, the record is lost
                for offset, kind in sent[name].items():
                    if kind == AcknowledgeType.RENEW and offset not in self._pending.get(name, {}):
                        self.held[name].discard(offset)
        if self.epoch == CLOSING_EPOCH:
            return [*outcomes, *self.ended(ErrorCode.INVALID_RECORD_STATE)]
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1
        return outcomes

    def ended(self, error: ErrorCode) -> list[Outcome]:
        """End the session, refused or out of reach. The member no longer holds anything acquired in it."""
        self.is_over, self.is_busy = True, False
        outcomes = [
            Outcome(name, tuple(sorted(kinds)), error)
            for acknowledgements in (self._sent, self._pending)
            for name, kinds in sorted(acknowledgements.items())
        ]
        self._sent, self._pending, self.pending_since_ms = {}, {}, None
        return outcomes


def runs(kinds: Mapping[int, int]) -> tuple[AcknowledgementRun, ...]:
    """Turn offsets and their acknowledgements into runs of consecutive offsets with the same one."""
    found: list[AcknowledgementRun] = []
    for offset, kind in sorted(kinds.items()):
        if found and found[-1].last_offset == offset - 1 and found[-1].type == kind:
            found[-1] = found[-1]._replace(last_offset=offset)
        else:
            found.append(AcknowledgementRun(offset, offset, int(kind)))
    return tuple(found)
