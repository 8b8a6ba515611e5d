"""The contents of a node's log directory, read file by file without a broker: the `replica` readings of a history.

A reading is {node, key, log_start, high_watermark, log_end, epochs, batches, records, transactional} as
`chaos.checkers.replicas` reads it. Every batch's CRC is checked; the reading ends at a damaged batch, and says so.

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
from kraftpy.ports import Buffer
from kraftpy.protocol.record_batch import BatchHeader, ControlType, decode_control_record, iter_records
from kraftpy.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One partition on one node."""

    value: dict[str, Any]
    damage: str | None = None
    """The reason that the reading ends early: one line, if bytes are not as they were written."""


def read_node(directory: Path, node: NodeId, keys: Collection[Key]) -> Iterator[Reading]:
    """Read those of these partitions that the directory has, in order of their names. Raises CorruptFile, OSError."""
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
    transactional: list[list[Any]] = []
    damage = None
    try:
        for segment in segments:
            for batch in read_batches(segment):
                header = batch.header
                batches.append(
                    [header.base_offset, header.last_offset, header.partition_leader_epoch, zlib.crc32(batch.data)]
                )
                end = header.next_offset
                if header.is_transactional:
                    transactional.append(of_transaction(batch.data, header))
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
        "transactional": transactional,
    }
    return Reading(value=value, damage=damage)


def of_transaction(batch: Buffer, header: BatchHeader) -> list[Any]:
    """Return [base offset, producer id, producer epoch, "records", "commit" or "abort"] of a batch of a transaction."""
    what = "records"
    if header.is_control:
        kind = decode_control_record(next(iter_records(batch, header))).type
        what = "commit" if kind == ControlType.COMMIT else "abort" if kind == ControlType.ABORT else "control"
    return [header.base_offset, header.producer_id, header.producer_epoch, what]


def _epochs(file: Path) -> list[list[int]]:
    if not file.exists():
        return []
    return [[int(epoch), int(start)] for epoch, start in layout.decode_entries(file.read_bytes(), 2)]
