"""Checks a partition's directory and a log directory, reporting damage with file, position and offsets.

A segment is checked alone, together with its indexes, so that several can be read at once (`check_segment`). After that
segments, epochs, snapshots and checkpoints are checked against each other (`check_partition`, `check_log_directory`).

After an unclean stop, files that only a stop writes, or that the next start rebuilds, are not counted as damaged: the
indexes, epochs and snapshots after the recovery point. Gaps between offsets are what compaction leaves; if nothing else
shows that the log was compacted, they are damage.

Left out: damage that keeps every checksum right and contradicts nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli.log_places import METADATA, OFFSET_CHECKPOINTS, PartitionPlace, segment_files
from kraftpy.cli.segments import Damage, FileBatch, Summary, first_offset, summarise
from kraftpy.log import aborted_transactions as aborted
from kraftpy.log import layout
from kraftpy.log.epochs import LeaderEpochs
from kraftpy.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from kraftpy.log.layout import CorruptFile
from kraftpy.log.producer_states import ProducerStates
from kraftpy.types import TopicPartition

Progress = Callable[[int], None]

_INDEXES: Final = (layout.INDEX, layout.TIME_INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """A log directory's checkpoints. `clean` means that its last stop was clean and no checkpoint is damaged."""

    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    clean: bool = False

    def of(self, name: str, partition: TopicPartition | None) -> int | None:
        """Return a partition's offset in one of them, or None if it has none."""
        return None if partition is None else self.offsets.get(name, {}).get(partition)


# --- segments and indexes ---------------------------------------------------------------------------------------------


def check_segment(path: Path, progress: Progress | None = None, *, indexed: bool) -> tuple[Summary, list[Damage]]:
    """Read a whole segment and, if it must be `indexed`, check its indexes against it."""
    checks: list[_OffsetIndexCheck | _TimeIndexCheck | _TransactionIndexCheck] = []
    problems: list[Damage] = []
    for suffix, made in ((layout.INDEX, _OffsetIndexCheck), (layout.TIME_INDEX, _TimeIndexCheck)) if indexed else ():
        file = path.with_suffix(suffix)
        try:
            checks.append(made(file, first_offset(path) or 0))
        except FileNotFoundError:
            problems.append(Damage(path=file, reason="is missing"))
        except OSError as error:
            problems.append(Damage(path=file, reason=f"cannot be read: {error.strerror}"))

    transactions = path.with_suffix(layout.TRANSACTION_INDEX)
    if transactions.exists():
        checks.append(_TransactionIndexCheck(transactions))

    def seen(batch: FileBatch) -> None:
        for check in checks:
            check.take(batch)

    try:
        summary = summarise(path, seen, progress)
    except OSError as error:
        summary = Summary(path=path, damage=[Damage(path=path, reason=f"cannot be read: {error.strerror}")])
    else:
        for check in checks:
            problems += check.finish(summary)
    return summary, summary.damage + problems


class _IndexCheck:
    """Checks the entries of an index against the batches, one after the other."""

    entry_bytes: int

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.damage: list[Damage] = []
        data = path.read_bytes()
        rest = len(data) % self.entry_bytes
        if rest:
            self.wrong(len(data) - rest, f"{rest} bytes do not make an entry")
        self.data = data

    def wrong(self, position: int, reason: str, offset: int | None = None) -> None:
        self.damage.append(Damage(path=self.path, position=position, reason=reason, next_offset=offset))


class _OffsetIndexCheck(_IndexCheck):
    entry_bytes = OFFSET_ENTRY_BYTES

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, base_offset)
        index = OffsetIndex.decode(self.data)
        pairs = list(zip(index.offsets, index.positions, strict=True))
        self.entries = {
            position: (number, self.base_offset + offset) for number, (offset, position) in enumerate(pairs)
        }
        for number, (one, other) in enumerate(pairwise(pairs), 1):
            if not (one[0] < other[0] and one[1] < other[1]):
                self.wrong(number * self.entry_bytes, f"offset and position {other} after {one}")

    def take(self, batch: FileBatch) -> None:
        found = self.entries.pop(batch.position, None)
        if found is not None and found[1] != batch.header.last_offset:
            reason = f"offset {found[1]} for the batch that ends at {batch.header.last_offset}"
            self.wrong(found[0] * self.entry_bytes, reason, batch.header.base_offset)

    def finish(self, summary: Summary) -> list[Damage]:
        for position, (number, offset) in self.entries.items():
            if not _is_hidden(summary, position):
                self.wrong(number * self.entry_bytes, f"no batch begins at position {position}", offset)
        return self.damage


class _TimeIndexCheck(_IndexCheck):
    entry_bytes = TIME_ENTRY_BYTES

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, base_offset)
        index = TimeIndex.decode(self.data)
        pairs = list(zip(index.timestamps, index.offsets, strict=True))
        self.entries = {
            self.base_offset + offset: (number, timestamp) for number, (timestamp, offset) in enumerate(pairs)
        }
        self.largest = -1
        for number, (one, other) in enumerate(pairwise(pairs), 1):
            if not (one[0] < other[0] and one[1] < other[1]):
                self.wrong(number * self.entry_bytes, f"timestamp and offset {other} after {one}")

    def take(self, batch: FileBatch) -> None:
        header = batch.header
        brought = header.max_timestamp if header.max_timestamp > self.largest else None
        found = self.entries.pop(header.last_offset, None)
        if found is not None and found[1] != brought:
            reason = f"timestamp {found[1]}, but offset {header.last_offset} brought {brought or 'nothing larger'}"
            self.wrong(found[0] * self.entry_bytes, reason, header.base_offset)
        self.largest = max(self.largest, header.max_timestamp)

    def finish(self, summary: Summary) -> list[Damage]:
        if summary.damage:  # the index may still name lost parts of the log
            return []
        for offset, (number, _) in self.entries.items():
            self.wrong(number * self.entry_bytes, f"no batch ends at offset {offset}", offset)
        return self.damage


class _TransactionIndexCheck:
    """Checks the aborted transactions of a segment: each must have its marker there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[Damage] = []
        try:
            entries = aborted.decode(path.read_bytes())
        except CorruptFile as error:
            self.damage.append(Damage(path=path, reason=str(error)))
            entries = []
        self.entries = {each.last_offset: each for each in entries}

    def take(self, batch: FileBatch) -> None:
        found = self.entries.get(batch.header.last_offset)
        if found is not None and batch.header.is_control and batch.header.producer_id == found.producer_id:
            del self.entries[found.last_offset]

    def finish(self, summary: Summary) -> list[Damage]:
        if summary.damage:
            return self.damage
        for offset, each in self.entries.items():
            reason = f"no marker of producer {each.producer_id} at offset {offset}"
            self.damage.append(Damage(path=self.path, reason=reason, next_offset=offset))
        return self.damage


def _is_hidden(summary: Summary, position: int) -> bool:
    """Return whether a position lies in damage, so that it is no evidence against an index."""
    return any(
        (each.position or 0) <= position and (each.resumes_at is None or position < each.resumes_at[0])
        for each in summary.damage
    )


# --- a partition ------------------------------------------------------------------------------------------------------


def must_be_indexed(place: PartitionPlace, checkpoints: Checkpoints) -> list[tuple[Path, bool]]:
    """Return the segments, and whether their indexes should be whole: all after a clean stop, else the synced ones.

    The last segment may have none even then, if it is so short that a start reads it whole.
    """
    files = segment_files(place.path)
    recovery_point = checkpoints.of(layout.RECOVERY_POINTS, place.name) or 0
    bases = [layout.offset_of(file.name, layout.LOG) or 0 for file in files]
    scanned_from = max(0, bisect_right(bases, recovery_point) - 1)
    indexed_until = len(files) if checkpoints.clean else scanned_from
    if checkpoints.clean and files and not any(files[-1].with_suffix(s).exists() for s in _INDEXES):
        indexed_until -= 1
    return [(file, number < indexed_until) for number, file in enumerate(files)]


def check_partition(place: PartitionPlace, checkpoints: Checkpoints, segments: Sequence[Summary]) -> list[Damage]:
    """Check the segments (each checked before), the small files and the checkpoints against each other."""
    found = list(_neighbours(segments))
    is_cleaned = checkpoints.of(layout.CLEANER_OFFSETS, place.name) is not None or any(
        each.has_holes for each in segments
    )
    if not is_cleaned:
        found += _gaps(segments, checkpoints.of(layout.LOG_START_OFFSETS, place.name) or 0)
    end_offset = _end_offset(segments)
    certain = end_offset if checkpoints.clean else (checkpoints.of(layout.RECOVERY_POINTS, place.name) or 0)
    found += _check_epochs(place, segments, certain, end_offset if checkpoints.clean else None)
    found += _check_small_files(place, bool(segments), end_offset if checkpoints.clean else None)
    if place.log_directory is not None and place.name is not None and segments:
        found += _check_offsets(place, checkpoints, end_offset)
    return found


def _end_offset(segments: Sequence[Summary]) -> int:
    if not segments:
        return 0
    last = segments[-1]
    return (first_offset(last.path) or 0) if last.last_offset is None else last.last_offset + 1


def _neighbours(segments: Sequence[Summary]) -> Iterator[Damage]:
    """Find segments that overlap, or whose epochs go back."""
    for segment in segments:
        base_offset = first_offset(segment.path) or 0
        if segment.first_offset is not None and segment.first_offset < base_offset:
            yield Damage(path=segment.path, position=0, reason=f"its first offset is {segment.first_offset}")
    for before, segment in pairwise(segments):
        base_offset = first_offset(segment.path) or 0
        if before.last_offset is not None and before.last_offset >= base_offset:
            reason = f"its last offset is {before.last_offset}, and {segment.path.name} follows"
            yield Damage(path=before.path, reason=reason, next_offset=base_offset)
        if before.epochs and segment.epochs and segment.epochs[0].leader_epoch < before.epochs[-1].leader_epoch:
            reason = f"leader epoch {segment.epochs[0].leader_epoch}, after {before.epochs[-1].leader_epoch}"
            yield Damage(path=segment.path, position=segment.epochs[0].position, reason=reason)


def _gaps(segments: Sequence[Summary], log_start_offset: int) -> Iterator[Damage]:
    """Find offsets that no batch holds. Before the log's start they may be missing, if a deletion was interrupted."""
    expected: int | None = None
    for segment in segments:
        base_offset = first_offset(segment.path)
        if base_offset is not None and expected is not None and base_offset > max(expected, log_start_offset):
            reason = f"no records from offset {expected} to {base_offset}"
            yield Damage(path=segment.path, position=0, reason=reason, next_offset=expected)
        for gap in segment.gaps:
            reason = f"no records from offset {gap.next_offset} to {gap.base_offset}"
            yield Damage(path=segment.path, position=gap.position, reason=reason, next_offset=gap.next_offset)
        is_cut_short = bool(segment.damage) and segment.damage[-1].resumes_at is None
        expected = None if is_cut_short or segment.last_offset is None else segment.last_offset + 1


def _check_epochs(
    place: PartitionPlace, segments: Sequence[Summary], certain: int, end_offset: int | None
) -> list[Damage]:
    """Compare leader epochs of batches below `certain` with their file; after a clean stop, `end_offset` is given."""
    path = place.path / layout.LEADER_EPOCHS
    runs = [(segment, run) for segment in segments for run in segment.epochs]
    try:
        epochs = LeaderEpochs.decode(path.read_bytes())
    except FileNotFoundError:
        return [Damage(path=path, reason="is missing")] if runs and runs[0][1].last_offset < certain else []
    except (CorruptFile, OSError) as error:
        return [Damage(path=path, reason=str(error))]
    entries = epochs.entries()
    found = []
    if end_offset is not None and entries and entries[-1][1] > end_offset:
        reason = f"leader epoch {entries[-1][0]} begins at offset {entries[-1][1]}, the log ends at {end_offset}"
        found.append(Damage(path=path, reason=reason, next_offset=end_offset))
    known_from = entries[0][1] if entries else 0
    for segment, run in runs:
        for offset in (run.first_offset, run.last_offset):
            expected = epochs.epoch_of(offset)
            if known_from <= offset < certain and expected != run.leader_epoch:
                reason = f"offset {offset} is of leader epoch {run.leader_epoch}, {path.name} says {expected}"
                found.append(
                    Damage(path=segment.path, position=run.position, reason=reason, next_offset=run.first_offset)
                )
                break
    return found


def _check_small_files(place: PartitionPlace, has_data: bool, end_offset: int | None) -> list[Damage]:
    found = []
    directory = OsDirectory(place.path)
    for path in sorted(place.path.iterdir()):
        offset = layout.offset_of(path.name, layout.SNAPSHOT)
        if offset is None:
            continue
        try:
            ProducerStates.decode(path.read_bytes())
        except (CorruptFile, OSError) as error:
            found.append(Damage(path=path, reason=str(error)))
        else:
            if end_offset is not None and offset > end_offset:
                reason = f"a snapshot at offset {offset}, the log ends at {end_offset}"
                found.append(Damage(path=path, reason=reason, next_offset=end_offset))
    path = place.path / layout.PARTITION_METADATA
    try:
        if layout.read_topic_id(directory) is None and has_data and place.log_directory is not None:
            found.append(Damage(path=path, reason="is missing"))
    except (CorruptFile, OSError) as error:
        found.append(Damage(path=path, reason=str(error)))
    return found


def _check_offsets(place: PartitionPlace, checkpoints: Checkpoints, end_offset: int) -> list[Damage]:
    """Find checkpoints beyond the log's end. The high watermark is a hint and may be."""
    assert place.log_directory is not None
    found = []
    for name, what in (
        (layout.RECOVERY_POINTS, "synced"),
        (layout.LOG_START_OFFSETS, "deleted"),
        (layout.CLEANER_OFFSETS, "compacted"),
    ):
        offset = checkpoints.of(name, place.name)
        if offset is not None and offset > end_offset:
            reason = f"{place.name} is {what} up to offset {offset}, its log ends at {end_offset}"
            found.append(Damage(path=place.log_directory / name, reason=reason, next_offset=end_offset))
    return found


# --- a log directory --------------------------------------------------------------------------------------------------


def read_checkpoints(log_directory: Path | None) -> tuple[Checkpoints, list[Damage]]:
    """Read a log directory's checkpoints. Returns also which of them are damaged."""
    if log_directory is None:
        return Checkpoints(), []
    directory = OsDirectory(log_directory)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    found = []
    for name in OFFSET_CHECKPOINTS:
        try:
            offsets[name] = layout.read_offsets(directory, name)
        except (CorruptFile, OSError, ValueError) as error:
            found.append(Damage(path=log_directory / name, reason=str(error).removeprefix(f"{log_directory / name}: ")))
    is_clean = layout.read_clean_shutdown(directory) is not None
    if not is_clean and directory.exists(layout.CLEAN_SHUTDOWN):
        found.append(Damage(path=log_directory / layout.CLEAN_SHUTDOWN, reason="its contents are invalid"))
    is_clean = is_clean and layout.RECOVERY_POINTS in offsets
    return Checkpoints(offsets=offsets, clean=is_clean), found


def check_log_directory(log_directory: Path) -> list[Damage]:
    """Check a log directory's identity and, if it is here, the metadata journal. `read_checkpoints` does the rest."""
    found = []
    path = log_directory / layout.META_PROPERTIES
    try:
        properties = layout.read_meta_properties(OsDirectory(log_directory))
        if properties is not None and not (properties.get("cluster.id") and properties.get("node.id")):
            found.append(Damage(path=path, reason="it lacks cluster.id or node.id"))
    except (CorruptFile, OSError) as error:
        found.append(Damage(path=path, reason=str(error).removeprefix(f"{path}: ")))
    if (log_directory / METADATA).is_dir():
        found += check_journal(log_directory / METADATA)
    return found


def check_journal(path: Path) -> list[Damage]:
    """Check that the metadata journal can be loaded: on a copy, because loading may repair it."""
    from kraftpy.metadata.journal import Journal, JournalError

    with tempfile.TemporaryDirectory(prefix="kraftpy-verify-") as scratch:
        copy = Path(scratch) / path.name
        try:
            shutil.copytree(path, copy)
            journal = Journal(OsDirectory(copy))
            journal.load()
            journal.close()
        except JournalError as error:
            reason = str(error).removeprefix(f"{copy}/")
            return [Damage(path=path, reason=reason)]
        except OSError as error:
            return [Damage(path=path, reason=f"cannot be read: {error.strerror or error}")]
    return []


# --- files named one by one -------------------------------------------------------------------------------------------


def check_small_file(path: Path) -> list[Damage]:
    """Check a file that is not a segment: an index against its segment, any other by its own checksum and form.

    Raises UsageError if the file does not belong to a log.
    """
    if path.suffix in (*_INDEXES, layout.TRANSACTION_INDEX):
        return [each for each in check_segment(path.with_suffix(layout.LOG), indexed=True)[1] if each.path == path]
    directory = OsDirectory(path.parent)
    try:
        match path.name:
            case layout.LEADER_EPOCHS:
                LeaderEpochs.decode(path.read_bytes())
            case layout.PARTITION_METADATA:
                layout.read_topic_id(directory)
            case layout.META_PROPERTIES:
                layout.read_meta_properties(directory)
            case layout.CLEAN_SHUTDOWN:
                if layout.read_clean_shutdown(directory) is None:
                    return [Damage(path=path, reason="its contents are invalid")]
            case name if name in OFFSET_CHECKPOINTS:
                layout.read_offsets(directory, name)
            case name if name.endswith(layout.SNAPSHOT):
                ProducerStates.decode(path.read_bytes())
            case _:
                raise click.UsageError(f"{path} is not a file of a log")
    except (CorruptFile, OSError, ValueError) as error:
        return [Damage(path=path, reason=str(error).removeprefix(f"{path}: "))]
    return []
