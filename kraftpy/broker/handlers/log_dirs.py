"""AlterReplicaLogDirs (34), DescribeLogDirs (35): move replicas between this broker's log directories, and list them.

AlterReplicaLogDirs: KIP-113. DescribeLogDirs: KIP-113, volume sizes KIP-827, cordoned directories KIP-1066. A replica
that is being copied to another directory appears in both.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.slicing import PIECE
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kraftpy.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kraftpy.broker.handlers.services import HasReplicas
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasSlices
    from kraftpy.broker.storage.directories import LogDirectories
    from kraftpy.broker.upkeep.log_moves import LogMoves

    class Broker(HasReplicas, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def directories(self) -> LogDirectories:
            """The log directories of this node."""

        @property
        def log_moves(self) -> LogMoves:
            """Moves replicas between log directories."""


_MOVE_UNITS = 5
"""The cost of looking at one replica that is to move, in units of `slicing`."""


async def alter_replica_log_dirs(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Begin to move replicas, each independently; the last entry for a replica wins."""
    wanted = {
        TopicPartition(topic.name, partition): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for partition in topic.partitions
    }
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for number, (key, path) in enumerate(wanted.items(), 1):
        if not number % (PIECE // _MOVE_UNITS):
            await broker.slices.breathe(PIECE)
        error = await broker.log_moves.alter(path, key)
        result = results.setdefault(key.topic, AlterReplicaLogDirTopicResult(topic_name=key.topic, partitions=[]))
        result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=key.partition, error_code=error))
    return AlterReplicaLogDirsResponse(results=list(results.values()))


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Describe each log directory, with the sizes of the partitions asked for (null means all)."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    results = []
    for directory in broker.directories.paths:
        if directory in broker.directories.failures:
            results.append(_unusable(directory))
            continue
        topics: dict[str, DescribeLogDirsTopic] = {}
        for number, (name, partition) in enumerate(_in_directory(broker, directory), 1):
            if not number % PIECE:
                await broker.slices.breathe(PIECE)
            if wanted is None or (name, partition.partition_index) in wanted:
                topic = topics.setdefault(name, DescribeLogDirsTopic(name=name, partitions=[]))
                topic.partitions.append(partition)
        try:
            usage = shutil.disk_usage(directory)
        except OSError:
            results.append(_unusable(directory))
            continue
        results.append(
            DescribeLogDirsResult(
                log_dir=directory,
                topics=list(topics.values()),
                total_bytes=usage.total,
                usable_bytes=usage.free,
                is_cordoned=directory in broker.directories.cordoned,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _in_directory(broker: Broker, directory: str) -> Iterator[tuple[str, DescribeLogDirsPartition]]:
    for replica in broker.replicas.in_directory(directory):
        yield (
            replica.topic_partition.topic,
            DescribeLogDirsPartition(
                partition_index=replica.topic_partition.partition,
                partition_size=replica.log.segments.size_bytes,
                offset_lag=max(0, replica.high_watermark - replica.log_end_offset),
                is_future_key=False,
            ),
        )
    for future in list(broker.log_moves.futures_in(directory)):
        yield (
            future.key.topic,
            DescribeLogDirsPartition(
                partition_index=future.key.partition,
                partition_size=future.size_bytes,
                offset_lag=future.offset_lag,
                is_future_key=True,
            ),
        )


def _unusable(directory: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[])
