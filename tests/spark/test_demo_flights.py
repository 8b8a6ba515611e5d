"""Rows of the table as events."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from kraftpy.demo.flights import event_time_ms, read_events, to_event

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
LATE = "2013,12,31,26,2245,101,129,2353,96,B6,108,N374JB,JFK,PWM,50,273,22,45,2014-01-01T03:00:00Z"
CANCELLED = "2013,1,2,NA,1545,NA,NA,1910,NA,AA,133,NA,JFK,LAX,NA,2475,15,45,2013-01-02T20:00:00Z"


def row(line: str) -> dict[str, str]:
    return dict(zip(COLUMNS.split(","), line.split(","), strict=True))


def test_a_departure_is_timed_by_its_schedule_and_delay() -> None:
    assert event_time_ms("2013-01-01T10:00:00Z", "15", "2") == 1357035420000
    assert event_time_ms("2013-01-01T10:00:00Z", "15", "-20") == 1357035420000 - 22 * 60_000


def test_a_delay_beyond_midnight_stays_with_its_day() -> None:
    event = to_event(row(LATE))
    assert datetime.fromtimestamp(event.time_ms / 1000, UTC) == datetime(2014, 1, 1, 5, 26, tzinfo=UTC)
    assert event.key == b"N374JB"


def test_a_cancelled_flight_is_an_event_at_its_scheduled_time() -> None:
    event = to_event(row(CANCELLED))
    assert datetime.fromtimestamp(event.time_ms / 1000, UTC) == datetime(2013, 1, 2, 20, 45, tzinfo=UTC)
    assert event.key is None


def test_the_value_is_the_whole_row_as_json() -> None:
    value = json.loads(to_event(row(CANCELLED)).value)
    assert list(value) == COLUMNS.split(",")
    assert (value["dep_time"], value["tailnum"], value["distance"], value["carrier"]) == (None, None, 2475, "AA")


def test_events_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([COLUMNS, LATE, CANCELLED]) + "\n")
    events = read_events(tmp_path)
    assert [json.loads(event.value)["flight"] for event in events] == [133, 108]
