"""Bounds the memory for idempotent producers: `kraftpy.max.producers` on one broker.

A producer counts once per partition that it writes to. Those that have been silent longest are forgotten first; those
with an open transaction stay. No partition keeps more than a quarter of the limit, so that one topic cannot use it up.

A look costs as much as the partitions that got more producers since the last one (`replication.due_work`). All
partitions are looked at only if there are too many producers.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Sequence

from kraftpy.broker.replication.due_work import DueWork
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.upkeep.usable_logs import with_usable_log
from kraftpy.types import Millis

_SORTED_AT_ONCE = 10_000
"""Producers looked at, or sorted, before other tasks get the event loop."""
_LOOKED_AT_AT_ONCE = 500
"""Partitions looked at before other tasks get the event loop."""
_PARTITIONS_SHARE = 4


async def forget_producers_beyond(replicas: Replicas, limit: int) -> int:
    """Forget producers while there are more than `limit`; return how many. Room for a tenth of it is made at once."""
    gone, due = 0, replicas.due
    most = max(1, limit // _PARTITIONS_SHARE)
    for number, replica in enumerate(due.take_grown()):
        if number % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
            await asyncio.sleep(0)
        if replica.log.is_closed:
            due.closed(replica)
        elif replica.operations.is_truncating:
            due.grown[replica] = None
        elif (count := len(replica.log.producers)) > most:
            gone += await _forget_oldest(due, [replica], count - most + most // 10)
    if due.producers > limit:
        writing: list[Replica] = []
        total = 0
        async for replica in with_usable_log(replicas):
            due.count_producers(replica)
            if replica.counted_producers:
                writing.append(replica)
                total += replica.counted_producers
        if total > limit:
            gone += await _forget_oldest(due, writing, total - limit + limit // 10)
    return gone


async def _forget_oldest(due: DueWork, replicas: Sequence[Replica], count: int) -> int:
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
        due.count_producers(replica)
        if looked_at >= _SORTED_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
    return gone
