"""`kraftpy log truncate|recover`: durable changes to the files of a stopped node that its next start agrees with.

Both open and close a log as a broker does. The order makes sure that a crash in between leaves nothing that claims too
much: the marker of a clean stop is removed; recovery points are lowered; the log is truncated; the checkpoints are
written.

If records were deleted, the marker stays away. The next start then counts as one after a crash: the controller takes
the broker out of the ISRs of its partitions until it has caught up, so that it is not elected for records that it no
longer has (KIP-966). If nothing was lost, the marker is put back.

Left out: records within a batch, which is kept or deleted as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.cli.log_checks import Checkpoints, read_checkpoints
from kraftpy.cli.log_places import PartitionPlace, segment_files
from kraftpy.cli.output import Failure
from kraftpy.cli.segments import Damage, first_offset, survey
from kraftpy.config import BrokerConfig
from kraftpy.config.topic import topic_config
from kraftpy.log import layout
from kraftpy.log.files import FileCache
from kraftpy.log.partition_log import PartitionLog
from kraftpy.types import TopicPartition

_NEVER_MS: Final = 2**62
"""The broker decides which producers expire."""
_OPEN_FILES: Final = 8


@dataclass(slots=True, kw_only=True)
class Cut:
    """The batches that a truncation deletes, and the log's new end."""

    log_start_offset: int
    log_end_offset: int
    """The end before the truncation."""
    new_end_offset: int
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    segments: int = 0
    """Segments that are deleted as a whole."""

    def row(self) -> dict[str, Any]:
        """Return the JSON row."""
        return {
            "log_end_offset": self.log_end_offset,
            "new_log_end_offset": self.new_end_offset,
            "batches": self.batches,
            "records": self.records,
            "size_bytes": self.size_bytes,
            "segments": self.segments,
        }


def plan_cut(place: PartitionPlace, to_offset: int) -> Cut:
    """Plan what `cut` would do. Raises Failure for an offset outside the log.

    Also raises it for an offset after damage at which opening the log would truncate it: `--to-offset` must name that.
    """
    is_clean = read_checkpoints(place.log_directory)[0].clean
    files = segment_files(place.path)
    if not files:
        raise Failure(f"{place.path} has no segments")
    bases = [first_offset(file) or 0 for file in files]
    found = Cut(log_start_offset=bases[0], log_end_offset=bases[-1], new_end_offset=to_offset)
    kept_end = bases[0]
    for file, base_offset, following in zip(files, bases, [*bases[1:], None], strict=True):
        if following is not None and following <= to_offset:
            kept_end = following
            continue
        if base_offset >= to_offset and base_offset > bases[0]:
            found.segments += 1
        for batch in survey(file):
            if isinstance(batch, Damage):
                end = base_offset if batch.next_offset is None else batch.next_offset
                if end < to_offset and not is_clean:
                    raise Failure(f"{batch}; use --to-offset {end} to truncate there")
                continue
            found.log_end_offset = batch.header.next_offset
            if batch.header.last_offset < to_offset:
                kept_end = batch.header.next_offset
                continue
            found.batches += 1
            found.records += batch.header.records_count
            found.size_bytes += batch.header.size_bytes
    if not bases[0] <= to_offset < found.log_end_offset:
        raise Failure(
            f"{place.path} holds offsets {bases[0]} to {found.log_end_offset}: {to_offset} is outside this range"
        )
    found.new_end_offset = kept_end
    return found


def cut(place: PartitionPlace, to_offset: int) -> tuple[int, str]:
    """Delete every batch that reaches `to_offset` or beyond. Returns the new end, and what opening the log found."""
    checkpoints, _ = read_checkpoints(place.log_directory)
    keeper = _DirectoryFiles(place.log_directory)
    keeper.forget_clean_stop()
    keeper.lower(place.name, to_offset)
    files = segment_files(place.path)
    synced = max((base for file in files if (base := first_offset(file) or 0) <= to_offset), default=0)
    if place.log_directory is not None:
        synced = checkpoints.of(layout.RECOVERY_POINTS, place.name) or 0
    log = _open(place, checkpoints, clean=checkpoints.clean, recovery_point=synced)
    log.truncate_to(to_offset)
    log.close()
    _remove_deleted(place)
    keeper.write({place: log})
    return log.log_end_offset, str(log.report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The outcome of recovering a partition; `problem` says why it could not be."""

    place: PartitionPlace
    log: PartitionLog | None = None
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """True if nothing was lost."""
        return self.log is not None and not (self.log.report.truncated_bytes or self.log.report.deleted_segments)

    def row(self) -> dict[str, Any]:
        """Return the JSON row."""
        row: dict[str, Any] = {"directory": str(self.place.path), "ok": self.log is not None}
        if self.log is None:
            return row | {"reason": self.problem}
        report = self.log.report
        return row | {
            "log_start_offset": self.log.log_start_offset,
            "log_end_offset": self.log.log_end_offset,
            "segments": report.segments,
            "scanned_segments": report.scanned_segments,
            "scanned_bytes": report.scanned_bytes,
            "cut_bytes": report.truncated_bytes,
            "deleted_segments": report.deleted_segments,
            "rebuilt_indexes": report.rebuilt_indexes,
            "notes": report.notes,
        }

    def __str__(self) -> str:
        if self.log is None:
            return f"{self.place.path}: {self.problem}"
        return f"{self.place.path}: {self.log.report}; offsets {self.log.log_start_offset} to {self.log.log_end_offset}"


def bytes_to_scan(places: Sequence[PartitionPlace], *, from_start: bool) -> int:
    """Return how many bytes `recover` will read, for a progress bar."""
    total = 0
    for place in places:
        files = segment_files(place.path)
        point = 0 if from_start else _recovery_point(place, read_checkpoints(place.log_directory)[0])
        first = max(0, sum((first_offset(file) or 0) <= point for file in files) - 1)
        total += sum(file.stat().st_size for file in files[first:])
    return total


def recover(
    places: Sequence[PartitionPlace], *, from_start: bool, jobs: int, advance: Callable[[int], None]
) -> tuple[list[Recovered], bool]:
    """Scan each log from its recovery point, truncate at damage, rebuild every index, write the checkpoints.

    The second value is False if a clean stop no longer counts as one.
    """
    keepers = {place.log_directory: _DirectoryFiles(place.log_directory) for place in places}
    known = {directory: read_checkpoints(directory)[0] for directory in keepers}
    for keeper in keepers.values():
        keeper.forget_clean_stop()

    def one(place: PartitionPlace) -> Recovered:
        told = 0

        def progress(done: int, total: int) -> None:
            nonlocal told
            advance(done - told)
            told = done

        checkpoints = known[place.log_directory]
        point = 0 if from_start else _recovery_point(place, checkpoints)
        try:
            for file in segment_files(place.path):
                for suffix in (layout.INDEX, layout.TIME_INDEX):
                    file.with_suffix(suffix).unlink(missing_ok=True)
            log = _open(place, checkpoints, clean=False, recovery_point=point, progress=progress)
            log.close()
        except (OSError, layout.CorruptFile) as error:
            return Recovered(place=place, problem=str(error))
        advance(log.report.scanned_bytes - told)
        return Recovered(place=place, log=log)

    with ThreadPoolExecutor(jobs, thread_name_prefix="recover") as pool:
        found = list(pool.map(one, places))
    stays_clean = True
    for directory, keeper in keepers.items():
        of_it = [each for each in found if each.place.log_directory == directory]
        keeper.write({each.place: each.log for each in of_it if each.log is not None})
        if all(each.is_whole for each in of_it):
            keeper.restore_clean_stop()
        elif keeper.was_clean:
            stays_clean = False
    return found, stays_clean


def _recovery_point(place: PartitionPlace, checkpoints: Checkpoints) -> int:
    """Return the offset below which all is synced: the checkpoint; for a copy without one, the last segment's start."""
    if place.log_directory is None:
        return max((first_offset(file) or 0 for file in segment_files(place.path)), default=0)
    return checkpoints.of(layout.RECOVERY_POINTS, place.name) or 0


def _open(
    place: PartitionPlace,
    checkpoints: Checkpoints,
    *,
    clean: bool,
    recovery_point: int,
    progress: Callable[[int, int], None] | None = None,
) -> PartitionLog:
    return PartitionLog.open(
        OsDirectory(place.path),
        topic_config({}, BrokerConfig()),
        now=SystemClock().now(),
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=checkpoints.of(layout.LOG_START_OFFSETS, place.name) or 0,
        files=FileCache(_OPEN_FILES),
        expiration_ms=_NEVER_MS,
        progress=progress,
    )


def _remove_deleted(place: PartitionPlace) -> None:
    for path in place.path.iterdir():
        if path.name.endswith(layout.DELETED):
            path.unlink()
    OsDirectory(place.path).sync()


class _DirectoryFiles:
    """The small files of a log directory; for a copy without one, nothing."""

    def __init__(self, log_directory: Path | None) -> None:
        self._directory = None if log_directory is None else OsDirectory(log_directory)
        self._marker: bytes | None = None

    @property
    def was_clean(self) -> bool:
        """True if there was a marker of a clean stop, now removed."""
        return self._marker is not None

    def forget_clean_stop(self) -> None:
        """Make the next start count as one after a crash, durably."""
        if self._directory is not None and self._directory.exists(layout.CLEAN_SHUTDOWN):
            self._marker = self._directory.read(layout.CLEAN_SHUTDOWN)
            self._directory.delete(layout.CLEAN_SHUTDOWN)
            self._directory.sync()

    def restore_clean_stop(self) -> None:
        """Put the marker of a clean stop back."""
        if self._directory is not None and self._marker is not None:
            self._directory.replace(layout.CLEAN_SHUTDOWN, self._marker)

    def lower(self, partition: TopicPartition | None, offset: int) -> None:
        """Limit all checkpoints of a partition to `offset`."""
        if self._directory is None or partition is None:
            return
        for name in (layout.RECOVERY_POINTS, layout.LOG_START_OFFSETS, layout.HIGH_WATERMARKS, layout.CLEANER_OFFSETS):
            offsets = self._read(name)
            if offsets.get(partition, -1) > offset:
                layout.write_offsets(self._directory, name, {**offsets, partition: offset})

    def write(self, logs: dict[PartitionPlace, PartitionLog]) -> None:
        """Write the checkpoints of the logs, all of them closed."""
        if self._directory is None:
            return
        named = {place.name: log for place, log in logs.items() if place.name is not None}
        points = {key: log.recovery_point for key, log in named.items()}
        starts = {key: log.log_start_offset for key, log in named.items()}
        for name, offsets in ((layout.RECOVERY_POINTS, points), (layout.LOG_START_OFFSETS, starts)):
            layout.write_offsets(self._directory, name, {**self._read(name), **offsets})
        for name in (layout.HIGH_WATERMARKS, layout.CLEANER_OFFSETS):
            before = self._read(name)
            after = {
                key: min(offset, named[key].log_end_offset) if key in named else offset
                for key, offset in before.items()
            }
            if after != before:
                layout.write_offsets(self._directory, name, after)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint. A damaged one is empty, as when a broker starts."""
        assert self._directory is not None
        try:
            return layout.read_offsets(self._directory, name)
        except layout.CorruptFile:
            return {}
