"""`kraftpy log verify`: check every file, several segments at once, and report all damage.

Segments are read by worker processes, since decoding keeps a processor busy; small amounts are read by this one.
Segments are compared with each other once all of a partition's have been read.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kraftpy.cli.log_checks import (
    Checkpoints,
    check_log_directory,
    check_partition,
    check_segment,
    check_small_file,
    must_be_indexed,
    read_checkpoints,
)
from kraftpy.cli.log_places import PartitionPlace
from kraftpy.cli.output import json_line, write_lines
from kraftpy.cli.segments import Damage, Summary
from kraftpy.log import layout

_ALONE_BYTES: Final = 32 << 20
"""Up to this much is read faster than processes are started."""
_LOOK_SECONDS: Final = 0.2
_read: Any = None  # in a worker process: the counter that all share

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    path: Path
    indexed: bool
    partition: PartitionPlace | None


@dataclass(slots=True)
class Totals:
    """The number of files, batches and records checked."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


class Report:
    """Prints the results as they come: lines for people, or JSON lines."""

    def __init__(self, *, as_json: bool, is_brief: bool) -> None:
        self.as_json = as_json
        self.is_brief = is_brief
        """Show people only damage and the totals."""
        self.totals = Totals()

    def segment(self, summary: Summary) -> None:
        """Report a segment without damage, or the counts of a damaged one."""
        totals = self.totals
        totals.segments += 1
        totals.batches += summary.batches
        totals.records += summary.records
        totals.size_bytes += summary.size_bytes
        if summary.damage:
            return
        row = {"batches": summary.batches, "records": summary.records, "size_bytes": summary.size_bytes}
        offsets = {"first_offset": summary.first_offset, "last_offset": summary.last_offset}
        if self.as_json:
            write_lines([json_line({"file": str(summary.path), "ok": True, **row, **offsets})])
        elif not self.is_brief:
            span = "" if summary.first_offset is None else f", offsets {summary.first_offset}-{summary.last_offset}"
            sizes = f"{summary.batches} batches, {summary.records} records, {summary.size_bytes} bytes"
            write_lines([f"{summary.path}: ok, {sizes}{span}"])

    def small_file(self, path: Path, found: Sequence[Damage]) -> None:
        """Report a file that was named and is not a segment."""
        if found:
            self.damage(found)
        else:
            write_lines([json_line({"file": str(path), "ok": True}) if self.as_json else f"{path}: ok"])

    def damage(self, found: Iterable[Damage]) -> None:
        """Report damage; the lines for people come at the end, on standard error."""
        found = list(found)
        self.totals.damage += found
        if self.as_json:
            write_lines(json_line(each.row()) for each in found)

    def sum(self) -> None:
        """Print the totals."""
        totals = self.totals
        row = {
            "partitions": totals.partitions,
            "segments": totals.segments,
            "batches": totals.batches,
            "records": totals.records,
            "size_bytes": totals.size_bytes,
            "damaged": len({each.path for each in totals.damage}),
        }
        if self.as_json:
            write_lines([json_line({"ok": not totals.damage, **row})])
            return
        verdict = f"{row['damaged']} files are damaged" if totals.damage else "ok"
        write_lines(
            [
                f"{verdict}: {totals.partitions} partitions, {totals.segments} segments, {totals.batches} batches, "
                f"{totals.records} records, {totals.size_bytes} bytes"
            ]
        )


def verify_files(files: Sequence[Path], report: Report, *, jobs: int, advance: Advance) -> None:
    """Check files that were named individually."""
    segments = [_Segment(path=path, indexed=False, partition=None) for path in files if path.suffix == layout.LOG]
    read = _read_all(segments, jobs, advance)
    for path in files:
        if path.suffix == layout.LOG:
            summary, found = next(read)
            report.segment(summary)
            report.damage(found)
        else:
            report.small_file(path, check_small_file(path))


def verify_partitions(
    places: Sequence[PartitionPlace], log_directories: Sequence[Path], report: Report, *, jobs: int, advance: Advance
) -> None:
    """Check partitions, with the log directories that were named and those the partitions belong to."""
    known: dict[Path | None, Checkpoints] = {}
    for directory in [*log_directories, *(place.log_directory for place in places)]:
        if directory not in known:
            known[directory], found = read_checkpoints(directory)
            report.damage(found)
    for directory in log_directories:
        report.damage(check_log_directory(directory))
    segments = [
        _Segment(path=path, indexed=indexed, partition=place)
        for place in places
        for path, indexed in must_be_indexed(place, known[place.log_directory])
    ]
    read = _read_all(segments, jobs, advance)
    numbers = iter(segments)
    following = next(numbers, None)
    for place in places:
        report.totals.partitions += 1
        summaries = []
        while following is not None and following.partition is place:
            summary, found = next(read)
            report.segment(summary)
            report.damage(found)
            summaries.append(summary)
            following = next(numbers, None)
        report.damage(check_partition(place, known[place.log_directory], summaries))


def total_bytes(files: Iterable[Path]) -> int:
    """Return how many bytes there are to read, for a progress bar."""
    return sum(file.stat().st_size for file in files)


# --- reading, several at once -----------------------------------------------------------------------------------------

_Checked = tuple[Summary, list[Damage]]


def _read_all(segments: Sequence[_Segment], jobs: int, advance: Advance) -> Iterator[_Checked]:
    """Yield each segment's summary and damage, in order."""
    jobs = min(jobs, len(segments))
    if jobs < 2 or total_bytes(each.path for each in segments) < _ALONE_BYTES:
        for each in segments:
            yield check_segment(each.path, advance, indexed=each.indexed)
        return
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0)
    seen = 0
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_share, initargs=(count,)) as pool, _cancelled(pool):
        futures = [pool.submit(_check_in_process, each.path, each.indexed) for each in segments]
        for future in futures:
            is_done = False
            while not is_done:
                is_done = _is_done(future)
                now = count.value
                advance(now - seen)
                seen = now
            yield future.result()


@contextmanager
def _cancelled(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Cancel work that has not begun if the block ends early."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _is_done(future: Future[_Checked]) -> bool:
    return bool(wait([future], timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done)


def _share(count: Any) -> None:
    global _read
    _read = count


def _check_in_process(path: Path, indexed: bool) -> _Checked:
    return check_segment(path, _add, indexed=indexed)


def _add(read: int) -> None:
    with _read.get_lock():
        _read.value += read


def default_jobs() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
