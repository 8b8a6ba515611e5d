"""A coordinator that is cut off from the others tells no committed offsets that its successor has moved on from.

Clients reach it all the while, as those do that share its side of a cut. Until it hears of its successor it believes in
its own office; what keeps it from answering is that no follower confirms it (`kraftpy.broker.confirming`).
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kraftpy.testing import Cluster
from kraftpy.testing.asking import ask

pytestmark = [pytest.mark.timeout(180)]

BOUND_SECONDS = 60.0
ASK_SECONDS = 15.0
SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "min.insync.replicas": "2",
    "offsets.commit.timeout.ms": "3000",
}


def _ask(cluster: Cluster, node: int, key: ApiKey, version: int, request: object) -> Any:
    host, _, port = cluster.address(node).rpartition(":")
    return ask((host, int(port)), key, version, request, timeout=ASK_SECONDS)


def _commit(cluster: Cluster, node: int, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    answer = _ask(cluster, node, ApiKey.OFFSET_COMMIT, 6, request)
    return ErrorCode.of(answer.topics[0].partitions[0].error_code)


def _committed(cluster: Cluster, node: int) -> tuple[ErrorCode, int | None]:
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])], require_stable=False
    )
    answer = _ask(cluster, node, ApiKey.OFFSET_FETCH, 5, request)
    if answer.error_code:
        return ErrorCode.of(answer.error_code), None
    (partition,) = answer.topics[0].partitions
    return ErrorCode.of(partition.error_code), partition.committed_offset


def _coordinator(cluster: Cluster, asked: int) -> int | None:
    answer = _ask(cluster, asked, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    return None if answer.error_code else int(answer.node_id)


def _until(what: Any, told: str) -> Any:
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    return found


def test_it_tells_nothing_that_may_be_out_of_date() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
        _ask(cluster, 1, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        old = _until(lambda: _coordinator(cluster, 1), "the group has no coordinator")
        _until(lambda: _commit(cluster, old, 1) is ErrorCode.NONE, "nothing is committed")
        cluster.wait_in_sync()
        assert _committed(cluster, old) == (ErrorCode.NONE, 1)
        others = [node for node in cluster.nodes if node != old]
        cluster.partition([old], others)

        def moved() -> int | None:
            now = _coordinator(cluster, others[0])
            return None if now in (None, old) else now

        new = _until(moved, "nobody took over")
        _until(lambda: _commit(cluster, new, 2) is ErrorCode.NONE, "nothing is committed after the move")
        error, offset = _committed(cluster, old)
        assert offset != 1, "an offset that was out of date was told as the committed one"
        assert error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
        assert _committed(cluster, new) == (ErrorCode.NONE, 2), "two of three are enough"
        cluster.heal()
        _until(lambda: _coordinator(cluster, old) == new, "it never heard of its successor")
        assert _committed(cluster, new) == (ErrorCode.NONE, 2)


def test_one_follower_less_is_no_reason_for_silence() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
        _ask(cluster, 1, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        node = _until(lambda: _coordinator(cluster, 1), "the group has no coordinator")
        _until(lambda: _commit(cluster, node, 1) is ErrorCode.NONE, "nothing is committed")
        cluster.wait_in_sync()
        other = next(each for each in cluster.nodes if each != node)
        cluster.pause(other)
        _until(lambda: _committed(cluster, node) == (ErrorCode.NONE, 1), "silent though a majority follows")
        cluster.resume(other)
