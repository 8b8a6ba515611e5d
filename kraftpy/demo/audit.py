"""Does every event that was loaded appear exactly once everywhere else? Counts side by side, and a verdict.

Each count comes from where it happened: the producer's acknowledgements, the broker's offsets, the members'
records, and the rows Spark saw. A topic that nothing else writes to, without transactions or compaction, has one
record per offset, so all must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many events one place saw, how many of them distinct (by partition and offset), and how it knows."""

    where: str
    events: int
    distinct: int
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The counts, the first of them being the one the others are held against."""

    counts: tuple[Count, ...]

    def off_by(self, count: Count) -> int:
        """Events missing (negative) or too many (positive) against the first count."""
        return count.events - self.counts[0].events

    def agrees(self, count: Count) -> bool:
        """Whether a place saw what was loaded, all of it, once."""
        return count.events == count.distinct == self.counts[0].events

    @property
    def balances(self) -> bool:
        """Whether every place agrees, on more than nothing."""
        return self.counts[0].events > 0 and all(self.agrees(count) for count in self.counts)


def audit_table(audit: Audit) -> Table:
    """The audit for people."""
    from rich.table import Table

    verdict = "[green]it balances[/]" if audit.balances else "[bold red]it does NOT balance[/]"
    table = Table(title=f"Audit: {verdict}", title_style="bold", title_justify="left")
    table.add_column("events")
    table.add_column("count", justify="right")
    table.add_column("distinct", justify="right")
    table.add_column("off by", justify="right")
    table.add_column("counted from", style="dim")
    for count in audit.counts:
        style = None if audit.agrees(count) else "red"
        off_by = audit.off_by(count)
        difference = f"{off_by:+,}" if off_by else "0"
        cells = (count.where, f"{count.events:,}", f"{count.distinct:,}", difference, count.evidence)
        table.add_row(*cells, style=style)
    return table
