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
from kraftpy.ports import Clock
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)


class Cleaner:
    """Compacts what is due among a broker's partitions."""

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    async def clean(self) -> None:
        """Look at every partition once, and compact those where it is due. A partition that fails is left as it was."""
        for replica in self._replicas:
            if not replica.log.config.is_compacted:
                continue
            try:
                await self._clean(replica)
            except (OSError, KafkaError) as error:
                logger.error("%s: not compacted: %s", replica.topic_partition, error)

    async def _clean(self, replica: Replica) -> None:
        result = await replica.compact(self._clock.now())
        if result is None:
            return
        logger.info("%s: compacted %d bytes to %d", replica.topic_partition, result.bytes_before, result.bytes_after)
        self._replicas.delete_files_later(replica, result.files)
        directory = replica.log_directory
        offsets = {each.topic_partition: each.clean_until for each in self._replicas if each.log_directory is directory}
        await asyncio.to_thread(layout.write_offsets, directory, layout.CLEANER_OFFSETS, offsets)
