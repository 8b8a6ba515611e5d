"""Mutants of transactions: coordinators, markers, offsets, and what readers of committed records are shown."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import PROBLEM, Mutant, Patch, cycle, quiet, replaced, three, wrapped
from chaos.nemesis import Fault, Kind
from chaos.worlds.breaking import TRANSACTIONS
from kraftpy.broker.replication.replica import Replica
from kraftpy.groups import transactional_offsets as transactional
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.routing import partition_for_group
from kraftpy.log.aborted_transactions import AbortedTransactions
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import ProducerStates
from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions import decisions
from kraftpy.transactions.coordinator import TransactionCoordinator

_DIRTY = frozenset({"G1a", "precommitted-read", "torn-transaction", "inconsistent-offsets"})
_ONCE = frozenset({"processed-twice", "not-processed", "unknown-input"})
_HANGS = frozenset({PROBLEM, "torn-transaction"})
_with_transactions = three(with_transactions=True, workload="log")
_members_stall = three(with_transactions=True, workload="log", group_protocol="classic", stalls=0.08)
_coordinators_end = cycle((Kind.KILL, "coordinator of logs-0", 1_500, {}), (Kind.KILL, "any leader", 2_000, {}))
_LATE = "coordinator of logs-0"
_STATE = f"{TRANSACTIONS}-{partition_for_group('logs-0', 4)}"
_cut_off_and_replaced = (
    Fault(id=0, kind=Kind.PARTITION, target=_LATE, settings={"shape": "one-way"}),
    Fault(id=0, kind=Kind.MOVE_LEADER, settings={"partition": _STATE}),
)
_markers_come_late = cycle(
    (Kind.SLOW, _LATE, 2_500, {"delay_ms": 300, "jitter_ms": 10}),
    (Kind.SEVERAL, _LATE, 8_000, {"parts": _cut_off_and_replaced}),
)
"""Another carries out what was decided while the coordinator was slow, whose own markers are held back meanwhile."""
_answers_overtake_each_other = cycle(
    (Kind.SLOW, "leader of x0-0", 7_000, {"delay_ms": 10, "jitter_ms": 1_500}),
    (Kind.SLOW, _LATE, 7_000, {"delay_ms": 10, "jitter_ms": 1_500}),
)
"""The coordinator's answer about a transaction may arrive after the marker that ends it."""
_leaders_end = cycle((Kind.KILL, "leader of x0-0", 2_000, {}), (Kind.KILL, "leader of out-0", 2_000, {}))


def _same_epoch(original: Any) -> Any:
    def emptied(value: Any, command: Any, producer_id: int, producer_epoch: int, timestamp: Any) -> Any:
        is_next = producer_id == value.producer_id and producer_epoch == value.producer_epoch + 1
        return original(value, command, producer_id, value.producer_epoch if is_next else producer_epoch, timestamp)

    return emptied


def _to_the_high_watermark(self: Any) -> Any:
    return self.high_watermark


def _open_without_aborted(original: Any) -> Any:
    def open_log(*arguments: Any, **named: Any) -> Any:
        log = original(*arguments, **named)
        log.producers.aborted = AbortedTransactions()
        return log

    return open_log


def _copy_without_open(original: Any) -> Any:
    def append_copies(self: Any, *arguments: Any) -> Any:
        done = original(self, *arguments)
        self.producers._open.clear()
        for producer in self.producers._producers.values():
            producer.first_open_offset = -1
        return done

    return append_copies


def _forget_prepared(original: Any) -> Any:
    def apply(self: Any, transactional_id: str, stored: Any) -> None:
        original(self, transactional_id, stored)
        for transaction in self.transactions.values():
            transaction.unmarked = set()

    return apply


def _visible_at_once(self: Any, producer_id: int, key: Any, value: Any) -> None:
    self.replay(key, value)


def _dropped_in_the_end(original: Any) -> Any:
    def replay_end(self: Any, producer_id: int, *, is_commit: bool) -> None:
        original(self, producer_id, is_commit=False)

    return replay_end


def _epoch_of_the_batches(original: Any) -> Any:
    def ended(self: Any, header: Any, marker: Any, now: Any) -> None:
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            header = header.copy()
            header.producer_epoch = producer.epoch
        original(self, header, marker, now)

    return ended


def _one_for_each_producer(original: Any) -> Any:
    def verification(self: Any, producer_id: int, producer_epoch: int) -> Any:
        others = [epoch for epoch in self._verifications.get(producer_id, {}) if epoch != producer_epoch]
        self._forget(producer_id, others)
        return original(self, producer_id, producer_epoch)

    return verification


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="fence-forgotten",
        breaks="a producer that takes over a transactional id gets its predecessor's epoch: both may write and commit",
        rule="28",
        shows=_DIRTY | {"epoch-reused", "zombie-commit", "duplicate", "lost-write", "unseen"},
        directed=_with_transactions,
        patches=(wrapped(decisions, "_emptied", _same_epoch),),
    ),
    Mutant(
        name="stable-offset-at-high-watermark",
        breaks="the last stable offset does not stop at an open transaction: its records are read before it has ended",
        rule="32",
        shows=_DIRTY,
        directed=_with_transactions,
        patches=(replaced(Replica, "last_stable_offset", property(_to_the_high_watermark)),),  # type: ignore[arg-type]
    ),
    Mutant(
        name="aborted-lost-at-restart",
        breaks="an opened log knows no aborted transactions: their records are read from then on",
        rule="32, 44",
        shows=_DIRTY,
        directed=_with_transactions,
        faults=cycle((Kind.ROLLING_RESTART, "all", 8_000, {})),
        patches=(
            Patch(owner=PartitionLog, name="open", replaced_by=lambda it: staticmethod(_open_without_aborted(it))),
        ),
    ),
    Mutant(
        name="open-transactions-not-copied",
        breaks="followers do not learn of open transactions: after a failover undecided records are read",
        rule="25, 32",
        shows=_DIRTY | _HANGS,
        directed=_with_transactions,
        faults=_leaders_end,
        patches=(wrapped(PartitionLog, "_append_as_follower", _copy_without_open),),
    ),
    Mutant(
        name="prepared-forgotten",
        breaks="a new coordinator takes prepared transactions for completed: some partitions never get a marker",
        rule="27",
        shows=_HANGS | {"lost-write", "unseen"},
        directed=_with_transactions,
        faults=_coordinators_end,
        patches=(wrapped(TransactionCoordinator, "_apply", _forget_prepared),),
    ),
    Mutant(
        name="marker-written-twice",
        breaks="a marker that is sent again after a lost answer is written again, and may end the next transaction",
        rule="29, 31",
        shows=_DIRTY | {"early-read", "lost-write", "unseen", "marker-twice"},
        directed=three(with_transactions=True, workload="log", load=3.0, stalls=0.05),
        faults=_markers_come_late,
        patches=(
            replaced(ProducerStates, "check_raised_epoch", lambda *_: False),
            replaced(ProducerStates, "check_marker", lambda *_: None),
        ),
    ),
    Mutant(
        name="offsets-visible-before-commit",
        breaks="offsets of a transaction count as soon as they are written: if it aborts, its input is skipped",
        rule="33",
        shows=_ONCE | {"skipped-record"},
        directed=_with_transactions,
        patches=(replaced(GroupCoordinator, "replay_pending", _visible_at_once),),
    ),
    Mutant(
        name="offsets-dropped-at-commit",
        breaks="a commit marker drops the pending offsets of its transaction: the input is processed again",
        rule="33",
        shows=_ONCE,
        directed=_with_transactions,
        patches=(wrapped(GroupCoordinator, "replay_end", _dropped_in_the_end),),
    ),
    Mutant(
        name="unstable-offsets-told",
        breaks="a new owner of a partition gets the committed offset although a transaction is about to change it",
        rule="33",
        shows=_ONCE,
        directed=_members_stall,
        faults=quiet,
        patches=(replaced(transactional, "only_stable", lambda *_: None),),
    ),
    Mutant(
        name="offsets-of-any-member",
        breaks="a removed member may still commit offsets in its transaction",
        rule="34",
        shows=_ONCE,
        directed=_members_stall,
        faults=quiet,
        patches=(replaced(transactional, "check", lambda *_: ErrorCode.NONE),),
    ),
    Mutant(
        name="late-batch-accepted",
        breaks="a batch is appended whose transaction ended while it was being verified: no marker ends that one",
        rule="28, 30",
        shows=_HANGS | _DIRTY | {"duplicate"},
        directed=_members_stall,
        faults=_answers_overtake_each_other,
        patches=(
            replaced(ProducerStates, "check_verified", lambda *_: None),
            wrapped(ProducerStates, "ended", _epoch_of_the_batches),
        ),
    ),
    Mutant(
        name="late-offsets-accepted",
        breaks="offsets are stored that arrive after the end of their transaction: they stay pending forever",
        rule="33",
        shows=_HANGS | _ONCE,
        directed=_members_stall,
        faults=_answers_overtake_each_other,
        patches=(
            replaced(ProducerStates, "check_confirmed", lambda *_: None),
            wrapped(ProducerStates, "ended", _epoch_of_the_batches),
        ),
    ),
    Mutant(
        name="verification-displaced",
        breaks="a late request of a producer's older epoch drops the verification of its newest one, which is refused",
        rule="30",
        shows=frozenset({"refused-successor"}),
        directed=_members_stall,
        faults=_answers_overtake_each_other,
        patches=(wrapped(ProducerStates, "verification", _one_for_each_producer),),
    ),
)
