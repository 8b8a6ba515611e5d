"""Delays by airport, over the hours of the day and the weeks of the year, from the windows of the output topic.

Windows are hours in UTC. The hours shown are New York's, so a window is exactly one local hour, in any season.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from kraftpy.demo.windows import Window

NEW_YORK = ZoneInfo("America/New_York")
FEWEST = 30
"""A mean over fewer departures says little and is not shown."""

Group = TypeVar("Group", int, date)


@dataclass(slots=True)
class Delays:
    """The flights of one airport and hour or week; delays are in minutes."""

    flights: int = 0
    departed: int = 0
    late: int = 0
    delay: int = 0

    def add(self, window: Window) -> None:
        """Add the flights of one window."""
        self.flights += window.flights
        self.departed += window.departed
        self.late += window.late
        self.delay += window.delay

    @property
    def mean(self) -> float:
        """The mean delay of the flights that departed."""
        return self.delay / self.departed

    @property
    def late_share(self) -> float:
        """The fraction of departed flights that were late."""
        return self.late / self.departed


ByAirport = Mapping[str, Mapping[Group, Delays]]


def by_hour(windows: Iterable[Window]) -> ByAirport[int]:
    """Sum up by airport and local hour of the day (0 to 23)."""
    return _by(windows, lambda moment: moment.hour)


def by_week(windows: Iterable[Window]) -> ByAirport[date]:
    """Sum up by airport and Monday of the local week."""
    return _by(windows, lambda moment: moment.date() - timedelta(days=moment.weekday()))


def _by(windows: Iterable[Window], group: Callable[[datetime], Group]) -> ByAirport[Group]:
    found: defaultdict[str, defaultdict[Group, Delays]] = defaultdict(lambda: defaultdict(Delays))
    for window in windows:
        moment = datetime.fromtimestamp(window.start_ms / 1000, UTC).astimezone(NEW_YORK)
        found[window.origin][group(moment)].add(window)
    return {
        airport: {key: groups[key] for key in sorted(groups) if groups[key].departed >= FEWEST}
        for airport, groups in sorted(found.items())
    }
