"""A transaction with thousands of partitions begins and ends without keeping other clients waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from one_broker import BOUND_SECONDS, context, running
from test_many_offsets import PARTITIONS, SETTINGS, ask, prepare

from kraftpy.broker.broker import Broker
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


class Work:
    """What is parsed, looked up and sent for a transaction."""

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
        monkeypatch.setattr(broker.markers, "_image", lambda: self)
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


async def is_committed(broker: Broker) -> None:
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
        await asyncio.wait_for(is_committed(broker), BOUND_SECONDS)
    assert sum(work.sent) == PARTITIONS
    assert max(work.sent) <= markers._MOST_SENT
    assert 0 < work.most_looked_up <= 2 * UNITS_PER_ITERATION
    assert work.parsed == 0, "what was just written was parsed again"
