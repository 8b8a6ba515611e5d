"""Histories written by hand, and anomalies planted into generated ones."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.checkers.verdict import Options, Verdict
from chaos.checkers.versions import polled, sends
from chaos.history import History, Op, Type

Line = tuple[Any, ...]


def history(*lines: Line) -> History:
    """Lines of (process, type, f, value) or with a dict of further fields; index and time are their place."""
    return History(
        [
            Op(index=place, time=place, process=process, type=Type(kind), f=f, value=value, extra=dict(*extra))
            for place, (process, kind, f, value, *extra) in enumerate(lines)
        ]
    )


def done(process: int, kind: str, f: str, value: Any, **extra: Any) -> list[Line]:
    """Return an invocation and, directly after it, its completion."""
    asked = value
    if f in ("send", "poll", "txn", "process"):
        asked = [
            ["poll"] if micro[0] == "poll" else [*micro[:2], micro[2][1] if isinstance(micro[2], list) else micro[2]]
            for micro in value
        ]
    return [(process, "invoke", f, asked, extra), (process, kind, f, value, extra)]


def judged(check: Callable[[History, Options], Verdict], *parts: list[Line], **options: Any) -> Verdict:
    """Return the checker's verdict on these lines, one after the other."""
    return check(history(*(line for part in parts for line in part)), Options(**options))


def named_by(checker: Any) -> set[str]:
    """The anomalies in the table that the checker's module opens with."""
    rows = [line for line in checker.__doc__.splitlines() if line.startswith("    ") and line[4] != " "]
    return {word.strip(",") for row in rows for word in row.strip().partition("   ")[0].split()}


def assert_caught(checker: Any, name: str, parts: list[list[Line]]) -> None:
    """Assert that these lines have the anomaly and no other, and that the evidence is shown with it."""
    verdict = judged(checker.check, *parts)
    assert verdict.names == {name}, f"found {verdict.names}"
    assert verdict.examined > 0
    assert verdict.anomalies[0].ops
    assert verdict.anomalies[0].evidence


class Plant:
    """Copies a clean history's operations and spoils them."""

    def __init__(self, ops: list[Op], seed: int) -> None:
        self.ops = [replace(op, value=copy.deepcopy(op.value)) for op in ops]
        self.chance = random.Random(seed)

    def history(self) -> History:
        return History(self.ops)

    def pick(self, wanted: Callable[[Op], bool]) -> Op:
        return self.chance.choice([op for op in self.ops if op.is_client and op.type is not Type.INVOKE and wanted(op)])

    def change(self, op: Op, **fields: Any) -> Op:
        changed = replace(op, **fields)
        self.ops[op.index] = changed
        return changed

    def acknowledged_and_read(self) -> tuple[Op, str, int, Any]:
        """A send (its operation, key, offset, value) that was acknowledged and is not the last of its key."""
        last: dict[str, int] = {}
        for op in self.ops:
            if op.type is Type.OK:
                for key, offset, _ in polled(op):
                    last[key] = max(last.get(key, -1), offset)
        op = self.pick(
            lambda op: op.type is Type.OK and any(o is not None and o < last.get(k, -1) for k, o, _ in sends(op))
        )
        found = [(k, o, v) for k, o, v in sends(op) if o is not None and o < last.get(k, -1)]
        key, offset, value = self.chance.choice(found)
        return op, key, offset, value

    def everywhere_polled(self, key: str, change: Callable[[list[list[Any]]], list[list[Any]]]) -> None:
        """Rewrites what each poll got of a key."""
        for op in self.ops:
            if op.type is not Type.INVOKE and op.f in ("poll", "txn", "process") and op.value:
                for micro in op.value:
                    if micro[0] == "poll" and len(micro) > 1 and key in micro[1]:
                        micro[1][key] = change(micro[1][key])
