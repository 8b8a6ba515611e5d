"""Runs one compaction: segments written elsewhere are put in place here, on the event loop (`log.compaction`).

The caller keeps the log from being closed or truncated meanwhile; appends, reads and retention continue.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from kraftpy.broker.containment import Complaints
from kraftpy.broker.patience import sync_patiently
from kraftpy.log import compaction
from kraftpy.log.compaction import CompactionJob, CompactionResult
from kraftpy.log.compaction_work import Cleaned, Done
from kraftpy.log.partition_log import PartitionLog

CleaningWork = Callable[[CompactionJob, str], AsyncGenerator[Cleaned | Done, None]]
"""Carries out the long part of a compaction in the directory of that path."""


async def carry_out(
    log: PartitionLog,
    job: CompactionJob,
    work: CleaningWork,
    discard: Callable[[list[str]], None],
    complaints: Complaints,
) -> CompactionResult | None:
    """Run a compaction with `work`; return None if the log changed or is to be closed. Old files go to `discard`.

    Raises OSError, and any exception that `work` raises.
    """
    done: Done | None = None

    try:
        async with aclosing(work(job, log.directory.path)) as steps:
            async for step in steps:
                if isinstance(step, Done):
                    done = step
                elif job.is_abandoned or not compaction.stage(log, job, step):
                    break
                else:
                    await sync_patiently(log.directory, complaints)
                    gone = compaction.put_in_place(log, job)
                    if gone is None:
                        break
                    await sync_patiently(log.directory, complaints)
                    compaction.complete(log, job)
                    discard(gone)
    finally:
        result = compaction.finish(log, job, done)
    return result
