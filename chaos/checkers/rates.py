"""Quotas of producers hold: no more bytes get through than a quota allows, and nobody waits within its own (KIP-219).

    over-quota          more bytes got through on one connection than the quota allows in that time
    kept-waiting        a user that stays within its quota was told to wait

Read from: `rated-send` {user, node, session, bytes, throttle_ms}, also `final`; the note `rates` {user: bytes per
second}. A user is *polite* if it never sends more than half of its quota in any second.

A broker counts over eleven seconds, so a client that was idle may send as much at once. It answers at once and reads
the connection later, so what is over shows in the next request. A broker that lags may not know a quota yet: before the
end (`final`), a broker counts once it has told a client to wait. A connection belongs to one run of a broker.
"""

from __future__ import annotations

from typing import Final

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History, Op, Type

NAME = "rates"

_WINDOW_SECONDS: Final = 12.0
_SLACK: Final = 1.1
_REQUESTS: Final = 2
"""Requests that may be over: one that is not known to be when it is read, and one on the way."""
_SECOND_NS: Final = 1_000_000_000


def check(history: History, options: Options) -> Verdict:
    """Judge each connection by itself."""
    findings = Findings(NAME, options)
    rates: dict[str, float] = {}
    for note in history.notes("rates"):
        rates |= note.value
    sends = [op for op in history.completed("rated-send") if op.type is Type.OK]
    findings.verdict.examined = len(sends)
    polite = {user for user in rates if _is_polite([op for op in sends if op.value["user"] == user], rates[user])}
    sessions: dict[tuple[str, str, int, bool], list[Op]] = {}
    knowing: set[str] = set()
    """The brokers that have told a client to wait."""
    for op in sends:
        value = op.value
        if value["user"] in polite and value["throttle_ms"] > 0:
            text = f"{value['node']} told {value['user']} to wait for {value['throttle_ms']} ms, within its quota"
            findings.add("kept-waiting", text, (op,), user=value["user"])
        is_final = bool(op.extra.get("final"))
        if is_final or value["node"] in knowing:
            sessions.setdefault((value["user"], value["node"], value["session"], is_final), []).append(op)
        if value["throttle_ms"] > 0:
            knowing.add(value["node"])
    for (user, node, _, _), ops in sessions.items():
        if user in rates:
            _judge(findings, history, ops, rates[user], f"{user} at {node}")
    return findings.verdict


def _judge(findings: Findings, history: History, ops: list[Op], rate: float, who: str) -> None:
    """Compare all bytes of one connection with the quota, and report the first moment at which they are too many."""
    first = history.invocation(ops[0])
    got_through = 0
    for op in ops:
        got_through += op.value["bytes"]
        seconds = (op.time - first.time) / _SECOND_NS
        allowed = rate * (_SLACK * seconds + _WINDOW_SECONDS) + _REQUESTS * op.value["bytes"]
        if got_through > allowed:
            text = f"{got_through} bytes of {who} got through in {seconds:.1f} s, and {allowed:.0f} are allowed"
            findings.add("over-quota", text, (first, op), bytes=got_through, most=allowed)
            return


def _is_polite(ops: list[Op], rate: float) -> bool:
    found: dict[tuple[str, int], int] = {}
    for op in ops:
        place = (op.value["node"], op.time // _SECOND_NS)
        found[place] = found.get(place, 0) + op.value["bytes"]
    return bool(ops) and max(found.values()) <= rate / 2
