"""Requests about offsets: those of a log, and those of a group. Shared by consumer, admin and range reader.

Requests and answers are plain functions. The coroutines below them ask over a `Cluster`, send everything for one broker
in one request, and retry transient failures. Versions of OffsetCommit and OffsetFetch that name topics by id (10 and
up) are left out: a commit by name refers to the topic that has the name now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext

from kraftpy.client.cluster import STALE_METADATA, Cluster, ClusterMetadata
from kraftpy.client.model import IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kraftpy.types import TopicPartition

_HIGHEST_BY_NAME = 9
_SEVERAL_GROUPS_VERSION = 8
_SPEC_VERSIONS = ((-6, 11), (-5, 9), (-4, 8), (-3, 7))

Found = dict[TopicPartition, OffsetAndTimestamp | None]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, in order."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


# --- where a log stands -----------------------------------------------------------------------------------------------


def list_offsets_request(
    wanted: Mapping[TopicPartition, int], isolation: IsolationLevel, metadata: ClusterMetadata, timeout_ms: float
) -> tuple[ListOffsetsRequest, int]:
    """Build the request for times or `OffsetSpec`s of partitions with one leader. Returns also its lowest version."""
    topics = []
    for topic, indexes in by_topic(wanted).items():
        partitions = []
        for index in indexes:
            name = TopicPartition(topic, index)
            info = metadata.partition(name)
            epoch = info.leader_epoch if info is not None else -1
            partitions.append(
                ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=int(wanted[name]))
            )
        topics.append(ListOffsetsTopic(name=topic, partitions=partitions))
    lowest = min(wanted.values())
    low = next((version for spec, version in _SPEC_VERSIONS if lowest <= spec), 2 if isolation else 1)
    return ListOffsetsRequest(isolation_level=isolation, topics=topics, timeout_ms=int(timeout_ms)), low


def read_list_offsets(
    answer: ListOffsetsResponse,
) -> Iterator[tuple[TopicPartition, OffsetAndTimestamp | KafkaError | None]]:
    """Yield each partition with its offset, None if no record is that late, or its error."""
    for topic in answer.topics:
        for part in topic.partitions:
            name = TopicPartition(topic.name, part.partition_index)
            code = ErrorCode.of(part.error_code)
            if code is not ErrorCode.NONE:
                yield name, KafkaError(code, f"{name}: {code.meaning}")
            elif part.offset < 0:
                yield name, None
            else:
                yield name, OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)


async def ask_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
    """Ask every leader once. Returns each partition's offset, None if no record is that late, or an error."""
    results: dict[TopicPartition, OffsetAndTimestamp | KafkaError | None] = {}
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, leader in (await leaders(cluster, wanted)).items():
        if isinstance(leader, KafkaError):
            results[partition] = leader
        else:
            by_leader.setdefault(leader, {})[partition] = wanted[partition]
    for node_id, specs in by_leader.items():
        request, low = list_offsets_request(specs, isolation, cluster.metadata, cluster.options.request_timeout_ms)
        try:
            connection = await cluster.connect(node_id)
            answer: ListOffsetsResponse = await connection.request(ApiKey.LIST_OFFSETS, request, low=low)
        except KafkaError as failed:
            results.update(dict.fromkeys(specs, failed))
        else:
            results.update(read_list_offsets(answer))
    if any(isinstance(result, KafkaError) and result.code in STALE_METADATA for result in results.values()):
        cluster.request_refresh()
    return results


async def leaders(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
    """Return the leader of each partition, or why it has none, after at most one refresh of metadata."""
    names = list(partitions)
    cluster.want({name.topic for name in names})
    known = {name: cluster.metadata.partition(name) for name in names}
    if any(info is None or info.leader < 0 for info in known.values()):
        try:
            await cluster.refresh()
        except KafkaError as failed:
            return dict.fromkeys(names, failed)
        known = {name: cluster.metadata.partition(name) for name in names}
    found: dict[TopicPartition, int | KafkaError] = {}
    for name, info in known.items():
        if info is None:
            found[name] = cluster.unknown(name.topic, name.partition)
        elif info.leader < 0:
            found[name] = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader")
        else:
            found[name] = info.leader
    return found


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout_ms: float | None = None,
) -> Found:
    """Return each partition's offset for a time in ms or an `OffsetSpec`; None if no record is that late.

    Raises the first `KafkaError` that a retry does not fix.
    """
    found: Found = {}

    async def attempt() -> None:
        missing = {partition: spec for partition, spec in wanted.items() if partition not in found}
        failure: KafkaError | None = None
        for partition, result in (await ask_offsets(cluster, missing, isolation)).items():
            if isinstance(result, KafkaError):
                failure = failure or result
            else:
                found[partition] = result
        if failure is not None:
            raise failure

    if wanted:
        await cluster.retry(attempt, timeout_ms=timeout_ms)
    return {partition: found.get(partition) for partition in wanted}


# --- where a group stands ---------------------------------------------------------------------------------------------


async def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation_id: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
) -> None:
    """Commit once, without retrying. Raises the first partition's `KafkaError`."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[_commit_partition(index, offsets[TopicPartition(topic, index)]) for index in indexes],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )
    tracing = cluster.tracing
    names = (name.topic for name in offsets)
    with nullcontext() if tracing is None else tracing.committing(names, cluster.options.client_id, group_id):
        answer: OffsetCommitResponse = await cluster.ask_coordinator(
            group_id, ApiKey.OFFSET_COMMIT, request, high=_HIGHEST_BY_NAME
        )
        for topic in answer.topics:
            for part in topic.partitions:
                code = ErrorCode.of(part.error_code)
                if code is not ErrorCode.NONE:
                    text = f"offset of {topic.name}-{part.partition_index} not committed: {code.meaning}"
                    raise KafkaError(code, text)


def _commit_partition(index: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


async def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of `partitions` (None: of all that have one), leaving out partitions without one.

    With `require_stable`, waits for offsets of open transactions (KIP-447). Raises `KafkaError`.
    """
    topics = None if partitions is None else by_topic(partitions)
    if topics is not None and not topics:
        return {}

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        connection = await cluster.connect_coordinator(group_id)
        version = connection.version(ApiKey.OFFSET_FETCH, low=2 if topics is None else 1, high=_HIGHEST_BY_NAME)
        request = _fetch_request(group_id, topics, version, require_stable)
        answer: OffsetFetchResponse = await connection.send(ApiKey.OFFSET_FETCH, request, version)
        return _read_committed(answer, version, group_id)

    return await cluster.retry(attempt, timeout_ms=timeout_ms, group_id=group_id)


def _fetch_request(
    group_id: str, topics: Mapping[str, Sequence[int]] | None, version: int, require_stable: bool
) -> OffsetFetchRequest:
    stable = require_stable and version >= 7
    if version >= _SEVERAL_GROUPS_VERSION:
        listed = (
            None
            if topics is None
            else [
                OffsetFetchRequestTopics(name=name, partition_indexes=list(indexes)) for name, indexes in topics.items()
            ]
        )
        group = OffsetFetchRequestGroup(group_id=group_id, topics=listed)
        return OffsetFetchRequest(groups=[group], require_stable=stable)
    single = (
        None
        if topics is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=list(indexes)) for name, indexes in topics.items()]
    )
    return OffsetFetchRequest(group_id=group_id, topics=single, require_stable=stable)


def _read_committed(
    answer: OffsetFetchResponse, version: int, group_id: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    several = version >= _SEVERAL_GROUPS_VERSION
    if several and not answer.groups:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker's answer lacks group {group_id!r}")
    whole = ErrorCode.of(answer.groups[0].error_code if several else answer.error_code)
    if whole is not ErrorCode.NONE:
        raise KafkaError(whole, f"group {group_id!r}: {whole.meaning}")
    found = {}
    for topic in answer.groups[0].topics if several else answer.topics:
        for part in topic.partitions:
            name = TopicPartition(topic.name, part.partition_index)
            code = ErrorCode.of(part.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"committed offset of {name}: {code.meaning}")
            if part.committed_offset >= 0:
                found[name] = OffsetAndMetadata(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
    return found


async def partition_counts(cluster: Cluster, topics: Iterable[str]) -> dict[str, int]:
    """Return the partition counts of those topics that exist, from metadata fetched now."""
    wanted = set(topics)
    cluster.want(wanted)
    while True:
        try:
            metadata = await cluster.refresh()
            break
        except KafkaError as failed:
            if not failed.code.retriable:
                raise
            await asyncio.sleep(0)
    return {name: len(info.partitions) for name, info in metadata.topics.items() if name in wanted}
