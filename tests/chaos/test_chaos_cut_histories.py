"""A run that is killed at any time leaves a prefix of its history: nothing is wrong in it but what was not read yet."""

from __future__ import annotations

import functools

import pytest

from chaos import checkers, edn
from chaos.checkers import Options
from chaos.history import History, Op, Type, read, to_line
from chaos.reference.samples import SAMPLES

NOT_YET = frozenset({"unseen"})


@functools.cache
def sample(workload: str) -> list[Op]:
    return SAMPLES[workload](11).run(3000)


@pytest.mark.parametrize("workload", SAMPLES)
def test_a_prefix_of_a_perfect_history_is_right(workload: str) -> None:
    ops = sample(workload)
    for length in (0, 1, 2, 10, 57, 313, 1001, 1777, 2501, len(ops) - 40):
        verdicts = checkers.check(History(ops[:length]), Options(allow=NOT_YET))
        assert {verdict.checker: dict(verdict.counts) for verdict in verdicts if verdict.counts} == {}, length


@pytest.mark.parametrize("workload", SAMPLES)
def test_a_perfect_history_is_right_when_read_back(workload: str) -> None:
    """Read it from its lines and from its EDN, which lacks only what Jepsen has no place for."""
    lines = [to_line(op) + "\n" for op in sample(workload)]
    assert [verdict.counts for verdict in checkers.check(History(read(lines)))] == [{}] * len(checkers.CHECKERS)
    again = History(edn.from_edn(edn.for_jepsen(read(lines))))
    unread = NOT_YET if workload == "queue" else frozenset()
    assert [v.counts for v in checkers.check(again, Options(allow=unread))] == [{}] * len(checkers.CHECKERS)


def unknown(op: Op, asked: object) -> Op:
    return Op(index=op.index, time=op.time, process=op.process, type=Type.INFO, f=op.f, value=asked, extra=op.extra)


GO_BACK = {"transactions", "transactions-subscribe"}
"""These consumers go back after an unknown outcome. In a history in which it was known they did not."""


@pytest.mark.parametrize("workload", sorted(SAMPLES.keys() - GO_BACK))
def test_what_is_taken_for_unknown_is_not_wrong(workload: str) -> None:
    """Every third answer to a call that changes something is lost: less is known, and nothing is wrong."""
    changes = ("send", "commit", "acknowledge", "create-topic", "delete-topic", "alter-topic", "reassign")
    past = History(sample(workload))
    asked = {op.index: past.invocation(op).value for op in past.completions}
    lost = set([op.index for op in past.ops if op.type is Type.OK and op.f in changes][::3])
    assert len(lost) > 100
    ops = [unknown(op, asked[op.index]) if op.index in lost else op for op in past.ops]
    verdicts = checkers.check(History(ops), Options(allow=NOT_YET))
    assert {verdict.checker: dict(verdict.counts) for verdict in verdicts if verdict.counts} == {}
