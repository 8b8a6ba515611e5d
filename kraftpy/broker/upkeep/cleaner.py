"""The log cleaner: compacts the logs of topics with `cleanup.policy=compact`, the dirtiest first.

There are `log.cleaner.threads` workers, each with a process of its own that does the work (`storage.cleaning_process`),
so that clients do not wait for it. Each takes the log with the largest share of dirty bytes among those that are due,
and pauses for `log.cleaner.backoff.ms` if no log is due. Memory (`log.cleaner.dedupe.buffer.size`,
`log.cleaner.io.buffer.size`) and speed (`log.cleaner.io.max.bytes.per.second`) are shared equally among them. A process
that was not needed for a minute is ended.

A log that cannot be cleaned because it is damaged, or met an unexpected error, is left alone from then on, which is
logged once; it grows until the broker is restarted or the topic deleted. A failing disk is reported to the replica, and
the log is retried after a pause.

Kafka's `cleaner-offset-checkpoint`, one per log directory, holds the start of each partition's dirty part. If it is
lost or damaged, logs are cleaned from their start, with no other harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from kraftpy.broker.containment import Incidents
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.storage.cleaning_process import CleanerGone, CleaningProcess, SegmentsGone
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.log.compaction import CompactionResult, Limits
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 60.0
_SHORTEST_PAUSE_SECONDS = 0.01  # clients are served even with a backoff of 0
_LOOK_AT_ONCE = 50
_LONGEST_PAUSE_SECONDS = 86_400.0


class Cleaner:
    """Compacts the logs that are due among a broker's partitions."""

    def __init__(self, manager: ReplicaManager, clock: Clock, config: BrokerConfig, incidents: Incidents) -> None:
        self._incidents = incidents
        self._manager = manager
        self._replicas = manager.replicas
        self._clock = clock
        self._changed = asyncio.Event()
        self.configure(config)
        self._in_progress: set[Replica] = set()
        self._uncleanable: set[Replica] = set()
        self._postponed: set[Replica] = set()  # until a pause is over
        self._writing = asyncio.Lock()

    def configure(self, config: BrokerConfig) -> None:
        """Take over changed settings; workers finish their current log, and new ones continue."""
        self._threads = config.log_cleaner_threads
        self._backoff_seconds = config.log_cleaner_backoff_ms / 1000
        share = max(1, self._threads)
        self._limits = Limits(
            config.log_cleaner_dedupe_buffer_size // share,
            config.log_cleaner_io_buffer_load_factor,
            config.log_cleaner_io_buffer_size // share,
        )
        self._bytes_per_second = config.log_cleaner_io_max_bytes_per_second / share
        self._changed.set()

    async def run(self) -> None:
        """Clean until cancelled."""
        while True:
            self._changed.clear()
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._threads):
                    tasks.create_task(self._work(), name=f"log cleaner {number}")
                await self._changed.wait()

    async def _work(self) -> None:
        process = CleaningProcess(self._bytes_per_second)
        try:
            last_used = 0.0
            while not self._changed.is_set():
                remaining = max(self._backoff_seconds, _SHORTEST_PAUSE_SECONDS)
                while remaining > 0 and not self._changed.is_set():
                    pause = min(remaining, _IDLE_SECONDS if process.is_running else _LONGEST_PAUSE_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
                    remaining -= pause
                    if process.is_running and time.monotonic() - last_used >= _IDLE_SECONDS:
                        await process.end()
                self._postponed.clear()
                while not self._changed.is_set() and (replica := await self._dirtiest()) is not None:
                    await self._clean(replica, process)
                    last_used = time.monotonic()
        finally:
            await process.end()

    async def _dirtiest(self) -> Replica | None:
        """Return the dirtiest partition that is due and not being cleaned already."""
        best: tuple[float, Replica] | None = None
        known = list(self._replicas)
        self._uncleanable.intersection_update(known)
        now = self._clock.now()
        for number, replica in enumerate(known):
            if number % _LOOK_AT_ONCE == _LOOK_AT_ONCE - 1:
                await asyncio.sleep(0)
            if not replica.log.config.is_compacted or replica.log.is_closed or replica.operations.is_truncating:
                continue
            if replica in self._in_progress or replica in self._uncleanable or replica in self._postponed:
                continue
            try:
                found = replica.operations.dirtiness(now)
            except Exception as error:
                self._failed(replica, error)
                continue
            if found.is_due and (best is None or found.ratio > best[0]):
                best = found.ratio, replica
        return None if best is None else best[1]

    async def _clean(self, replica: Replica, process: CleaningProcess) -> None:
        """Clean one partition; a failure leaves it as it was."""

        def discard(files: list[str]) -> None:
            self._manager.deletions.delete_files(replica.log, files)

        if replica in self._in_progress:
            return  # another worker was faster
        self._in_progress.add(replica)
        try:
            result = await replica.operations.compact(self._clock.now(), self._limits, process.clean, discard)
            if result is None:
                self._postponed.add(replica)
            else:
                await self._cleaned(replica, result)
        except (SegmentsGone, CleanerGone) as error:
            self._postponed.add(replica)
            logger.info("%s: not compacted this time: %s", replica.topic_partition, error)
        except Exception as error:
            self._failed(replica, error)
        finally:
            self._in_progress.discard(replica)

    async def _cleaned(self, replica: Replica, result: CompactionResult) -> None:
        logger.info("%s: compacted %d bytes to %d", replica.topic_partition, result.bytes_before, result.bytes_after)
        directory = replica.log_directory
        async with self._writing:
            offsets = {
                each.topic_partition: each.operations.clean_until
                for each in self._replicas
                if each.log_directory is directory
            }
            try:
                await asyncio.to_thread(layout.write_offsets, directory, layout.CLEANER_OFFSETS, offsets)
            except OSError as error:
                if not self._manager.failures.storage_failed(directory, "write the cleaner's checkpoint in", error):
                    logger.error("%s: the cleaner's checkpoint cannot be written: %s", directory.path, error)

    def _failed(self, replica: Replica, error: Exception) -> None:
        if isinstance(error, OSError):
            self._postponed.add(replica)
            replica.errors.failed("compact", error)
        elif isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._postponed.add(replica)
        elif not isinstance(error, KafkaError):
            self._uncleanable.add(replica)
            self._incidents.note(f"{replica.topic_partition}: compaction", error, kind="compaction")
        else:
            self._uncleanable.add(replica)
            logger.error("%s cannot be compacted and is left as it is: %s", replica.topic_partition, error)
