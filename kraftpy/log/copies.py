"""The copy of a log that is being made in another directory: its progress, and the part that equals the log.

A copy takes batches only from its log, in order. When it is opened again after a restart, the log may have lost records
that the copy has: unsynced ones in a crash, or those that a follower truncated. Both logs agree up to the end of the
last leader epoch that both know, because a broker that restarts never leads in an epoch it led in before (rule 5). As a
second proof the last batch that both have must be the same, byte for byte, unless compaction may have rewritten it.

The file `copy-progress` holds the state of the copy that only a running broker knows; it is durable before it is relied
upon.
"""

from __future__ import annotations

from typing import NamedTuple

from kraftpy.log import layout
from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Directory
from kraftpy.protocol.record_batch import HEADER_BYTES, read_header


class CopyProgress(NamedTuple):
    """The state of a copy, as of its last flush."""

    recovery_point: int
    log_start_offset: int
    clean_until: int
    """Everything before this offset had been compacted when the copy was begun."""


def write_progress(copy: PartitionLog, clean_until: int) -> None:
    """Write the copy's progress, durably. Blocks. Raises OSError."""
    progress = CopyProgress(copy.recovery_point, copy.log_start_offset, clean_until)
    copy.directory.replace(layout.COPY_PROGRESS, layout.encode_entries([progress]))


def read_progress(directory: Directory) -> CopyProgress | None:
    """Return the progress of the copy in a directory; None if it is missing or damaged. Blocks. Raises OSError."""
    try:
        [entry] = layout.decode_entries(directory.read(layout.COPY_PROGRESS), len(CopyProgress._fields))
        progress = CopyProgress(*map(int, entry))
    except (FileNotFoundError, ValueError):
        return None
    return progress if min(progress) >= 0 else None


def common_end(copy: PartitionLog, source: PartitionLog) -> int | None:
    """Return the offset up to which a copy equals its source; None if they have nothing in common worth keeping.

    Reads one batch of each. Raises OSError and KafkaError as `PartitionLog.read` does.
    """
    if copy.log_start_offset > source.log_start_offset:
        return None
    end = _end_by_epochs(copy, source)
    if end <= max(copy.log_start_offset, source.log_start_offset):
        return None
    if not (source.config.is_compacted or _last_batch(copy, end) == _last_batch(source, end)):
        return None
    return end


def _end_by_epochs(copy: PartitionLog, source: PartitionLog) -> int:
    end = min(copy.log_end_offset, source.log_end_offset)
    while end > copy.log_start_offset:
        epoch = copy.epochs.epoch_of(end - 1)
        known, known_end = source.end_offset_for_epoch(epoch)
        if known == epoch and epoch >= 0:
            return min(end, known_end)
        end = min(end - 1, _start_of(copy, epoch))  # the source has no records of this epoch
    return end


def _start_of(log: PartitionLog, epoch: int) -> int:
    return next((start for known, start in log.epochs.entries() if known == epoch), 0)


def _last_batch(log: PartitionLog, end: int) -> bytes:
    """Return the batch that holds the record before `end`."""
    records = bytes(log.read(end - 1, 1, min_one_batch=True).records)
    return records[: read_header(records).size_bytes] if len(records) >= HEADER_BYTES else b""
