"""Count the records of a log by reading it: the log is the tier between producers and consumers.

A window's count is exact once the window is over, if none of its records was deleted. Windows with deleted records are
left out: if a log no longer begins at its first offset, these are all windows up to and including its oldest record's.
A later count replaces an earlier one, even by 0 if nothing is found any more.

Left out: compacted topics, whose records disappear for good reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kraftpy.audit.counts import Tally, tallies_of
from kraftpy.client.ranges.columns import Columns, decode_columns
from kraftpy.client.ranges.reader import RangeReader
from kraftpy.protocol.records import CorruptBatch
from kraftpy.types import TopicPartition


def read_columns(broker: RangeReader, where: TopicPartition, start: int, end: int) -> Iterator[Columns]:
    """Yield the records of a range. Raises KafkaError, CorruptBatch."""
    for chunk in broker.read(where, start, end):
        position = chunk.start_offset
        while position < chunk.end_offset:
            try:
                records = decode_columns(chunk.records, start_offset=position, end_offset=end, aborted=chunk.aborted)
            except CorruptBatch as error:
                raise CorruptBatch(f"{where}: {error.message}", error.code) from error
            if records.next_offset <= position:
                break  # only a gap up to the end of the chunk
            yield records
            position = records.next_offset


def windows_of(records: Columns, window_ms: int) -> dict[int, int]:
    """Count records by window, keyed by its start in ms; -1 for records without a time."""
    times = records.timestamps
    starts = np.where(times < 0, -1, times - times % window_ms)
    found, counts = np.unique(starts, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def count_log(
    broker: RangeReader,
    topics: Sequence[str],
    *,
    tier: str,
    window_ms: int,
    now_ms: int,
    from_ms: int = 0,
    to_ms: int | None = None,
    known: Iterable[Tally] = (),
) -> list[Tally]:
    """Tally all partitions, for windows that begin within [from_ms, to_ms). Raises UnknownTopic, KafkaError.

    `known` is what the audit topic has already; its counts for windows without records are corrected to 0.
    """
    found = broker.topics(topics)
    partitions = [TopicPartition(name, each.partition) for name in sorted(found) for each in found[name].partitions]
    starts, ends = broker.earliest(partitions), broker.latest(partitions)
    first = broker.offsets(dict.fromkeys(partitions, from_ms)) if from_ms > 0 else {}
    tallies: list[Tally] = []
    for where in partitions:
        begin = starts[where]
        if from_ms > 0:
            answer = first[where]
            begin = ends[where] if answer is None else answer.offset
        counts: dict[int, int] = {}
        for records in read_columns(broker, where, begin, ends[where]):
            for start, count in windows_of(records, window_ms).items():
                counts[start] = counts.get(start, 0) + count
        whole_from = max(from_ms, _whole_from(broker, where, starts[where], ends[where], window_ms))
        source = str(where)
        for tally in known:
            if (tally.tier, tally.source, tally.topic, tally.window_ms) == (tier, source, where.topic, window_ms):
                counts.setdefault(tally.start_ms, 0)
        wanted = {
            (where.topic, start): count
            for start, count in counts.items()
            if (start >= whole_from and (to_ms is None or start < to_ms)) or (start < 0 and not whole_from)
        }
        tallies += tallies_of(wanted, tier=tier, source=source, window_ms=window_ms, now_ms=now_ms)
    return tallies


def _whole_from(broker: RangeReader, where: TopicPartition, start: int, end: int, window_ms: int) -> int:
    """Return the first window that has lost no records at the log's beginning."""
    if not start:
        return 0
    for records in read_columns(broker, where, start, end):
        if len(records):
            oldest = int(records.timestamps[0])
            return oldest - oldest % window_ms + window_ms
    return 1 << 62  # everything was deleted: no window is certain
