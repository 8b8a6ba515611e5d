"""Loads into an Iceberg table, through `pyiceberg` and any of its catalogs.

The table is partitioned by day or hour of `timestamp`, which is hidden from who queries it. The tasks' Parquet files
lie in its location; one snapshot adds them, and its summary carries the batch's number, the next offsets and the
audit's counts. Whoever puts the table back to an earlier snapshot puts the load back with it, and what is loaded next
is what is missing then. Snapshots expire: the same is kept as a property of the table, set by the same commit, for when
the history no longer holds a snapshot of this load.

A commit that comes too late is tried again only if the other one was not of this load: pyiceberg itself would put it on
top of whatever there is, and the batch would be in the table twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform, HourTransform

from kraftpy.spark.load import (
    Batch,
    LoadConflict,
    Loaded,
    counts_from_json,
    counts_to_json,
    offsets_from_json,
    offsets_to_json,
)
from kraftpy.spark.load_tasks import TimeUnit, record_schema
from kraftpy.types import TopicPartition

MAX_COMMITS = 10
"""How often a commit is tried that others are quicker than."""


_FIRST_SEQUENCE_NUMBER = 1


class _NotRefreshed(IcebergTable):
    """A table whose commits are refused once it has changed."""

    def refresh(self) -> IcebergTable:
        """What pyiceberg does before it puts a commit on top of another. Raises CommitFailedException."""
        raise CommitFailedException("the table has changed meanwhile")


def _as_it_is(table: IcebergTable) -> IcebergTable:
    return _NotRefreshed(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)


class LoadedIcebergTable:
    """A table of a catalog, made where there is none. `name` is the load's: several loads may fill one table."""

    def __init__(self, catalog: Catalog, identifier: str, name: str, time_unit: TimeUnit) -> None:
        self._identifier = identifier
        self._property = f"kraftpy.load.{name}"
        try:
            self._table = catalog.load_table(identifier)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
            self._table = _create(catalog, identifier, time_unit)
        location = urlparse(self._table.location())
        if location.scheme not in ("", "file"):
            raise ValueError(f"{identifier}: tasks write to mounted file systems, not to {self._table.location()}")
        self._directory = Path(unquote(location.path)) / "data"

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """What the latest snapshot of this load says, of those that lead to the current one."""
        self._table = self._table.refresh()
        text = self._from_history()
        if text is None:
            return Loaded(batch_id=-1, next_offsets={})
        said = json.loads(text)
        return Loaded(
            batch_id=said["batch_id"],
            next_offsets=offsets_from_json(said["next_offsets"]),
            counts=counts_from_json(said["counts"]),
            window_ms=said["window_ms"],
        )

    def directory(self) -> Path:
        """Of the table's data."""
        return self._directory

    def commit(self, batch: Batch) -> None:
        """One snapshot. Raises LoadConflict."""
        text = json.dumps(
            {
                "batch_id": batch.batch_id,
                "next_offsets": offsets_to_json(batch.next_offsets),
                "window_ms": batch.window_ms,
                "counts": counts_to_json(batch.counts),
            }
        )
        files = [f"file://{each.path}" for each in batch.files]
        for _ in range(MAX_COMMITS):
            try:
                with _as_it_is(self._table).transaction() as transaction:
                    transaction.add_files(
                        files, snapshot_properties={self._property: text}, check_duplicate_files=False
                    )
                    transaction.set_properties({self._property: text})
                return
            except CommitFailedException:
                there = self.loaded(()).batch_id
                if there >= batch.batch_id:
                    raise LoadConflict(f"{self._identifier}: another load has committed batch {there}") from None
        raise LoadConflict(f"{self._identifier}: others were quicker with {MAX_COMMITS} commits one after the other")

    def _from_history(self) -> str | None:
        snapshot = oldest = self._table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and self._property in summary.additional_properties:
                return str(summary.additional_properties[self._property])
            oldest = snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        if oldest is None or (oldest.sequence_number or 0) <= _FIRST_SEQUENCE_NUMBER:
            return None  # the whole history, and nothing of this load
        return self._table.properties.get(self._property)


def _create(catalog: Catalog, identifier: str, unit: TimeUnit) -> IcebergTable:
    table = catalog.create_table(identifier, record_schema())
    transform: Any = DayTransform() if unit is TimeUnit.DAY else HourTransform()
    with table.update_spec() as spec:
        spec.add_field("timestamp", transform, unit.value)
    return table
