"""Reading a transactional topic to its end: the command ends, and the group has no lag, for each kind of end."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from transactional_topics import ENDINGS, Writer, write_ending

from kraftpy.cli import cli
from kraftpy.cli.consume import Ends, Progress
from kraftpy.client import ConsumerRecord, ErrorCode, KafkaError
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import TopicPartition

Rows = Callable[..., list[dict[str, Any]]]
ABORTED = {"aborted", "aborted too"}


@pytest.fixture
def rows(kraftpy_server: EmbeddedBroker) -> Rows:
    """Run a command against the broker, and return the rows it prints."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        environment = {"KRAFTPY_BOOTSTRAP_SERVERS": kraftpy_server.bootstrap}
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == 0, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def topic(rows: Rows) -> str:
    name = f"end-{secrets.token_hex(4)}"
    rows("topic", "create", name)
    return name


def commit(server: EmbeddedBroker, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_group_that_reads_to_the_end_has_committed_the_end(
    kraftpy_server: EmbeddedBroker, rows: Rows, topic: str, ending: str
) -> None:
    values = write_ending(kraftpy_server.bootstrap, topic, ending)
    group = f"{topic}-readers"
    assert [row["value"] for row in rows("consume", topic, "-g", group, "--read-committed")] == values
    (row,) = rows("group", "describe", group)
    assert row["committed_offset"] == row["end_offset"] > len(values)
    assert (row["lag"], row["lag_ms"]) == (0, 0)
    assert rows("consume", topic, "-g", group, "--read-committed") == []


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_without_a_group_the_command_ends_too(
    kraftpy_server: EmbeddedBroker, rows: Rows, topic: str, ending: str
) -> None:
    values = write_ending(kraftpy_server.bootstrap, topic, ending)
    assert [row["value"] for row in rows("consume", topic, "--read-committed")] == values
    uncommitted = [row["value"] for row in rows("consume", topic)]
    assert [value for value in uncommitted if value not in ABORTED] == values


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_what_is_no_record_is_no_lag(kraftpy_server: EmbeddedBroker, rows: Rows, topic: str, ending: str) -> None:
    """Another client's group has committed the records it read, and its offset stays before the markers."""
    values = write_ending(kraftpy_server.bootstrap, topic, ending)
    group = f"{topic}-others"
    read = [row for row in rows("consume", topic, "--read-committed") if row["value"] in values]
    after_last = read[-1]["offset"] + 1 if read else 0
    commit(kraftpy_server, group, topic, after_last)
    (row,) = rows("group", "describe", group)
    assert row["committed_offset"] == after_last < row["end_offset"]
    assert (row["lag"], row["lag_ms"]) == (0, 0)
    if read:
        commit(kraftpy_server, group, topic, read[-1]["offset"])
        (row,) = rows("group", "describe", group)
        assert row["lag"] == row["end_offset"] - read[-1]["offset"]
        assert row["lag_ms"] > 0


def test_records_of_an_open_transaction_are_a_lag(kraftpy_server: EmbeddedBroker, rows: Rows, topic: str) -> None:
    write_ending(kraftpy_server.bootstrap, topic, "aborts in a row")
    group = f"{topic}-waiting"
    commit(kraftpy_server, group, topic, 2)
    writer = Writer(kraftpy_server.bootstrap, topic)
    before_ms = time.time_ns() // 1_000_000
    writer.begin("open")
    (row,) = rows("group", "describe", group)
    assert row["lag"] == row["end_offset"] - 2
    assert 0 <= row["lag_ms"] <= time.time_ns() // 1_000_000 - before_ms
    writer.abort()
    (row,) = rows("group", "describe", group)
    assert (row["lag"], row["lag_ms"]) == (0, 0)


def test_many_markers_in_a_row_are_passed(kraftpy_server: EmbeddedBroker, rows: Rows, topic: str) -> None:
    writer = Writer(kraftpy_server.bootstrap, topic)
    writer.begin("first")
    writer.commit()
    for _ in range(150):
        writer.begin("aborted")
        writer.abort()
    group = f"{topic}-late"
    commit(kraftpy_server, group, topic, 1)
    (row,) = rows("group", "describe", group)
    assert (row["committed_offset"], row["lag"], row["lag_ms"]) == (1, 0, 0)


class Standing:
    """A consumer with a fixed position, which remembers the commits that are asked for."""

    def __init__(self, positions: dict[TopicPartition, int]) -> None:
        self.positions = positions
        self.committed: list[dict[TopicPartition, int]] = []

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    async def position(self, partition: TopicPartition) -> int:
        if self.positions[partition] < 0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the next batch cannot be read")
        return self.positions[partition]

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 7)

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.committed.append(dict(offsets))


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, None, b"", ())


async def test_nothing_that_was_not_printed_is_committed() -> None:
    """A fetch brings records beyond the end along, if they are written meanwhile."""
    where = TopicPartition("t", 0)
    consumer = Standing({where: 0})
    ends = Ends(consumer)  # type: ignore[arg-type]
    progress = Progress(consumer, ends)  # type: ignore[arg-type]
    assert not await ends.are_reached()
    consumer.positions[where] = 10
    found = {where: [record(offset) for offset in range(10)]}
    assert [each.offset for each in ends.keep(where, found[where])] == list(range(7))
    await progress.commit(found)
    await progress.commit({where: []})
    assert consumer.committed == [{where: 7}]


async def test_what_was_printed_is_committed_even_if_reading_has_failed_behind_it() -> None:
    where = TopicPartition("t", 0)
    consumer = Standing({where: -1})
    with pytest.raises(KafkaError, match="cannot be read"):
        await Progress(consumer, None).commit({where: [record(3), record(4)]})  # type: ignore[arg-type]
    assert consumer.committed == [{where: 5}]
