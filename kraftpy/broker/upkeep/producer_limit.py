"""Bounds the memory for idempotent producers: `kraftpy.max.producers` on one broker.

A producer counts once per partition that it writes to. Those that have been silent longest are forgotten first; those
with an open transaction stay. No partition keeps more than a quarter of the limit, so that one topic cannot use it up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Sequence

from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.types import Millis

_SORTED_AT_ONCE = 10_000
"""Producers looked at, or sorted, before other tasks get the event loop."""
_PARTITIONS_SHARE = 4


async def forget_producers_beyond(replicas: Replicas, limit: int) -> int:
    """Forget producers while there are more than `limit`; return how many. Room for a tenth of it is made at once."""
    gone = total = 0
    most = max(1, limit // _PARTITIONS_SHARE)
    writing: list[Replica] = []
    async for replica in replicas.with_usable_log():
        count = len(replica.log.producers)
        if count > most:
            gone += await _forget_oldest([replica], count - most + most // 10)
            count = len(replica.log.producers)
        if count:
            writing.append(replica)
            total += count
    if total > limit:
        gone += await _forget_oldest(writing, total - limit + limit // 10)
    return gone


async def _forget_oldest(replicas: Sequence[Replica], count: int) -> int:
    """Forget about `count` producers of these partitions, those that wrote longest ago; return how many."""
    runs: list[list[int]] = []  # times of the last writes, each list sorted
    run: list[int] = []
    for replica in replicas:
        if replica.log.is_closed or replica.operations.is_truncating:
            continue
        run.extend(replica.log.producers.written_at())
        if len(run) >= _SORTED_AT_ONCE:
            run.sort()
            runs.append(run)
            run = []
            await asyncio.sleep(0)
    runs.append(sorted(run))
    until = None
    for number, written_at in enumerate(itertools.islice(heapq.merge(*runs), max(count, 1))):
        until = Millis(written_at)
        if number % _SORTED_AT_ONCE == _SORTED_AT_ONCE - 1:
            await asyncio.sleep(0)
    gone = looked_at = 0
    for replica in replicas:
        if until is None or replica.log.is_closed or replica.operations.is_truncating:
            continue
        looked_at += len(replica.log.producers)
        gone += len(replica.log.producers.expire(until, 0))
        if looked_at >= _SORTED_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
    return gone
