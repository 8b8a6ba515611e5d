"""The demo's steps in order, on a few thousand events, against the broker and the session the other tests share."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from kraftpy.demo.analyse import analyse
from kraftpy.demo.consume import consume
from kraftpy.demo.flights import Event
from kraftpy.demo.load import create_topic, load, records_in_log
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),  # a session that starts on a busy machine takes its time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

COUNT = 3000


def flight(number: int) -> Event:
    """Even ones leave `number % 60` minutes late for carrier EV, odd ones are cancelled by CA; one a minute."""
    departed = number % 2 == 0
    row = {
        "carrier": "EV" if departed else "CA",
        "dep_time": 517 if departed else None,
        "dep_delay": number % 60 if departed else None,
        "hour": 5 + number % 3,
        "flight": number,
    }
    key = f"N{number % 100}".encode() if number % 10 else None
    return Event(time_ms=1_357_000_000_000 + number * 60_000, key=key, value=json.dumps(row).encode())


async def test_every_step_sees_every_event_once(kraftpy_server: EmbeddedBroker, spark: Any, tmp_path: Path) -> None:
    bootstrap = kraftpy_server.bootstrap
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    produced: list[int] = []
    consumed: list[int] = []

    await create_topic(bootstrap, topic, 4)
    assert await load(bootstrap, topic, map(flight, range(COUNT)), produced.append) == COUNT
    assert sum(produced) == COUNT
    assert await records_in_log(bootstrap, topic) == COUNT

    consumption = await consume(
        bootstrap, topic, f"{topic}-readers", members=2, expected=COUNT, advance=consumed.append
    )
    assert (consumption.records, consumption.distinct_records, sum(consumed)) == (COUNT, COUNT, COUNT)
    assert [len(member.partitions) for member in consumption.members] == [2, 2]
    assert sum(member.records for member in consumption.members) == COUNT

    analysis = analyse(spark, bootstrap, topic, tmp_path / "parquet")
    assert (analysis.rows, analysis.distinct_rows, analysis.unparsed) == (COUNT, COUNT, 0)
    cancelled, departed = analysis.per_carrier
    assert (cancelled.group, cancelled.flights, cancelled.cancelled) == ("CA", COUNT // 2, COUNT // 2)
    assert (departed.group, departed.flights, departed.cancelled) == ("EV", COUNT // 2, 0)
    assert departed.mean == pytest.approx(29.0)
    assert departed.late_share == pytest.approx(22 / 30)
    assert [hour.group for hour in analysis.per_hour] == ["5", "6", "7"]
    written = spark.read.parquet(str(tmp_path / "parquet" / "flights"))
    assert written.selectExpr("min(unix_millis(event_time))").collect()[0][0] == 1_357_000_000_000
