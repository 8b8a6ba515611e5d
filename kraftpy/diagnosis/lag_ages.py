"""A group's lag as a person means it: the age of the first record it has not read, and whether there is one at all.

The records are read, because nothing else knows their timestamps, nor whether anything but transaction markers and
aborted records lies before the end of the log: those are no records that a group would still have to read, although the
offsets differ. A record of an open transaction may become one, and counts. If nothing can be read in time (no leader),
or by this principal, the age is unknown, and the offsets alone tell the lag.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from kraftpy.client.consumer.consumer import Consumer
from kraftpy.client.consumer.fetcher import PartitionRefused
from kraftpy.diagnosis.group_causes import Observed
from kraftpy.types import TopicPartition

_SECONDS = 10.0
_POLL_MS = 100
_FETCH_BYTES = 16_384
"""Asked for at a time, of each partition: room for two hundred markers; a broker returns one batch anyway."""

NOTHING = -1
"""In place of an age: there is no record to read before the end."""


async def ages_ms(
    options: Mapping[str, Any], places: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the age in ms of the first record between each offset and the end, or NOTHING.

    `options` are those of a client.

    Partitions of which nothing can be read in time, or by this principal, are left out.
    """
    deadline = asyncio.get_running_loop().time() + _SECONDS
    times, positions = await _first_times(options, places, ends, "read_committed", deadline)
    of_open_transactions, _ = await _first_times(options, positions, ends, "read_uncommitted", deadline)
    now = time.time_ns() // 1_000_000
    return {
        partition: NOTHING if timestamp is None else max(0, now - timestamp)
        for partition, timestamp in (times | of_open_transactions).items()
    }


async def _first_times(
    options: Mapping[str, Any],
    places: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    isolation_level: str,
    deadline: float,
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int]]:
    """Return the timestamp of the first visible record of each partition, None if there is none before its end.

    The second result has the positions of partitions in which the visible records end before that.
    """
    found: dict[TopicPartition, int | None] = {}
    stopped: dict[TopicPartition, int] = {}
    refused: set[TopicPartition] = set()
    if not places:
        return found, stopped
    own: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",  # if retention has overtaken the group
        "max_partition_fetch_bytes": _FETCH_BYTES,
        "isolation_level": isolation_level,
    }
    consumer = Consumer(**{**options, **own})
    async with consumer:
        consumer.assign(places)
        for partition, offset in places.items():
            consumer.seek(partition, offset)
        while asyncio.get_running_loop().time() < deadline:
            try:
                read = await consumer.getmany(timeout_ms=_POLL_MS)
            except PartitionRefused as refusal:
                refused.add(refusal.partition)
                consumer.pause([refusal.partition])
                read = {}
            for partition, records in read.items():
                if partition not in found:
                    found[partition] = records[0].timestamp_ms if records[0].offset < ends[partition] else None
                consumer.pause([partition])
            for partition in places.keys() - found.keys() - stopped.keys() - refused:
                if consumer.lag(partition) == 0:
                    position = await consumer.position(partition)
                    if position >= ends[partition]:
                        found[partition] = None
                    else:
                        stopped[partition] = position
                    consumer.pause([partition])
            if len(found) + len(stopped) + len(refused) == len(places):
                break
    return found, stopped


async def nothing_left(options: Mapping[str, Any], observed: Observed) -> frozenset[TopicPartition]:
    """Return the partitions of a group with a lag in which no record follows. `options` are those of a client."""
    places: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for name, place in observed.after.items():
        at = place.first if place.committed is None else place.committed
        if at is not None and place.end is not None and place.first is not None and place.first <= at < place.end:
            places[name], ends[name] = at, place.end
    ages = await ages_ms(options, places, ends)
    return frozenset(name for name, age in ages.items() if age == NOTHING)
