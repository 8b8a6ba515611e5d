"""Automatic commits of a consumer that has a `group_id` but no membership: it assigned its partitions itself.

A member of a group commits in its own time, between rebalances (`group_member`).
"""

from __future__ import annotations

import asyncio
import logging

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer.buffer import RecordBuffer
from kraftpy.client.interceptors import Interceptors
from kraftpy.client.model import OffsetAndMetadata
from kraftpy.client.offsets import commit_offsets
from kraftpy.client.options import ConsumerOptions
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)


class AutoCommit:
    """Commits, at an interval and when asked, what the application has finished."""

    def __init__(
        self, cluster: Cluster, buffer: RecordBuffer, options: ConsumerOptions, interceptors: Interceptors
    ) -> None:
        self._cluster = cluster
        self._buffer = buffer
        self._interval_ms = options.auto_commit_interval_ms
        self._interceptors = interceptors
        self._group_id = options.group_id if options.enable_auto_commit else None
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def is_active(self) -> bool:
        """True if commits are due: there is a group to commit to, auto-commit is on, and no membership commits."""
        return self._group_id is not None

    def stop(self) -> None:
        """Commit nothing from now on: the consumer has become a member of its group, which commits itself."""
        self._group_id = None

    async def run(self) -> None:
        """Commit at an interval for as long as the consumer runs."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self.commit()
            except KafkaError as failed:
                logger.warning("group %s: automatic commit failed: %s", self._group_id, failed)

    async def commit(self) -> None:
        """Commit what has been finished since the last time."""
        finished = self._buffer.finished()
        if self._group_id is not None and finished and finished != self._committed:
            self._committed = finished
            await commit_offsets(self._cluster, self._group_id, finished)
            self._interceptors.on_commit(finished)
