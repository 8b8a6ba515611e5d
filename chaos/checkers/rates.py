"""Quotas of producers and of addresses hold, and nobody waits within its own (KIP-13, KIP-219, KIP-612).

    over-quota            more bytes got through on one connection than the quota allows in that time
    over-shared-quota     the same for all connections of those who share a quota
    kept-waiting          a user that stays within its quota was told to wait
    too-many-connections  more connections from an address were admitted than its quota allows in that time
    turned-away           a connection from an address that stays within its quota was closed

Read from: `rated-send` {user, node, session, bytes, throttle_ms, and client_id if that has the quota} and `arrival`
{address, node, answered}, also `final`; the notes `rates` {user or client id: bytes per second} and `arrivals`
{address: connections per second}. A user or address is *polite* if it never uses more than half of its quota in any
second.

A broker counts over eleven seconds, so a client that was idle may send as much at once. It answers at once and reads
the connection later, so what is over shows in the next request. A broker that lags may not know a quota yet: before the
end (`final`), a broker counts once it has told a client to wait. A connection belongs to one run of a broker. The
sum of several connections is judged at the end, when no broker is restarted; and so are connections that are opened,
since before the end a broker that dies closes them as well.
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
    """Judge each connection by itself, those that share a quota, and the connections from each address."""
    findings = Findings(NAME, options)
    _judge_sends(findings, history)
    _judge_arrivals(findings, history)
    return findings.verdict


def _judge_sends(findings: Findings, history: History) -> None:
    rates = _noted(history, "rates")
    sends = [op for op in history.completed("rated-send") if op.type is Type.OK]
    findings.verdict.examined += len(sends)
    polite = {
        user for user in rates if _is_polite([op for op in sends if _limited(op) == user], rates[user] / 2, "bytes")
    }
    sessions: dict[tuple[str, str, int, bool], list[Op]] = {}
    shared: dict[tuple[str, str], list[Op]] = {}
    knowing: set[str] = set()
    """The brokers that have told a client to wait."""
    for op in sends:
        value = op.value
        if _limited(op) in polite and value["throttle_ms"] > 0:
            text = f"{value['node']} told {value['user']} to wait for {value['throttle_ms']} ms, within its quota"
            findings.add("kept-waiting", text, (op,), user=value["user"])
        is_final = bool(op.extra.get("final"))
        if is_final or value["node"] in knowing:
            sessions.setdefault((value["user"], value["node"], value["session"], is_final), []).append(op)
        if is_final and "client_id" in value:
            shared.setdefault((value["client_id"], value["node"]), []).append(op)
        if value["throttle_ms"] > 0:
            knowing.add(value["node"])
    for (user, node, _, _), ops in sessions.items():
        if (limited := _limited(ops[0])) in rates:
            _judge(findings, history, ops, "over-quota", rates[limited], f"bytes of {user} at {node}")
    for (client_id, node), ops in shared.items():
        if client_id in rates:
            what = f"bytes of all with client id {client_id} at {node}"
            _judge(findings, history, ops, "over-shared-quota", rates[client_id], what)


def _judge_arrivals(findings: Findings, history: History) -> None:
    rates = _noted(history, "arrivals")
    calls = [op for op in history.completed("arrival") if op.type is Type.OK]
    findings.verdict.examined += len(calls)
    admitted: dict[tuple[str, str], list[Op]] = {}
    for address, rate in rates.items():
        own = [op for op in calls if op.value["address"] == address]
        is_polite = _is_polite(own, rate / 2)
        for op in own:
            if not op.extra.get("final"):
                continue
            if op.value["answered"]:
                admitted.setdefault((address, op.value["node"]), []).append(op)
            elif is_polite:
                text = f"{op.value['node']} closed a connection from {address}, within its quota"
                findings.add("turned-away", text, (op,), address=address)
    for (address, node), ops in admitted.items():
        _judge(findings, history, ops, "too-many-connections", rates[address], f"connections from {address} at {node}")


def _noted(history: History, kind: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for note in history.notes(kind):
        found |= note.value
    return found


def _limited(op: Op) -> str:
    """The name of what has the quota: a user or a client id."""
    return str(op.value.get("client_id", op.value["user"]))


def _judge(findings: Findings, history: History, ops: list[Op], name: str, rate: float, what: str) -> None:
    """Compare all that got through with the quota, and report the first moment at which it is too much."""
    first = min((history.invocation(op) for op in ops), key=lambda op: op.time)
    got_through = 0
    over = _REQUESTS * len({op.process for op in ops})
    for op in ops:
        got_through += op.value.get("bytes", 1)
        seconds = (op.time - first.time) / _SECOND_NS
        allowed = rate * (_SLACK * seconds + _WINDOW_SECONDS) + over * op.value.get("bytes", 1)
        if got_through > allowed:
            text = f"{got_through} {what} got through in {seconds:.1f} s, and {allowed:.0f} are allowed"
            findings.add(name, text, (first, op), got_through=got_through, most=allowed)
            return


def _is_polite(ops: list[Op], most: float, key: str = "") -> bool:
    """Whether these use no more than `most` in any second on any node; `key` is the amount, by default 1 each."""
    found: dict[tuple[str, int], int] = {}
    for op in ops:
        place = (op.value["node"], op.time // _SECOND_NS)
        found[place] = found.get(place, 0) + op.value.get(key, 1)
    return bool(ops) and max(found.values()) <= most
