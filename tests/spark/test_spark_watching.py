"""Spark's own progress events of real queries, and what is made of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.spark import Watched, observe, watch
from kraftpy.spark.batches import Batch
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def until_told(watched: Watched, name: str, batches: int) -> list[Batch]:
    """Spark tells listeners a moment after a batch has ended."""
    deadline = time.monotonic() + 60
    while len(found := watched.batches(name)) < batches:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_a_stream_is_watched(
    spark: Any, topic_of: Callable[..., str], kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = topic_of(
        [{"key": b"k", "value": b"12345", "partition": n % 2, "timestamp": 1_000 + n} for n in range(60)], partitions=2
    )
    seen: list[int] = []
    with watch(spark, on_batch=lambda batch: seen.append(batch.number)) as watched:
        reader = spark.readStream.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        stream = observe(reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20").load())
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.queryName("watched").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        batches = until_told(watched, "watched", 3)
        assert watched.batches(query) == batches
    assert seen == [0, 1, 2]
    assert [each.rows for each in batches] == [20, 20, 20]
    assert [each.lag for each in batches] == [40, 20, 0]
    assert [[part.rows for part in each.partitions] for each in batches] == [[10, 10]] * 3
    assert [each.observed["bytes"] for each in batches] == [120, 120, 120]
    assert [each.observed["oldestMs"] for each in batches] == [1_000, 1_020, 1_040]
    assert all({"addBatch", "walCommit", "latestOffset"} <= each.parts.keys() for each in batches)
    # The batches before each one that the planner had read: the first, and the second unless the first was slow.
    read = [each.reader["prefetchedBatches"] for each in batches]
    assert read in ([0, 1, 1], [0, 1, 2])
    assert [each.reader["prefetchedRows"] for each in batches] == [20 * each for each in read]
    assert batches[-1].reader["prefetchedBytes"] > 0

    assert watched._remove is None
    again = writer.queryName("unwatched").trigger(availableNow=True).start()
    assert again.awaitTermination(120)
    assert watched.batches("unwatched") == []


def test_a_stream_of_values_with_a_type_is_observed(
    spark: Any, topic_of: Callable[..., str], kraftpy_server: EmbeddedBroker
) -> None:
    """A field may be called as one of Kafka's columns."""
    topic = topic_of([{"value": b'{"key": 3, "value": "x"}'} for _ in range(4)])
    options = {"value.format": "json", "value.schema": "key int, value string", "startingOffsets": "earliest"}
    with watch(spark) as watched:
        reader = spark.readStream.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        stream = observe(reader.options(subscribe=topic, **options).load())
        query = stream.writeStream.format("noop").queryName("typed").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        (batch,) = until_told(watched, "typed", 1)
    assert batch.observed["rows"] == 4
    assert batch.observed["bytes"] == 0  # the keys are null, and the values' bytes not in the frame
    assert "newestMs" in batch.observed
