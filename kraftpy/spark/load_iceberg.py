"""Loads into an Iceberg table, through `pyiceberg` and any of its catalogs.

The table is partitioned by day or hour of `timestamp`, invisibly to queries. The tasks' Parquet files are in the
table's location; one snapshot adds them, and its summary carries the batch number, the next offsets and the audit
counts. Rolling the table back to an earlier snapshot rolls the load back too, and the next load fills in what is then
missing. Because snapshots expire, the same commit also stores this as a property of the table, for when the history no
longer has a snapshot of this load.

A commit that loses a race is retried only if the other commit was not from this load. pyiceberg itself would rebase it
onto any new state, and the batch would be in the table twice.
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
"""How often a commit is tried if other writers keep winning the race."""


_FIRST_SEQUENCE_NUMBER = 1


class _NotRefreshed(IcebergTable):
    """A table that refuses to commit once it has changed."""

    def refresh(self) -> IcebergTable:
        """Refuse to rebase a commit, which pyiceberg would do after this. Raises CommitFailedException."""
        raise CommitFailedException("the table has changed in the meantime")


def _as_it_is(table: IcebergTable) -> IcebergTable:
    return _NotRefreshed(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)


class LoadedIcebergTable:
    """A table of a catalog, created if it does not exist. `name` is the load's: several loads may fill one table."""

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
        """Read the latest snapshot of this load among the ancestors of the current one."""
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
        """The directory of the table's data."""
        return self._directory

    def commit(self, batch: Batch) -> None:
        """Commit files and state as one snapshot. Raises LoadConflict."""
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
        raise LoadConflict(f"{self._identifier}: other writers won the race {MAX_COMMITS} times in a row")

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
            return None  # the history is complete and has nothing of this load
        return self._table.properties.get(self._property)


def _create(catalog: Catalog, identifier: str, unit: TimeUnit) -> IcebergTable:
    table = catalog.create_table(identifier, record_schema())
    transform: Any = DayTransform() if unit is TimeUnit.DAY else HourTransform()
    with table.update_spec() as spec:
        spec.add_field("timestamp", transform, unit.value)
    return table
