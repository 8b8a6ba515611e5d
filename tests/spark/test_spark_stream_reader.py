"""The stream reader driven as Spark drives it, without Spark, against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions
from driving import Query
from pyspark.sql.streaming.datasource import ReadAllAvailable
from transactional_topics import ENDINGS, write_ending

from kraftpy.cli import cli
from kraftpy.spark.offsets import DataLossError, OptionError, UnknownTopicError
from kraftpy.spark.stream import StreamReader
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]


@pytest.fixture
def query_of(kraftpy_server: EmbeddedBroker) -> Callable[..., Query]:
    """`query_of(topic, **options)`: dots in option names are written as two underscores."""

    def make(topic: str | None, **options: str) -> Query:
        named = {"kafka.bootstrap.servers": kraftpy_server.bootstrap, "startingOffsets": "earliest"}
        if topic is not None:
            named["subscribe"] = topic
        return Query({**named, **{name.replace("__", "."): value for name, value in options.items()}})

    return make


@pytest.fixture
def admin(kraftpy_server: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kraftpy_server.bootstrap})


@pytest.fixture
def produce(kraftpy_server: EmbeddedBroker) -> Callable[..., None]:
    """`produce(topic, count, partition=0, start=0)`: records whose values are numbers."""

    def send(topic: str, count: int, *, partition: int = 0, start: int = 0) -> None:
        producer = Producer({"bootstrap.servers": kraftpy_server.bootstrap})
        for n in range(start, start + count):
            producer.produce(topic, value=str(n).encode(), partition=partition)
        assert producer.flush(30) == 0

    return send


def numbered(count: int, *, partitions: int = 1) -> list[dict[str, Any]]:
    return [{"value": str(n).encode(), "partition": n % partitions, "timestamp": 1 + n * 1000} for n in range(count)]


def values(batch: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in batch)


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_stream_goes_on_after_what_is_no_record(
    query_of: Callable[..., Query],
    topic_of: Filler,
    produce: Callable[..., None],
    kraftpy_server: EmbeddedBroker,
    ending: str,
) -> None:
    """One batch has the committed records; the next begins behind the markers, and has what is written later."""
    topic = topic_of([])
    committed = write_ending(kraftpy_server.bootstrap, topic, ending)
    query = query_of(topic, kafka__isolation__level="read_committed")
    assert [value for batch in query.run() for value in values(batch)] == [int(value) for value in committed]
    assert query.run() == []
    produce(topic, 2, start=100)
    assert [values(batch) for batch in query.run()] == [[100, 101]]


def test_a_stream_reads_everything_once(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    topic = topic_of(numbered(30, partitions=3), partitions=3)
    query = query_of(topic)
    assert [values(batch) for batch in query.run()] == [list(range(30))]
    assert query.run() == []
    produce(topic, 5, partition=1, start=30)
    assert [values(batch) for batch in query.run(available_now=False)] == [list(range(30, 35))]
    assert {(row["topic"], row["partition"]) for row in query.rows()} == {(topic, n) for n in range(3)}


def test_offsets_are_those_of_sparks_own_source_and_the_topic_s_id(
    query_of: Callable[..., Query], topic_of: Filler
) -> None:
    topic = topic_of(numbered(12, partitions=12), partitions=12)
    query = query_of(topic)
    query.run()
    start, end = map(json.loads, query.checkpoint)
    assert list(start) == [topic, "#topicIds"]
    assert start[topic] == dict.fromkeys(map(str, range(12)), 0)
    assert end[topic] == dict.fromkeys(map(str, range(12)), 1)
    assert len(end["#topicIds"][topic]) == 22
    again = query_of(topic, startingOffsets=query.checkpoint[1])  # as a person takes it from a query's progress
    assert again.run() == []


def test_limits_are_split_in_proportion_and_all_is_drained(query_of: Callable[..., Query], topic_of: Filler) -> None:
    records = [{"value": str(n).encode(), "partition": 0 if n < 90 else 1} for n in range(100)]
    topic = topic_of(records, partitions=3)
    query = query_of(topic, maxOffsetsPerTrigger="20")
    batches = query.run()
    assert [len(batch) for batch in batches] == [20, 20, 20, 20, 20]
    assert sum(row["partition"] == 0 for row in batches[0]) == 18
    assert values(query.rows()) == list(range(100))


def test_trigger_once_takes_everything(query_of: Callable[..., Query], topic_of: Filler) -> None:
    query = query_of(topic_of(numbered(50)), maxOffsetsPerTrigger="20")
    assert [len(batch) for batch in query.run(once=True, available_now=False)] == [50]


def test_available_now_ends_where_the_log_ended_at_its_start(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    topic = topic_of(numbered(10))
    query = query_of(topic)
    planner = StreamReader(query.options, query.schema)
    planner.prepareForTriggerAvailableNow()
    produce(topic, 10, start=10)
    limit = planner.getDefaultReadLimit()
    start = planner.initialOffset()
    end = planner.latestOffset(start, limit)
    assert end[topic] == {"0": 10}
    assert planner.latestOffset(end, limit) == end
    planner.stop()


def test_bytes_limit_batches_too(query_of: Callable[..., Query], topic_of: Filler) -> None:
    topic = topic_of([{"value": bytes(1000)} for _ in range(200)], batch_size="20000", linger_ms="50")
    query = query_of(topic, maxBytesPerTrigger="50000")
    sizes = [len(batch) for batch in query.run()]
    assert sum(sizes) == 200
    assert len(sizes) in (4, 5)
    assert all(40 <= size <= 50 for size in sizes[:-1])


def test_a_batch_waits_for_enough_or_for_the_time(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    topic = topic_of(numbered(3))
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", "kafka__fetch__max__wait__ms": "20"}
    query = query_of(topic, **options)
    planner = StreamReader(query.options, query.schema)
    limit = planner.getDefaultReadLimit()
    first = planner.latestOffset(planner.initialOffset(), limit)
    assert first[topic] == {"0": 3}
    produce(topic, 9)
    assert planner.latestOffset(first, limit) == first
    produce(topic, 1)
    assert planner.latestOffset(first, limit)[topic] == {"0": 13}
    planner.stop()
    late = StreamReader({**query.options, "maxTriggerDelay": "1 ms"}, query.schema)
    assert late.latestOffset(first, limit)[topic] == {"0": 13}
    produce(topic, 1)
    time.sleep(0.002)
    after = {**first, topic: {"0": 13}}
    assert late.latestOffset(after, limit)[topic] == {"0": 14}
    late.stop()


def test_an_answer_of_nothing_new_takes_its_time(query_of: Callable[..., Query], topic_of: Filler) -> None:
    query = query_of(topic_of(numbered(1)), kafka__fetch__max__wait__ms="300")
    planner = StreamReader(query.options, query.schema)
    limit = planner.getDefaultReadLimit()
    end = planner.latestOffset(planner.initialOffset(), limit)
    begin = time.monotonic()
    assert planner.latestOffset(end, limit) == end
    assert time.monotonic() - begin >= 0.299  # clients count whole milliseconds
    planner.stop()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "latest"}, 20),
        ({"startingOffsets": '{"TOPIC": {"0": 5}}'}, 5),
        ({"startingOffsets": '{"TOPIC": {"0": -1}}'}, 20),
        ({"startingOffsets": "-10 minutes"}, 20),
        ({"startingTimestamp": "-1000000 weeks"}, 0),
        ({"startingTimestamp": "12001"}, 12),
        ({"startingOffsetsByTimestamp": '{"TOPIC": {"0": 3001}}'}, 3),
    ],
)
def test_where_a_stream_starts(
    query_of: Callable[..., Query], topic_of: Filler, options: dict[str, str], expected: int
) -> None:
    topic = topic_of(numbered(20))
    query = query_of(topic, **{name: value.replace("TOPIC", topic) for name, value in options.items()})
    query.run()
    assert json.loads(query.checkpoint[0])[topic] == {"0": expected}


def test_a_stream_starts_at_latest_by_default(query_of: Callable[..., Query], topic_of: Filler) -> None:
    topic = topic_of(numbered(20))
    query = query_of(topic)
    del query.options["startingOffsets"]
    query.run()
    assert json.loads(query.checkpoint[0])[topic] == {"0": 20}


def test_partitions_that_are_added_are_read_from_their_beginning(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None], admin: AdminClient
) -> None:
    topic = topic_of(numbered(3))
    query = query_of(topic, startingOffsets="latest")
    query.run()
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    produce(topic, 4, partition=1)
    assert [values(batch) for batch in query.run(available_now=False)] == [list(range(4))]


def test_topics_that_come_to_match_are_read(query_of: Callable[..., Query], topic_of: Filler) -> None:
    name = topic_of([]) + "-family"
    query = query_of(None, subscribePattern=f"{name}-.*")
    assert query.run() == []
    topic_of(numbered(3), name=f"{name}-a")
    topic_of(numbered(2), name=f"{name}-b", partitions=2)
    assert [len(batch) for batch in query.run()] == [5]
    assert json.loads(query.checkpoint[-1])[f"{name}-b"] == {"0": 2, "1": 0}


def test_a_pattern_matches_no_internal_topic(query_of: Callable[..., Query], topic_of: Filler) -> None:
    topic = topic_of(numbered(1))
    query_of(topic, commitGroupId=f"{topic}-g").run()  # now there are committed offsets
    query = query_of(None, subscribePattern=f"{topic}|__.*")
    query.run()
    assert set(json.loads(query.checkpoint[-1])) == {topic, "#topicIds", "#startedAt"}
    named = query_of("__consumer_offsets")
    named.run()
    assert named.rows()


def test_only_assigned_partitions_are_read(query_of: Callable[..., Query], topic_of: Filler) -> None:
    topic = topic_of(numbered(30, partitions=3), partitions=3)
    query = query_of(None, assign=json.dumps({topic: [0, 2]}))
    query.run()
    assert {row["partition"] for row in query.rows()} == {0, 2}


def test_a_named_topic_must_be_there(query_of: Callable[..., Query], topic_of: Filler) -> None:
    with pytest.raises(UnknownTopicError, match="unknown topic: not-here"):
        query_of(f"{topic_of([])},not-here").run(available_now=False)


def test_a_crashed_batch_is_read_again_from_its_offsets(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    topic = topic_of(numbered(10, partitions=2), partitions=2)
    query = query_of(topic, maxOffsetsPerTrigger="4")
    query.run(most=2)
    lost = query.batches.pop()  # Spark had written the end of the batch, not that it was done
    produce(topic, 10, start=10)
    replayed, *_ = query.run()
    assert replayed == lost
    assert values(query.rows()) == list(range(20))


def test_a_crashed_first_batch_begins_where_it_began(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    """Spark keeps no start of a first batch, and asks again where the query would start: behind it, by then."""
    topic = topic_of(numbered(10))
    query = query_of(topic, startingOffsets="latest")
    planner = StreamReader(query.options, query.schema)
    start = planner.initialOffset()
    produce(topic, 5, start=10)
    query.checkpoint = [json.dumps(start), json.dumps(planner.latestOffset(start, ReadAllAvailable()))]
    planner.stop()
    produce(topic, 5, start=15)
    replayed, *_ = query.run()
    assert values(replayed) == list(range(10, 15))
    assert values(query.rows()) == list(range(10, 20))
    assert ["#startedAt" in json.loads(each) for each in query.checkpoint] == [False, True, False]
    assert query.run() == []


def test_a_new_query_starts_at_one_place(
    query_of: Callable[..., Query], topic_of: Filler, produce: Callable[..., None]
) -> None:
    """Spark asks for it before each batch until one is done, and again when it plans that."""
    topic = topic_of(numbered(10))
    query = query_of(topic, startingOffsets="latest")
    planner = StreamReader(query.options, query.schema)
    start = planner.initialOffset()
    produce(topic, 5, start=10)
    assert planner.initialOffset() == start
    planner.stop()


# Loss ----------------------------------------------------------------------------------------------------------------


def delete_before(admin: AdminClient, topic: str, offset: int) -> None:
    for future in admin.delete_records([Place(topic, 0, offset)]).values():
        future.result(30)


def test_records_deleted_before_they_were_read(
    query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(numbered(20))
    strict, lenient = query_of(topic), query_of(topic, failOnDataLoss="false")
    strict.checkpoint = lenient.checkpoint = [json.dumps({topic: {"0": 0}})]
    delete_before(admin, topic, 12)
    with pytest.raises(DataLossError, match=rf"{topic}-0: the stream is at 0, the log starts at 12"):
        strict.run()
    lenient.options["maxOffsetsPerTrigger"] = "4"
    assert [values(batch) for batch in lenient.run()] == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert "the log starts at 12" in caplog.text


@pytest.mark.parametrize("refilled", [30, 5])
def test_a_topic_that_was_created_again_is_another_one(
    query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient, refilled: int
) -> None:
    topic = topic_of(numbered(10))
    strict, lenient = query_of(topic), query_of(topic, failOnDataLoss="false")
    strict.run()
    lenient.run()
    admin.delete_topics([topic])[topic].result(30)
    topic_of([{"value": str(n).encode()} for n in range(100, 100 + refilled)], name=topic)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and created again"):
        strict.run()
    assert [values(batch) for batch in lenient.run()] == [list(range(100, 100 + refilled))]


def test_a_task_does_not_read_another_topic_of_the_name(
    query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient
) -> None:
    topic = topic_of(numbered(10))
    query = query_of(topic)
    planner = StreamReader(query.options, query.schema)
    start = planner.initialOffset()
    end = planner.latestOffset(start, planner.getDefaultReadLimit())
    planner.stop()
    admin.delete_topics([topic])[topic].result(30)
    topic_of(numbered(10), name=topic)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        query.read(planner, json.dumps(start), json.dumps(end))
    query.options["failOnDataLoss"] = "false"
    query.read(planner, json.dumps(start), json.dumps(end))
    assert query.rows() == []


def test_a_topic_that_was_deleted(query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient) -> None:
    topic, other = topic_of(numbered(10)), topic_of(numbered(5))
    strict, lenient = query_of(f"{topic},{other}"), query_of(f"{topic},{other}", failOnDataLoss="false")
    strict.run()
    lenient.run()
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(DataLossError, match=f"{topic}-0: deleted, or no longer selected"):
        strict.run()
    lenient.run()
    assert set(json.loads(lenient.checkpoint[-1])) == {other, "#topicIds"}
    assert lenient.run() == []


def test_aborted_transactions_are_no_loss(
    query_of: Callable[..., Query], topic_of: Filler, kraftpy_server: EmbeddedBroker
) -> None:
    topic = topic_of(numbered(3))
    settings = {"bootstrap.servers": kraftpy_server.bootstrap, "transactional.id": f"{topic}-writer"}
    producer = Producer(settings)
    producer.init_transactions(30)
    for commits, value in ((False, b"100"), (True, b"3"), (False, b"101")):
        producer.begin_transaction()
        producer.produce(topic, value=value)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    query = query_of(topic, isolation__level="read_committed", maxOffsetsPerTrigger="2")
    query.run()
    assert values(query.rows()) == [0, 1, 2, 3]
    assert json.loads(query.checkpoint[-1])[topic] == {"0": 9}
    everything = query_of(topic)
    everything.run()
    assert values(everything.rows()) == [0, 1, 2, 3, 100, 101]


def test_offsets_that_are_no_offsets(query_of: Callable[..., Query], topic_of: Filler) -> None:
    query = query_of(topic_of([]))
    query.checkpoint = ['{"files": ["a"]}']
    with pytest.raises(ValueError, match="not an offset of a kraftpy stream"):
        query.run()


# The group -----------------------------------------------------------------------------------------------------------


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(30).topic_partitions
    return {each.partition: each.offset for each in found if each.topic == topic}


def test_a_group_is_told_of_every_finished_batch(
    query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient
) -> None:
    topic = topic_of(numbered(10, partitions=2), partitions=2)
    query = query_of(topic, commitGroupId=f"{topic}-watchers", maxOffsetsPerTrigger="6")
    query.run(most=1)
    assert committed(admin, f"{topic}-watchers", topic) == {0: 0, 1: 0}
    query.run()
    assert committed(admin, f"{topic}-watchers", topic) == {0: 5, 1: 5}


def test_the_command_line_shows_the_lag_of_a_stream(
    query_of: Callable[..., Query],
    topic_of: Filler,
    produce: Callable[..., None],
    kraftpy_server: EmbeddedBroker,
) -> None:
    topic = topic_of(numbered(10))
    query_of(topic, commitGroupId=f"{topic}-watchers").run()
    produce(topic, 3)
    arguments = ["group", "describe", f"{topic}-watchers", "-b", kraftpy_server.bootstrap, "--format", "json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    [row] = map(json.loads, result.stdout.splitlines())
    assert (row["topic"], row["committed_offset"], row["end_offset"], row["lag"]) == (topic, 10, 13, 3)


def test_a_stream_starts_where_a_group_stands(
    query_of: Callable[..., Query], topic_of: Filler, admin: AdminClient
) -> None:
    topic = topic_of(numbered(20, partitions=2), partitions=2)
    group = f"{topic}-before"
    places = ConsumerGroupTopicPartitions(group, [Place(topic, 1, 7)])
    admin.alter_consumer_group_offsets([places])[group].result(30)
    for options in ({"kafka__group__id": group}, {"commitGroupId": group}):
        query = query_of(topic, startingOffsets="committed", **options)
        query.run()
        assert json.loads(query.checkpoint[0])[topic] == {"0": 0, "1": 7}


def test_committed_needs_a_group(query_of: Callable[..., Query]) -> None:
    with pytest.raises(OptionError, match="needs a group"):
        query_of("t", startingOffsets="committed").run()
