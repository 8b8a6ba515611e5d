"""A checker that fails over a history is a finding, and hides nothing that others find."""

from __future__ import annotations

import pytest

from chaos import checkers
from chaos.checkers import transactions
from chaos.checkers.verdict import Answer, Options, Status, status
from chaos.history import History, read

LOST = [
    '{"index":0,"time":0,"process":0,"type":"invoke","f":"send","value":[["send","t0-0",1]]}\n',
    '{"index":1,"time":1,"process":0,"type":"ok","f":"send","value":[["send","t0-0",[0,1]]]}\n',
]


def fails(history: History, options: Options) -> None:
    raise KeyError("two values at one offset")


@pytest.mark.parametrize("allow", [frozenset[str](), frozenset({"checker-failed"})])
def test_one_that_fails_hides_nothing(monkeypatch: pytest.MonkeyPatch, allow: frozenset[str]) -> None:
    monkeypatch.setattr(transactions, "check", fails)
    verdicts = {each.checker: each for each in checkers.check(History(read(LOST)), Options(allow=allow))}
    assert list(verdicts) == [checker.NAME for checker in checkers.CHECKERS]
    assert dict(verdicts["log"].counts) == {"unseen": 1}
    assert verdicts["transactions"].answer is Answer.WRONG
    (anomaly,) = verdicts["transactions"].anomalies
    assert "two values at one offset" in anomaly.text
    assert "in fails" in "".join(anomaly.evidence["traceback"])
    assert status(verdicts.values()) is Status.WRONG
