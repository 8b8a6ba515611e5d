"""A coordinator that is cut off from the others tells no committed offsets that its successor has moved on from.

Clients reach it all the while, as those do that share its side of a cut. Until it hears of its successor it believes in
its own office; what keeps it from answering is that no follower confirms it
(`kraftpy.broker.replication.leadership_check`).

Each test has its own cluster, because it leaves nodes cut off and elections behind.
"""

from __future__ import annotations

import cutting
import pytest
from cutting import ask_node, create, cut_off, until

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(180)]

SETTINGS = {**cutting.SETTINGS, "offsets.commit.timeout.ms": "3000"}


def _commit(cluster: Cluster, node: int, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    answer = ask_node(cluster, node, ApiKey.OFFSET_COMMIT, 6, request)
    return ErrorCode.of(answer.topics[0].partitions[0].error_code)


def _committed(cluster: Cluster, node: int) -> tuple[ErrorCode, int | None]:
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])], require_stable=False
    )
    answer = ask_node(cluster, node, ApiKey.OFFSET_FETCH, 5, request)
    if answer.error_code:
        return ErrorCode.of(answer.error_code), None
    (partition,) = answer.topics[0].partitions
    return ErrorCode.of(partition.error_code), partition.committed_offset


def _coordinator(cluster: Cluster, asked: int) -> int | None:
    answer = ask_node(cluster, asked, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    return None if answer.error_code else int(answer.node_id)


def test_it_tells_nothing_that_may_be_out_of_date() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        create(cluster, "t")
        old = until(lambda: _coordinator(cluster, 1), "the group has no coordinator")
        until(lambda: _commit(cluster, old, 1) is ErrorCode.NONE, "nothing is committed")
        cluster.wait_in_sync()
        assert _committed(cluster, old) == (ErrorCode.NONE, 1)
        new = cut_off(cluster, old, lambda asked: _coordinator(cluster, asked))
        until(lambda: _commit(cluster, new, 2) is ErrorCode.NONE, "nothing is committed after the move")
        error, offset = _committed(cluster, old)
        assert offset != 1, "an offset that was out of date was told as the committed one"
        assert error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
        assert _committed(cluster, new) == (ErrorCode.NONE, 2), "two of three are enough"
        cluster.heal()
        until(lambda: _coordinator(cluster, old) == new, "it never heard of its successor")
        assert _committed(cluster, new) == (ErrorCode.NONE, 2)


def test_one_follower_less_is_no_reason_for_silence() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        create(cluster, "t")
        node = until(lambda: _coordinator(cluster, 1), "the group has no coordinator")
        until(lambda: _commit(cluster, node, 1) is ErrorCode.NONE, "nothing is committed")
        cluster.wait_in_sync()
        other = next(each for each in cluster.nodes if each != node)
        cluster.pause(other)
        until(lambda: _committed(cluster, node) == (ErrorCode.NONE, 1), "silent though a majority follows")
        cluster.resume(other)
