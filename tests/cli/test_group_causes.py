"""Causes that a test can hardly make happen, told from what would be seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kraftpy.client.admin.model import GroupDescription, GroupMember
from kraftpy.client.model import PartitionInfo
from kraftpy.diagnosis.group_causes import Observed, OpenTransaction, Place, Refusal, causes
from kraftpy.diagnosis.observing import _refusals
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


def test_a_member_that_reads_other_partitions_is_not_stuck() -> None:
    second = TopicPartition("t", 1)
    owner = replace(MEMBER, partitions=(PARTITION, second))
    look = replace(STABLE, members=(owner,))
    waits, reads = Place(committed=5, first=0, stable=9, end=9), Place(committed=2, first=0, stable=9, end=9)
    seen = replace(
        SEEN,
        looks=[look, look],
        before={PARTITION: waits, second: reads},
        after={PARTITION: waits, second: replace(reads, committed=6)},
        partitions={**LED, second: replace(LED[PARTITION], partition=1)},
    )
    (cause,) = causes(seen)
    assert (cause.name, cause.stops, cause.partition) == ("partition-does-not-advance", False, PARTITION)
    assert "has 4 offsets to read in t-0, but did not move in 10 s, though it does read t-1" in cause.text
    (cause,) = causes(replace(seen, after=seen.before))
    assert (cause.name, cause.stops, cause.partition) == ("member-does-not-advance", True, None)
    assert "has 11 offsets to read in t-0, t-1" in cause.text
    assert "or has died (session.timeout.ms will end its membership)" in cause.text


@pytest.mark.parametrize(
    ("replicas", "alive", "words"),
    [
        ((1,), {2}, "its only replica is on broker 1, which is not alive"),
        ((1,), {1}, "its only replica is on broker 1, which is alive, but may not lead it"),
        ((1, 2), {1, 2}, "its replicas are on brokers 1, 2, which are alive, but none of them may lead it"),
        ((1, 2), {1}, "its replicas are on brokers 1, 2, of which 2 is not alive"),
        ((1, 2), {3}, "its replicas are on brokers 1, 2, none of which is alive"),
        ((1, 2, 3), {3}, "its replicas are on brokers 1, 2, 3, of which 1, 2 are not alive"),
    ],
)
def test_why_a_partition_has_no_leader(replicas: tuple[int, ...], alive: set[int], words: str) -> None:
    led_by_nobody = {PARTITION: PartitionInfo(topic="t", partition=0, leader=-1, replicas=replicas)}
    place = {PARTITION: Place(committed=5)}
    seen = replace(SEEN, before=place, after=place, partitions=led_by_nobody, alive=frozenset(alive))
    (cause,) = causes(seen)
    assert cause.text == f"t-0 has no leader: {words}; nobody can read it"


def test_rights_that_cannot_be_seen_are_no_rights_that_are_there() -> None:
    assert _found(replace(SEEN, principal="User:app")) == []
    (cause,) = causes(replace(SEEN, principal="User:app", refusals=None))
    assert (cause.name, cause.stops) == ("not-allowed-to-look", False)
    assert cause.text.endswith("so it is not known which rights User:app has")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.SECURITY_DISABLED, []),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None),
        (ErrorCode.REQUEST_TIMED_OUT, None),
    ],
)
async def test_without_an_authorizer_everyone_has_all_rights(code: ErrorCode, expected: list[Refusal] | None) -> None:
    class Refusing:
        async def describe_acls(self) -> None:
            raise KafkaError(code)

    found = await _refusals(Refusing(), "g", frozenset({"t"}), "User:app", "", None)  # type: ignore[arg-type]
    assert found == expected


def test_when_a_transaction_ends_by_itself() -> None:
    opened = OpenTransaction(
        producer_id=7, producer_epoch=0, start_offset=6, last_timestamp_ms=1_700_000_000_000, transactional_id="slow",
        started_at_ms=1_700_000_000_000, timeout_ms=60_000,
    )  # fmt: skip
    place = {PARTITION: Place(committed=6, first=0, stable=6, end=9)}
    seen = replace(SEEN, before=place, after=place, transactions={PARTITION: [opened]})
    (cause,) = causes(seen)
    ends = datetime.fromtimestamp(1_700_000_060, UTC).astimezone().isoformat()
    assert cause.text.endswith(f"transactional id slow, producer 7; transaction.timeout.ms ends it at {ends}")
    hangs = replace(opened, transactional_id=None)
    (cause,) = causes(replace(seen, transactions={PARTITION: [hangs]}))
    assert "transaction.timeout.ms" not in cause.text


def test_subscriptions_that_change_are_a_loop_without_leavers() -> None:
    looks = [replace(STABLE, group_epoch=epoch, assignment_epoch=epoch) for epoch in range(4)]
    (cause,) = causes(replace(SEEN, looks=looks))
    assert cause.name == "rebalance-loop"
    assert "its members stay" in cause.text
    assert _found(replace(SEEN, looks=looks[:2])) == []  # one rebalance is no loop
