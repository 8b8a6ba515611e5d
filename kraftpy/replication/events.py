"""The effects that a leader or a follower asks its caller to carry out, in the order given or not at all.

A leader returns `HighWatermarkAdvanced`, `ProposeIsr` and `FollowerLeftIsr`; a follower returns all the others. The
caller must finish a follower's list before it asks for the next fetch, and drop the rest of the list at the first
effect that fails (reporting the failure with `Follower.failed`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkAdvanced:
    """Everything before `offset` is committed: wake the requests that wait for it."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Ask the quorum for this ISR (AlterPartition, KIP-497).

    The caller reports the outcome with `Leader.changed` (the partition has changed in any way) or
    `Leader.proposal_refused` (refused, or the outcome is unknown). The same proposal may be made again while the
    outcome is unknown.
    """

    isr: tuple[tuple[BrokerId, int], ...]
    """(broker, broker epoch of its last fetch), in the order of the replicas. Broker epoch -1 is not checked."""
    leader_epoch: int
    partition_epoch: int
    """The partition epoch this builds on: the quorum refuses if the partition has a different one by now."""
    is_recovering: bool = False
    """The leader recovery state to set. A leader asks to end recovery, never to begin it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLeftIsr:
    """A follower is in the maximal ISR no more: pass on what it fetches from now on, even if it asks for the same
    again, because each fetch may be the one with which it joins again."""


LeaderEffect = HighWatermarkAdvanced | ProposeIsr | FollowerLeftIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Truncate the log here (`PartitionLog.truncate_to`), even if it already ends here: epochs may have to go.

    A high watermark above the log's end falls to it. The caller deals with readers of the truncated part and with
    aborted flushes.
    """

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """Discard the whole log and begin an empty one here (`PartitionLog.truncate_fully_and_start_at`)."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords:
    """Append replicated records (`PartitionLog.append` with `Origin.REPLICA`), none from a leader epoch after this."""

    records: Buffer
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """Raise this replica's high watermark to the leader's, but not past the log's end. It never falls here."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Advance the log start to the leader's, at most to the log's own end (`PartitionLog.advance_log_start`)."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """The fetch failed; `Follower.next_fetch` returns nothing until `Follower.retry_at`."""

    reason: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsMetadata:
    """The leader has changed, or has a newer epoch than this broker knows: its metadata is behind, or will be."""


FollowerEffect = (
    TruncateTo | StartOver | AppendRecords | AdvanceHighWatermark | AdvanceLogStart | BackOff | NeedsMetadata
)
