"""Loads into a directory of Parquet files, partitioned by event time in the layout that every engine reads.

    TABLE/event_day=2013-07-04/flights-0-....parquet     what readers see
    TABLE/_kraftpy_load/NAME/00000000000000000007.json   batch 7: its files and the next offsets
    TABLE/_kraftpy_load/NAME/staging/                    files of tasks, invisible to readers

A batch is committed when its manifest appears, atomically and only if no manifest of that number exists. Its files are
then moved to where readers see them; if a load dies during the moves, the next one finishes them. Readers may thus see
some files of a batch before others, but never a file of a batch that was not committed.

Everything is synced in this order: files, manifest, moves.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kraftpy.spark.load import (
    Batch,
    LoadConflict,
    Loaded,
    counts_from_json,
    counts_to_json,
    offsets_from_json,
    offsets_to_json,
)
from kraftpy.types import TopicPartition

_VERSION = 1


class ParquetTable:
    """A directory of Parquet files. `name` is the load's: several loads may fill one table."""

    def __init__(self, root: Path, name: str) -> None:
        self._root = root.absolute()
        self._books = self._root / "_kraftpy_load" / name
        self._staging = self._books / "staging" / uuid.uuid4().hex

    def loaded(self, partitions: Sequence[TopicPartition]) -> Loaded:
        """Read the last manifest, after moving its files into place."""
        manifests = sorted(self._books.glob("*.json"))
        if not manifests:
            return Loaded(batch_id=-1, next_offsets={})
        manifest = json.loads(manifests[-1].read_bytes())
        if manifest["version"] != _VERSION:
            raise ValueError(f"{manifests[-1]}: unknown version {manifest['version']}")
        self._publish(manifest)
        return Loaded(
            batch_id=manifest["batch_id"],
            next_offsets=offsets_from_json(manifest["next_offsets"]),
            counts=counts_from_json(manifest["counts"]),
            window_ms=manifest["window_ms"],
        )

    def directory(self) -> Path:
        """The load's own directory, which readers ignore."""
        self._staging.mkdir(parents=True, exist_ok=True)
        return self._staging

    def commit(self, batch: Batch) -> None:
        """Write the manifest, then move the files. Raises LoadConflict."""
        files = [Path(each.path) for each in batch.files]
        for path in files:
            _sync(path)
        for directory in sorted({path.parent for path in files}):
            _sync(directory)
        manifest = {
            "version": _VERSION,
            "batch_id": batch.batch_id,
            "next_offsets": offsets_to_json(batch.next_offsets),
            "window_ms": batch.window_ms,
            "counts": counts_to_json(batch.counts),
            "staged_in": str(self._staging.relative_to(self._books)),
            "files": [
                {"path": str(Path(each.path).relative_to(self._staging)), "rows": each.rows} for each in batch.files
            ],
        }
        self._decide(batch.batch_id, json.dumps(manifest, indent=1).encode())
        self._publish(manifest)

    def _decide(self, batch_id: int, manifest: bytes) -> None:
        self._staging.mkdir(parents=True, exist_ok=True)
        written = self._staging / "manifest"
        written.write_bytes(manifest)
        _sync(written)
        try:
            os.link(written, self._books / f"{batch_id:020}.json")
        except FileExistsError:
            shutil.rmtree(self._staging)
            raise LoadConflict(f"{self._books}: another load has committed batch {batch_id}") from None
        _sync(self._books)

    def _publish(self, manifest: dict[str, Any]) -> None:
        """Move files that are not in place yet; safe to repeat."""
        staging = self._books / manifest["staged_in"]
        touched: set[Path] = set()
        for each in manifest["files"]:
            staged, final = staging / each["path"], self._root / each["path"]
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(final)
                touched.add(final.parent)
        for directory in sorted(touched):
            _sync(directory)
        if touched:
            _sync(self._root)
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
