"""A leader that is cut off says of no offset that it lies behind the log's end: its successor may have written it.

A consumer that has such an offset of its group, and metadata from before, would read everything again.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.testing import Cluster
from kraftpy.testing.asking import ask

pytestmark = [pytest.mark.timeout(180)]

BOUND_SECONDS = 60.0
ASK_SECONDS = 15.0
SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300", "min.insync.replicas": "2"}


def _ask(cluster: Cluster, node: int, key: ApiKey, version: int, request: object) -> Any:
    host, _, port = cluster.address(node).rpartition(":")
    return ask((host, int(port)), key, version, request, timeout=ASK_SECONDS)


def _fetched(cluster: Cluster, node: int, offset: int) -> ErrorCode:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=100, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    answer = _ask(cluster, node, ApiKey.FETCH, 11, request)
    return ErrorCode.of(answer.responses[0].partitions[0].error_code)


def _until(what: Any, told: str) -> Any:
    deadline = time.monotonic() + BOUND_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    return found


def test_it_says_of_no_offset_that_there_is_none() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3)
        _ask(cluster, 1, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        old = _until(lambda: cluster.leader_of("t", ask=1), "nobody leads")
        cluster.wait_in_sync()
        assert _fetched(cluster, old, 7) is ErrorCode.OFFSET_OUT_OF_RANGE, "who leads says it, and at once"
        others = [node for node in cluster.nodes if node != old]
        cluster.partition([old], others)
        new = _until(
            lambda: next((node for node in others if cluster.leader_of("t", ask=others[0]) == node), None),
            "nobody took over",
        )
        producer = Producer({"bootstrap.servers": cluster.address(new), "acks": "all"})
        for number in range(7):
            producer.produce("t", value=str(number), partition=0)
        assert producer.flush(BOUND_SECONDS) == 0
        assert _fetched(cluster, old, 7) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it leads no more"
        assert _fetched(cluster, new, 7) is ErrorCode.NONE
        assert _fetched(cluster, new, 8) is ErrorCode.OFFSET_OUT_OF_RANGE, "two of three are enough"
        cluster.heal()
        _until(lambda: cluster.leader_of("t", ask=old) == new, "it never heard of its successor")
