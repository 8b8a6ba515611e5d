"""A leader reads a partition for a follower when it asks and when records have come, and not in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from replicating import BOUND_SECONDS, running, until

from kraftpy.broker.handlers import replica_fetch
from kraftpy.broker.replication import change_reports
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.protocol.errors import ErrorCode

RECORDS = 20


async def test_a_follower_is_not_read_for_again_when_only_the_high_watermark_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is looked for twice for each follower: when it asks, and when the record is there."""
    reads = 0
    known = Replicas.leader_by_id

    def counted(replicas: Replicas, *partition: Any) -> Replica:
        nonlocal reads
        reads += 1
        return known(replicas, *partition)

    async with running(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        assert (await cluster.nodes[1].produce("t", b"first")).error_code == ErrorCode.NONE
        await cluster.caught_up("t")
        monkeypatch.setattr(Replicas, "leader_by_id", counted)  # each read looks for the leader
        for module in (replica_fetch, change_reports):
            monkeypatch.setattr(module, "NEWS_WAITS_S", BOUND_SECONDS)  # no answer without records on a slow machine
        for number in range(RECORDS):
            assert (await cluster.nodes[1].produce("t", b"%d" % number)).error_code == ErrorCode.NONE
        during = reads
        await cluster.caught_up("t")
        leader = cluster.replica(1, "t")
        for node in (2, 3):
            follower = cluster.replica(node, "t")
            await until(lambda: follower.high_watermark == leader.high_watermark)  # noqa: B023
    assert 2 * RECORDS <= during <= 5 * RECORDS, "it was six"
