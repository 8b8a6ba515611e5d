"""Watch a session's streams: what each batch read, how far it is behind, and where its time went.

`watch` adds a listener of Spark's (`StreamingQueryListener`), in classic sessions and in those of Spark Connect. Spark
tells it of each finished batch, in a thread of its own and a moment later. It keeps the last batches of each run and
writes a line for each to the log `kraftpy.spark.batches` at level INFO. An error in a callback costs a line in the log.

`observe` has Spark count the rows' bytes and times on the way, in the executors and exactly, and report them in its own
progress events under the name "kraftpy".
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kraftpy.spark.batches import OBSERVED, Batch, ProgressError, batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("kraftpy.spark.batches")

KEPT = 1_000
"""How many of a run's last batches are kept by default."""
MOST_RUNS = 100
"""How many runs are remembered; the one that was watched first is forgotten first."""


class Watched:
    """The last batches of a session's streams. Thread-safe. As a context manager it stops watching in the end."""

    def __init__(self, kept: int, on_batch: Callable[[Batch], None] | None) -> None:
        self._kept = kept
        self._on_batch = on_batch
        self._lock = threading.Lock()
        self._runs: dict[str, deque[Batch]] = {}
        self._remove: Callable[[], None] | None = None

    def batches(self, query: Any = None) -> list[Batch]:
        """Return the batches kept, in the order in which they ended.

        `query` selects by a query (`StreamingQuery`), or by its name, id, or run id.
        """
        wanted = {str(each) for each in (getattr(query, "runId", query),) if each is not None}
        with self._lock:
            found = [batch for run in self._runs.values() for batch in run]
        if wanted:
            found = [each for each in found if wanted & {each.run_id, each.query_id, each.name or ""}]
        return sorted(found, key=lambda each: each.started_ms + (each.duration_ms or 0))

    def last(self, query: Any = None) -> Batch | None:
        """Return the batch that ended last, or None."""
        found = self.batches(query)
        return found[-1] if found else None

    def note(self, progress: Any) -> None:
        """Keep a progress event. Raises nothing: Spark would only log it, in another place."""
        try:
            batch = batch_of(progress)
        except ProgressError as error:
            logger.warning("%s", error)
            return
        with self._lock:
            run = self._runs.setdefault(batch.run_id, deque(maxlen=self._kept))
            run.append(batch)
            while len(self._runs) > MOST_RUNS:
                del self._runs[next(iter(self._runs))]
        logger.info("%s", line_of(batch))
        if self._on_batch is not None:
            try:
                self._on_batch(batch)
            except Exception:
                logger.exception("a callback failed in batch %d of %s", batch.number, batch.name or batch.query_id)

    def close(self) -> None:
        """Stop watching. Batches that were kept stay."""
        remove, self._remove = self._remove, None
        if remove is not None:
            with contextlib.suppress(Exception):  # of a session that has ended
                remove()

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(spark: SparkSession, *, kept: int = KEPT, on_batch: Callable[[Batch], None] | None = None) -> Watched:
    """Watch all streams of a session, and return what is seen of them; `on_batch` is called after each batch.

    `kept` limits how many batches of a run are kept.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    watched = Watched(kept, on_batch)

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            watched.note(event.progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    listener = Listener()
    spark.streams.addListener(listener)
    watched._remove = lambda: spark.streams.removeListener(listener)
    return watched


def observe(stream: DataFrame) -> DataFrame:
    """Return the same rows; Spark counts them on the way and reports rows, bytes, oldestMs, newestMs in its progress.

    Bytes are those of key and value, times those of the records, as far as the frame has these columns under Kafka's
    names (with `value.format`, those with an underscore). A query can have this once.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType, TimestampType

    is_typed = any(
        f"_{name}" in stream.columns for name in ("key", "value", "topic", "partition", "offset", "timestamp")
    )
    types = {field.name: field.dataType for field in stream.schema.fields}
    counts = [sql.count(sql.lit(1)).alias("rows")]
    names = [f"_{name}" if is_typed else name for name in ("key", "value", "timestamp")]
    sizes = [
        sql.coalesce(sql.sum(sql.octet_length(name)), sql.lit(0))
        for name in names[:2]
        if isinstance(types.get(name), BinaryType)
    ]
    if sizes:
        counts.append(sum(sizes[1:], sizes[0]).alias("bytes"))
    if isinstance(types.get(names[2]), TimestampType):
        counts.append(sql.unix_millis(sql.min(names[2])).alias("oldestMs"))
        counts.append(sql.unix_millis(sql.max(names[2])).alias("newestMs"))
    return stream.observe(OBSERVED, *counts)


def line_of(batch: Batch) -> str:
    """Describe a batch in one line."""
    told = [f"{batch.name or batch.query_id} batch {batch.number}"]
    if batch.rows is not None:
        told.append(f"{batch.rows} rows")
    if batch.duration_ms is not None:
        longest = sorted(batch.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {ms}" for name, ms in longest if name != "triggerExecution" and ms)
        told.append(f"{batch.duration_ms} ms" + (f" ({parts})" if parts else ""))
    if batch.lag is not None:
        told.append(f"{batch.lag} behind")
    if "bytes" in batch.observed:
        told.append(f"{batch.observed['bytes']} bytes")
    if batch.reader.get("retries"):
        told.append(f"{batch.reader['retries']} retries in this run")
    return "; ".join(told)
