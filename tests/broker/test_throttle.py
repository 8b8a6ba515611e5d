"""Replication throttles (KIP-73): what they let through, which replicas they hold back, and that they end at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from replicating import Cluster, running, until

from kraftpy.broker.replication.throttle import FOLLOWER_RATE, LEADER_RATE, Allowance
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigOperationType, ConfigResourceType, SetConfigs
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import Millis


@given(
    some.integers(1, 10_000_000),
    some.lists(some.tuples(some.integers(0, 3_000), some.integers(1, 2_000_000)), max_size=50),
)
def test_no_more_goes_than_the_rate_allows(rate: int, steps: list[tuple[int, int]]) -> None:
    allowance, now, sent, largest = Allowance(), 0, 0, 0
    for pause_ms, count in steps:
        now += pause_ms
        wait_ms = allowance.wait_ms(rate, Millis(now))
        assert 0 <= wait_ms <= 1000
        if wait_ms == 0:
            allowance.spend(count)
            sent, largest = sent + count, max(largest, count)
        assert sent <= rate * (now / 1000 + 1) + largest


def test_what_has_to_wait_goes_when_it_was_told_to_come_again() -> None:
    allowance = Allowance()
    assert allowance.wait_ms(1000, Millis(0)) == 0
    allowance.spend(1500)
    assert allowance.wait_ms(1000, Millis(0)) == 501
    assert allowance.wait_ms(1000, Millis(501)) == 0
    assert allowance.wait_ms(0, Millis(501)) == 1000
    assert allowance.wait_ms(5, Millis(501)) == 0  # another rate starts over


async def throttle(cluster: Cluster, broker: str, name: str, rate: int | None) -> None:
    operation = ConfigOperationType.DELETE if rate is None else ConfigOperationType.SET
    change = ConfigChange(
        resource_type=ConfigResourceType.BROKER,
        resource_name=broker,
        operations=(ConfigOperation(name=name, value=None if rate is None else str(rate), operation=operation),),
    )
    decision = await cluster.submit(SetConfigs(changes=(change,), time_ms=Millis(0)))
    assert decision.result[0].error == ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "throttled", "broker", "is_held"),
    [
        (LEADER_RATE, "leader.replication.throttled.replicas=0:1", "1", True),
        (LEADER_RATE, "leader.replication.throttled.replicas=*", "", True),
        (LEADER_RATE, "leader.replication.throttled.replicas=1:1,0:2", "1", False),
        (LEADER_RATE, "leader.replication.throttled.replicas=*", "2", False),
        (FOLLOWER_RATE, "follower.replication.throttled.replicas=0:2", "2", True),
        (FOLLOWER_RATE, "follower.replication.throttled.replicas=0:1", "2", False),
    ],
)
async def test_a_throttled_replica_waits_and_no_other(
    tmp_path: Path, name: str, throttled: str, broker: str, is_held: bool
) -> None:
    setting, _, value = throttled.partition("=")
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("slow", (1, 2), **{setting: value})
        await cluster.create("free", (1, 2))
        await cluster.stop(2)
        await cluster.fence(2)
        await throttle(cluster, broker, name, 0)
        for topic in ("slow", "free"):
            for number in range(5):
                assert (await cluster.nodes[1].produce(topic, b"%d" % number)).error_code == ErrorCode.NONE
        await cluster.start(2)
        await cluster.caught_up("free")
        await until(lambda: cluster.isr("free") == (1, 2))
        if is_held:
            assert cluster.replica(2, "slow").log.log_end_offset == 0
            assert cluster.isr("slow") == (1,)
            await throttle(cluster, broker, name, None)
        await cluster.caught_up("slow")
        await until(lambda: cluster.isr("slow") == (1, 2))
        await throttle(cluster, broker, name, 0)
        assert (await cluster.nodes[1].produce("slow", b"in sync")).error_code == ErrorCode.NONE
