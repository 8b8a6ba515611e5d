"""Causes that a test can hardly make happen, told from what would be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftpy.client.admin.model import GroupDescription, GroupMember
from kraftpy.client.model import PartitionInfo
from kraftpy.diagnosis.group_causes import Observed, OpenTransaction, Place, causes
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

PARTITION = TopicPartition("t", 0)
MEMBER = GroupMember(
    member_id="m1", group_instance_id=None, client_id="app", client_host="/10.0.0.7", partitions=(PARTITION,)
)
STABLE = GroupDescription(
    group_id="g", state="Stable", protocol_type="consumer", protocol="range", coordinator=1, members=(MEMBER,)
)
LED = {PARTITION: PartitionInfo(topic="t", partition=0, leader=1, replicas=(1,))}
SEEN = Observed(
    group_id="g",
    seconds=10.0,
    looks=[STABLE, STABLE],
    before={PARTITION: Place(committed=5, first=0, stable=9, end=9)},
    after={PARTITION: Place(committed=9, first=0, stable=9, end=9)},
    partitions=LED,
    topics=frozenset({"t"}),
    alive=frozenset({1}),
)


def _found(seen: Observed) -> list[str]:
    return [cause.name for cause in causes(seen)]


def test_a_group_that_gets_on_has_no_cause() -> None:
    assert _found(SEEN) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "not-allowed-to-look"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "coordinator-not-available"),
        (ErrorCode.REQUEST_TIMED_OUT, "coordinator-not-available"),
    ],
)
def test_a_group_that_cannot_be_described(code: ErrorCode, name: str) -> None:
    failed = Observed(group_id="g", failure=KafkaError(code))
    assert _found(failed) == [name]
    where = PartitionInfo(topic="__consumer_offsets", partition=7, leader=2, replicas=(2,))
    if name == "coordinator-not-available":
        (cause,) = causes(replace(failed, coordinator_partition=where))
        assert "broker 2, which leads __consumer_offsets-7, is loading it or does not answer" in cause.text


def test_an_error_that_explains_nothing_is_raised() -> None:
    with pytest.raises(KafkaError, match="INVALID_GROUP_ID"):
        causes(Observed(group_id="", failure=KafkaError(ErrorCode.INVALID_GROUP_ID)))


def test_a_transaction_that_hangs_and_a_later_one() -> None:
    hangs = OpenTransaction(producer_id=7, producer_epoch=0, start_offset=6, last_timestamp_ms=1_700_000_000_000)
    later = replace(hangs, producer_id=8, start_offset=8, transactional_id="later")
    place = Place(committed=6, first=0, stable=6, end=9)
    seen = replace(SEEN, before={PARTITION: place}, after={PARTITION: place}, transactions={PARTITION: [later, hangs]})
    (cause,) = causes(seen)  # nor is the member blamed, which waits for it
    assert cause.name == "open-transaction"
    assert cause.stops
    assert "kraftpy txn abort t:0 --start-offset 6" in cause.text


def test_a_member_is_not_blamed_without_cause() -> None:
    stuck = {PARTITION: Place(committed=5, first=0, stable=9, end=9)}
    seen = replace(SEEN, before=stuck, after=stuck)
    assert _found(seen) == ["member-does-not-advance"]
    assert _found(replace(seen, nothing_left=frozenset({PARTITION}))) == []
    earlier = replace(STABLE, members=(replace(MEMBER, partitions=()),))
    assert _found(replace(seen, looks=[earlier, STABLE])) == []  # it owns the partition only since then
    nothing = {PARTITION: Place(committed=5, first=0, stable=5, end=5)}
    assert _found(replace(seen, before=nothing)) == []  # there was nothing to read


def test_subscriptions_that_change_are_a_loop_without_leavers() -> None:
    looks = [replace(STABLE, group_epoch=epoch, assignment_epoch=epoch) for epoch in range(4)]
    (cause,) = causes(replace(SEEN, looks=looks))
    assert cause.name == "rebalance-loop"
    assert "its members stay" in cause.text
    assert _found(replace(SEEN, looks=looks[:2])) == []  # one rebalance is no loop
