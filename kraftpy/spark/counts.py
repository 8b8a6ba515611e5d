"""The counts of a stream's planner, in Spark's own progress events.

A Python source has no metrics of its own in Spark: PythonMicroBatchStream.scala is no ReportsSourceMetrics, and its
`metrics` are empty. Its reader can say something in one place, the end of the logs (`latestOffset`); so `#reader`
stands there beside the topics.
"""

from __future__ import annotations

from dataclasses import dataclass

READER = "#reader"
"""The key beside the topics; it cannot be the name of one."""


@dataclass(slots=True)
class ReaderCounts:
    """The work of a stream's planner since the run began."""

    retries: int = 0
    """Questions to brokers that were asked again: nobody answered, or the answer may pass."""
    prefetched_batches: int = 0
    """Batches that were read by the planner, without a task."""
    prefetched_rows: int = 0
    prefetched_bytes: int = 0
    """Their size as Arrow columns."""
    prefetch_ms: int = 0
    """The time that took, in the part `queryPlanning` or `latestOffset` of Spark's durations."""

    def to_json(self) -> dict[str, int]:
        """Return the object that stands under `READER`."""
        return {
            "retries": self.retries,
            "prefetchedBatches": self.prefetched_batches,
            "prefetchedRows": self.prefetched_rows,
            "prefetchedBytes": self.prefetched_bytes,
            "prefetchMs": self.prefetch_ms,
        }
