"""What a node's log directory holds, read file by file without a broker: the `replica` readings of a history.

A reading is {node, key, log_start, high_watermark, log_end, epochs, batches, records} as `chaos.checkers.replicas`
reads it. Every batch's CRC is checked; where one is damaged the reading ends, and says so.

Left out: internal topics, which each replica compacts on its own, and partitions that are being deleted or moved.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.history import Key, value_of
from chaos.nemesis import NodeId
from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli.segments import Corruption, read_batches
from kraftpy.log import layout
from kraftpy.protocol.record_batch import iter_records
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One partition on one node."""

    value: dict[str, Any]
    damage: str | None = None
    """Why it ends where it does: one line, if bytes are not as they were written."""


def read_node(directory: Path, node: NodeId, keys: Collection[Key]) -> Iterator[Reading]:
    """Those of these partitions that the directory has, in order of their names. Raises CorruptFile, OSError."""
    root = OsDirectory(str(directory))
    watermarks = layout.read_offsets(root, layout.HIGH_WATERMARKS)
    starts = layout.read_offsets(root, layout.LOG_START_OFFSETS)
    for key in sorted(keys):
        topic, _, number = key.rpartition("-")
        partition = TopicPartition(topic, int(number))
        if (directory / key).is_dir():
            yield _read(directory / key, node, key, starts.get(partition, 0), watermarks.get(partition, 0))


def _read(directory: Path, node: NodeId, key: Key, log_start: int, high_watermark: int) -> Reading:
    segments = sorted(directory.glob(f"*{layout.LOG}"))
    end = int(segments[-1].stem) if segments else 0
    batches: list[list[Any]] = []
    records: list[list[Any]] = []
    damage = None
    try:
        for segment in segments:
            for batch in read_batches(segment):
                header = batch.header
                batches.append(
                    [header.base_offset, header.last_offset, header.partition_leader_epoch, zlib.crc32(batch.data)]
                )
                end = header.next_offset
                if not header.is_control:
                    records += [[record.offset, value_of(record.value)] for record in iter_records(batch.data)]
    except Corruption as corruption:
        damage = str(corruption)
    value = {
        "node": node,
        "key": key,
        "log_start": max(log_start, int(segments[0].stem) if segments else 0),
        "high_watermark": high_watermark,
        "log_end": end,
        "epochs": _epochs(directory / layout.LEADER_EPOCHS),
        "batches": batches,
        "records": records,
    }
    return Reading(value=value, damage=damage)


def _epochs(file: Path) -> list[list[int]]:
    if not file.exists():
        return []
    return [[int(epoch), int(start)] for epoch, start in layout.decode_entries(file.read_bytes(), 2)]
