"""The sinks behind `df.write.format("kraftpy")` and `df.writeStream`: write rows to topics, in Arrow batches.

A writer is created where the query is planned, pickled and sent to the tasks, and created again for `commit`; only
messages travel back. It therefore holds nothing but checked options, and each attempt of a task opens connections of
its own.

Delivery is at least once by default: a task that is run again writes its rows again, with an idempotent producer within
each attempt. `delivery=exactly_once` is `kraftpy.spark.sink_transactions`. In a streaming query it survives any failure
of the query; in a batch write it covers the job's own retries, because a job that is run again is a new write.

Left out: `overwrite` (a topic can only be appended to), timestamps of rows.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.sink_options import AuditSettings, Delivery, ProducerSettings, WriteOptions, parse_write_options
from kraftpy.spark.sink_producer import ColumnProducer
from kraftpy.spark.sink_rows import RowPartitioner, SinkColumns, check_columns
from kraftpy.spark.sink_transactions import Mark, Prepared, ReplayError, TaskKey, Transaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("kraftpy.spark")

CHUNK_BYTES = 8 << 20
CHUNK_ROWS = 131_072
"""Arrow batches are joined up to about this size, or for `linger_ms`, so that record batches fill up."""
_KEEPS_LOGS = "PYSPARK_SPARK_SESSION_UUID"
"""A variable of Spark's Python workers: Spark keeps their logs (`spark.sql.pyspark.worker.logging.enabled`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """The result of a task's attempt. Under `exactly_once`: a `prepared` transaction, or the batch's earlier `mark`."""

    rows: int
    query_id: str = ""
    partition: int = 0
    counts: tuple[tuple[str, int, int], ...] = ()
    """For the audit: topic, start of the window in ms, rows."""
    prepared: Prepared | None = None
    mark: Mark | None = None


def write_rows(
    batches: Iterator[pa.RecordBatch],
    columns: SinkColumns,
    options: WriteOptions,
    transaction: Transaction | None = None,
) -> Written:
    """Write all rows and wait for their acknowledgement. Raises KafkaError, RowError."""
    with ColumnProducer(options.producer, transaction=transaction) as producer:
        partitioner = RowPartitioner(columns, options, producer.partitions_of)
        for chunk in _chunks(batches, options.producer.linger_ms):
            producer.write(partitioner.split(chunk))
        producer.flush()
        return Written(rows=producer.rows_written, counts=_windows(producer.times, options.audit))


def prepare(batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, key: TaskKey) -> Written:
    """Write all rows in a transaction that is left open, unless they are committed. Raises KafkaError, RowError."""
    with Transaction(options.producer, key.transactional_id(options.transactional_id_prefix)) as transaction:
        prepared = transaction.begin()
        mark = transaction.mark()
        if mark is not None and mark.batch_id >= key.batch_id:
            rows: int = sum(batch.num_rows for batch in batches)
            counts = mark.counts if mark.batch_id == key.batch_id else ()
            return Written(rows=rows, partition=key.partition, counts=counts, mark=mark)
        try:
            written = write_rows(batches, columns, options, transaction)
            transaction.store(Mark(batch_id=key.batch_id, rows=written.rows, counts=written.counts))
        except BaseException:
            transaction.abort()
            raise
        return replace(written, partition=key.partition, prepared=prepared)


def commit_all(messages: Sequence[WriterCommitMessage | None], options: WriteOptions, batch_id: int) -> None:
    """Commit what the tasks of a batch prepared. Raises ReplayError before the first commit, and KafkaError."""
    written = [message for message in messages if isinstance(message, Written)]
    for each in written:
        if each.mark is not None and each.mark.batch_id == batch_id and each.mark.rows != each.rows:
            raise ReplayError(
                f"batch {batch_id} was written with {each.mark.rows} rows of partition {each.partition} and is now "
                f"replayed with {each.rows}: its rows fall into other partitions than before. Exactly once needs the "
                "query's options and settings to be those of the run that failed"
            )
    for each in written:
        if each.prepared is not None:
            with Transaction(options.producer, each.prepared.transactional_id, prepared=each.prepared) as transaction:
                transaction.commit()


def abort_all(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Abort prepared transactions, so that readers need not wait for their timeout."""
    for each in messages:
        if isinstance(each, Written) and each.prepared is not None:
            with Transaction(options.producer, each.prepared.transactional_id, prepared=each.prepared) as transaction:
                transaction.abort()


def audit_rows(
    messages: Sequence[WriterCommitMessage | None], audit: AuditSettings, producer: ProducerSettings, about: str
) -> None:
    """Report to the audit how many rows a batch had. Every replay has the same `about`, so that rows count once."""
    from kraftpy.audit.counts import tallies_of
    from kraftpy.audit.topic import create_topic, publish

    now_ms = time.time_ns() // 1_000_000
    counts: dict[tuple[str, int], int] = {}
    for each in messages:
        for topic, start, rows in each.counts if isinstance(each, Written) else ():
            counts[topic, start] = counts.get((topic, start), 0) + rows
    tallies = tallies_of(counts, tier=audit.tier, source=about, window_ms=audit.window_ms, now_ms=now_ms)
    try:
        create_topic(producer.bootstrap_servers, audit.topic, **dict(producer.security))
        publish(producer.bootstrap_servers, audit.topic, tallies, **dict(producer.security))
    except KafkaError as failed:
        logger.warning("cannot report the rows of %s to the audit: %s", about, failed)


def _windows(times: Mapping[tuple[str, int], int], audit: AuditSettings | None) -> tuple[tuple[str, int, int], ...]:
    """Group row counts by topic and audit window; return nothing if there is no audit."""
    counts: dict[tuple[str, int], int] = {}
    if audit is not None:
        for (topic, time_ms), rows in times.items():
            window = (topic, time_ms - time_ms % audit.window_ms)
            counts[window] = counts.get(window, 0) + rows
    return tuple((topic, start, rows) for (topic, start), rows in sorted(counts.items()))


def _chunks(batches: Iterator[pa.RecordBatch], linger_ms: int) -> Iterator[pa.Table]:
    import pyarrow as pa

    together: list[pa.RecordBatch] = []
    begun = time.monotonic()
    rows = size = 0
    for batch in batches:
        step = _rows_for(batch)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            if not together:
                begun = time.monotonic()
            together.append(part)
            rows += part.num_rows
            size += part.nbytes
            late = (time.monotonic() - begun) * 1000 >= linger_ms
            if late or rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield pa.Table.from_batches(together)
                together, rows, size = [], 0, 0
    if together:
        yield pa.Table.from_batches(together)


def _rows_for(batch: pa.RecordBatch) -> int:
    """Return how many of a batch's rows make a chunk, at least one."""
    return max(1, min(CHUNK_ROWS, int(CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1))))


class _Sink:
    """The checks that both writers share."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = parse_write_options(options)
        if overwrite:
            raise OptionError('cannot overwrite a topic: use mode("append") or outputMode("append")')
        self._columns = check_columns(schema, self._options)
        for warning in self._options.warnings:
            logger.warning("%s", warning)
        if self._columns.ignored:
            logger.warning("ignoring columns that are not part of a record: %s", ", ".join(self._columns.ignored))

    def _audit_rows(self, messages: Sequence[WriterCommitMessage | None], about: str) -> None:
        audit = self._options.audit
        if audit is not None:
            audit_rows(messages, audit, self._options.producer, about)

    @staticmethod
    def _log(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        new, before = (sum(m.rows for m in written if (m.mark is None) is is_new) for is_new in (True, False))
        if _KEEPS_LOGS in os.environ and logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)  # else it would keep warnings only: nothing configures logging in a worker
        logger.info("%s: %d rows written by %d tasks, %d had been written before", what, new, len(written), before)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("kraftpy").mode("append")`. Raises OptionError."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Run one attempt of one task. Raises KafkaError, RowError."""
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_rows(iterator, self._columns, self._options)
        key = TaskKey(query_id=self._job, batch_id=0, partition=_task().partitionId())
        return prepare(iterator, self._columns, self._options, key)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit: all tasks have succeeded. Raises KafkaError."""
        commit_all(messages, self._options, 0)
        self._audit_rows(messages, self._job)
        self._log(messages, "write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort a failed job. Rows already in the topic stay there, unless they were in transactions."""
        abort_all(messages, self._options)
        self._log(messages, "a failed write")


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("kraftpy")`. Raises OptionError."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Run one attempt of one task of a micro-batch. Raises KafkaError, RowError."""
        task = _task()
        query_id = task.getLocalProperty("sql.streaming.queryId")
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise RuntimeError("Spark did not provide the ids of the query and the batch")
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return replace(write_rows(iterator, self._columns, self._options), query_id=query_id)
        key = TaskKey(query_id=query_id, batch_id=int(batch_id), partition=task.partitionId())
        return replace(prepare(iterator, self._columns, self._options, key), query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit: all tasks of the batch have succeeded. Raises ReplayError, KafkaError."""
        commit_all(messages, self._options, batchId)
        query_id = next((each.query_id for each in messages if isinstance(each, Written)), "")
        self._audit_rows(messages, f"{query_id}/{batchId}")
        self._log(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log a failed batch; its replay finds out what is committed."""
        abort_all(messages, self._options)
        self._log(messages, f"failed batch {batchId}")


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "write() must run in a task"
    return task
