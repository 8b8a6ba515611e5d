"""The metrics of `kraftpy load`: with `--metrics-listener` while it runs, and with `--metrics-file` at its end.

A load that cron starts is over before Prometheus would scrape it: the file is for node_exporter's textfile collector.
Both have the metrics of the reading client besides (`kraftpy.client.exposition`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kraftpy.cli.output import Failure, say
from kraftpy.client.exposition import NoPrometheusClient, host_and_port, serve, write
from kraftpy.client.ranges.metrics import metrics_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kraftpy.spark.load import Batch, Loaded, Table
    from kraftpy.types import TopicPartition

_CLIENT_ID = "kraftpy"
"""The client id of a load's readers."""


class Watched:
    """A table whose commits are counted; also a collector as prometheus-client defines it."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._labels = [name]
        self._records = self._files = self._batches = 0
        self._offsets: dict[TopicPartition, int] = {}
        self._readers = metrics_of(_CLIENT_ID)
        """Kept from before the first reader until after the last: their metrics are shown as long as they are kept."""
        self.ended_well = False

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """Return the load's stored state."""
        return self._table.loaded(partitions)

    def directory(self) -> Path:
        """Return the directory of the tasks' files."""
        return self._table.directory()

    def commit(self, batch: Batch) -> None:
        """Commit a batch, and count it."""
        self._table.commit(batch)
        self._batches += 1
        self._records += batch.rows
        self._files += len(batch.files)
        self._offsets = dict(batch.next_offsets)

    def describe(self) -> list[Metric]:
        """Return nothing: names are only known at `collect`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the values as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, meaning, value in (
            ("kraftpy_load_records", "Records that this run has committed.", self._records),
            ("kraftpy_load_files", "Files that this run has committed.", self._files),
            ("kraftpy_load_batches", "Commits of this run.", self._batches),
        ):
            counter = CounterMetricFamily(name, meaning, labels=["load"])
            counter.add_metric(self._labels, value)
            yield counter
        offsets = GaugeMetricFamily(
            "kraftpy_load_next_offset", "Where the next load begins.", labels=["load", "topic", "partition"]
        )
        for (topic, partition), offset in self._offsets.items():
            offsets.add_metric([*self._labels, topic, str(partition)], offset)
        yield offsets
        if self.ended_well:
            ended = GaugeMetricFamily(
                "kraftpy_load_last_success_timestamp_seconds", "When this run ended, without an error.", labels=["load"]
            )
            ended.add_metric(self._labels, time.time())
            yield ended


@contextmanager
def watched(table: Table, name: str, listener: str | None, file: Path | None) -> Iterator[Table]:
    """Show a load's metrics within the block, and write them at its end. Raises Failure."""
    if listener is None and file is None:
        yield table
        return
    if listener is not None:
        try:
            host_and_port(listener)
        except ValueError as error:
            raise click.UsageError(f"--metrics-listener {error}") from None
    counted = Watched(table, name)
    try:
        with nullcontext() if listener is None else serve(listener, counted) as port:
            if listener is not None:
                say(f"metrics are at http://{listener.rpartition(':')[0]}:{port}/metrics")
            try:
                yield counted
                counted.ended_well = True
            finally:
                if file is not None:
                    write(file, counted)
    except NoPrometheusClient as missing:
        raise Failure(str(missing)) from None
