"""The errors that people meet first: each says what is wrong (docs/how-to/spark.md, "When it does not work")."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from driving import PLAIN, Query

from kraftpy.client.ranges.reader import RangeReader
from kraftpy.spark.source import batch_reader
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts

Filler = Callable[..., str]
GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "spark.md"


def guide() -> str:
    """The section, on one line."""
    found = re.search(r"## When it does not work\n(.*?)\n## ", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def test_a_broker_that_advertises_an_address_nobody_can_reach(start_broker: Callable[..., EmbeddedBroker]) -> None:
    """The bootstrap server answers, and the error names the other address and where it comes from."""
    advertised = {"advertised.listeners": "PLAINTEXT://nowhere.invalid:9092"}
    with ReservedPorts() as ports:
        reached = f"127.0.0.1:{ports.reserve()}"
        start_broker(settings={"listeners": f"PLAINTEXT://{reached}", **advertised})
    with RangeReader(reached) as reader:
        reader.topics(["t"], create=True)
    options = {
        "kafka.bootstrap.servers": reached,
        "kafka.default.api.timeout.ms": "1000",
        "subscribe": "t",
    }
    with pytest.raises(ConnectionError, match=r"nowhere\.invalid:9092.*broker \d+ advertises this address"):
        batch_reader(options, PLAIN).partitions()
    assert "advertises this address" in guide()


def test_a_group_whose_members_others_are(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on, because its checkpoint alone decides; the log says why the group does not show it."""
    topic = topic_of([{"value": b"1"}, {"value": b"2"}])
    consumer = Consumer(
        {"bootstrap.servers": kraftpy_server.bootstrap, "group.id": f"{topic}-g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while consumer.poll(0.2) is None:
        assert time.monotonic() < deadline
    options = {
        "kafka.bootstrap.servers": kraftpy_server.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1",
        "commitGroupId": f"{topic}-g",
    }
    query = Query(options)
    with caplog.at_level(logging.WARNING, "kraftpy.spark"):
        query.run()
    consumer.close()
    assert [row["value"] for row in query.rows()] == [b"1", b"2"]
    assert f"cannot commit offsets for group '{topic}-g'" in caplog.text
    assert "cannot commit offsets for group" in guide()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_write_without_a_mode(spark: Any) -> None:
    writer = spark.range(1).selectExpr("cast(id as string) as value").write.format("kraftpy")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}).save()
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in guide()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_plans_and_progress_of_a_stream_show_no_secret(
    spark: Any, topic_of: Filler, kraftpy_server: EmbeddedBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "hidden-password"
    options = {
        "kafka.bootstrap.servers": kraftpy_server.bootstrap,
        "subscribe": topic_of([{"value": b"1"}]),
        "startingOffsets": "earliest",
        "kafka.sasl.jaas.config": f'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" '
        f'password="{secret}";',
        "kafka.sasl.mechanism": "PLAIN",
    }
    frame = spark.readStream.format("kraftpy").options(**options).load()
    frame.explain(extended=True)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        query.explain(extended=True)
        assert secret not in str(query.lastProgress.json)
        assert secret not in str(query.recentProgress)
    finally:
        query.stop()
    kept = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if secret.encode() in path.read_bytes()]
    output = capfd.readouterr()
    assert "kraftpy" in output.out
    assert secret not in output.out
    assert "kafka.sasl.jaas.config" in guide()
