"""A transaction with thousands of partitions begins and ends without keeping other clients waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, running
from test_many_offsets import PARTITIONS, SETTINGS, ask, prepare

from kraftpy.broker.handlers.groups import find_coordinator
from kraftpy.broker.handlers.producers import init_producer_id
from kraftpy.broker.slicing import UNITS_PER_ITERATION
from kraftpy.broker.transactions import markers
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kraftpy.protocol.messages.end_txn import EndTxnRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kraftpy.transactions import coordinator, records
from kraftpy.transactions.transaction import State, Transaction
from kraftpy.types import TopicPartition


async def test_other_clients_are_answered_while_a_large_transaction_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = looked_up = most_looked_up = 0

    def read_value(data: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return records.read_value(data)

    monkeypatch.setattr(coordinator, "read_value", read_value)
    sent: list[int] = []

    async def write(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        named = [
            {
                TopicPartition(topic.name, index): ErrorCode.NONE
                for topic in each.topics
                for index in topic.partition_indexes
            }
            for each in request.markers
        ]
        sent.append(sum(map(len, named)))
        await asyncio.sleep(0)
        return WriteTxnMarkersResponse(markers=list(map(markers._result, request.markers, named)))

    async with running(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1") as broker:
        await prepare(broker)
        finding = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
        await find_coordinator(broker, finding, context(ApiKey.FIND_COORDINATOR, 6))
        begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        begun = await init_producer_id(broker, begin, context(ApiKey.INIT_PRODUCER_ID, 4))
        monkeypatch.setattr(broker.marker_writer, "write", write)
        image = broker.image

        class Image:
            """Counts the topics that are looked up in one turn of the loop."""

            def topic(self, name: str) -> Any:
                nonlocal looked_up, most_looked_up
                if not looked_up:
                    asyncio.get_running_loop().call_soon(self.next_turn)
                looked_up += 1
                most_looked_up = max(most_looked_up, looked_up)
                return image.topic(name)

            def next_turn(self) -> None:
                nonlocal looked_up
                looked_up = 0

        monkeypatch.setattr(broker.markers, "_image", Image)
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="many", partitions=list(range(PARTITIONS)))],
        )
        answer = await ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
        codes = {
            part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }
        assert codes == {ErrorCode.NONE}
        end = EndTxnRequest(
            transactional_id="id",
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            committed=True,
        )
        ended = await ask(broker, ApiKey.END_TXN, 4, end)
        assert ended.error_code == ErrorCode.NONE

        async def complete() -> None:
            while True:
                found = broker.transactions.find("id")
                assert isinstance(found, Transaction)
                if found.state is State.COMPLETE_COMMIT:
                    return
                await asyncio.sleep(0.01)

        await asyncio.wait_for(complete(), BOUND_SECONDS)
    assert sum(sent) == PARTITIONS
    assert max(sent) <= markers._MOST_SENT
    assert 0 < most_looked_up <= 2 * UNITS_PER_ITERATION
    assert parsed == 0, "what was just written was parsed again"
