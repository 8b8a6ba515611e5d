"""Checkers: each reads a history and says what in it must not be. They read nothing else.

Each is judged by itself: one that fails over a history finds `checker-failed` in it, and hides nothing that others do.
"""

from __future__ import annotations

import traceback
from types import ModuleType

from chaos.checkers import compaction, cycles, groups, leaders, log, metadata, queue, replicas, transactions
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History

CHECKERS = (log, transactions, cycles, groups, queue, metadata, leaders, replicas, compaction)


def check(history: History, options: Options | None = None) -> list[Verdict]:
    """Every checker's verdict, in a fixed order."""
    return [_check(checker, history, options or Options()) for checker in CHECKERS]


def _check(checker: ModuleType, history: History, options: Options) -> Verdict:
    try:
        verdict: Verdict = checker.check(history, options)
    except Exception as error:
        findings = Findings(checker.NAME, Options())  # whatever is allowed, this is not
        where = traceback.format_exception(error)
        findings.add("checker-failed", f"the checker failed: {error!r}", (), traceback=where)
        return findings.verdict
    return verdict
