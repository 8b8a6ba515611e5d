"""Checkers: each reads a history and says what in it must not be. They read nothing else."""

from __future__ import annotations

from chaos.checkers import compaction, cycles, groups, leaders, log, metadata, queue, replicas, transactions
from chaos.checkers.verdict import Options, Verdict
from chaos.history import History

CHECKERS = (log, transactions, cycles, groups, queue, metadata, leaders, replicas, compaction)


def check(history: History, options: Options | None = None) -> list[Verdict]:
    """Every checker's verdict, in a fixed order."""
    return [checker.check(history, options or Options()) for checker in CHECKERS]
