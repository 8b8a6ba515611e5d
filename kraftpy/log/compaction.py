"""Compaction by key: a compacted log keeps the last record of each key, at its original offset.

This module is the log owner's part: it decides which logs are due, plans a cleaning, and puts the new segments in
place. The long part is `log.compaction_work`, which may run in another process or wherever its caller likes.

`begin` (quick) makes the plan, from what `decide` returned. Each new segment arrives as a synced `.log.cleaned` file:
`stage` renames it to `.log.swap`; `put_in_place` swaps it with the old segments; `complete` gives it its final name.
After each of the first two the caller syncs the directory, in a thread. `finish` ends the job, successful or not. A
crash before the first sync leaves the old segments, a crash after it the new one (`recovery`), so each replacement
happens wholly or not at all (rule 42). Replacements happen in offset order: wherever the job is interrupted, a key and
its tombstone, or a record and its transaction's marker, are never removed in the wrong order.

The range cleaned runs from the log's start to the first segment (exclusive) that is not wholly below the last stable
offset, or is active, or is younger than `min.compaction.lag.ms` (rule 39). All of it must be durable first, and so must
the markers that decide its transactions: the caller calls `decide`, then flushes the log, then calls `begin`.
Otherwise a power loss could bring back an open transaction whose records, or whose end, are gone. For the same reason
no producer snapshot survives the cleaning of the log after it.

Invariants: offsets never change; a job interrupted anywhere leaves a log that lacks no record it should have.
KIP-58 (min lag), KIP-354 (max lag).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.config.topic import TopicConfig
from kraftpy.log import layout
from kraftpy.log.compaction_batches import Codec
from kraftpy.log.compaction_work import Cleaned, CleaningPlan, Done, Source
from kraftpy.log.index import OffsetIndex, TimeIndex
from kraftpy.log.producer_replay import delete_snapshots_before
from kraftpy.log.segment import CorruptSegment, Segment
from kraftpy.protocol.compression import Compression
from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.log.partition_log import PartitionLog


class Limits(NamedTuple):
    """The resources that one cleaning may use."""

    buffer_bytes: int = 128 << 20
    """From `log.cleaner.dedupe.buffer.size`."""
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    """From `log.cleaner.io.buffer.size`."""


class Decided(NamedTuple):
    """The part of a log that will not change, however its open transactions end."""

    stable_offset: int
    aborted: dict[int, list[tuple[int, int]]]
    """Producer id -> (first offset, offset of the marker) of each aborted transaction, in order."""
    log_end_offset: int
    """The log's end at that time: the log must be durable up to it before `begin`."""


class Dirtiness(NamedTuple):
    """How much a log needs to be cleaned."""

    ratio: float
    """The share of dirty bytes among those that may be cleaned."""
    is_due: bool
    first_dirty: int
    segments: tuple[Segment, ...]
    """The segments that may be cleaned, starting with the log's first."""
    end_offset: int
    """The end offset of those segments."""


class CompactionJob:
    """One compaction in progress."""

    __slots__ = ("bytes_after", "bytes_before", "is_abandoned", "on_abandon", "plan", "segments", "staged", "unnamed")

    def __init__(self, plan: CleaningPlan, segments: dict[int, Segment]) -> None:
        self.plan = plan
        self.segments = segments
        """Base offset -> segment, for each of the plan's sources."""
        self.staged: Cleaned | None = None
        self.unnamed: Segment | None = None
        """The new segment that is in place but does not have its final name yet."""
        self.bytes_before = self.bytes_after = 0
        self.is_abandoned = False
        self.on_abandon: Callable[[], None] | None = None
        """Stops the cleaning soon; set by the code that runs the job."""

    def abandon(self) -> None:
        """Tell the job to end soon, because the log will be closed, truncated or deleted."""
        self.is_abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()


class CompactionResult(NamedTuple):
    """The outcome of a compaction."""

    end_offset: int
    """Everything before it is clean: the next compaction begins here. Kept in the cleaner's checkpoint."""
    bytes_before: int
    bytes_after: int
    """The size of the replaced segments, before and after."""


_NOTHING: Final = Dirtiness(0.0, False, 0, (), 0)


def decide(log: PartitionLog, high_watermark: int) -> Decided:
    """Return the part of a log that is decided now. Quick."""
    return Decided(log.last_stable_offset(high_watermark), log.producers.aborted.ranges(), log.log_end_offset)


def dirtiness(log: PartitionLog, first_dirty: int, now: Millis, *, stable_offset: int) -> Dirtiness:
    """Return how dirty a log is from the cleaner checkpoint's offset on, and whether cleaning is due. Quick.

    A checkpoint beyond the log's end or below its start is ignored: the whole log then counts as dirty.
    """
    config = log.config
    segments = log.segments
    if not config.is_compacted or len(segments) < 2:
        return _NOTHING
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    found: list[Segment] = []
    dirty, total, end_offset, oldest = 0, 0, 0, now
    for segment, following in pairwise(segments):
        if following.base_offset > stable_offset:
            break
        if following.base_offset > first_dirty:
            if config.min_compaction_lag_ms > 0 and segment.max_timestamp()[0] > now - config.min_compaction_lag_ms:
                break
            dirty += segment.size
            first_timestamp = segment.first_timestamp() or 0
            if first_timestamp > 0:
                oldest = Millis(min(oldest, first_timestamp))
        total += segment.size
        found.append(segment)
        end_offset = following.base_offset
    ratio = dirty / total if total else 0.0
    is_due = dirty > 0 and (ratio > config.min_cleanable_dirty_ratio or now - oldest > config.max_compaction_lag_ms)
    return Dirtiness(ratio, is_due, first_dirty, tuple(found), end_offset)


def begin(
    log: PartitionLog, first_dirty: int, now: Millis, decided: Decided, limits: Limits | None = None
) -> CompactionJob | None:
    """Return a job that compacts the log's dirty part, from `first_dirty` on; None if that is not due or not durable.

    Only one job per log runs at a time. Quick. Call `finish` at the end, whether or not the job succeeded.
    """
    if log.is_compacting or log.recovery_point < decided.log_end_offset:
        return None
    found = dirtiness(log, first_dirty, now, stable_offset=decided.stable_offset)
    if not found.is_due or log.snapshots.has_due_before(found.end_offset):
        return None
    if limits is None:
        limits = Limits()
    ends = [*(segment.base_offset for segment in found.segments[1:]), found.end_offset]
    sources = tuple(
        Source(segment.base_offset, end_offset, segment.size)
        for segment, end_offset in zip(found.segments, ends, strict=True)
    )
    config = log.config
    plan = CleaningPlan(
        sources=sources,
        first_dirty=found.first_dirty,
        now=now,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        codec=_codec(config),
        aborted=decided.aborted,
        proofs=log.producers.last_sequences(),
        buffer_bytes=limits.buffer_bytes,
        load_factor=limits.load_factor,
        io_buffer_bytes=limits.io_buffer_bytes,
    )
    log.is_compacting = True
    return CompactionJob(plan, {segment.base_offset: segment for segment in found.segments})


def _codec(config: TopicConfig) -> Codec | None:
    """Return the topic's own codec for its batches; None if it keeps the producer's."""
    name = config.compression_type
    if name == "producer":
        return None
    if name == "uncompressed":
        return Codec(Compression.NONE, None)
    codec = Compression[name.upper()]
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    return Codec(codec, levels.get(codec))


def forget_gone_markers(log: PartitionLog) -> None:
    """Forget, after a crash, transactions that a snapshot still has but whose markers were compacted away since."""
    _forget_markers(log, {each.last_offset for each in log.producers.aborted if not _has_batch(log, each.last_offset)})


def _forget_markers(log: PartitionLog, offsets: Collection[int]) -> None:
    """Forget the aborted transactions whose markers were at these offsets and have been removed."""
    if offsets:
        log.producers.aborted.forget(offsets)
        log.snapshots.outdate()


def _has_batch(log: PartitionLog, last_offset: int) -> bool:
    """Return whether a batch ends at that offset; True if damage makes that unknowable."""
    segment = log.segments.holding(last_offset)
    if segment is None:
        return True
    try:
        found = segment.find(last_offset)
    except CorruptSegment:
        return True
    return found is not None and found.last_offset == last_offset


def stage(log: PartitionLog, job: CompactionJob, cleaned: Cleaned) -> bool:
    """Mark a new segment as whole by renaming it to `.log.swap`. The caller then syncs the directory.

    Returns False, and changes nothing, if an old segment was truncated or deleted meanwhile: the job must then end.
    Until `complete` or `finish` no segment is deleted.

    Producer snapshots before the new segment's end are deleted first. If a snapshot has a transaction open, the log
    after it may now lack that transaction's marker, and a start that trusted the snapshot would leave the transaction
    open forever. The remaining batches are enough to rebuild the state without snapshots (rule 41).
    """
    if not _is_current(log, job, cleaned):
        return False
    delete_snapshots_before(log.directory, cleaned.sources[-1].end_offset)
    name = layout.file_name(cleaned.base_offset, layout.LOG)
    job.staged = cleaned
    log.is_swapping = True
    log.directory.rename(name + layout.CLEANED, name + layout.SWAP)
    return True


def put_in_place(log: PartitionLog, job: CompactionJob) -> list[str] | None:
    """Replace the old segments with the staged one, durable by now; return the names of files to delete later.

    The caller then syncs the directory once more and calls `complete`. Returns None if the old segments have changed,
    as with `stage`.
    """
    cleaned = job.staged
    assert cleaned is not None
    if not _is_current(log, job, cleaned):
        return None
    job.staged = None
    old = [job.segments[source.base_offset] for source in cleaned.sources]
    new = Segment(log.directory, cleaned.base_offset, log.files, created_at=old[-1].created_at)
    new.adopt(
        cleaned.size,
        OffsetIndex.decode(cleaned.offset_index),
        TimeIndex.decode(cleaned.time_index),
        *cleaned.largest,
    )
    new.index.span = cleaned.sources[-1].end_offset - cleaned.base_offset
    job.unnamed = new
    _forget_markers(log, frozenset(cleaned.gone_markers))
    files = _replace(log, old, new)
    job.bytes_before += sum(source.size for source in cleaned.sources)
    job.bytes_after += cleaned.size
    return files


def _replace(log: PartitionLog, old: Sequence[Segment], new: Segment) -> list[str]:
    """Replace adjacent sealed segments with one that is durable and still has its `.swap` name.

    Returns the names of files to delete later.
    """
    new.log.name += layout.SWAP
    gone = [name for segment in old for name in segment.rename_to_deleted()]
    log.segments.replace(old, new)
    log.durability.removed(old)
    log.durability.sealed.append(new)
    end_offset = log.segments.end_offset_of(new, log.log_end_offset)
    log.snapshots.keep_aborted(log.producers, new.base_offset, end_offset)
    return gone


def complete(log: PartitionLog, job: CompactionJob) -> None:
    """Give the new segment its final name, once the old ones are durably gone: both must not exist at once.

    Segments may be deleted again.
    """
    new, job.unnamed = job.unnamed, None
    assert new is not None
    swap_name = new.log.name
    new.log.name = swap_name.removesuffix(layout.SWAP)
    log.directory.rename(swap_name, new.log.name)
    log.durability.names_changed = True
    log.is_swapping = False


def _is_current(log: PartitionLog, job: CompactionJob, cleaned: Cleaned) -> bool:
    sealed = log.segments[:-1]
    return not log.is_closed and all(
        (segment := job.segments[source.base_offset]) in sealed and segment.size == source.size
        for source in cleaned.sources
    )


def finish(log: PartitionLog, job: CompactionJob, done: Done | None = None) -> CompactionResult | None:
    """End a job; unless it is `done`, with all segments in place, remove the files it left behind.

    Returns None if the job failed. Segments already put in place stay, and the next job begins where this one did.
    """
    log.is_compacting = False
    if job.unnamed is not None:
        complete(log, job)  # the disk could not sync; the next start will see what was lost
    log.is_swapping = False
    if done is not None:
        return CompactionResult(done.end_offset, job.bytes_before, job.bytes_after)
    for name in log.directory.names():
        if name.endswith((layout.CLEANED, layout.SWAP)):
            log.directory.delete(name)
    return None
