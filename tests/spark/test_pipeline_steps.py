"""The steps of a pipeline: on rows made here, and as streaming queries from a topic to a topic and to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kraftpy.pipeline import steps
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # Spark on a busy machine takes its time

FIELDS = {"id": "string", "at": "timestamp", "place": "string", "amount": "double"}
REQUIRED = ("id", "at", "place")


def _event(number: int, minute: int, place: str = "north") -> bytes:
    at = f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"
    return json.dumps({"id": f"e{number}", "at": at, "place": place, "amount": number / 4}).encode()


def _bronze(spark: Any, values: list[bytes | None]) -> Any:
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    )
    rows = [(None, each, "t", 0, offset, datetime(2026, 1, 1), 0) for offset, each in enumerate(values)]
    return spark.createDataFrame(rows, schema)


def test_each_record_is_good_or_in_quarantine_with_the_reason(spark: Any) -> None:
    bad = {
        b"no json": "not of the schema",
        b'{"id": "a", "at": "yesterday", "place": "north"}': "not of the schema",
        b'{"id": "a", "at": "2026-01-01T00:00:00Z"}': "no place",
        b'{"at": "2026-01-01T00:00:00Z", "place": "north"}': "no id",
        b"[]": "not of the schema",
        b"": "not of the schema",
        b" ": "not of the schema",
        None: "no value",
    }
    records = _bronze(spark, [_event(1, 5), *bad, _event(2, 6, "south")])
    found = steps.good(records, fields=FIELDS, required=REQUIRED).collect()
    assert [(row.id, row.place, row.amount, row.offset) for row in found] == [
        ("e1", "north", 0.25, 0),
        ("e2", "south", 0.5, 9),
    ]
    assert found[0].asDict().keys() == {*FIELDS, "topic", "partition", "offset", "timestamp"}
    left = steps.quarantined(records, fields=FIELDS, required=REQUIRED).collect()
    assert {None if row.value is None else bytes(row.value): row.reason for row in left} == bad
    assert left[0].asDict().keys() == {*steps.BRONZE, "reason"}


def test_an_empty_value_is_not_good_though_no_field_is_required(spark: Any) -> None:
    records = _bronze(spark, [b"", b" \n", b"{}"])
    assert [row.offset for row in steps.good(records, fields=FIELDS, required=()).collect()] == [2]
    left = steps.quarantined(records, fields=FIELDS, required=()).collect()
    assert [(row.offset, row.reason) for row in left] == [(0, "not of the schema"), (1, "not of the schema")]


def test_fields_that_cannot_be_are_refused(spark: Any) -> None:
    records = _bronze(spark, [])
    with pytest.raises(ValueError, match="named as columns of records: offset"):
        steps.good(records, fields={**FIELDS, "offset": "long"}, required=REQUIRED)
    with pytest.raises(ValueError, match="required, but no fields: price"):
        steps.quarantined(records, fields=FIELDS, required=("price",))


def test_windows_and_records(spark: Any) -> None:
    values: list[bytes | None] = [_event(n, n) for n in range(15)] + [_event(20, 3, "south")]
    rows = steps.good(_bronze(spark, values), fields=FIELDS, required=REQUIRED)
    counted = steps.windowed(rows, time="at", window="10 minutes", by=["place"], watermark="10 minutes")
    records = steps.as_records(counted, key="place").collect()
    found = sorted((row.key, json.loads(row.value)["start"], json.loads(row.value)["n"]) for row in records)
    assert found == [
        ("north", "2026-01-01T00:00:00.000Z", 10),
        ("north", "2026-01-01T00:10:00.000Z", 5),
        ("south", "2026-01-01T00:00:00.000Z", 1),
    ]


def test_from_a_topic_to_a_topic_and_to_files(
    spark: Any, topic_of: Callable[..., str], kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    source = topic_of([{"value": _event(n, n)} for n in range(40)] + [{"value": b"no json"}])
    target = topic_of([])
    servers = kraftpy_server.bootstrap
    rows = steps.good(steps.bronze(spark, source, bootstrap_servers=servers), fields=FIELDS, required=REQUIRED)
    for _ in range(2):  # the second run finds nothing new
        records = steps.as_records(rows.select("id", "place"), key="id")
        out = steps.to_topic(records, target, bootstrap_servers=servers, checkpoint=str(tmp_path / "topic-progress"))
        assert out.awaitTermination(120)
        kept = steps.to_parquet(
            rows, str(tmp_path / "rows"), checkpoint=str(tmp_path / "file-progress"), partition_by=["place"]
        )
        assert kept.awaitTermination(120)
    reader = spark.read.format("kraftpy").option("kafka.bootstrap.servers", servers).option("subscribe", target)
    written = reader.option("kafka.isolation.level", "read_committed").load().collect()
    assert sorted(bytes(row.key) for row in written) == sorted(f"e{n}".encode() for n in range(40))
    files = spark.read.parquet(str(tmp_path / "rows"))
    assert files.count() == 40
    assert files.select("id").distinct().count() == 40
    assert (tmp_path / "rows" / "place=north").is_dir()
