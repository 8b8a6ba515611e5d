"""Mutants of replication: leaders, followers, high watermarks, in-sync replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Mutant, cycle, replaced, rounds, three, wrapped
from chaos.nemesis import Kind
from kraftpy.broker.replication.replica import NEVER, Records, Replica
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import ProducerStates
from kraftpy.log.results import LogSlice
from kraftpy.metadata import partitions
from kraftpy.protocol.errors import ErrorCode
from kraftpy.replication.events import HighWatermarkAdvanced, LeaderEffect
from kraftpy.replication.leader import Leader

_LOST = frozenset({"lost-write", "unseen", "inconsistent-offsets", "lost-on-node", "lost-tail"})
"""An acknowledged record is gone, as any of the checkers may notice first."""
_EARLY = _LOST | {"in-sync-too-early"}
"""The same, or a replica that should have a record is seen to lack it."""
_PARTED = _LOST | {"replica-divergence", "log-matching", "epoch-order"}


def _acknowledge_at_once(original: Any) -> Any:
    def outcome(self: Any, end_offset: int, leadership: int) -> ErrorCode:
        found: ErrorCode | None = original(self, end_offset, leadership)
        return ErrorCode.NONE if found is None else found

    return outcome


def _acknowledge_in_any_leadership(original: Any) -> Any:
    def outcome(self: Any, end_offset: int, leadership: int) -> ErrorCode | None:
        found: ErrorCode | None = original(self, end_offset, self.leadership)
        return found

    return outcome


def _follow_from_high_watermark(original: Any) -> Any:
    def follow(self: Any, *arguments: Any) -> bool:
        is_news: bool = original(self, *arguments)
        if is_news and not self.operations.is_truncating and self.high_watermark < self.log_end_offset:
            self.operations._begin_truncation(self.high_watermark, start_over=False)
        return is_news

    return follow


def _advance_by_count(self: Any, now: int) -> Sequence[LeaderEffect]:
    """Advance the high watermark to what min.insync.replicas replicas have, in sync or not."""
    if self.is_under_min_insync_replicas:
        return ()
    own = self.log_end_offset if self._synced_end_offset is None else min(self.log_end_offset, self._synced_end_offset)
    ends = sorted([own, *(follower.log_end_offset for follower in self._followers.values())], reverse=True)
    offset = ends[self.effective_min_insync_replicas - 1]
    if offset <= self.high_watermark:
        return ()
    self.high_watermark = offset
    return (HighWatermarkAdvanced(offset=offset),)


def _count_the_proposal(self: Any) -> Sequence[LeaderEffect]:
    """Drop a replica at once when it is proposed to be dropped."""
    members = frozenset(self.state.isr)
    if self._proposal is not None:
        members = frozenset(broker_id for broker_id, _ in self._proposal.isr)
    self.maximal_isr = members
    for follower in self._followers.values():
        follower.is_counted = follower.broker_id in members
    return ()


def _read_uncommitted(
    self: Any, offset: int, max_bytes: int, *, read_committed: bool, min_one_batch: bool, slice_from: int = NEVER
) -> Records:
    read = self._read(offset, max_bytes, None, min_one_batch, slice_from)
    return Records(read if isinstance(read, LogSlice) else read.records, [])


def _has_registered(self: Any, follower: Any) -> bool:
    return follower.broker_id in self._brokers


def _check_follower_alone(original: Any) -> Any:
    def check_follower(self: Any, broker_id: int, broker_epoch: int) -> Any:
        return original(self, broker_id, -1)

    return check_follower


def _without_broker_epochs(original: Any) -> Any:
    def checked(change: Any, *others: Any) -> Any:
        unchecked = tuple(replace(member, broker_epoch=-1) for member in change.isr)
        return original(replace(change, isr=unchecked), *others)

    return checked


def _copy_without_producers(original: Any) -> Any:
    def append_copies(self: Any, *arguments: Any) -> Any:
        known, self.producers = self.producers, ProducerStates()
        try:
            return original(self, *arguments)
        finally:
            self.producers = known

    return append_copies


_CONTROLLERS = [4, 5, 6]
"""Where three of them are apart from the brokers."""
_leader_alone = cycle((Kind.PARTITION, "leader of t0-0", 6_000, {"shape": "target"}))
"""It is cut off from the other nodes, and clients still reach it."""

_led_again_while_a_request_waits = rounds(
    (0, Kind.MOVE_LEADER, "one", 0, {"partition": "b0-0", "replicas": ["a", "c"]}),
    (0, Kind.MOVE_LEADER, "one", 0, {"partition": "t0-0", "replicas": ["a", "b"]}),
    (3_000, Kind.PARTITION, "node a", 2_300, {"shape": "one-way", "to": ["c"]}),
    (3_000, Kind.PARTITION, "node a", 700, {"shape": "one-way", "to": ["b"]}),
    (3_300, Kind.MOVE_LEADER, "one", 0, {"partition": "t0-0", "replicas": ["b", "a"]}),
    (4_700, Kind.MOVE_LEADER, "one", 0, {"partition": "t0-0", "replicas": ["a", "b"]}),
    nodes="abc",
    every_ms=7_500,
)
"""A request to two partitions waits for the first, whose follower does not answer; meanwhile another leads the second
one, which has not got what was asked for but what others send, and then the same again."""

MUTANTS = (
    Mutant(
        name="acknowledged-at-once",
        breaks="acks=all is answered when the leader has the records, before the high watermark",
        rule="17",
        shows=_LOST,
        patches=(wrapped(Replica, "outcome", _acknowledge_at_once),),
    ),
    Mutant(
        name="acknowledged-by-another-leadership",
        breaks="a leader that was deposed and leads again acknowledges writes from its earlier leadership",
        rule="17",
        shows=_LOST,
        directed=three(
            controllers=3,
            workload="log",
            load=2.0,
            clients=6,
            with_bundles=True,
            settings={
                "replica.fetch.max.bytes": "1048576",
                "replica.lag.time.max.ms": "30000",
            },
        ),
        faults=_led_again_while_a_request_waits,
        patches=(wrapped(Replica, "outcome", _acknowledge_in_any_leadership),),
    ),
    Mutant(
        name="never-truncated",
        breaks="a follower never checks where its log diverges: it keeps records that its new leader never had",
        rule="3, 4",
        shows=_PARTED,
        directed=three(workload="log", load=2.0),
        faults=_leader_alone,
        patches=(replaced(Replica, "diverging_epoch", lambda *_: None),),
    ),
    Mutant(
        name="truncated-to-high-watermark",
        breaks="a new follower truncates its log to its high watermark (before KIP-101)",
        rule="4",
        shows=_PARTED,
        directed=three(workload="log", load=2.0),
        faults=cycle((Kind.KILL, "leader of t0-0", 800, {}), (Kind.KILL, "leader of t0-0", 800, {})),
        patches=(wrapped(Replica, "follow", _follow_from_high_watermark),),
    ),
    Mutant(
        name="high-watermark-by-count",
        breaks="the high watermark counts any replicas, in sync or not, once there are as many as the minimum",
        rule="9",
        shows=_LOST,
        patches=(replaced(Leader, "_advance_high_watermark", _advance_by_count),),
    ),
    Mutant(
        name="high-watermark-over-shrunk-isr",
        breaks="a replica that is proposed to leave the ISR no longer counts, before the quorum has agreed",
        rule="9, 14",
        shows=_LOST,
        directed=three(workload="log", load=2.0, settings={"replica.lag.time.max.ms": "1000"}),
        faults=_leader_alone,
        patches=(replaced(Leader, "_update_maximal_isr", _count_the_proposal),),
    ),
    Mutant(
        name="min-insync-ignored",
        breaks="acks=all is accepted and acknowledged with fewer in sync than min.insync.replicas",
        rule="9, 17",
        shows=_LOST,
        directed=three(workload="log", load=2.0, controllers=3),
        faults=cycle(
            (Kind.PARTITION, "followers of t0-0", 9_000, {"shape": "target"}), (Kind.KILL, "leader of t0-0", 5_000, {})
        ),
        patches=(
            replaced(Leader, "is_under_min_insync_replicas", property(lambda self: False)),  # type: ignore[arg-type]
            replaced(Leader, "has_enough_acks", property(lambda self: True)),  # type: ignore[arg-type]
        ),
    ),
    Mutant(
        name="uncommitted-served",
        breaks="a leader serves consumers beyond the high watermark",
        rule="10",
        shows=_LOST | {"nonmonotonic-poll", "int-nonmonotonic-poll", "poll-skip", "int-poll-skip"},
        directed=three(workload="log", load=2.0),
        faults=_leader_alone,
        patches=(replaced(Replica, "read", _read_uncommitted),),
    ),
    Mutant(
        name="in-sync-at-the-first-fetch",
        breaks="a follower joins the ISR before it has reached the high watermark and the leader epoch's start",
        rule="13",
        shows=_EARLY,
        directed=three(
            workload="log", load=2.0, settings={"replica.fetch.max.bytes": "100", "replica.lag.time.max.ms": "1000"}
        ),
        faults=cycle(
            (Kind.SLOW, "one", 6_000, {"delay_ms": 500, "jitter_ms": 10}), (Kind.KILL, "leader of t0-0", 2_500, {})
        ),
        patches=(replaced(Leader, "_may_join_isr", lambda self, follower: self._is_eligible(follower)),),
    ),
    Mutant(
        name="in-sync-before-epoch-start",
        breaks="a follower joins the ISR at the high watermark a new leader happens to know, before its epoch's start",
        rule="13",
        shows=_EARLY,
        directed=three(
            controllers=3,
            workload="log",
            clients=16,
            load=4.0,
            settings={
                "replica.fetch.max.bytes": "100",
                "replica.lag.time.max.ms": "30000",
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "200",
            },
        ),
        # It is in sync, behind, and restarted; the leader that it follows next had heard nothing from the dead one.
        faults=rounds(
            (0, Kind.SLOW, "node c", 11_000, {"delay_ms": 400, "jitter_ms": 20}),
            (3_000, Kind.KILL, "node a", 8_000, {}),
            (3_000, Kind.KILL, "node c", 200, {}),
            nodes="abc",
            every_ms=13_000,
            jitter_ms=250,
        ),
        patches=(
            replaced(
                Leader,
                "_may_join_isr",
                lambda self, follower: follower.log_end_offset >= self.high_watermark and self._is_eligible(follower),
            ),
        ),
    ),
    Mutant(
        name="broker-epoch-ignored",
        breaks="a restarted broker joins the ISR by the offset it had before (before KIP-903)",
        rule="13, 15",
        shows=_EARLY,
        directed=three(
            controllers=3,
            workload="log",
            load=2.0,
            is_synced=False,
            settings={
                "replica.fetch.max.bytes": "100",
                "replica.lag.time.max.ms": "1000",
                "controller.quorum.fetch.timeout.ms": "8000",
            },
        ),
        # It has caught up, and the proposal to add it is held back; meanwhile it loses its log and is restarted.
        faults=rounds(
            (0, Kind.SLOW, "node c", 6_000, {"delay_ms": 400, "jitter_ms": 20}),
            (5_700, Kind.PARTITION, "node a", 3_000, {"shape": "one-way", "to": _CONTROLLERS}),
            (6_800, Kind.LOSE_UNSYNCED, "node c", 200, {}),
            (6_900, Kind.PARTITION, "node a", 3_500, {"shape": "one-way", "to": ["c"]}),
            nodes="abc",
            every_ms=12_000,
            jitter_ms=100,
        ),
        patches=(
            wrapped(partitions, "_checked_isr", _without_broker_epochs),
            wrapped(Leader, "check_follower", _check_follower_alone),
            replaced(Leader, "_is_eligible", _has_registered),
        ),
    ),
    Mutant(
        name="sequences-ignored",
        breaks="a leader appends every batch of a producer, with any epoch and sequence",
        rule="23",
        shows=frozenset({"duplicate", "nonmonotonic-send", "int-nonmonotonic-send"}),
        patches=(replaced(ProducerStates, "check", lambda *_: None),),
    ),
    Mutant(
        name="sequences-not-copied",
        breaks="followers do not learn producers' sequences: after a failover a duplicate batch is appended again",
        rule="25",
        shows=frozenset({"duplicate", "nonmonotonic-send", "int-nonmonotonic-send"}),
        patches=(wrapped(PartitionLog, "_append_as_follower", _copy_without_producers),),
    ),
)
