"""Exactly once, driven as Spark drives it but without Spark: attempts that fail, are fenced, or come again."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from sink_rows_of_tests import columns_of, frame, records_in, with_servers

from kraftpy.audit import topic as audit_topic
from kraftpy.audit.counting import count_log
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.sink import BatchSink, StreamSink, abort_all, audit_rows, commit_all, prepare, write_rows
from kraftpy.spark.sink_options import WriteOptions, parse_write_options
from kraftpy.spark.sink_transactions import Mark, ReplayError, TaskKey, Transaction
from kraftpy.testing.cluster import EmbeddedBroker

Filler = Callable[..., str]


class Died(Exception):
    """The task, in the middle of its rows."""


@pytest.fixture
def query() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def options_for(kraftpy_server: EmbeddedBroker) -> Callable[[str], WriteOptions]:
    def make(topic: str) -> WriteOptions:
        options = {"topic": topic, "delivery": "exactly_once", "kafka__batch__size": "400"}
        return parse_write_options(with_servers(options, kraftpy_server.bootstrap))

    return make


def rows(count: int, *, dies_after: int | None = None, name: str = "r") -> Iterator[pa.RecordBatch]:
    for n in range(count):
        if n == dies_after:
            raise Died
        yield frame(value=[f"{name}-{n}"])


COLUMNS = columns_of(frame(value=["x"]), topic="t")


def write_once(batches: Iterator[pa.RecordBatch], options: WriteOptions, key: TaskKey) -> int:
    """A batch of one task; how many rows were new."""
    written = prepare(batches, COLUMNS, options, key)
    commit_all([written], options, key.batch_id)
    return written.rows if written.mark is None else 0


def task(query: str, batch_id: int, partition: int = 0) -> TaskKey:
    return TaskKey(query_id=query, batch_id=batch_id, partition=partition)


def committed(server: EmbeddedBroker, topic: str) -> list[str]:
    found = records_in(server.bootstrap, topic, isolation_level="read_committed")
    return sorted((value or b"").decode() for _, _, value, _ in found)


def test_a_replayed_batch_is_written_once(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    topic = topic_of([], partitions=3)
    options = options_for(topic)
    for _ in range(3):
        results = [write_once(rows(5, name=f"b{b}"), options, task(query, b)) for b in (0, 1)]
    assert results == [0, 0]
    assert committed(kraftpy_server, topic) == sorted(f"b{b}-{n}" for b in (0, 1) for n in range(5))


def test_what_the_tasks_of_a_batch_have_written_is_logged(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = with_servers({"topic": topic_of([])}, kraftpy_server.bootstrap)
    schema = from_arrow_schema(frame(value=["x"]).schema)
    sink = BatchSink(options, schema, overwrite=False)
    three, two = (sink.write(rows(count)) for count in (3, 2))
    once = {**options, "delivery": "exactly_once"}
    stream = StreamSink(once, schema, overwrite=False)
    tasks = [prepare(rows(4), COLUMNS, parse_write_options(once), task(query, 7, number)) for number in (0, 1)]
    with caplog.at_level(logging.INFO, logger="kraftpy.spark"):
        sink.commit([three, two])
        sink.abort([three, None])
        stream.commit(tasks, 7)
        stream.commit([prepare(rows(4), COLUMNS, parse_write_options(once), task(query, 7))], 7)
        stream.abort([None], 8)
    assert [(record.levelname, record.message) for record in caplog.records if record.name == "kraftpy.spark"] == [
        ("INFO", "write: 5 rows written by 2 tasks, 0 had been written before"),
        ("INFO", "a failed write: 3 rows written by 1 tasks, 0 had been written before"),
        ("INFO", "batch 7: 8 rows written by 2 tasks, 0 had been written before"),
        ("INFO", "batch 7: 0 rows written by 1 tasks, 4 had been written before"),
        ("INFO", "failed batch 8: 0 rows written by 0 tasks, 0 had been written before"),
    ]


def test_partitions_and_queries_do_not_know_of_each_other(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    topic = topic_of([])
    options = options_for(topic)
    for key in (task(query, 3, 0), task(query, 3, 1), task(f"{query}-other", 3, 0)):
        assert write_once(rows(2), options, key) == 2
    assert committed(kraftpy_server, topic) == ["r-0"] * 3 + ["r-1"] * 3


def test_a_task_that_dies_leaves_nothing(
    options_for: Callable[[str], WriteOptions],
    topic_of: Filler,
    kraftpy_server: EmbeddedBroker,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kraftpy.spark.sink.CHUNK_ROWS", 10)
    topic = topic_of([])
    options = options_for(topic)
    with pytest.raises(Died):
        write_once(rows(100, dies_after=70), options, task(query, 0))
    assert len(records_in(kraftpy_server.bootstrap, topic)) >= 50, "it had written most of them"
    assert committed(kraftpy_server, topic) == []
    assert write_once(rows(100), options, task(query, 0)) == 100
    assert committed(kraftpy_server, topic) == sorted(f"r-{n}" for n in range(100))


def test_an_earlier_attempt_that_still_runs_is_fenced(
    options_for: Callable[[str], WriteOptions],
    topic_of: Filler,
    kraftpy_server: EmbeddedBroker,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kraftpy.spark.sink.CHUNK_ROWS", 10)
    topic = topic_of([])
    options = options_for(topic)

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(50, name="first")
        assert write_once(rows(50, name="second"), options, task(query, 0)) == 50
        yield from rows(50, name="late")

    with pytest.raises(KafkaError) as raised:
        write_once(slow(), options, task(query, 0))
    assert raised.value.code in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    assert committed(kraftpy_server, topic) == sorted(f"second-{n}" for n in range(50))


def test_an_attempt_that_is_fenced_before_it_writes_fails_at_once(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, query: str
) -> None:
    options = options_for(topic_of([]))
    transactional_id = task(query, 0).transactional_id("kraftpy-spark")
    with (
        Transaction(options.producer, transactional_id) as early,
        Transaction(options.producer, transactional_id) as later,
    ):
        early.begin()
        later.begin()
        with pytest.raises(KafkaError) as raised:
            write_rows(rows(5), COLUMNS, options, early)
    assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_driver_that_dies_while_it_commits(
    options_for: Callable[[str], WriteOptions],
    topic_of: Filler,
    kraftpy_server: EmbeddedBroker,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three tasks is committed; the replay writes the rows of the others."""
    topic = topic_of([])
    options = options_for(topic)
    commit = Transaction.commit

    def commit_and_die(self: Transaction) -> None:
        commit(self)
        raise Died

    tasks = [task(query, 4, n) for n in range(3)]
    written = [prepare(rows(5, name=f"p{key.partition}"), COLUMNS, options, key) for key in tasks]
    assert committed(kraftpy_server, topic) == [], "nothing is visible before the driver commits"
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", commit_and_die)
        with pytest.raises(Died):
            commit_all(written, options, 4)
    replayed = [prepare(rows(5, name=f"p{key.partition}"), COLUMNS, options, key) for key in tasks]
    assert [each.mark for each in replayed] == [Mark(batch_id=4, rows=5), None, None]
    commit_all(replayed, options, 4)
    assert committed(kraftpy_server, topic) == sorted(f"p{p}-{n}" for p in range(3) for n in range(5))


def test_an_attempt_whose_rows_were_cut_short_does_not_count(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    """Spark ends the iterator when computing the rows fails, and fails the task afterwards."""
    topic = topic_of([])
    options = options_for(topic)
    prepare(rows(3), COLUMNS, options, task(query, 0))
    assert write_once(rows(5), options, task(query, 0)) == 5
    assert committed(kraftpy_server, topic) == [f"r-{n}" for n in range(5)]


def test_a_batch_that_fails_is_aborted_at_once(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    topic = topic_of([])
    options = options_for(topic)
    written = prepare(rows(3), COLUMNS, options, task(query, 0))
    abort_all([written, None], options)
    with pytest.raises(KafkaError) as raised:
        commit_all([written], options, 0)
    assert raised.value.code is ErrorCode.INVALID_TXN_STATE
    write_once(rows(1, name="next"), options, task(query, 0, 1))
    assert committed(kraftpy_server, topic) == ["next-0"], "readers do not wait for what was aborted"


def test_what_was_fenced_is_not_committed(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    """A driver that was thought dead commits late."""
    topic = topic_of([])
    options = options_for(topic)
    late = prepare(rows(3, name="late"), COLUMNS, options, task(query, 0))
    replayed = prepare(rows(3, name="replayed"), COLUMNS, options, task(query, 0))
    with pytest.raises(KafkaError) as raised:
        commit_all([late], options, 0)
    assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    commit_all([replayed], options, 0)
    assert committed(kraftpy_server, topic) == [f"replayed-{n}" for n in range(3)]


def test_a_process_that_vanished_is_waited_for_by_nobody(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    """An attempt that ends without a word leaves its transaction open; the next one aborts it at once."""
    topic = topic_of([])
    options = options_for(topic)
    with Transaction(options.producer, task(query, 0).transactional_id("kraftpy-spark")) as vanished:
        vanished.begin()
        write_rows(rows(5, name="gone"), COLUMNS, options, vanished)
    assert write_once(rows(5), options, task(query, 0)) == 5
    assert committed(kraftpy_server, topic) == [f"r-{n}" for n in range(5)]


def test_a_replay_with_other_rows_is_an_error(
    options_for: Callable[[str], WriteOptions], topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    topic = topic_of([])
    options = options_for(topic)
    write_once(rows(5), options, task(query, 0))
    with pytest.raises(ReplayError, match=r"written with 5 rows of partition 0 and is now replayed with 4"):
        write_once(rows(4), options, task(query, 0))
    assert committed(kraftpy_server, topic) == [f"r-{n}" for n in range(5)]


def test_no_rows_are_a_batch_too(options_for: Callable[[str], WriteOptions], topic_of: Filler, query: str) -> None:
    options = options_for(topic_of([]))
    assert write_once(rows(0), options, task(query, 7)) == 0
    with Transaction(options.producer, task(query, 7).transactional_id("kraftpy-spark")) as transaction:
        transaction.begin()
        assert transaction.mark() == Mark(batch_id=7, rows=0)


def test_a_timeout_the_broker_does_not_allow(topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str) -> None:
    options = parse_write_options(
        with_servers({"topic": topic_of([]), "kafka__transaction__timeout__ms": "999999999"}, kraftpy_server.bootstrap)
    )
    with pytest.raises(KafkaError, match=r"kafka.transaction.timeout.ms: the broker does not allow 999999999 ms"):
        write_once(rows(1), options, task(query, 0))


def test_the_audit_is_told_once_of_a_replayed_batch(
    topic_of: Filler, kraftpy_server: EmbeddedBroker, query: str
) -> None:
    topic = topic_of([], partitions=2)
    audit = f"{topic}-audit"
    server = kraftpy_server.bootstrap
    options = parse_write_options(
        with_servers({"topic": topic, "delivery": "exactly_once", "auditTopic": audit}, server)
    )
    assert options.audit is not None
    for _ in range(2):
        written = [prepare(rows(5 + n), COLUMNS, options, task(query, 0, n)) for n in range(2)]
        assert [sum(count for _, _, count in each.counts) for each in written] == [5, 6]
        commit_all(written, options, 0)
        audit_rows(written, options.audit, options.producer, f"{query}/0")
    told, bad = audit_topic.read(server, audit)
    assert (sum(tally.count for tally in told), bad) == (11, 0)
    assert {(tally.tier, tally.topic, tally.window_ms) for tally in told} == {("sink", topic, 600_000)}
    with RangeReader(server, isolation_level="read_committed") as broker:
        counted = count_log(broker, [topic], tier="log", window_ms=600_000, now_ms=0)
    assert sum(tally.count for tally in counted) == 11
    assert {tally.start_ms for tally in counted} == {tally.start_ms for tally in told}


def test_a_mark_fits_beside_an_offset() -> None:
    few = Mark(1, 2, (("t", 0, 2),))
    many = Mark(1, 300, tuple(("t" * 40, n, 1) for n in range(300)))
    assert json.loads(few.metadata()) == {"rows": 2, "counts": [["t", 0, 2]]}
    assert json.loads(many.metadata()) == {"rows": 300}
