"""Check that every event, and every window, is everywhere exactly once: counts side by side, and a verdict.

Each count is taken at its source: the producers' acknowledgements and their counts in the audit topic, the cluster's
offsets, the group's records, the rows of the pipeline's tables, the records of the output topic. Each place is expected
to have what the place before it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The count at one place: how much it has, how much of that is distinct and correct, and how much is expected."""

    where: str
    count: int
    distinct: int
    expected: int
    evidence: str

    @property
    def off_by(self) -> int:
        """How many are missing (negative) or too many (positive)."""
        return self.count - self.expected

    @property
    def agrees(self) -> bool:
        """True if the place has everything it should, once, and more than nothing."""
        return self.count == self.distinct == self.expected > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The counts, in the order in which events pass the places."""

    counts: tuple[Count, ...]

    @property
    def balances(self) -> bool:
        """True if there are counts, and all of them agree."""
        return bool(self.counts) and all(count.agrees for count in self.counts)


def audit_table(audit: Audit) -> Table:
    """Return the audit as a table for the terminal."""
    from rich.table import Table

    verdict = "[green]it balances[/]" if audit.balances else "[bold red]it does NOT balance[/]"
    table = Table(title=f"Audit: {verdict}", title_style="bold", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("distinct", justify="right")
    table.add_column("expected", justify="right")
    table.add_column("off by", justify="right")
    table.add_column("counted from", style="dim")
    for count in audit.counts:
        style = None if count.agrees else "red"
        difference = f"{count.off_by:+,}" if count.off_by else "0"
        numbers = (f"{count.count:,}", f"{count.distinct:,}", f"{count.expected:,}", difference)
        table.add_row(count.where, *numbers, count.evidence, style=style)
    return table
