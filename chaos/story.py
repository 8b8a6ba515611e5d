"""A run as a timeline: virtual time, who, what.

    12.734  nemesis   fault 1: several (lose-unsynced and lossy) of one and controller (nodes 2, 3)
    12.734  node3     is not running
    12.991  t0-1      leader 2 in epoch 1, in sync 2,1 of 3,2,1
    18.000  clients   sends: 46 acknowledged, 3 unknown; 20 polls, since second 13
    18.412  anomaly   lost-write: t0-1: 17 at offset 9 was never read, though offset 12 was

Faults, nodes, the quorum's and the partitions' leaders and who is in sync, truncations, nodes' warnings, clients' work
in between (folded by the second), and each anomaly at the time of the last operation that proves it. Colours are for
terminals only: piped output is plain, one event a line.

Left out, unless every log line is requested: routine log lines of healthy nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from chaos.checkers.verdict import Verdict
from chaos.history import NEMESIS, Op, Type

_TELLING = (
    ": truncated to ",
    ": starts over at ",
    "is damaged",
    "refused",
    ": in sync: ",
    "generation ",
    "empty in generation",
)
"""Log lines that belong to the story although nothing is wrong."""
_CLIENTS, _ANOMALY, _UNDECIDED, _QUORUM = "clients", "anomaly", "undecided", "quorum"
_SECONDS_TO_FOLD = 30
"""The most seconds of work that one line folds."""


class Event(NamedTuple):
    """An event in the story."""

    seconds: float
    who: str
    what: str


class Story:
    """Collects the events of a run, for `chaos.simulation.run(..., trace=story)`."""

    def __init__(self, *, with_log_lines: bool = False) -> None:
        self.events: list[Event] = []
        self._with_log_lines = with_log_lines

    def __call__(self, seconds: float, who: str, what: str) -> None:
        """Take an event."""
        if self._with_log_lines or not what.startswith("info: ") or any(part in what for part in _TELLING):
            self.events.append(Event(seconds, who, what.removeprefix("info: ")))

    def lines(self, ops: Sequence[Op], verdicts: Sequence[Verdict], problems: Sequence[str] = ()) -> Iterator[Event]:
        """Return everything in order of time; clients' work stands before the next event, problems at the end."""
        events = sorted([*self.events, *_anomalies(ops, verdicts)], key=lambda event: event.seconds)
        work = _Work(ops)
        for event in events:
            yield from work.until(event.seconds)
            yield event
        yield from work.until(float("inf"))
        end = max([event.seconds for event in events] + [ops[-1].time / 1e9 if ops else 0.0])
        for problem in problems:
            yield Event(end, "problem", problem)


def _anomalies(ops: Sequence[Op], verdicts: Sequence[Verdict]) -> Iterator[Event]:
    times = {op.index: op.time / 1e9 for op in ops}
    for verdict in verdicts:
        for anomaly in verdict.anomalies:
            if not anomaly.allowed:
                seconds = max((times[index] for index in anomaly.ops if index in times), default=0.0)
                yield Event(seconds, _ANOMALY, f"{anomaly.name}: {anomaly.text}")
        for each in verdict.undecided:
            seconds = max((times[index] for index in each.ops if index in times), default=0.0)
            yield Event(seconds, _UNDECIDED, each.text)


class _Work:
    """Return what clients completed, second by second."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._seconds: dict[int, Counter[tuple[str, Type]]] = {}
        for op in ops:
            if isinstance(op.process, int) and op.type is not Type.INVOKE and op.f in ("send", "poll", "commit"):
                self._seconds.setdefault(int(op.time / 1e9), Counter())[op.f, op.type] += 1
        self._left = sorted(self._seconds)
        self._at = 0

    def until(self, seconds: float) -> Iterator[Event]:
        """Fold the whole seconds before this one."""
        first: int | None = None
        folded: Counter[tuple[str, Type]] = Counter()
        last = 0
        while self._at < len(self._left) and self._left[self._at] + 1 <= seconds:
            second = self._left[self._at]
            if first is not None and second - first >= _SECONDS_TO_FOLD:
                yield _folded(first, last, folded)
                first, folded = None, Counter()
            first = second if first is None else first
            last = second
            folded += self._seconds[second]
            self._at += 1
        if first is not None:
            yield _folded(first, last, folded)


def _folded(first: int, last: int, counts: Counter[tuple[str, Type]]) -> Event:
    words = []
    sends = [
        f"{counts['send', kind]} {word}"
        for kind, word in ((Type.OK, "acknowledged"), (Type.INFO, "unknown"), (Type.FAIL, "refused"))
        if counts["send", kind]
    ]
    if sends:
        words.append("sends: " + ", ".join(sends))
    for f in ("poll", "commit"):
        bad = counts[f, Type.INFO] + counts[f, Type.FAIL]
        if counts[f, Type.OK] or bad:
            words.append(f"{counts[f, Type.OK]} {f}s" + (f" ({bad} in vain)" if bad else ""))
    since = "" if first == last else f", since second {first}"
    return Event(float(last + 1), _CLIENTS, "; ".join(words) + since)


_STYLES = {
    NEMESIS: "yellow",
    _CLIENTS: "dim",
    _ANOMALY: "bold red",
    _UNDECIDED: "bold dark_orange",
    "problem": "bold red",
    _QUORUM: "magenta",
}


def print_story(console: Console, lines: Iterator[Event]) -> None:
    """Print one line an event."""
    for seconds, who, what in lines:
        style = _STYLES.get(who) or ("cyan" if who.startswith("node") else "green")
        if what.startswith(("warning: ", "error: ", "critical: ")):
            style = "red" if not what.startswith("warning: ") else "dark_orange"
        text = Text(f"{seconds:9.3f}  ", style="dim").append(f"{who:<9} ", style=style).append(what, style=style)
        console.print(text, soft_wrap=True, highlight=False)
