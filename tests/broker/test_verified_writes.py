"""Writes that wait for their transaction's coordinator, and what comes meanwhile: markers, changes of leadership.

The tests take the place of the coordinator's answer, and let the events happen in between (KIP-890).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from one_broker import context, create, running

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.handlers.produce import produce
from kraftpy.broker.handlers.producers import init_producer_id
from kraftpy.broker.handlers.transactions import txn_offset_commit
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import TopicPartition

ONE_PARTITION = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
OFFSETS = "__consumer_offsets"
ID, EPOCH = 7_000, 5
Meanwhile = Callable[[], Awaitable[None]]


class Coordinator:
    """Stands for the transaction's coordinator: something happens while it is asked, and then it says this."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.meanwhile: Meanwhile | None = None
        self.asked = 0

    async def begin_writing(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: frozenset[Any], **how: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked += 1
        if self.meanwhile is not None:
            await self.meanwhile()
        return dict.fromkeys(partitions, self.code)


@asynccontextmanager
async def prepared(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, Coordinator]]:
    async with running(directory, *ONE_PARTITION) as broker:
        await create(broker, ["t"])
        for key_type in (0, 1):
            finding = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
            await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
        coordinator = Coordinator()
        monkeypatch.setattr(broker.transactions, "begin_writing", coordinator.begin_writing)
        yield broker, coordinator


async def send(broker: Broker, version: int, *, epoch: int = EPOCH, sequence: int = 0) -> ErrorCode:
    batch = encode_batch(
        [(broker.clock.now(), b"k", b"v", ())],
        producer_id=ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    topic = broker.image.topic("t")
    assert topic is not None
    data = TopicProduceData(
        name="t", topic_id=topic.topic_id, partition_data=[PartitionProduceData(index=0, records=bytearray(batch))]
    )
    request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=5_000, topic_data=[data])
    answered = await produce(broker, request, context(ApiKey.PRODUCE, version))
    assert answered is not None
    return ErrorCode.of(answered.responses[0].partition_responses[0].error_code)


async def commit(broker: Broker, version: int, *, epoch: int = EPOCH) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="id",
        group_id="g",
        producer_id=ID,
        producer_epoch=epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
            )
        ],
    )
    answered = await txn_offset_commit(broker, request, context(ApiKey.TXN_OFFSET_COMMIT, version))
    return ErrorCode.of(answered.topics[0].partitions[0].error_code)


async def mark(broker: Broker, topic: str, *, epoch: int, transaction_version: int, is_commit: bool = False) -> None:
    marker = WritableTxnMarker(
        producer_id=ID,
        producer_epoch=epoch,
        transaction_result=is_commit,
        coordinator_epoch=0,
        transaction_version=transaction_version,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
    )
    answered = await broker.marker_writer.write(WriteTxnMarkersRequest(markers=[marker]))
    assert answered.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE


def open_since(broker: Broker, topic: str) -> int | None:
    return broker.replicas.leader(topic, 0).log.producers.first_open_offset


WRITES = pytest.mark.parametrize(
    ("topic", "write"),
    [("t", lambda broker: send(broker, 12)), (OFFSETS, lambda broker: commit(broker, 5))],
    ids=["Produce", "TxnOffsetCommit"],
)
Write = Callable[[Broker], Awaitable[ErrorCode]]


@WRITES
async def test_a_marker_that_raised_the_epoch_ends_nothing_that_begins_in_that_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, write: Write
) -> None:
    """The marker of the previous transaction of v2 comes while the coordinator is asked about the next one."""
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):

        async def previous_ends() -> None:
            await mark(broker, topic, epoch=EPOCH, transaction_version=2)

        coordinator.meanwhile = previous_ends
        assert await write(broker) is ErrorCode.NONE
        assert open_since(broker, topic) == 1, "behind the marker"
        await mark(broker, topic, epoch=EPOCH + 1, transaction_version=2, is_commit=True)
        assert open_since(broker, topic) is None


@WRITES
@pytest.mark.parametrize(("epoch", "transaction_version"), [(EPOCH, 0), (EPOCH, 1), (EPOCH + 1, 1), (EPOCH + 1, 2)])
async def test_a_marker_of_the_same_transaction_leaves_nothing_to_write_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    write: Write,
    epoch: int,
    transaction_version: int,
) -> None:
    """Up to v1 it carries the epoch of the transaction that it ends; after a timeout, and in v2, the next one."""
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):

        async def this_one_ends() -> None:
            await mark(broker, topic, epoch=epoch, transaction_version=transaction_version)

        coordinator.meanwhile = this_one_ends
        fenced = ErrorCode.INVALID_PRODUCER_EPOCH
        expected = (ErrorCode.INVALID_TXN_STATE,) if epoch == EPOCH else (ErrorCode.INVALID_TXN_STATE, fenced)
        assert await write(broker) in expected
        assert open_since(broker, topic) is None, "no marker would ever end it"
        coordinator.meanwhile = None
        if epoch == EPOCH:
            assert await write(broker) is ErrorCode.NONE, "asked again after the marker"


async def test_a_late_marker_of_an_earlier_epoch_ends_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):

        async def earlier_ends() -> None:
            await mark(broker, "t", epoch=EPOCH - 1, transaction_version=1)

        coordinator.meanwhile = earlier_ends
        assert await send(broker, 12) is ErrorCode.NONE


async def test_what_another_leadership_was_told_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retriable error: the transaction continues, and the client asks again at once."""
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):
        replica = broker.replicas.leader("t", 0)

        async def leads_again() -> None:
            replica.leadership += 1

        coordinator.meanwhile = leads_again
        assert await send(broker, 12) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        coordinator.meanwhile = None
        assert await send(broker, 12) is ErrorCode.NONE


@WRITES
async def test_what_is_open_in_the_partition_needs_no_second_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, write: Write
) -> None:
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):
        assert await write(broker) is ErrorCode.NONE
        assert await write(broker) is ErrorCode.NONE
        assert coordinator.asked == 1


_PASSED_ON = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
}
"""The coordinator's answer about the transaction decides about the write."""
_UNREACHABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NETWORK_EXCEPTION,
)


async def test_no_error_of_the_transactions_coordinator_sends_the_client_away_from_the_group_or_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):
        for code, version in itertools.product((*_UNREACHABLE, *_PASSED_ON), range(6)):
            coordinator.code = code
            expected = _PASSED_ON.get(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            assert await commit(broker, version) is expected, (code, version)
        for code, version in itertools.product((*_UNREACHABLE, *_PASSED_ON), range(3, 14)):
            coordinator.code = code
            expected = _PASSED_ON.get(code, ErrorCode.NOT_ENOUGH_REPLICAS)
            assert await send(broker, version) is expected, (code, version)
        for code, old, new in (
            (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 5),
            (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, 4),
        ):
            coordinator.code = code
            assert [await commit(broker, version) for version in range(6)] == [old] * new + [code] * (6 - new)
        for code, old, new in (
            (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS, 12),
            (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, 11),
        ):
            coordinator.code = code
            assert [await send(broker, version) for version in range(3, 14)] == [old] * (new - 3) + [code] * (14 - new)
        assert open_since(broker, "t") is open_since(broker, OFFSETS) is None


async def test_who_does_not_coordinate_the_group_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prepared(tmp_path, monkeypatch) as (broker, coordinator):
        usual = broker.coordinators.check_ready
        for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            monkeypatch.setattr(broker.coordinators, "check_ready", lambda partition, code=code: code)
            assert [await commit(broker, version) for version in range(6)] == [code] * 6
        assert coordinator.asked == 0
        monkeypatch.setattr(broker.coordinators, "check_ready", usual)

        async def moves() -> None:  # while the transaction's coordinator is asked
            broker.coordinators._unload(0)

        coordinator.meanwhile = moves
        assert await commit(broker, 5) is ErrorCode.NOT_COORDINATOR


async def test_a_group_coordinator_answers_markers_as_the_partitions_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's coordinator retries the errors of leaders; those of group coordinators are not for it."""
    async with prepared(tmp_path, monkeypatch) as (broker, _):
        marker = WritableTxnMarker(
            producer_id=ID,
            producer_epoch=EPOCH,
            transaction_result=True,
            coordinator_epoch=0,
            topics=[WritableTxnMarkerTopic(name=OFFSETS, partition_indexes=[0])],
        )
        shard = broker.coordinators._serving(0)
        assert shard is not None
        monkeypatch.setattr(shard.machine, "_loaded", False)
        answered = await broker.marker_writer.write(WriteTxnMarkersRequest(markers=[marker]))
        assert answered.markers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.coordinators._unload(0)
        answered = await broker.marker_writer.write(WriteTxnMarkersRequest(markers=[marker]))
        assert answered.markers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_coordinator_whose_metadata_are_behind_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader knows that the partition exists; a coordinator on another broker may not know it yet."""
    from kraftpy.protocol.messages.add_partitions_to_txn import (
        AddPartitionsToTxnPartitionResult,
        AddPartitionsToTxnResponse,
        AddPartitionsToTxnResult,
        AddPartitionsToTxnTopicResult,
    )

    async with running(tmp_path, *ONE_PARTITION) as broker:
        await create(broker, ["t"])
        finding = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
        await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
        begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        assert (await init_producer_id(broker, begin, context(ApiKey.INIT_PRODUCER_ID, 4))).error_code == 0
        codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED]

        async def ask(*arguments: Any, **how: Any) -> AddPartitionsToTxnResponse:
            results = [
                AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code) for code in codes[:1]
            ]
            topics = [AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)]
            return AddPartitionsToTxnResponse(
                results_by_transaction=[AddPartitionsToTxnResult(transactional_id="id", topic_results=topics)]
            )

        monkeypatch.setattr(broker.transactions._peers, "ask", ask)
        elsewhere = dataclasses.replace(broker.config, node_id=99)  # so that the coordinator is another broker
        monkeypatch.setattr(broker.transactions, "_config", elsewhere)
        while codes:
            assert await send(broker, 12) is ErrorCode.NOT_ENOUGH_REPLICAS
            codes.pop(0)
