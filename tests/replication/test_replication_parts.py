"""The smallest pieces of replication, one at a time."""

from __future__ import annotations

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.replication.events import HighWatermarkAdvanced
from kraftpy.replication.leader import Leader, PartitionState
from kraftpy.types import BrokerId, Millis

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
BROKERS = {ONE: 11, TWO: 12, THREE: 13}


def leader(
    *replicas: BrokerId, isr: tuple[BrokerId, ...] | None = None, end: int = 0, min_insync_replicas: int = 1
) -> Leader:
    state = PartitionState(leader_epoch=1, partition_epoch=1, replicas=replicas, isr=replicas if isr is None else isr)
    return Leader(
        broker_id=ONE,
        state=state,
        log_end_offset=end,
        high_watermark=0,
        min_insync_replicas=min_insync_replicas,
        lag_time_max_ms=30_000,
        brokers=BROKERS,
        now=Millis(1_000),
    )


def test_with_one_replica_what_is_appended_is_committed() -> None:
    alone = leader(ONE, end=7)
    assert alone.high_watermark == 7
    assert alone.appended(9, Millis(1_001)) == ()
    assert alone.high_watermark == 9


def test_rule_9_the_high_watermark_waits_for_the_isr() -> None:
    three = leader(ONE, TWO, THREE, end=5)
    assert three.high_watermark == 0
    fetch = {"fetch_offset": 5, "log_start_offset": 0, "log_end_offset": 5, "now": Millis(1_001)}
    assert three.fetched(broker_id=TWO, broker_epoch=12, **fetch) == ()  # type: ignore[arg-type]
    assert three.fetched(broker_id=THREE, broker_epoch=13, **fetch) == [HighWatermarkAdvanced(offset=5)]  # type: ignore[arg-type]


def test_rule_49_a_broker_that_is_no_replica_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        leader(ONE, TWO).check_follower(THREE, 13)
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
