"""Mutants of the disk: what is synced, and what a start makes of what it finds."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import PROBLEM, Mutant, Patch, cycle, replaced, rounds, three, wrapped
from chaos.nemesis import Kind
from kraftpy.log import scanning
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.flushing import FlushJob
from kraftpy.log.partition_log import PartitionLog
from kraftpy.metadata.journal import Journal

_LOST = frozenset({"lost-write", "unseen", "inconsistent-offsets", "lost-on-node", "lost-tail", "replica-divergence"})


class _Unsynced:
    """A file whose syncs do nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, position: int, data: Any) -> Any:
        """Write to the file."""
        return self._file.write(position, data)

    def sync(self) -> None:
        """Do nothing."""


class _Matches:
    """A checksum that is equal to every other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def _sync_no_log(original: Any) -> Any:
    def run(self: Any) -> None:
        for log in self.logs:
            log.close()
        self.logs = []
        original(self)

    return run


def _sync_no_entries(original: Any) -> Any:
    def sync_entries(self: Any) -> None:
        file, self._file = self._file, _Unsynced(self._file)
        try:
            original(self)
        finally:
            self._file = file

    return sync_entries


def _keep_vote_in_memory(self: Any, vote: Any) -> None:
    self._vote = vote


def _open_at_recovery_point(original: Any) -> Any:
    def open_log(*arguments: Any, **named: Any) -> Any:
        log = original(*arguments, **named)
        point = named.get("recovery_point", 0)
        if not log.report.clean and log.log_start_offset <= point < log.log_end_offset:
            log.truncate_to(point)
        return log

    return open_log


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="log-not-synced",
        breaks="records are acknowledged without the sync that kraftpy.flush.before.ack requires",
        rule="43",
        shows=_LOST,
        needs=lambda drawn: drawn.is_synced and Kind.LOSE_UNSYNCED in drawn.kinds,
        patches=(wrapped(FlushJob, "run", _sync_no_log),),
    ),
    Mutant(
        name="quorum-journal-not-synced",
        breaks="entries of the quorum's journal are counted as durable when they are written",
        rule="46",
        shows=_LOST | {PROBLEM, "not-converged", "image-divergence", "two-leaders"},
        needs=lambda drawn: drawn.is_synced and Kind.LOSE_UNSYNCED in drawn.kinds,
        patches=(wrapped(Journal, "_sync_entries", _sync_no_entries),),
    ),
    Mutant(
        name="vote-forgotten",
        breaks="the quorum's term and vote are not stored: a node that restarts votes twice in a term",
        rule="46",
        shows=_LOST | {PROBLEM, "two-controllers", "controller-epoch-falls", "image-divergence", "not-converged"},
        directed=three(with_topics=True),
        faults=rounds(
            (0, Kind.SLOW, "node a", 3_000, {"delay_ms": 60, "jitter_ms": 5}),
            (0, Kind.SLOW, "node b", 3_000, {"delay_ms": 60, "jitter_ms": 5}),
            (0, Kind.SLOW, "node c", 3_000, {"delay_ms": 60, "jitter_ms": 5}),
            (500, Kind.KILL, "controller", 500, {}),
            (850, Kind.KILL, "node b", 100, {}),
            (1_050, Kind.PARTITION, "node a", 1_700, {"shape": "target"}),
            nodes="abc",
            every_ms=4_000,
        ),
        patches=(replaced(Journal, "_write_vote", _keep_vote_in_memory),),
    ),
    Mutant(
        name="torn-tail-kept",
        breaks="recovery trusts batch headers: a batch that has lost a part stays in the log",
        rule="44",
        shows=_LOST | {PROBLEM, "epoch-order", "log-matching", "damaged-batch"},
        directed=three(workload="log", load=2.0),
        faults=cycle((Kind.LOSE_UNSYNCED, "one", 800, {}), pause_ms=(500, 2_000)),
        patches=(replaced(scanning, "crc32c", lambda *_: _Matches()),),
    ),
    Mutant(
        name="recovered-to-recovery-point",
        breaks="recovery truncates the log at the last checkpoint's recovery point instead of reading on",
        rule="44",
        shows=_LOST,
        needs=lambda drawn: drawn.is_synced and Kind.LOSE_UNSYNCED in drawn.kinds,
        patches=(
            Patch(owner=PartitionLog, name="open", replaced_by=lambda it: staticmethod(_open_at_recovery_point(it))),
        ),
    ),
    Mutant(
        name="epochs-not-truncated",
        breaks="a truncation leaves the leader epochs of the removed records in the epoch cache",
        rule="5",
        shows=_LOST | {"epoch-order", "log-matching", "not-converged", PROBLEM},
        directed=three(workload="log", load=2.0),
        faults=cycle((Kind.PARTITION, "leader of t0-0", 6_000, {"shape": "target"})),
        patches=(replaced(LeaderEpochs, "truncate_from_end", lambda *_: None),),
    ),
)
