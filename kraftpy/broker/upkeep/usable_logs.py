"""The partitions whose logs periodic work may change now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.broker.replication.replicas import Replicas

_PARTITIONS_BEFORE_A_PAUSE = 20
"""Loops over thousands of partitions give others the event loop after this many."""


async def with_usable_log(replicas: Replicas) -> AsyncIterator[Replica]:
    """Yield the partitions whose log is open and not being truncated, with a pause for others after every few."""
    for number, replica in enumerate(replicas):
        if number % _PARTITIONS_BEFORE_A_PAUSE == 0:
            await asyncio.sleep(0)
        if not (replica.operations.is_truncating or replica.log.is_closed):
            yield replica
