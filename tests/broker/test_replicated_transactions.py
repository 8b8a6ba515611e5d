"""Transactions in a partition with two replicas: a follower, and the leader that it becomes, tell readers the same.

Rules 25 and 32: what a partition knows of its producers, of open and of aborted transactions is the same everywhere.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from replicating import Cluster, running, until

from kraftpy.broker.replication.replica import Replica
from kraftpy.log.results import Origin
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.record_batch import ControlType, encode_batch, encode_control_batch
from kraftpy.types import Millis

NOW = Millis(time.time_ns() // 1_000_000)


def write(leader: Replica, producer_id: int, sequence: int) -> None:
    batch = encode_batch(
        [(NOW, None, b"%d of %d" % (sequence, producer_id), ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    leader.append(bytearray(batch), Origin.CLIENT, NOW)


def end(leader: Replica, producer_id: int, kind: ControlType) -> None:
    marker = encode_control_batch(kind, timestamp=NOW, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0)
    leader.append(bytearray(marker), Origin.COORDINATOR, NOW)


def known(replica: Replica) -> Any:
    producers = replica.log.producers
    return list(producers.aborted), list(producers.describe()), producers.first_open_offset


async def told(cluster: Cluster, node: int, topic: str, topic_id: bytes) -> tuple[list[tuple[int, int]], int, bytes]:
    """Return what a read_committed reader gets: aborted transactions, the last stable offset, the records."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, isolation_level=1, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])]
    )
    answered = (await cluster.nodes[node].ask(ApiKey.FETCH, request)).responses[0].partitions[0]
    assert answered.error_code == ErrorCode.NONE
    aborted = [(each.producer_id, each.first_offset) for each in answered.aborted_transactions or ()]
    return aborted, answered.last_stable_offset, bytes(answered.records)


async def latest(cluster: Cluster, node: int, topic: str) -> int:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(isolation_level=1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    answered = (await cluster.nodes[node].ask(ApiKey.LIST_OFFSETS, request)).topics[0].partitions[0]
    assert answered.error_code == ErrorCode.NONE
    return int(answered.offset)


async def test_rule_32_a_follower_and_the_next_leader_tell_readers_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        topic_id = await cluster.create("t", (1, 2))
        leader = cluster.replica(1, "t")
        for number in range(6):  # two producers; each transaction is open while the other's ends
            write(leader, 7, 2 * number)
            write(leader, 8, number)
            end(leader, 7, ControlType.ABORT if number % 2 else ControlType.COMMIT)
            write(leader, 7, 2 * number + 1)
            end(leader, 8, ControlType.COMMIT if number % 2 else ControlType.ABORT)
            end(leader, 7, ControlType.ABORT)
        write(leader, 9, 0)  # and one stays open
        open_since = leader.log.log_end_offset - 1
        write(leader, 8, 6)
        end(leader, 8, ControlType.ABORT)
        await cluster.caught_up("t")
        follower = cluster.replica(2, "t")
        await until(lambda: follower.high_watermark == leader.log.log_end_offset)
        assert len(leader.log.producers.aborted) == 13
        assert known(follower) == known(leader)
        expected = await told(cluster, 1, "t", topic_id)
        assert expected[1] == open_since == await latest(cluster, 1, "t")
        assert len(expected[0]) == 12, "the last one began behind the last stable offset"
        assert await told(cluster, 2, "t", topic_id) == expected
        await cluster.stop(1, clean=False)
        await cluster.change("t", leader=2, isr=(2,))
        assert await told(cluster, 2, "t", topic_id) == expected
        assert await latest(cluster, 2, "t") == open_since
        end(follower, 9, ControlType.COMMIT)
        aborted, stable, records = await told(cluster, 2, "t", topic_id)
        assert (aborted, stable) == ([*expected[0], (8, open_since + 1)], follower.log.log_end_offset)
        assert b"0 of 9" in records


async def test_producers_are_described_by_the_leader_and_by_followers(tmp_path: Path) -> None:
    """KIP-664: a follower, and a replica without a leader, tell what their own logs know."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("t", (1, 2))
        await cluster.create("elsewhere", (1,))
        write(cluster.replica(1, "t"), 7, 0)
        await cluster.caught_up("t")

        async def described(node: int, topic: str = "t") -> Any:
            request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
            answered = await cluster.nodes[node].ask(ApiKey.DESCRIBE_PRODUCERS, request)
            part = answered.topics[0].partitions[0]
            return part.error_code, [
                (each.producer_id, each.current_txn_start_offset) for each in part.active_producers
            ]

        assert await described(1) == await described(2) == (ErrorCode.NONE, [(7, 0)])
        assert await described(2, "elsewhere") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
        assert await described(2, "no.such") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert await described(2, "sp ace") == (ErrorCode.INVALID_TOPIC_EXCEPTION, [])
        end(cluster.replica(1, "t"), 7, ControlType.ABORT)
        await cluster.caught_up("t")
        assert await described(2) == (ErrorCode.NONE, [(7, -1)])
        await cluster.stop(1, clean=False)
        await cluster.change("t", leader=-1, isr=(1, 2))
        assert await described(2) == (ErrorCode.NONE, [(7, -1)])
