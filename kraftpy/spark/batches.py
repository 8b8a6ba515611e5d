"""A stream's finished micro-batches, as Spark's progress events tell of them: parts, rows, positions, lag.

Pure. The events are those of a `StreamingQueryListener`, of `query.recentProgress`, and of Spark's event log. Offsets
are this package's or those of Spark's own Kafka connector; other sources only count rows. In a `Batch` times are
milliseconds since 1970, durations milliseconds, and rows of a partition offsets: gaps of compaction count as rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kraftpy.spark.counts import READER
from kraftpy.spark.offsets import STARTED_AT
from kraftpy.spark.stream_offsets import StreamOffsets, first_offset, from_json
from kraftpy.types import TopicPartition

OBSERVED = "kraftpy"
"""The name under which `observe` has Spark report bytes and times of records."""
_MOST = 2**63


class ProgressError(ValueError):
    """It is not a progress event of Spark's; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRead:
    """A partition's part in a batch."""

    source: int
    """Which of the query's sources read it, from 0."""
    where: TopicPartition
    start: int | None
    """None if nobody knows: the first batch of Spark's own connector."""
    end: int
    log_end: int | None
    """The end of the log when the batch was planned, if that is known."""

    @property
    def rows(self) -> int | None:
        """The offsets read."""
        return None if self.start is None else max(0, self.end - self.start)

    @property
    def lag(self) -> int | None:
        """The offsets behind the end of the log once the batch is done."""
        return None if self.log_end is None else max(0, self.log_end - self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A finished micro-batch."""

    query_id: str
    run_id: str
    name: str | None
    number: int
    started_ms: int
    duration_ms: int | None
    parts: Mapping[str, int] = field(default_factory=dict)
    """Durations by Spark's names for the parts of a trigger: latestOffset, queryPlanning, walCommit, addBatch, ..."""
    rows: int | None = None
    partitions: tuple[PartitionRead, ...] = ()
    reader: Mapping[str, int] = field(default_factory=dict)
    """`ReaderCounts` of all sources when the batch was planned, summed up."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """The counts of `observe`: rows, bytes, oldestMs, newestMs."""

    @property
    def lag(self) -> int | None:
        """The offsets that the query is behind in all partitions, or None if no source tells the ends of its logs."""
        lags = [each.lag for each in self.partitions if each.lag is not None]
        return sum(lags) if lags else None

    @property
    def rows_per_s(self) -> float | None:
        """Rows a second while the batch ran."""
        if self.rows is None or not self.duration_ms:
            return None
        return self.rows * 1000 / self.duration_ms

    def partition_rows_per_s(self) -> dict[TopicPartition, float]:
        """Return offsets a second by partition while the batch ran, of all sources, without unknown ones."""
        if not self.duration_ms:
            return {}
        found: dict[TopicPartition, float] = {}
        for each in self.partitions:
            if each.rows is not None:
                found[each.where] = found.get(each.where, 0.0) + each.rows * 1000 / self.duration_ms
        return found

    @property
    def delay_ms(self) -> int | None:
        """How long the batch's oldest record had waited when the batch ended; only with `observe`."""
        if "oldestMs" not in self.observed or self.duration_ms is None:
            return None
        return self.started_ms + self.duration_ms - self.observed["oldestMs"]


def batch_of(progress: Mapping[str, Any]) -> Batch:
    """Read a progress event: the value of `progress`, or a `StreamingQueryProgress`. Raises ProgressError."""
    try:
        return _batch_of(progress)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ProgressError(f"not a progress event of a stream: {said}") from None


def _batch_of(progress: Mapping[str, Any]) -> Batch:
    partitions: list[PartitionRead] = []
    reader: dict[str, int] = {}
    for place, source in enumerate(progress["sources"]):
        log_end = _object(source.get("latestOffset")) or {}
        for name, count in _counts(log_end.get(READER)).items():
            reader[name] = reader.get(name, 0) + count
        start, end = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
        if end is not None:
            partitions += reads(place, start, end, _offsets(log_end))
    duration = progress.get("batchDuration")
    rows = progress.get("numInputRows")
    if rows is None:  # events of an event log have it by source only
        rows = sum(whole(source["numInputRows"]) for source in progress["sources"])
    observed: Any = (progress.get("observedMetrics") or {}).get(OBSERVED)
    return Batch(
        query_id=str(progress["id"]),
        run_id=str(progress["runId"]),
        name=None if progress.get("name") is None else str(progress["name"]),
        number=whole(progress["batchId"]),
        started_ms=_time_ms(progress["timestamp"]),
        duration_ms=None if duration is None else whole(duration),
        parts=_counts(progress.get("durationMs")),
        rows=whole(rows),
        partitions=tuple(partitions),
        reader=reader,
        observed=_counts(observed.asDict() if hasattr(observed, "asDict") else observed),
    )


def reads(
    source: int, start: StreamOffsets | None, end: StreamOffsets, log_end: StreamOffsets | None
) -> list[PartitionRead]:
    """Return what a batch between two offsets reads, in order of partitions. `start` is None if it is not known."""
    if end.started_at is not None and (start is None or start.started_at is None):
        start = end.started_at
    ends = log_end.offsets if log_end is not None else {}
    return [
        PartitionRead(
            source=source,
            where=where,
            start=None if start is None else first_offset(start, end, where),
            end=last,
            log_end=ends.get(where),
        )
        for where, last in sorted(end.offsets.items())
    ]


def offsets_of(found: Mapping[str, Any]) -> StreamOffsets:
    """Read a source's offsets; other sources' are empty. Raises ValueError."""
    plain = {key: value for key, value in found.items() if key != READER}
    topics = [value for key, value in plain.items() if not key.startswith("#")]
    if not all(isinstance(partitions, dict) for partitions in topics):
        return StreamOffsets(offsets={})  # of a source of another kind: {"logOffset": 3}
    if isinstance(plain.get(STARTED_AT), dict) and STARTED_AT in plain[STARTED_AT]:
        raise ValueError(f"{STARTED_AT} within {STARTED_AT}")
    at = from_json(plain)
    for where, offset in at.offsets.items():
        if not (0 <= offset < _MOST and 0 <= where.partition < 2**31):
            raise ValueError(f"offset {offset} of partition {where.partition}")
    return at


def _offsets(found: Any) -> StreamOffsets | None:
    as_object = _object(found)
    return None if as_object is None else offsets_of(as_object)


def _object(found: Any) -> Mapping[str, Any] | None:
    """Return offsets as an object: Spark has them as text in some places, as objects in others.

    None if there are none, for which PySpark has the text "None", or if they are a number or text of another source.
    """
    if isinstance(found, str):
        if not found.startswith("{"):
            return None
        found = json.loads(found)
    return found if isinstance(found, dict) else None


def _counts(found: Any) -> dict[str, int]:
    return {str(name): whole(count) for name, count in (found or {}).items() if count is not None}


def whole(value: Any) -> int:
    """Return a count of 64 bits. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST <= value < _MOST:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def _time_ms(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
