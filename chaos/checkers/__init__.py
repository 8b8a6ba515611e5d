"""Checkers: each reads a history, and nothing else, and reports what must not be in it.

Each checker runs on its own: if one raises, its verdict is `checker-failed`, and the other verdicts are unaffected.
"""

from __future__ import annotations

import traceback
from types import ModuleType

from chaos.checkers import (
    compaction,
    cycles,
    groups,
    leaders,
    log,
    metadata,
    queue,
    rates,
    replicas,
    rights,
    tokens,
    transactions,
)
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History

CHECKERS = (log, transactions, cycles, groups, queue, metadata, leaders, replicas, compaction, rights, tokens, rates)


def check(history: History, options: Options | None = None) -> list[Verdict]:
    """Return every checker's verdict, in a fixed order."""
    return [_check(checker, history, options or Options()) for checker in CHECKERS]


def _check(checker: ModuleType, history: History, options: Options) -> Verdict:
    try:
        verdict: Verdict = checker.check(history, options)
    except Exception as error:
        findings = Findings(checker.NAME, Options())  # no option allows it
        where = traceback.format_exception(error)
        findings.add("checker-failed", f"the checker failed: {error!r}", (), traceback=where)
        return findings.verdict
    return verdict
