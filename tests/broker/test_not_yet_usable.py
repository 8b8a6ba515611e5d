"""Partitions that are being opened after their topic's creation, or closed for its deletion, have not failed.

KAFKA_STORAGE_ERROR is for log directories and logs that failed. A partition that is not open yet is not led yet,
and one that is being closed is gone: both errors make clients ask again, as they do with Kafka.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, create, running, until

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.fetch import fetch
from kraftpy.broker.handlers.log_dirs import alter_replica_log_dirs
from kraftpy.broker.handlers.offsets import list_offsets, offset_for_leader_epoch
from kraftpy.broker.handlers.produce import produce
from kraftpy.broker.handlers.producers import describe_producers
from kraftpy.broker.handlers.topics import delete_records, delete_topics
from kraftpy.broker.replication.log_operations import LogOperations
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replica_opener import ReplicaOpener
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch


async def told(broker: Broker, directory: Path, topic_id: bytes) -> dict[str, ErrorCode]:
    """Ask for partition 0 of "t" in every API that reads or writes partitions; return each one's error."""
    records = encode_batch([(broker.clock.now(), b"k", b"v", ())])
    codes: dict[str, int] = {}
    for version in (12, 13):
        data = [PartitionProduceData(index=0, records=bytearray(records))]
        topics = [TopicProduceData(name="t", topic_id=topic_id, partition_data=data)]
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=topics)
        produced = await produce(broker, request, context(ApiKey.PRODUCE, version))
        assert produced is not None
        codes[f"Produce {version}"] = produced.responses[0].partition_responses[0].error_code
    for version, name, known_id in ((12, "t", bytes(16)), (13, "", topic_id)):
        wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
        read = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=name, topic_id=known_id, partitions=wanted)]
        )
        fetched = await fetch(broker, read, context(ApiKey.FETCH, version))
        codes[f"Fetch {version}"] = fetched.responses[0].partitions[0].error_code
    listed = await list_offsets(
        broker,
        ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        ),
        context(ApiKey.LIST_OFFSETS, 7),
    )
    codes["ListOffsets"] = listed.topics[0].partitions[0].error_code
    ended = await offset_for_leader_epoch(
        broker,
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])]
        ),
        context(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4),
    )
    codes["OffsetForLeaderEpoch"] = ended.topics[0].partitions[0].error_code
    deleted = await delete_records(
        broker,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])],
            timeout_ms=1_000,
        ),
        context(ApiKey.DELETE_RECORDS, 2),
    )
    codes["DeleteRecords"] = deleted.topics[0].partitions[0].error_code
    described = await describe_producers(
        broker,
        DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]),
        context(ApiKey.DESCRIBE_PRODUCERS, 0),
    )
    codes["DescribeProducers"] = described.topics[0].partitions[0].error_code
    moved = await alter_replica_log_dirs(
        broker,
        AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=str(directory), topics=[AlterReplicaLogDirTopic(name="t", partitions=[0])])]
        ),
        context(ApiKey.ALTER_REPLICA_LOG_DIRS, 2),
    )
    codes["AlterReplicaLogDirs"] = moved.results[0].partitions[0].error_code
    return {api: ErrorCode.of(code) for api, code in codes.items()}


async def test_what_is_being_opened_is_not_led_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_open, is_opening = threading.Event(), threading.Event()
    usual = ReplicaOpener._open

    def held(*arguments: Any) -> Replica:
        is_opening.set()
        assert may_open.wait(BOUND_SECONDS)
        return usual(*arguments)

    async with running(tmp_path) as broker:
        monkeypatch.setattr(ReplicaOpener, "_open", held)
        creating = asyncio.create_task(create(broker, ["t"]))
        try:
            await until(is_opening.is_set)
            topic = broker.image.topic("t")
            assert topic is not None
            found = await told(broker, tmp_path, topic.topic_id)
            assert found.pop("AlterReplicaLogDirs") is ErrorCode.REPLICA_NOT_AVAILABLE
            assert set(found.values()) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}, found
            assert broker.health["is_healthy"], broker.health
            assert broker.health["offline_partition_count"] == 0
            assert not creating.done(), "the answer waits until this broker can use the topic"
        finally:
            may_open.set()
        answered = await creating
        assert answered.topics[0].error_code == ErrorCode.NONE
        found = await told(broker, tmp_path, topic.topic_id)
        assert set(found.values()) == {ErrorCode.NONE}, found


async def test_what_is_being_closed_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_close, is_closing = asyncio.Event(), asyncio.Event()
    usual = LogOperations.release

    async def held(operations: LogOperations) -> None:
        is_closing.set()
        await may_close.wait()
        await usual(operations)

    async with running(tmp_path) as broker:
        await create(broker, ["t"])
        topic = broker.image.topic("t")
        assert topic is not None
        monkeypatch.setattr(LogOperations, "release", held)
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000)
        deleting = asyncio.create_task(delete_topics(broker, request, context(ApiKey.DELETE_TOPICS, 5)))
        await until(is_closing.is_set)
        found = await told(broker, tmp_path, topic.topic_id)
        by_id = {found.pop("Produce 13"), found.pop("Fetch 13")}
        assert by_id == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert set(found.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, found
        may_close.set()
        assert (await deleting).responses[0].error_code == ErrorCode.NONE


async def test_what_has_failed_says_so_even_while_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, is_opening, is_broken = threading.Event(), threading.Event(), True
    usual = ReplicaOpener._open

    def broken(*arguments: Any) -> Replica:
        if is_broken:
            raise PermissionError("not today")
        is_opening.set()
        assert may_open.wait(BOUND_SECONDS)
        return usual(*arguments)

    async with running(tmp_path) as broker:
        monkeypatch.setattr(ReplicaOpener, "_open", broken)
        await create(broker, ["t"])
        topic = broker.image.topic("t")
        assert topic is not None
        found = await told(broker, tmp_path, topic.topic_id)
        assert set(found.values()) == {ErrorCode.KAFKA_STORAGE_ERROR}, found
        assert broker.health["offline_partitions"] == ["t-0: not today"]
        is_broken = False
        opening = asyncio.create_task(broker.replica_manager.retry_offline())
        try:
            await until(is_opening.is_set)
            found = await told(broker, tmp_path, topic.topic_id)
            assert set(found.values()) == {ErrorCode.KAFKA_STORAGE_ERROR}, found
        finally:
            may_open.set()
        await opening
        assert set((await told(broker, tmp_path, topic.topic_id)).values()) == {ErrorCode.NONE}
