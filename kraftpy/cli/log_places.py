"""Classifies the paths given to `kraftpy log`, and keeps brokers away from them.

A log directory (one of `log.dirs`) holds partitions and the checkpoints about them; a broker that uses it holds its
`.lock`. Every command takes that lock, too (a shared one if it only reads), so that no broker starts meanwhile. If the
lock is held, the command refuses. A copy of a partition or of a file, which nothing locks, is used as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from kraftpy.cli.output import Failure
from kraftpy.log import layout
from kraftpy.types import TopicPartition

LOCK = ".lock"
METADATA = "metadata"
OFFSET_CHECKPOINTS = (
    layout.RECOVERY_POINTS,
    layout.LOG_START_OFFSETS,
    layout.HIGH_WATERMARKS,
    layout.CLEANER_OFFSETS,
)


class InUse(Failure):
    """A broker is using the files."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """A partition's directory; `name` and `log_directory` are None for a standalone copy."""

    path: Path
    name: TopicPartition | None
    log_directory: Path | None


def log_directory_of(path: Path) -> Path | None:
    """Return the log directory that a file or directory belongs to, or None for a copy."""
    resolved = path.resolve()
    for candidate in (resolved, *list(resolved.parents)[:2]):
        if is_log_directory(candidate):
            return candidate
    return None


def is_log_directory(path: Path) -> bool:
    """Return whether a directory is, or was, one of a broker's `log.dirs`."""
    return any((path / name).is_file() for name in (LOCK, layout.META_PROPERTIES, layout.RECOVERY_POINTS))


def is_partition(path: Path) -> bool:
    """Return whether a directory is a partition's, by its contents or else by its name."""
    if is_log_directory(path):
        return False
    if layout.parse_partition(path.name) is not None or (path / layout.PARTITION_METADATA).is_file():
        return True
    return bool(segment_files(path))


def segment_files(path: Path) -> list[Path]:
    """Return the `.log` files of a partition's directory, in order."""
    return sorted(each for each in path.iterdir() if layout.offset_of(each.name, layout.LOG) is not None)


def partition_place(path: Path) -> PartitionPlace:
    """Describe a partition's directory: its name and the log directory it belongs to."""
    parent = path.resolve().parent
    return PartitionPlace(
        path=path,
        name=layout.parse_partition(path.resolve().name),
        log_directory=parent if is_log_directory(parent) else None,
    )


def partitions_in(log_directory: Path) -> list[PartitionPlace]:
    """Return the partitions that have a directory there, sorted."""
    found = ((layout.parse_partition(each.name), each) for each in log_directory.iterdir() if each.is_dir())
    named = sorted((name, each) for name, each in found if name is not None)
    return [PartitionPlace(path=each, name=name, log_directory=log_directory) for name, each in named]


def places(paths: Iterable[Path]) -> tuple[list[PartitionPlace], list[Path]]:
    """Sort directories into partitions and log directories. Raises UsageError for one that is neither."""
    partitions: list[PartitionPlace] = []
    log_directories: list[Path] = []
    for path in paths:
        if is_partition(path):
            partitions.append(partition_place(path))
        elif is_log_directory(path) or partitions_in(path):
            log_directories.append(path)
            partitions += partitions_in(path)
        else:
            raise click.UsageError(f"{path} is neither a log directory nor a partition's")
    return partitions, log_directories


@contextlib.contextmanager
def stopped(paths: Iterable[Path], *, exclusive: bool) -> Iterator[None]:
    """Keep brokers away from these files during the block. Raises InUse if a broker is using them."""
    held: list[int] = []
    try:
        for directory in sorted({found for path in paths if (found := log_directory_of(path)) is not None}):
            try:
                descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # no broker has ever used it: a copy
            held.append(descriptor)
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(
                    f"{directory} is in use by a running node: stop it first (SIGTERM, or Ctrl-C where it runs), "
                    "or work on a copy of the files elsewhere"
                ) from None
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
