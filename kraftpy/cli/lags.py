"""A group's lag in time: the age of the first record it has not read, partition by partition.

The record is read, because nothing else knows its timestamp. If none can be read in time (no leader; only transaction
markers), the age is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from kraftpy.client import Consumer
from kraftpy.types import TopicPartition

_SECONDS = 10.0
_POLL_MS = 500


async def ages_ms(bootstrap: str, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the age in ms of the first record at or after each offset, for those that can be read in time."""
    found: dict[TopicPartition, int] = {}
    if not places:
        return found
    deadline = asyncio.get_running_loop().time() + _SECONDS
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        client_id="kraftpy-group",
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # if retention has overtaken the group
        max_partition_fetch_bytes=1,  # a broker returns one batch anyway
    )
    async with consumer:
        consumer.assign(places)
        for partition, offset in places.items():
            consumer.seek(partition, offset)
        while len(found) < len(places) and asyncio.get_running_loop().time() < deadline:
            for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                found.setdefault(partition, records[0].timestamp_ms)
                consumer.pause([partition])
    now = time.time_ns() // 1_000_000
    return {partition: max(0, now - timestamp) for partition, timestamp in found.items()}
