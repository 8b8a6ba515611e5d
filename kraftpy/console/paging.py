"""Rows by pages: a list is cut to what one page shows, and says how to get at the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from kraftpy.console.forms import number_of

T = TypeVar("T")
ROWS: Final = 100
MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[T]):
    """The rows of one page. `previous` and `next` are queries, or None."""

    rows: Sequence[T]
    total: int
    first: int
    """The number of the first row shown, counted from 1; 0 if there is none."""
    previous: str | None
    next: str | None

    @property
    def last(self) -> int:
        """The number of the last row shown."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[T], query: Mapping[str, str], name: str = "page", size: int = ROWS) -> Rows[T]:
    """Return the page of rows that the query's `name` asks for, counted from 1. Raises Refused."""
    size = number_of(query, "rows", size, low=1, high=MOST_ROWS)
    pages = max(1, -(-len(rows) // size))
    number = min(number_of(query, name, 1, low=1), pages)
    start = (number - 1) * size

    def at(page: int) -> str | None:
        return "?" + urlencode({**query, name: page}) if 1 <= page <= pages and page != number else None

    shown = rows[start : start + size]
    return Rows(
        rows=shown,
        total=len(rows),
        first=start + 1 if shown else 0,
        previous=at(number - 1),
        next=at(number + 1),
    )


def sorted_by(rows: list[dict[str, Any]], query: Mapping[str, str], columns: Sequence[str], default: str) -> str:
    """Sort rows in place by the query's `sort`, a column, with "-" before it for the largest first; return it.

    An unknown column counts as the default. Rows without a value come last.
    """
    wanted = query.get("sort", default)
    column, is_down = wanted.removeprefix("-"), wanted.startswith("-")
    if column not in columns:
        wanted, column, is_down = default, default.removeprefix("-"), default.startswith("-")
    present = [row for row in rows if row[column] is not None]
    absent = [row for row in rows if row[column] is None]
    present.sort(key=lambda row: row[column], reverse=is_down)
    rows[:] = present + absent
    return wanted
