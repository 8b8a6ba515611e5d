"""A run's live progress: a line for each nemesis event, and one at the bottom with faults, operations and rates."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from chaos.availability import LOOKS
from chaos.history import FAULT, HEAL, Op, Type
from chaos.nemesis import SKIPPED, Fault, Kind, from_value


class Progress:
    """The progress display of a run with this many faults or minutes; each fault takes about this many seconds."""

    def __init__(self, *, faults: int | None, minutes: float | None, each_seconds: float) -> None:
        self._wanted = faults
        self._minutes = minutes
        self._each_seconds = each_seconds
        self.faults = 0
        self.doing = ""
        self._now: str | None = None
        self._seconds = 0.0
        self._counts: Counter[Type] = Counter()
        self._recent: deque[tuple[float, str]] = deque()

    def observe(self, op: Op, seconds: float) -> None:
        """Take any line of the history."""
        self._seconds = seconds
        if op.is_client and op.type is not Type.INVOKE and op.f not in LOOKS:
            self._counts[op.type] += 1
            if op.type is Type.OK:
                self._recent.append((seconds, op.f))
        while self._recent and self._recent[0][0] < seconds - 10:
            self._recent.popleft()
        if op.f == FAULT:
            self.faults += 1
            self._now = _words(op.value)
        elif op.f == HEAL:
            self._now = None

    def told(self, op: Op) -> str | None:
        """Return a line for a nemesis event."""
        at = f"[dim]{op.time / 1e9:7.1f} s[/]"
        match op.f:
            case name if name == FAULT:
                return f"{at} {self.faults:3d} {_words(op.value)}"
            case name if name == HEAL:
                return f"{at}     healed"
            case name if name == SKIPPED:
                return f"{at}     nobody is {op.value['target']}"
            case "settled":
                return f"{at}     all is in sync" if not op.value["wrong"] else f"{at}     [red]not in sync[/]"
        return None

    def line(self) -> Text:
        """Return faults, operations, rates and time left."""
        rates = Counter(f for _, f in self._recent)
        span = max(1.0, min(10.0, self._seconds))
        told = ", ".join(f"{rates[f] / span:.0f} {f}/s" for f in ("send", "poll", "commit"))
        wanted = "" if self._wanted is None else f" of {self._wanted}"
        counted = ", ".join(f"{self._counts[kind]} {kind}" for kind in (Type.OK, Type.FAIL, Type.INFO))
        parts = [f"{self.faults}{wanted} faults", self._now or self.doing or "no fault", counted, told, self._left()]
        return Text(" | ".join(parts), style="bold")

    def _left(self) -> str:
        estimates = []
        if self._minutes is not None:
            estimates.append(self._minutes * 60 - self._seconds)
        if self._wanted is not None:
            estimates.append((self._wanted - self.faults) * self._each_seconds)
        return f"{max(0.0, min(estimates, default=0.0)) / 60:.0f} min left"

    @contextlib.contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Keep a status at the terminal's last line, if the output is a terminal."""
        if not console.is_terminal:
            yield
            return
        with Live(console=console, get_renderable=self.line, refresh_per_second=2):
            yield


def _words(value: Mapping[str, Any]) -> str:
    fault = from_value({name: value[name] for name in ("id", "kind", "target", "at_ms", "lasts_ms", "settings")})
    return f"{described(fault)} on {value['nodes'] or 'all'} for {fault.lasts_ms / 1000:.1f} s"


def described(fault: Fault) -> str:
    """Describe a fault in a few words."""
    if fault.kind is Kind.SEVERAL:
        return " + ".join(described(part) for part in fault.settings["parts"])
    told = " ".join(f"{name}={what}" for name, what in fault.settings.items())
    return f"{fault.kind} ({told}) {fault.target}" if told else f"{fault.kind} {fault.target}"
