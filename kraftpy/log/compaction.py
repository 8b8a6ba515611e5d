"""Compaction by key: of all records with a key, a compacted log keeps the last one, at the offset it always had.

What is here is the part of the log's owner: which logs are due, what a cleaning is told, and putting what it wrote in
place. The long part is `log.compaction_work`, in another process or wherever its caller likes.

`begin` (quick) makes the plan, of what `decide` found. For each new segment, which lies there as `.log.cleaned`,
synced: `stage` renames it to `.log.swap`; `put_in_place` takes the old segments out and the new one in; `complete`
gives it its name; and in between, twice, the caller syncs the directory, in a thread. `finish` ends the job, whatever
became of it. A crash before the first sync leaves the old segments, after it the new one (`recovery`), and so each
replacement is whole or has not happened (rule 42). They happen in the order of offsets: a key and its tombstone, a
record and its transaction's marker never go in the wrong order, wherever it is cut off.

Cleaned is [the log's start, the first segment that is not whole below the last stable offset, or is being written, or
is younger than `min.compaction.lag.ms`) (rule 39). All of that has to be durable first, and so do the markers that
decide its transactions: the caller asks `decide` what is decided, then flushes the log, then calls `begin`. Or a power
cut could bring back an open transaction of which nothing, or whose end, is left. For the same reason no producer
snapshot outlives a cleaning of what stands behind it.

Invariants: offsets never change; a job cut off anywhere leaves a log in which nothing is missing that should be there.
KIP-58 (min lag), KIP-354 (max lag).
"""

from __future__ import annotations

from collections.abc import Callable
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
    """What one cleaning may take of the machine."""

    buffer_bytes: int = 128 << 20
    """Of `log.cleaner.dedupe.buffer.size`."""
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    """Of `log.cleaner.io.buffer.size`."""


class Decided(NamedTuple):
    """What of a log will not change, however its transactions end."""

    stable_offset: int
    aborted: dict[int, list[tuple[int, int]]]
    """Producer id -> (first offset, offset of the marker) of each aborted transaction, in order."""
    log_end_offset: int
    """Where the log ended then: it has to be durable up to there."""


class Dirtiness(NamedTuple):
    """How much a log needs to be cleaned."""

    ratio: float
    """Dirty bytes among those that may be cleaned."""
    is_due: bool
    first_dirty: int
    segments: tuple[Segment, ...]
    """From the log's first on: those that may be cleaned."""
    end_offset: int
    """Of those."""


class CompactionJob:
    """One compaction under way."""

    __slots__ = ("bytes_after", "bytes_before", "is_abandoned", "on_abandon", "plan", "segments", "staged", "unnamed")

    def __init__(self, plan: CleaningPlan, segments: dict[int, Segment]) -> None:
        self.plan = plan
        self.segments = segments
        """By base offset: what the plan's sources are."""
        self.staged: Cleaned | None = None
        self.unnamed: Segment | None = None
        """It is in place, and not yet called what it will be."""
        self.bytes_before = self.bytes_after = 0
        self.is_abandoned = False
        self.on_abandon: Callable[[], None] | None = None
        """To be set by whoever runs it: how to end that soon."""

    def abandon(self) -> None:
        """The log is to be closed, cut or deleted: end soon."""
        self.is_abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()


class CompactionResult(NamedTuple):
    """What a compaction did."""

    end_offset: int
    """All before it is clean: where the next one begins. To be kept in the cleaner's checkpoint."""
    bytes_before: int
    bytes_after: int
    """Of the segments that were replaced."""


_NOTHING: Final = Dirtiness(0.0, False, 0, (), 0)


def decide(log: PartitionLog, high_watermark: int) -> Decided:
    """What is decided now. Quick."""
    return Decided(log.last_stable_offset(high_watermark), log.producers.aborted.ranges(), log.log_end_offset)


def dirtiness(log: PartitionLog, first_dirty: int, now: Millis, *, stable_offset: int) -> Dirtiness:
    """How dirty a log is from an offset on (of the cleaner's checkpoint), and whether cleaning is due. Quick.

    A checkpoint beyond the log's end or below its start says nothing: then all of it is dirty.
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
    """A job that compacts what is dirty from an offset on, where that is due and what is decided is durable; else None.

    One job at a time. Quick. Call `finish` at the end, whatever became of it.
    """
    if log.is_compacting or log.recovery_point < decided.log_end_offset:
        return None
    found = dirtiness(log, first_dirty, now, stable_offset=decided.stable_offset)
    if not found.is_due or log.has_snapshot_to_write(found.end_offset):
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
    """What the topic wants its batches compressed with; None where it keeps the producer's."""
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
    """After a crash: the snapshot that was found may know transactions whose markers have been compacted away since."""
    log.markers_removed({each.last_offset for each in log.producers.aborted if not _has_batch(log, each.last_offset)})


def _has_batch(log: PartitionLog, last_offset: int) -> bool:
    """Whether a batch ends at that offset; also where that cannot be told."""
    segment = log.segment_of(last_offset)
    if segment is None:
        return True
    try:
        found = segment.find(last_offset)
    except CorruptSegment:
        return True
    return found is not None and found.last_offset == last_offset


def stage(log: PartitionLog, job: CompactionJob, cleaned: Cleaned) -> bool:
    """Say of a new segment that it is whole: `.log.swap`. The caller then syncs the directory.

    False where an old segment has been truncated or deleted meanwhile: then nothing is changed, and the job is to end.
    Until `complete` or `finish` no segment is deleted.

    Producer snapshots before the new segment's end go first. Where one has a transaction open, what follows may lack
    its marker from now on, and a start that believed it would leave that transaction open for good. The batches that
    are left tell all of it without them (rule 41).
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
    """Put the staged segment, durable by now, in place of the old ones; the names of files, to be deleted later.

    The caller then syncs the directory once more, and calls `complete`. None where that is no longer possible, as with
    `stage`.
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
    new.offsets = cleaned.sources[-1].end_offset - cleaned.base_offset
    job.unnamed = new
    log.markers_removed(frozenset(cleaned.gone_markers))
    files = log.replace(old, new)
    job.bytes_before += sum(source.size for source in cleaned.sources)
    job.bytes_after += cleaned.size
    return files


def complete(log: PartitionLog, job: CompactionJob) -> None:
    """The old segments are durably gone: the new one gets its name. Segments may be deleted again."""
    new, job.unnamed = job.unnamed, None
    assert new is not None
    log.replaced(new)
    log.is_swapping = False


def _is_current(log: PartitionLog, job: CompactionJob, cleaned: Cleaned) -> bool:
    sealed = log.segments[:-1]
    return not log.is_closed and all(
        (segment := job.segments[source.base_offset]) in sealed and segment.size == source.size
        for source in cleaned.sources
    )


def finish(log: PartitionLog, job: CompactionJob, done: Done | None = None) -> CompactionResult | None:
    """The job is over: all its segments are in place where it is `done`, else what it left is removed.

    None where it failed. What was put in place stays so, and the next job begins where this one did.
    """
    log.is_compacting = False
    if job.unnamed is not None:
        complete(log, job)  # a disk that could not sync; what it has lost, the next start will see
    log.is_swapping = False
    if done is not None:
        return CompactionResult(done.end_offset, job.bytes_before, job.bytes_after)
    for name in log.directory.names():
        if name.endswith((layout.CLEANED, layout.SWAP)):
            log.directory.delete(name)
    return None
