"""The log cleaner: compaction of topics with `cleanup.policy=compact`, one partition at a time, in a thread.

Where each partition's dirty part begins is in Kafka's `cleaner-offset-checkpoint`, one per log directory; a checkpoint
that is lost or damaged costs a cleaning from the log's start, nothing else.

Left out: several cleaner threads and the throttle (`log.cleaner.threads`, `log.cleaner.io.max.bytes.per.second`).
"""

from __future__ import annotations

import asyncio
import logging

from kraftpy.broker.replica import Replica
from kraftpy.broker.replicas import Replicas
from kraftpy.log import layout
from kraftpy.ports import Clock, Directory
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import Offset, TopicPartition

logger = logging.getLogger(__name__)


class Cleaner:
    """Compacts what is due among a broker's partitions."""

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._clean_until: dict[TopicPartition, Offset] | None = None

    async def clean(self) -> None:
        """Look at every partition once, and compact those where it is due. A partition that fails is left as it was."""
        if self._clean_until is None:
            self._clean_until = await asyncio.to_thread(self._read_checkpoints)
        for replica in self._replicas:
            if not replica.log.config.is_compacted:
                continue
            try:
                await self._clean(replica, self._clean_until)
            except (OSError, KafkaError) as error:
                logger.error("%s: not compacted: %s", replica.topic_partition, error)

    async def _clean(self, replica: Replica, clean_until: dict[TopicPartition, Offset]) -> None:
        key = replica.topic_partition
        result = await replica.compact(clean_until.get(key, Offset(0)), self._clock.now())
        if result is None:
            return
        logger.info("%s: compacted %d bytes to %d", key, result.bytes_before, result.bytes_after)
        self._replicas.delete_files_later(replica, result.files)
        clean_until[key] = Offset(result.end_offset)
        await asyncio.to_thread(self._write_checkpoint, replica.log_directory, dict(clean_until))

    def _read_checkpoints(self) -> dict[TopicPartition, Offset]:
        found: dict[TopicPartition, Offset] = {}
        for directory in self._replicas.log_directories:
            try:
                offsets = layout.read_offsets(directory, layout.CLEANER_OFFSETS)
            except layout.CorruptFile as error:
                logger.warning("%s; its logs are cleaned from their start", error)
                continue
            found.update((key, Offset(offset)) for key, offset in offsets.items())
        return found

    def _write_checkpoint(self, directory: Directory, clean_until: dict[TopicPartition, Offset]) -> None:
        here = {replica.topic_partition for replica in self._replicas if replica.log_directory is directory}
        layout.write_offsets(
            directory, layout.CLEANER_OFFSETS, {key: offset for key, offset in clean_until.items() if key in here}
        )
