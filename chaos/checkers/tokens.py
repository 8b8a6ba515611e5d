"""Delegation tokens let their holder in until they end, and no longer (KIP-48).

    forged-token        a login with the secret of no token was accepted
    ended-token         a login was accepted with a token that must have ended by then
    ended-session       a request was served on a connection whose token must have ended by then
    removed-token       in the end, a login was accepted with a token that its holder had ended
    refused-token       in the end, a token was refused that lasts

Read from: `create-token` {token, ends, ends-at-the-latest}, `renew-token` {token, ends}, `end-token` {token};
`token-login` {token, accepted}, null for a forged one, also `final`; `token-use` {token, served}; and `clock-skew` and
`clock-strobe` among the faults of the nemesis. Times are in nanoseconds since the run began.

A token ends when the broker's clock says so. Clocks may be wrong by as much as a fault has made any of them wrong so
far, and by their drift, so an end is only sure beyond that. A renewal without an answer may have taken effect up to the
token's latest end. Brokers may lag, so only in the end must each know that a token was ended by its holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import FAULT, NEMESIS, History, Op, Type

NAME = "tokens"

_DRIFT: Final = 0.025
"""More than the clocks of nodes drift."""
_SLACK_NS: Final = 1_000_000_000
_CHANGES: Final = ("create-token", "renew-token", "end-token")


@dataclass(slots=True)
class _Token:
    """The known changes of a token, in order of their invocations."""

    latest_ns: int
    """No renewal goes beyond this."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """The place in the history at which each end may first have held, and the end."""
    last_ns: int = 0
    """The end by the last answered change."""
    is_ended: bool = False
    """True if its holder ended it, and had an answer."""
    is_unsure: bool = False
    """True if a change had no answer."""

    def end_ns(self, index: int) -> int:
        """Return the latest end that the token may have at this place of the history."""
        return max((end for begin, end in self.ends if begin <= index), default=0)


def check(history: History, options: Options) -> Verdict:
    """Judge all logins with tokens, and the requests behind them."""
    findings = Findings(NAME, options)
    tokens = _tokens_of(history)
    wrong = _wrong_clocks(history)
    for op in history.completed("token-login", "token-use"):
        if op.type is not Type.OK:
            continue
        findings.verdict.examined += 1
        asked = history.invocation(op)
        number = op.value["token"]
        is_let_in = op.value.get("accepted", op.value.get("served", False))
        if number is None:
            if is_let_in:
                findings.add("forged-token", f"{op.value['node']} accepted a forged token", (op,))
            continue
        token = tokens.get(number)
        if token is None:
            continue
        margin = _SLACK_NS + wrong.get(op.index, 0) + int(_DRIFT * op.time)
        if is_let_in and asked.time > token.end_ns(op.index) + margin:
            late_ms = (asked.time - token.end_ns(op.index)) // 1_000_000
            name, what = ("ended-token", "accepted") if op.f == "token-login" else ("ended-session", "served")
            text = f"{op.value['node']} {what} token {number}, which had ended {late_ms} ms before"
            findings.add(name, text, (asked, op), token=number, late_ms=late_ms)
        elif op.extra.get("final"):
            _judge_in_the_end(findings, op, token, is_let_in)
    return findings.verdict


def _judge_in_the_end(findings: Findings, op: Op, token: _Token, is_let_in: bool) -> None:
    """Judge a login once brokers have caught up, and clocks are right again but for their drift."""
    number, node = op.value["token"], op.value["node"]
    if is_let_in and token.is_ended:
        findings.add(
            "removed-token", f"{node} accepted token {number}, which its holder had ended", (op,), token=number
        )
    is_sure = not token.is_ended and not token.is_unsure and op.time * (1 + _DRIFT) + _SLACK_NS < token.last_ns
    if not is_let_in and is_sure:
        findings.add("refused-token", f"{node} refused token {number}, which lasts", (op,), token=number)


def _tokens_of(history: History) -> dict[int, _Token]:
    found: dict[int, _Token] = {}
    for op in history.completed(*_CHANGES):
        value: Mapping[str, int] = op.value
        if op.f == "create-token":
            if op.type is Type.OK:
                token = found[value["token"]] = _Token(latest_ns=value["ends-at-the-latest"])
                token.ends.append((op.index, value["ends"]))
                token.last_ns = value["ends"]
            continue
        held = found.get(value["token"])
        if held is None:
            continue
        begin = history.invocation(op).index
        if op.type is not Type.OK:
            held.is_unsure = True
            held.ends.append((begin, held.latest_ns))
        elif op.f == "end-token":
            held.is_ended = True
        else:
            # A change replaces the end before it, on brokers that have caught up; until then, both may hold.
            held.ends.append((begin, value["ends"]))
            held.last_ns = value["ends"]
    return found


def _wrong_clocks(history: History) -> dict[int, int]:
    """Return, for each operation behind a fault of clocks, by how many nanoseconds any clock may be wrong."""
    worst, found = 0, {}
    for op in history.ops:
        if op.process == NEMESIS and op.f == FAULT:
            for part in op.value.get("settings", {}).get("parts", (op.value,)):
                if part["kind"] in ("clock-skew", "clock-strobe"):
                    worst = max(worst, abs(part["settings"]["skew_ms"]) * 1_000_000)
        found[op.index] = worst
    return found
