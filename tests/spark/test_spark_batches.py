"""Batches read from progress events, and the errors for events that are not whole."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.batches import ProgressError, batch_of
from kraftpy.spark.counts import ReaderCounts
from kraftpy.spark.lookup import Lookup
from kraftpy.spark.options import parse_stream_options
from kraftpy.spark.watching import Watched, line_of
from kraftpy.types import TopicPartition

OLD, NEW = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
EVENT: dict[str, Any] = {
    "id": "6beb04d5-8e4c-4585-bd48-3af65afb65d0",
    "runId": "956e9d98-4845-4a5b-868a-f0c724703b24",
    "name": "orders",
    "timestamp": "2026-11-29T12:19:15.211Z",
    "batchId": 1,
    "batchDuration": 500,
    "durationMs": {"triggerExecution": 500, "addBatch": 400, "walCommit": 45},
    "sources": [
        {
            "startOffset": json.dumps({"orders": {"0": 10, "1": 10}}),
            "endOffset": json.dumps({"orders": {"0": 30, "1": 20, "2": 5}}),
            "latestOffset": json.dumps({"orders": {"0": 31, "1": 20, "2": 7}, "#reader": {"retries": 2}}),
            "numInputRows": 35,
            "metrics": {},
        }
    ],
    "observedMetrics": {"kraftpy": {"rows": 35, "bytes": 700, "oldestMs": 1795954755000}},
}


def changed(source: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    event = copy.deepcopy(EVENT) | fields
    event["sources"][0] |= source or {}
    return event


def test_an_event_of_an_event_log() -> None:
    batch = batch_of(EVENT)
    assert (batch.number, batch.rows, batch.duration_ms, batch.rows_per_s, batch.lag) == (1, 35, 500, 70.0, 3)
    assert [(str(each.where), each.rows, each.lag) for each in batch.partitions] == [
        ("orders-0", 20, 1),
        ("orders-1", 10, 0),
        ("orders-2", 5, 2),  # new in this batch: it begins at 0
    ]
    assert batch.partition_rows_per_s()[TopicPartition("orders", 0)] == 40.0
    assert batch.parts["addBatch"] == 400
    assert batch.reader == {"retries": 2}
    assert batch.started_ms == 1795954755211
    assert batch.delay_ms == 711
    said = line_of(batch)
    for part in ("orders batch 1", "35 rows", "addBatch 400", "3 behind", "700 bytes", "2 retries"):
        assert part in said


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ({"startOffset": {"t": {"0": 10}}, "endOffset": {"t": {"0": 12}}}, [2]),  # as objects, not as text
        ({"startOffset": None, "endOffset": '{"t":{"0":12}}'}, [None]),
        ({"startOffset": "None", "endOffset": '{"t":{"0":12}}'}, [None]),
        ({"startOffset": None, "endOffset": '{"t":{"0":12},"#startedAt":{"t":{"0":9}}}'}, [3]),
        (
            {
                "startOffset": f'{{"t":{{"0":50}},"#topicIds":{{"t":"{OLD}"}}}}',
                "endOffset": f'{{"t":{{"0":7}},"#topicIds":{{"t":"{NEW}"}}}}',
            },
            [7],  # created again: from its beginning
        ),
        ({"startOffset": '{"logOffset":1}', "endOffset": '{"logOffset":2}', "latestOffset": None}, []),
        ({"startOffset": "3", "endOffset": "4", "latestOffset": "4"}, []),  # a source of another kind
    ],
)
def test_rows_of_partitions(source: dict[str, Any], rows: list[int | None]) -> None:
    assert [each.rows for each in batch_of(changed(source)).partitions] == rows


def test_a_source_that_does_not_tell_its_ends_has_no_lag() -> None:
    assert batch_of(changed({"latestOffset": None})).lag is None


HOSTILE: list[Any] = [
    {},
    {**EVENT, "sources": 3},
    {**EVENT, "sources": [None]},
    changed(timestamp="yesterday"),
    changed(timestamp=None),
    changed(batchId="1"),
    changed(batchId=True),
    changed(batchDuration=1e308),
    changed(durationMs={"addBatch": 2**70}),
    changed(durationMs=[1]),
    changed(numInputRows=float("nan")),
    changed(observedMetrics={"kraftpy": {"rows": "x"}}),
    changed({"endOffset": "{"}),
    changed({"endOffset": '{"t":' + "[" * 100_000}),
    changed({"endOffset": '{"t":{"x":1}}'}),
    changed({"endOffset": '{"t":{"0":-1}}'}),
    changed({"endOffset": {"t": {"0": float("inf")}}}),
    changed({"endOffset": {"t": {"0": 10**400}}}),
    changed({"endOffset": '{"t":{"0":1},"#startedAt":{"#startedAt":{"t":{"0":1}}}}'}),
    changed({"endOffset": '{"t":{"0":1},"#topicIds":{"t":"short"}}'}),
    changed({"latestOffset": '{"#reader":{"retries":"many"}}'}),
]


@pytest.mark.parametrize("event", HOSTILE, ids=range(len(HOSTILE)))
def test_an_event_that_is_none_is_one_error(event: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ProgressError, match="not a progress event"):
        batch_of(event)
    watched = Watched(10, None)
    watched.note(event)
    assert watched.batches() == []
    assert len(caplog.records) == 1


def test_the_last_batches_of_a_run_are_kept() -> None:
    watched = Watched(3, None)
    for number in range(5):
        watched.note(changed(batchId=number, timestamp=f"2026-11-29T12:19:{number:02}.000Z"))
    assert [each.number for each in watched.batches()] == [2, 3, 4]
    assert watched.batches("orders") == watched.batches(EVENT["id"]) == watched.batches(EVENT["runId"])
    assert watched.batches("others") == []
    last = watched.last()
    assert last is not None
    assert last.number == 4


def test_runs_are_forgotten_in_the_end() -> None:
    watched = Watched(1, None)
    for number in range(150):
        watched.note(changed(runId=str(number)))
    assert len(watched.batches()) == 100


def test_a_callback_that_fails_costs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("no")

    watched = Watched(1, fail)
    watched.note(EVENT)
    watched.note(changed(batchId=2))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "a callback failed in batch 1 of orders",
        "a callback failed in batch 2 of orders",
    ]


def test_questions_that_are_asked_again_are_counted() -> None:
    options = parse_stream_options({"kafka.bootstrap.servers": "x:1", "subscribe": "t"})
    counts = ReaderCounts()
    lookup = Lookup(options.read, None, counts=counts)  # type: ignore[arg-type]
    left = [KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")] * 2

    def answer() -> int:
        if left:
            raise left.pop()
        return 7

    assert lookup.ask(answer) == 7
    assert counts.to_json()["retries"] == 2
