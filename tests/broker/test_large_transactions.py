"""A transaction with thousands of partitions begins and ends without keeping other clients waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, running
from test_many_offsets import PARTITIONS, SETTINGS, ask, prepare
from test_many_share_partitions import Calls

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers import transactions
from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.handlers.producers import init_producer_id
from kraftpy.broker.internal_topics import TRANSACTION_STATE
from kraftpy.broker.slicing import UNITS_PER_ITERATION
from kraftpy.broker.transactions import coordinators, markers
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from kraftpy.protocol.messages.end_txn import EndTxnRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.transactions import coordinator, records
from kraftpy.transactions.transaction import State, Transaction
from kraftpy.types import BrokerId, TopicPartition


class Work:
    """Counts of parsed, looked up and sent items of a transaction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed = 0
        self.looked_up = self.most_looked_up = 0
        self.sent: list[int] = []
        self._image: Any = None
        monkeypatch.setattr(coordinator, "read_value", self._read_value)

    def _read_value(self, data: Any) -> Any:
        self.parsed += 1
        return records.read_value(data)

    def watch(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what the sender of markers does; each leader writes them at once."""
        self._image = broker.image
        monkeypatch.setattr(broker.coordination.markers, "_image", lambda: self)
        monkeypatch.setattr(broker.marker_writer, "write", self._write)

    def topic(self, name: str) -> Any:
        """Look a topic up, and count how many are looked up in one iteration of the loop."""
        if not self.looked_up:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        self.looked_up += 1
        self.most_looked_up = max(self.most_looked_up, self.looked_up)
        return self._image.topic(name)

    def _next_iteration(self) -> None:
        self.looked_up = 0

    async def _write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        named = [
            {
                TopicPartition(topic.name, index): ErrorCode.NONE
                for topic in each.topics
                for index in topic.partition_indexes
            }
            for each in request.markers
        ]
        self.sent.append(sum(map(len, named)))
        await asyncio.sleep(0)
        return WriteTxnMarkersResponse(markers=list(map(markers._result, request.markers, named)))


async def begun(broker: Broker) -> tuple[int, int]:
    """Return the id and epoch of a producer that may begin a transaction."""
    await prepare(broker)
    finding = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
    await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
    begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
    answer = await init_producer_id(broker, begin, context(ApiKey.INIT_PRODUCER_ID, 4))
    assert answer.error_code == ErrorCode.NONE
    return answer.producer_id, answer.producer_epoch


async def until_committed(broker: Broker) -> None:
    while True:
        found = broker.transactions.find("id")
        assert isinstance(found, Transaction)
        if found.state is State.COMPLETE_COMMIT:
            return
        await asyncio.sleep(0.01)


async def test_other_clients_are_answered_while_a_large_transaction_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    async with running(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1") as broker:
        producer_id, producer_epoch = await begun(broker)
        work.watch(broker, monkeypatch)
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="many", partitions=list(range(PARTITIONS)))],
        )
        added = await ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding)
        (topic,) = added.results_by_topic_v3_and_below
        assert {part.partition_error_code for part in topic.results_by_partition} == {ErrorCode.NONE}
        ending = EndTxnRequest(
            transactional_id="id", producer_id=producer_id, producer_epoch=producer_epoch, committed=True
        )
        ended = await ask(broker, ApiKey.END_TXN, 4, ending)
        assert ended.error_code == ErrorCode.NONE
        await asyncio.wait_for(until_committed(broker), BOUND_SECONDS)
    assert sum(work.sent) == PARTITIONS
    assert max(work.sent) <= markers._MOST_SENT
    assert 0 < work.most_looked_up <= 2 * UNITS_PER_ITERATION
    assert work.parsed == 0, "what was just written was parsed again"


@pytest.mark.parametrize("is_there", [True, False])
async def test_partitions_that_a_transaction_is_to_have_are_looked_at_in_slices(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Calls()
    monkeypatch.setattr(transactions, "TopicPartition", looks.wrapping(TopicPartition))
    async with running(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1") as broker:
        producer_id, producer_epoch = await begun(broker)
        topics = [
            AddPartitionsToTxnTopic(name="many", partitions=list(range(PARTITIONS - 2))),
            AddPartitionsToTxnTopic(name="many", partitions=[]),
            AddPartitionsToTxnTopic(
                name="many", partitions=[PARTITIONS - 2, PARTITIONS - 1 if is_there else PARTITIONS]
            ),
        ]
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=topics,
        )
        added = await ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding)
        results = added.results_by_topic_v3_and_below
        named = [topic.partitions for topic in topics]
        expected = named if is_there else [[number for numbers in named for number in numbers]]
        assert [[each.partition_index for each in topic.results_by_partition] for topic in results] == expected
        codes = [each.partition_error_code for topic in results for each in topic.results_by_partition]
        others = ErrorCode.NONE if is_there else ErrorCode.OPERATION_NOT_ATTEMPTED
        assert codes[:-1] == [others] * (PARTITIONS - 1)
        assert codes[-1] == (ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = broker.transactions.find("id")
        assert isinstance(found, Transaction)
        assert found.value is not None
        assert len(found.value.partitions) == (PARTITIONS if is_there else 0)
    assert looks.all == 2 * PARTITIONS
    assert looks.most <= 2 * UNITS_PER_ITERATION


async def test_what_another_broker_says_of_many_partitions_is_looked_at_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1") as broker:
        producer_id, producer_epoch = await begun(broker)
        topic = broker.image.topic(TRANSACTION_STATE)
        assert topic is not None
        topic.partitions[0] = replace(topic.partitions[0], leader=BrokerId(broker.node_id + 1))

        async def ask_another(_: int, key: ApiKey, request: AddPartitionsToTxnRequest, **versions: int) -> Any:
            (asked,) = request.transactions
            results = [
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=index % 2)
                        for index in topic.partitions[:-1]
                    ],
                )
                for topic in asked.topics
            ]
            return AddPartitionsToTxnResponse(
                results_by_transaction=[AddPartitionsToTxnResult(transactional_id="id", topic_results=results)]
            )

        looks = Calls()
        monkeypatch.setattr(broker.transactions._peers, "ask", ask_another)
        partitions = frozenset(TopicPartition("many", number) for number in range(PARTITIONS))
        monkeypatch.setattr(coordinators, "TopicPartition", looks.wrapping(TopicPartition))
        codes = await broker.transactions.begin_writing("id", producer_id, producer_epoch, partitions, is_adding=False)
        assert codes.keys() == partitions
        said = [codes[TopicPartition("many", number)] for number in range(PARTITIONS)]
        assert said == [*(number % 2 for number in range(PARTITIONS - 1)), ErrorCode.UNKNOWN_SERVER_ERROR]
        assert looks.all == PARTITIONS - 1
        assert looks.most <= 2 * UNITS_PER_ITERATION
