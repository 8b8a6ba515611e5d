"""The work of a share partition grows with the records of a request, and not with the square of their number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share import in_flight
from kraftpy.share.acknowledgements import Acknowledgement, AcknowledgeType
from kraftpy.share.config import SharePartitionConfig
from kraftpy.share.effects import Stretch, Write
from kraftpy.share.partition import SharePartition
from kraftpy.types import Millis


def lines(function: Callable[[], Any]) -> int:
    """Count the lines of Python that are executed, loops in comprehensions included."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def delivered(count: int) -> SharePartition:
    partition = SharePartition(replace(SharePartitionConfig(), partition_max_record_locks=count))
    partition.loaded(0, [], log_start_offset=0, log_end_offset=count)
    return partition


def acquire(partition: SharePartition, count: int) -> None:
    acquired = partition.acquire(
        "m",
        [Stretch(offset, offset) for offset in range(count)],
        fetch_offset=0,
        max_records=count,
        batch_size=count,
        is_record_limit=False,
        now=Millis(0),
    )
    assert sum(each.size for each in acquired) == count


def acknowledge(partition: SharePartition, count: int) -> None:
    kinds = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
    said = [Acknowledgement(offset, offset, kinds[offset % 2]) for offset in range(count)]
    (write,) = partition.acknowledge(1, "m", said, Millis(1))
    assert isinstance(write, Write)
    assert len(write.batches) == count
    partition.written(ErrorCode.NONE, now=Millis(2))


@pytest.mark.parametrize("step", [acquire, acknowledge])
def test_records_in_batches_of_one_are_handled_in_time_linear_in_their_number(
    step: Callable[[SharePartition, int], None],
) -> None:
    found = []
    for count in (100, 400):
        partition = delivered(count)
        if step is not acquire:
            acquire(partition, count)
        found.append(lines(partial(step, partition, count)))
    assert found[1] < 6 * found[0] + 1_000, found


def test_an_acknowledged_record_is_looked_up_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to check whose it is, once to change it: thousands of lookups are most of the time they take."""
    looked_up = 0
    bisect_right = in_flight.bisect_right

    def counted(*arguments: Any, **named: Any) -> int:
        nonlocal looked_up
        looked_up += 1
        return bisect_right(*arguments, **named)

    count = 200
    partition = delivered(count)
    acquire(partition, count)
    monkeypatch.setattr(in_flight, "bisect_right", counted)
    acknowledge(partition, count)
    assert looked_up <= 2 * count
    partition.records.validate()
