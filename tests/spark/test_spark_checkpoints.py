"""Checkpoints of Spark's own connector are continued, and given back to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.spark.checkpoints import CheckpointError, release, without_ids
from kraftpy.testing.cluster import EmbeddedBroker

RECORDED = Path(__file__).resolve().parent / "checkpoints" / "connector-4.2.0"
"""A query on the connector: topic `taken-over`, ten records of each partition a batch. The third was not done."""
IDS = '"#topicIds":{"t":"AAAAAAAAAAAAAAAAAAAAAQ"}'
FILE = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n'


def offsets_as_the_connector_reads(path: Path) -> dict[str, dict[int, int]]:
    """The offsets as its JSON reader reads them: topics with numbers. Raises ValueError for anything else."""
    found = json.loads(path.read_text().splitlines()[2])
    return {topic: {int(index): int(offset) for index, offset in each.items()} for topic, each in found.items()}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_of_the_connector_is_continued_and_given_back(
    spark: Any, topic_of: Callable[..., str], kraftpy_server: EmbeddedBroker, tmp_path: Path
) -> None:
    """The batch that it did not finish is done with its offsets; no record is left out or read twice."""
    records = [{"value": b"%d" % n, "partition": n % 2} for n in range(90)]
    topic = topic_of(records, partitions=2, name="taken-over")
    checkpoint = shutil.copytree(RECORDED, tmp_path / "checkpoint")
    batches: dict[int, list[int]] = {}

    def run() -> None:
        reader = spark.readStream.format("kraftpy").option("kafka.bootstrap.servers", kraftpy_server.bootstrap)
        stream = reader.options(subscribe=topic, startingOffsets="latest", maxOffsetsPerTrigger="40").load()

        def take(frame: Any, number: int) -> None:
            batches[number] = sorted(int(row.value) for row in frame.select("value").collect())

        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None

    run()
    assert batches.pop(2) == list(range(40, 60))
    assert sorted(value for batch in batches.values() for value in batch) == list(range(60, 90))
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    with pytest.raises(ValueError, match="invalid literal"):
        offsets_as_the_connector_reads(last)
    result = CliRunner().invoke(cli, ["spark", "release", str(checkpoint)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "can be read by Spark's own connector now" in result.output
    assert offsets_as_the_connector_reads(last) == {topic: {0: 45, 1: 45}}
    batches.clear()
    run()
    assert [batch for batch in batches.values() if batch] == []


def make(checkpoint: Path, *lines: str, committed: bool = True) -> Path:
    for number, line in enumerate(lines):
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "offsets" / str(number)).write_text(FILE + line)
        (checkpoint / "offsets" / f".{number}.crc").write_bytes(b"sum")
    (checkpoint / "commits").mkdir(parents=True)
    if committed:
        (checkpoint / "commits" / "0").write_text("v1\n{}")
    return checkpoint


def test_ids_are_taken_out_of_every_source_and_nothing_else_changes(tmp_path: Path) -> None:
    plain = '{"t":{"0":5,"1":7}}'
    made = make(
        tmp_path, f'{{"t":{{"0":5,"1":7}},{IDS}}}', f'-\n{{"t":{{"0":5,"1":7}},{IDS}}}\n{{"other":"offset"}}', plain
    )
    assert release(made) == 2
    found = [(made / "offsets" / str(number)).read_text() for number in range(3)]
    assert found == [FILE + plain, f'{FILE}-\n{plain}\n{{"other":"offset"}}', FILE + plain]
    assert sorted(path.name for path in (made / "offsets").iterdir()) == [".2.crc", "0", "1", "2"]
    assert release(made) == 0


def test_what_cannot_be_given_back_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has no offsets"):
        release(tmp_path)
    begun = make(tmp_path / "begun", f'{{"t":{{"0":5}},{IDS}}}', committed=False)
    with pytest.raises(CheckpointError, match="no batch has been finished"):
        release(begun)
    assert IDS in (begun / "offsets" / "0").read_text()
    with pytest.raises(CheckpointError, match="begins with 'hello'"):
        without_ids("hello\nworld")
    result = CliRunner().invoke(cli, ["spark", "release", str(begun)])
    assert result.exit_code == 1
    assert "no batch has been finished" in result.output
