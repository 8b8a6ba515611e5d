"""Loads into a Delta table, through `deltalake` (delta-rs): no Spark and no JVM.

The tasks write Parquet files straight into the table's directory; they count once the log's next version names them.
The same version also carries Delta's transaction identifiers: one for the load, with the batch number, and one for each
topic partition, with its next offset. They are part of the table's state, so they outlive the cleanup of old log files.
A writer is refused if it sets an identifier that another one has set in the meantime.

The commit's metadata repeats batch, offsets and audit counts for human readers of the table's history.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from kraftpy.spark.load import (
    Batch,
    LoadConflict,
    Loaded,
    counts_from_json,
    counts_to_json,
    now_ms,
    offsets_to_json,
)
from kraftpy.spark.load_tasks import TimeUnit, record_schema
from kraftpy.types import TopicPartition

_METADATA = "kraftpy.load"


class LoadedDeltaTable:
    """A Delta table, created if it does not exist. `name` is the load's: several loads may fill one table."""

    def __init__(self, root: Path, name: str, time_unit: TimeUnit) -> None:
        self._root = root.absolute()
        self._name = name
        self._unit = time_unit
        self._schema = record_schema().append(pa.field(time_unit.value, pa.string()))
        if not DeltaTable.is_deltatable(str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(str(self._root), self._schema, mode="ignore", partition_by=[time_unit.value])
        self._table = DeltaTable(str(self._root))
        columns = [field.name for field in self._table.schema().fields]
        if columns != self._schema.names:
            raise ValueError(
                f"{root}: the table's columns are {', '.join(columns)}, not {', '.join(self._schema.names)}"
            )

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """Read the load's state from the table's transaction identifiers."""
        self._table.update_incremental()
        batch_id = self._table.transaction_version(self._batch_app())
        if batch_id is None:
            return Loaded(batch_id=-1, next_offsets={})
        found = {where: self._table.transaction_version(self._app(where)) for where in partitions}
        return Loaded(
            batch_id=batch_id,
            next_offsets={where: offset for where, offset in found.items() if offset is not None},
            **self._counted(batch_id),
        )

    def directory(self) -> Path:
        """The table's own directory."""
        return self._root

    def commit(self, batch: Batch) -> None:
        """Commit files and identifiers as one version of the table. Raises LoadConflict."""
        adds: list[AddAction | RemoveAction] = [
            AddAction(
                path=str(Path(each.path).relative_to(self._root)),
                size=each.size_bytes,
                partition_values={self._unit.value: each.event_time},
                modification_time=now_ms(),
                data_change=True,
                stats=json.dumps({"numRecords": each.rows}),
            )
            for each in batch.files
        ]
        identifiers = [Transaction(self._batch_app(), batch.batch_id)]
        identifiers += [Transaction(self._app(where), offset) for where, offset in sorted(batch.next_offsets.items())]
        about = {
            "name": self._name,
            "batch_id": batch.batch_id,
            "next_offsets": offsets_to_json(batch.next_offsets),
            "window_ms": batch.window_ms,
            "counts": counts_to_json(batch.counts),
        }
        try:
            self._table.create_write_transaction(
                adds,
                "append",
                self._schema,
                [self._unit.value],
                commit_properties=CommitProperties(
                    custom_metadata={_METADATA: json.dumps(about)}, app_transactions=identifiers
                ),
            )
        except (CommitFailedError, DeltaError) as refused:
            other = DeltaTable(str(self._root)).transaction_version(self._batch_app())
            if other is not None and other >= batch.batch_id:
                raise LoadConflict(f"{self._root}: another load has committed batch {other}") from refused
            raise
        self._table.update_incremental()

    def _counted(self, batch_id: int) -> dict[str, Any]:
        """Return the audit counts of the last batch, if the history still has it."""
        for entry in self._table.history():
            about = json.loads(entry.get(_METADATA) or "{}")
            if about.get("name") == self._name and about["batch_id"] == batch_id:
                return {"counts": counts_from_json(about["counts"]), "window_ms": about["window_ms"]}
        return {}

    def _batch_app(self) -> str:
        return f"kraftpy-load/{self._name}"

    def _app(self, where: TopicPartition) -> str:
        return f"kraftpy-load/{self._name}/{where.topic}/{where.partition}"
