"""What the machines of replication want done. The caller does it in the order given, or not at all.

Effects of a leader: `HighWatermarkAdvanced`, `ProposeIsr`. Effects of a follower: all others. A follower's list is to
be carried out to its end before the follower is asked for its next fetch, and dropped at the first effect that fails
(report that with `Follower.failed`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkAdvanced:
    """Everything before `offset` is committed: wake who waits for it."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Ask the quorum for this ISR (AlterPartition, KIP-497).

    What comes of it is told with `Leader.changed` (the partition has changed, in whatever way) or
    `Leader.proposal_refused` (refused, or nobody knows). The same proposal may be made again while nobody knows.
    """

    isr: tuple[tuple[BrokerId, int], ...]
    """(broker, the broker epoch its last fetch came with; -1: not to be checked), in the order of the replicas."""
    leader_epoch: int
    partition_epoch: int
    """The one this builds on: the quorum refuses where the partition has another by now."""
    is_recovering: bool = False
    """The leader recovery state that goes with it. A leader asks for an end of recovering, never for its beginning."""


LeaderEffect = HighWatermarkAdvanced | ProposeIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Cut the log here (`PartitionLog.truncate_to`), also where it ends here already: epochs may have to go.

    A high watermark above the log's end falls to it. Readers of the cut part, and aborted flushes, are the caller's.
    """

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """Drop the whole log and begin an empty one here (`PartitionLog.truncate_fully_and_start_at`)."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords:
    """Append copies (`PartitionLog.append` with `Origin.REPLICA`), none of a later leader epoch than this one."""

    records: Buffer
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """The leader's high watermark. One's own becomes this, but at most the log's end, and it never falls for it."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """The leader's log start: at most to the log's own end (`PartitionLog.advance_log_start`)."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """Nothing came of the fetch; `Follower.next_fetch` has nothing until `Follower.retry_at`."""

    reason: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsMetadata:
    """The leader asked is another, or newer, than this broker knows: the metadata it has is behind, or will be."""


FollowerEffect = (
    TruncateTo | StartOver | AppendRecords | AdvanceHighWatermark | AdvanceLogStart | BackOff | NeedsMetadata
)
