"""A stream's batches as its checkpoint shows them: when each was planned and committed, and its offsets.

Spark writes the time and the end offsets of a batch into `offsets/N` before it runs, and `commits/N` when it is done
(OffsetSeqLog.scala, CommitLog.scala, version 1). The time of the second is that of the file: a copy of the directory
has to keep times (`cp --archive`). The ends of the logs are not in a checkpoint, and so its lag is not known. Spark
keeps the last 100 batches (`spark.sql.streaming.minBatchesToRetain`).

Left out: checkpoints that are not in a local directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kraftpy.spark.batches import Batch, PartitionRead, offsets_of, reads, whole
from kraftpy.spark.checkpoints import CheckpointError, offset_files
from kraftpy.spark.event_logs import QueryHistory, Recorded
from kraftpy.spark.stream_offsets import StreamOffsets

LARGEST_FILE = 64 << 20


def read_checkpoint(checkpoint: Path) -> Recorded:
    """Read all batches that are done. Raises CheckpointError, also if there are none; OSError."""
    recorded = Recorded()
    query_id = str(_object(checkpoint / "metadata", _text(checkpoint / "metadata"))["id"])
    history = recorded.queries[query_id] = QueryHistory(query_id)
    before: tuple[int, list[StreamOffsets | None]] | None = None
    without_time = 0
    for file in offset_files(checkpoint):
        number = int(file.name)
        planned_ms, ends = _planned(file)
        is_next = before is not None and before[0] == number - 1
        starts = before[1] if before is not None and is_next else [None] * len(ends)
        before = number, ends
        commit = checkpoint / "commits" / file.name
        if not commit.exists():
            recorded.notes.append(f"Batch {number} was planned, and is not done.")
            continue
        duration_ms = commit.stat().st_mtime_ns // 1_000_000 - planned_ms
        if duration_ms < 0:
            without_time += 1
            continue
        partitions: list[PartitionRead] = []
        for place, (start, end) in enumerate(zip(starts, ends, strict=False)):
            if end is not None:
                partitions += reads(place, start, end, None)
        rows = [each.rows for each in partitions]
        history.add(
            Batch(
                query_id=query_id,
                run_id="",
                name=None,
                number=number,
                started_ms=planned_ms,
                duration_ms=duration_ms,
                rows=sum(each for each in rows if each is not None) if rows and None not in rows else None,
                partitions=tuple(partitions),
            )
        )
    if without_time:
        recorded.notes.append(f"{without_time} batches ended before they began: a copy has not kept the files' times.")
    if not history.points:
        raise CheckpointError(f"{checkpoint}: no batch is done" + (" (see the files' times)" if without_time else ""))
    recorded.notes.append("A checkpoint does not have the ends of the logs: for the lag, read an event log.")
    return recorded


def _planned(file: Path) -> tuple[int, list[StreamOffsets | None]]:
    """Return when a batch was planned, and where it ends in each source. Raises CheckpointError."""
    version, *lines = _text(file).split("\n")
    if version != "v1":
        raise CheckpointError(f"{file}: offsets of version {version[:20]!r}, only v1 can be read")
    if len(lines) < 2:
        raise CheckpointError(f"{file}: cut short")
    settings = _object(file, lines[0])
    try:
        planned_ms = whole(settings["batchTimestampMs"])
        ends = [None if line == "-" else _offsets(file, line) for line in lines[1:]]
    except KeyError as error:
        raise CheckpointError(f"{file}: no {error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{file}: {str(error)[:200]}") from None
    return planned_ms, ends


def _offsets(file: Path, line: str) -> StreamOffsets:
    """Read a source's offsets: none if they are a number or an object of another kind."""
    return offsets_of(_object(file, line)) if line.startswith("{") else offsets_of({"other": int(line)})


def _object(file: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cut short or damaged: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: {text[:40]!r} is not an object")
    return found


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise CheckpointError(f"{file}: larger than {LARGEST_FILE} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: {error}") from None
