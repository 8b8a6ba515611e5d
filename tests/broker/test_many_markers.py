"""WriteTxnMarkers that names many partitions, or one many times: each has its marker once, and the loop runs on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from kraftpy.broker.containment import Incidents
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.broker.transactions.markers import MarkerWriter
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

BOUND_SECONDS = 60.0


class Leader:
    """Leads everything; counts what it appends in one turn of the loop, and what is not committed yet."""

    def __init__(self) -> None:
        self.log = self
        self.leadership = 1
        self.appended = 0
        self.under_way = self.most_under_way = 0
        self.in_this_turn = self.most_in_a_turn = 0

    def leader(self, topic: str, partition: int) -> Leader:
        return self

    def check_in_sync(self) -> None:
        pass

    def append(self, batch: bytes, origin: object, now: int) -> Any:
        self.appended += 1
        self.in_this_turn += 1
        self.most_in_a_turn = max(self.most_in_a_turn, self.in_this_turn)
        asyncio.get_running_loop().call_soon(self._next_turn)
        return SimpleNamespace(last_offset=self.appended, flush_due=False)

    def _next_turn(self) -> None:
        self.in_this_turn = 0

    async def committed(self, end_offset: int, leadership: int, deadline: float) -> ErrorCode:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(50):
            await asyncio.sleep(0)
        self.under_way -= 1
        return ErrorCode.NONE


async def written(leader: Leader, partitions: list[int]) -> list[int]:
    clock = SimpleNamespace(now=lambda: 0)
    writer = MarkerWriter(cast(Any, leader), cast(Any, None), cast(Any, clock), cast(Incidents, None), Slices())
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name="topic", partition_indexes=partitions)],
        coordinator_epoch=0,
    )
    answered = await asyncio.wait_for(writer.write(WriteTxnMarkersRequest(markers=[marker])), BOUND_SECONDS)
    (result,) = answered.markers
    (topic,) = result.topics
    assert {each.error_code for each in topic.partitions} == {ErrorCode.NONE}
    return [each.partition_index for each in topic.partitions]


async def test_a_partition_that_is_named_many_times_has_its_marker_once() -> None:
    leader = Leader()
    assert await written(leader, [3] * 20_000) == [3]
    assert leader.appended == 1


async def test_many_partitions_are_marked_in_slices_and_some_at_a_time() -> None:
    leader = Leader()
    assert await written(leader, list(range(5_000))) == list(range(5_000))
    assert leader.appended == 5_000
    assert leader.most_in_a_turn <= 2 * UNITS_PER_ITERATION // 10, "where a turn ends is seen one late"
    assert leader.most_under_way <= 1_000
