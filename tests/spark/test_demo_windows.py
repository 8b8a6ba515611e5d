"""The demo's results from the pipeline's tables and topic: windows, tiers, delays, the audit, the picture."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from kraftpy.audit.counts import tallies_of
from kraftpy.audit.topic import create_topic, publish
from kraftpy.client import Producer
from kraftpy.demo.audit import Audit, Count, audit_table
from kraftpy.demo.delays import by_hour, by_week
from kraftpy.demo.plot import save_plot
from kraftpy.demo.tiers import DAY_MS, Rows, books, days, records_at, rows_of
from kraftpy.demo.windows import WINDOW_MS, Window, from_silver, from_table, from_topic, parse, same
from kraftpy.testing.cluster import EmbeddedBroker

BEGIN_MS = 1_357_034_400_000  # 2013-01-01T10:00Z: 5 o'clock in New York
HOUR_MS = 3_600_000


def count(events: int, distinct: int | None = None, expected: int = 5) -> Count:
    distinct = events if distinct is None else distinct
    return Count(where="somewhere", count=events, distinct=distinct, expected=expected, evidence="counted")


def test_an_audit_balances_when_all_places_have_everything_once() -> None:
    assert Audit(counts=(count(5), count(5))).balances


@pytest.mark.parametrize("bad", [count(5, distinct=4), count(4), count(6), count(6, distinct=5), count(0, expected=0)])
def test_an_audit_does_not_balance_with_anything_else(bad: Count) -> None:
    assert not Audit(counts=(count(5), bad)).balances
    assert not Audit(counts=()).balances


def test_an_audit_shows_what_is_missing_or_double() -> None:
    unbalanced = Audit(counts=(count(998, expected=1000), count(1003, distinct=1000, expected=1000)))
    text = io.StringIO()
    Console(file=text, width=120).print(audit_table(unbalanced))
    assert "it does NOT balance" in text.getvalue()
    assert "-2" in text.getvalue()
    assert "+3" in text.getvalue()


def write(table: Path, **columns: Any) -> None:
    table.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), table / "part-0.parquet")


def moments(*times_ms: int) -> Any:
    return pa.array(times_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp("ns", "UTC"))


def test_windows_are_told_once_the_watermark_is_beyond_them(tmp_path: Path) -> None:
    """The newest event is at 12:30, so the watermark is 11:30: the hour from 10:00 is over, that from 11:00 is not."""
    minutes = (0, 59, 30, 60, 150)
    times = moments(*(BEGIN_MS + minute * 60_000 for minute in minutes))
    write(tmp_path, origin=["EWR", "EWR", "LGA", "EWR", "LGA"], timestamp=times, dep_delay=[14, 15, None, 1, 1])
    told, still_open = from_silver(tmp_path)
    assert sorted(told) == [Window("EWR", BEGIN_MS, 2, 2, 1, 29), Window("LGA", BEGIN_MS, 1, 0, 0, 0)]
    assert still_open == 2


def test_a_window_that_ends_at_the_watermark_is_told(tmp_path: Path) -> None:
    times = moments(BEGIN_MS, BEGIN_MS + 2 * HOUR_MS)
    write(tmp_path, origin=["EWR", "EWR"], timestamp=times, dep_delay=[1, 2])
    assert from_silver(tmp_path) == ([Window("EWR", BEGIN_MS, 1, 1, 0, 1)], 1)


def test_the_table_of_windows(tmp_path: Path) -> None:
    assert from_table(tmp_path / "none") == []
    numbers = {name: [number] for number, name in enumerate(("flights", "departed", "late", "delay"), 1)}
    write(tmp_path / "counts", origin=["JFK"], start=moments(BEGIN_MS), end=moments(BEGIN_MS + WINDOW_MS), **numbers)
    assert from_table(tmp_path / "counts") == [Window("JFK", BEGIN_MS, 1, 2, 3, 4)]


def as_value(window: Window) -> bytes:
    start = datetime.fromtimestamp(window.start_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({**window._asdict(), "start": start.replace("+00:00", "Z")}).encode()


def test_values_that_are_no_windows() -> None:
    window = Window("JFK", BEGIN_MS, 1, 2, 3, -4)
    assert parse(as_value(window)) == window
    for bad in (b"", b"[]", b"{}", as_value(window).replace(b"2013", b"MMXIII")):
        with pytest.raises(ValueError, match="not a window"):
            parse(bad)


async def test_only_windows_of_committed_transactions_count(
    kraftpy_server: EmbeddedBroker, topic_of: Callable[..., str]
) -> None:
    topic = topic_of([], partitions=2)
    one, other = (Window("JFK", BEGIN_MS + number * HOUR_MS, 1, 1, 0, 5) for number in range(2))
    async with Producer(bootstrap_servers=kraftpy_server.bootstrap, transactional_id=topic) as producer:
        await producer.init_transactions()
        for partition, window in ((0, one), (1, other), (1, other)):
            async with producer.transaction():
                await producer.send(topic, as_value(window), partition=partition)
        with contextlib.suppress(InterruptedError):
            async with producer.transaction():
                await producer.send_and_wait(topic, as_value(one), partition=0)
                raise InterruptedError  # and so it is aborted
    found = from_topic(kraftpy_server.bootstrap, topic)
    assert sorted(found) == [one, other, other]
    assert same(found, [one, other]) == 2
    assert same(found, [one, other._replace(delay=6)]) == 1


def test_rows_by_their_place_in_the_log(tmp_path: Path) -> None:
    write(tmp_path / "silver", partition=[0, 0, 1], offset=[0, 1, 0])
    write(tmp_path / "quarantine", partition=[0, 1], offset=[1, 1])
    assert rows_of(tmp_path / "silver") == Rows(3, 3)
    assert rows_of(tmp_path / "silver", tmp_path / "quarantine") == Rows(5, 4)
    assert rows_of(tmp_path / "nothing") == Rows(0, 0)


def test_tiers_are_held_against_each_other_by_day(
    kraftpy_server: EmbeddedBroker, topic_of: Callable[..., str], tmp_path: Path
) -> None:
    servers = kraftpy_server.bootstrap
    times = (BEGIN_MS, BEGIN_MS + 1, BEGIN_MS + DAY_MS, BEGIN_MS + 2 * DAY_MS)
    topic = topic_of([{"value": b"v", "timestamp": each} for each in times])
    day = BEGIN_MS - BEGIN_MS % DAY_MS
    told = {(topic, day): 2, (topic, day + DAY_MS): 1, (topic, day + 2 * DAY_MS): 1}
    create_topic(servers, "audit")
    publish(servers, "audit", tallies_of(told, tier="producer", source=topic, window_ms=DAY_MS, now_ms=1))
    write(tmp_path / "bronze", timestamp=moments(*times))
    whole = books(servers, topic, tmp_path / "bronze")
    assert days(whole) == (3, 3)
    assert {tier: records_at(whole, tier) for tier in ("producer", "log", "bronze")} == {
        "producer": 4,
        "log": 4,
        "bronze": 4,
    }
    write(tmp_path / "less", timestamp=moments(*times[:-1]))
    assert days(books(servers, topic, tmp_path / "less")) == (3, 2)
    assert days(books(servers, topic, tmp_path / "nothing")) == (3, 0)


def test_delays_by_local_hour_and_week() -> None:
    summer = 1_372_672_800_000  # 2013-07-01T10:00Z: 6 o'clock in New York
    windows = [Window("JFK", BEGIN_MS, 40, 30, 3, 300), Window("JFK", summer, 31, 31, 0, 31)]
    windows += [Window("JFK", summer + HOUR_MS, 29, 29, 0, 0)]  # too few
    hours = by_hour(windows)["JFK"]
    assert list(hours) == [5, 6]
    assert (hours[5].flights, hours[5].mean, hours[5].late_share) == (40, 10.0, 0.1)
    assert list(by_week(windows)["JFK"]) == [date(2012, 12, 31), date(2013, 7, 1)]


def test_the_picture(tmp_path: Path) -> None:
    windows = [
        Window(airport, BEGIN_MS + hour * HOUR_MS, 40, 40, 4, 100 * place)
        for place, airport in enumerate(("EWR", "JFK", "LGA"))
        for hour in range(24 * 15)
    ]
    save_plot(windows, tmp_path / "out" / "delays.png", first_run_ms=BEGIN_MS + 7 * DAY_MS)
    assert (tmp_path / "out" / "delays.png").read_bytes().startswith(b"\x89PNG")
    save_plot([], tmp_path / "empty.png", first_run_ms=BEGIN_MS)
