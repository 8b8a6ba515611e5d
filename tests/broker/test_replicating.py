"""Partitions that replicate: leaders, followers and their handlers over real sockets, around metadata decided here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from replicating import BOUND_SECONDS, Cluster, running, until

from kraftpy.config.broker import RACK_AWARE_SELECTOR
from kraftpy.metadata.commands import RegisterBroker
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kraftpy.types import BrokerId, Millis


async def test_what_is_acknowledged_by_all_is_in_every_log_byte_for_byte(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("wanted", (1, 2, 3))
        for number in range(20):
            answer = await cluster.nodes[1].produce("wanted", b"%d" % number)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number)
            for node in (1, 2, 3):
                assert cluster.replica(node, "wanted").log.log_end_offset == number + 1
        await cluster.caught_up("wanted")
        assert cluster.nodes[1].log_bytes("wanted") == cluster.nodes[2].log_bytes("wanted")
        assert cluster.nodes[1].log_bytes("wanted") == cluster.nodes[3].log_bytes("wanted")


async def test_who_does_not_lead_says_who_does(tmp_path: Path) -> None:
    """KIP-951: the answer names the leader and its address."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("led", (1, 2))
        answer = await cluster.nodes[2].produce("led", b"value")
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, 0)


async def test_a_follower_that_comes_back_catches_up(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("grown", (1, 2))
        await cluster.nodes[1].produce("grown", b"before")
        await cluster.stop(2)
        await cluster.fence(2)
        assert cluster.isr("grown") == (1,)
        assert (await cluster.nodes[1].produce("grown", b"meanwhile")).error_code == ErrorCode.NONE
        await cluster.start(2)
        await cluster.caught_up("grown")
        await until(lambda: cluster.isr("grown") == (1, 2))
        assert cluster.nodes[1].log_bytes("grown") == cluster.nodes[2].log_bytes("grown")


async def produced_to_one(cluster: Cluster, node: int, topic: str, *values: bytes) -> None:
    for value in values:
        assert (await cluster.nodes[node].produce(topic, value, acks=1)).error_code == ErrorCode.NONE


async def test_what_only_a_deposed_leader_had_is_cut(tmp_path: Path) -> None:
    """Rules 3 and 4: logs that parted agree up to the last epoch both know."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("parted", (1, 2))
        assert (await cluster.nodes[1].produce("parted", b"both")).error_code == ErrorCode.NONE
        await cluster.caught_up("parted")
        await cluster.stop(2)
        await produced_to_one(cluster, 1, "parted", b"lost one", b"lost two")
        await cluster.stop(1, clean=False)
        await cluster.change("parted", leader=2, isr=(2,))
        await cluster.start(2)
        await cluster.change("parted", leader=2, isr=(2,))
        await produced_to_one(cluster, 2, "parted", b"kept")
        await cluster.start(1)
        await until(lambda: cluster.isr("parted") == (1, 2))
        await cluster.caught_up("parted")
        assert cluster.nodes[1].log_bytes("parted") == cluster.nodes[2].log_bytes("parted")
        assert b"lost" not in cluster.nodes[1].log_bytes("parted")


async def test_too_few_in_sync(tmp_path: Path) -> None:
    """Rule 17: refused before the append, nothing is written; acks=1 still is, and is not committed (rule 9)."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("strict", (1, 2), min_insync_replicas="2")
        assert (await cluster.nodes[1].produce("strict", b"one")).error_code == ErrorCode.NONE
        await cluster.stop(2)
        await cluster.change("strict", isr=(1,), new_epoch=False)
        refused = await cluster.nodes[1].produce("strict", b"two")
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        leader = cluster.replica(1, "strict")
        assert leader.log.log_end_offset == 1
        await produced_to_one(cluster, 1, "strict", b"three")
        assert (leader.log.log_end_offset, leader.high_watermark) == (2, 1)


async def test_a_follower_that_is_silent_leaves_the_in_sync_replicas_and_comes_back(tmp_path: Path) -> None:
    """Rules 12 and 13."""
    settings = {"replica.lag.time.max.ms": "600", "replica.fetch.wait.max.ms": "100"}
    async with running(tmp_path, 1, 2, **settings) as cluster:
        await cluster.create("lagging", (1, 2))
        await cluster.nodes[1].produce("lagging", b"one")
        await cluster.stop(2)
        waiting = asyncio.create_task(cluster.nodes[1].produce("lagging", b"two"))
        leader = cluster.replica(1, "lagging")

        def has_left() -> bool:
            leader.check_lagging_followers()
            return cluster.isr("lagging") == (1,)

        await until(has_left)
        assert (await waiting).error_code == ErrorCode.NONE
        await cluster.start(2)
        await until(lambda: cluster.isr("lagging") == (1, 2))


async def test_who_waits_hears_that_the_leadership_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("moved", (1, 2))
        await cluster.stop(2)
        waiting = asyncio.create_task(cluster.nodes[1].produce("moved", b"in doubt"))
        await until(lambda: cluster.replica(1, "moved").log.log_end_offset == 1)
        await cluster.change("moved", leader=2)
        answer = await waiting
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == 2


async def test_nobody_answers_in_time(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("slow", (1, 2))
        await cluster.stop(2)
        answer = await cluster.nodes[1].produce("slow", b"in doubt", timeout_ms=50)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


# --- what a leader tells its followers ---


def followers_fetch(
    cluster: Cluster, topic_id: bytes, *, offset: int = 0, epoch: int = 0, last_epoch: int = -1, **state: int
) -> FetchRequest:
    """The fetch that broker 2, or a peer claiming to be it, would send."""
    broker = cluster.image.broker(BrokerId(2))
    assert broker is not None
    replica = ReplicaState(**{"replica_id": 2, "replica_epoch": broker.broker_epoch, **state})
    partition = FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    topic = FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(replica_state=replica, max_wait_ms=0, min_bytes=1, topics=[topic])


async def test_only_a_replica_in_its_present_life_may_fetch_as_one(tmp_path: Path) -> None:
    """Rules 13 and 49."""
    async with running(tmp_path, 1, 2, 3) as cluster:
        topic_id = await cluster.create("guarded", (1, 2))
        await cluster.stop(2)
        leader = cluster.replica(1, "guarded")
        await produced_to_one(cluster, 1, "guarded", b"one")
        refused, committed = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0

        async def error_of(
            by: int | None = 2, to: int = 1, software: tuple[str, str] | None = None, **said: int
        ) -> int:
            request = followers_fetch(cluster, topic_id, **{"offset": 1, **said})
            if by is not None and software is None:
                software = cluster.proofs[by].software_for(BrokerId(to))
            answered = await cluster.nodes[1].ask(ApiKey.FETCH, request, software=software)
            assert leader.high_watermark == committed
            return int(answered.error_code or answered.responses[0].partitions[0].error_code)

        third = cluster.image.broker(BrokerId(3))
        assert third is not None
        # A client, with the right epoch, without one (CVE-2018-1288), and in another broker's name.
        assert await error_of(by=None) == refused
        assert await error_of(by=None, replica_epoch=-1) == refused
        assert await error_of(by=3) == refused
        assert await error_of(replica_epoch=-1) == refused
        assert await error_of(replica_epoch=0) == refused
        assert await error_of(to=3) == refused, "what it has said to another broker"
        name, said = cluster.proofs[2].software_for(BrokerId(1))
        last = "0" if said[-1] != "0" else "1"
        for other in (said[:-1] + last, said.rpartition(".")[0], "2.x.y", "2.1." + "9" * 99, "9" * 30 + ".1.a", "2"):
            assert await error_of(software=(name, other)) == refused
        assert await error_of(by=3, replica_id=3, replica_epoch=third.broker_epoch) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await error_of(epoch=1) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await error_of(offset=2) == ErrorCode.OFFSET_OUT_OF_RANGE
        await cluster.change("guarded")
        assert await error_of(epoch=0) == ErrorCode.FENCED_LEADER_EPOCH
        earlier = cluster.proofs[2].software_for(BrokerId(1))
        before = cluster.image.broker(BrokerId(2))
        assert before is not None
        again = RegisterBroker(
            broker_id=BrokerId(2),
            incarnation_id=b"its next life...",
            endpoints=before.endpoints,
            time_ms=Millis(0),
            previous_session_expired=True,
        )
        assert (await cluster.submit(again)).result is not None
        committed = leader.high_watermark  # a replica that stopped uncleanly is not in sync any more
        assert await error_of(software=earlier) == refused, "it is of its life before"
        assert await error_of(software=earlier, replica_epoch=before.broker_epoch) == refused, (
            "it is of its life before"
        )


async def test_a_follower_whose_log_parted_proves_nothing(tmp_path: Path) -> None:
    """Rule 3: the follower learns at which offset the logs diverge, and its fetch offset is no acknowledgement."""
    async with running(tmp_path, 1, 2) as cluster:
        topic_id = await cluster.create("parting", (1, 2))
        await cluster.stop(2)
        await cluster.change("parting")
        await produced_to_one(cluster, 1, "parting", b"one", b"two")
        await cluster.change("parting")
        request = followers_fetch(cluster, topic_id, offset=2, epoch=2, last_epoch=0)
        software = cluster.proofs[2].software_for(BrokerId(1))
        answered = (await cluster.nodes[1].ask(ApiKey.FETCH, request, software=software)).responses[0].partitions[0]
        assert (answered.diverging_epoch.epoch, answered.diverging_epoch.end_offset) == (0, 0)
        assert answered.records == b""
        assert cluster.replica(1, "parting").high_watermark == 0
        request = followers_fetch(cluster, topic_id, offset=2, epoch=2, last_epoch=1)
        answered = (await cluster.nodes[1].ask(ApiKey.FETCH, request, software=software)).responses[0].partitions[0]
        assert answered.diverging_epoch.epoch == -1
        assert cluster.replica(1, "parting").high_watermark == 2


async def latest_offset(cluster: Cluster, node: int, topic: str, *, high: int = 0x7FFF) -> tuple[int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])], timeout_ms=1000
    )
    answered = (await cluster.nodes[node].ask(ApiKey.LIST_OFFSETS, request, high=high)).topics[0].partitions[0]
    return answered.error_code, answered.offset


async def test_a_new_leader_does_not_let_the_end_go_back(tmp_path: Path) -> None:
    """Rule 11."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("latest", (1, 2))
        await cluster.stop(2)
        await produced_to_one(cluster, 1, "latest", b"one")
        assert await latest_offset(cluster, 1, "latest") == (ErrorCode.NONE, 0)
        await cluster.change("latest")
        assert await latest_offset(cluster, 1, "latest") == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await latest_offset(cluster, 1, "latest", high=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        await cluster.start(2)
        await cluster.caught_up("latest")
        assert await latest_offset(cluster, 1, "latest") == (ErrorCode.NONE, 1)
        assert (await latest_offset(cluster, 2, "latest"))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def consumers_fetch(topic_id: bytes, rack: str, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic], rack_id=rack)


async def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path) -> None:
    """KIP-392, rule 48."""
    async with running(tmp_path, **{"replica.selector.class": RACK_AWARE_SELECTOR}) as cluster:
        for number, rack in ((1, "here"), (2, "there")):
            await cluster.start(number, **{"broker.rack": rack})
        topic_id = await cluster.create("near", (1, 2))
        await cluster.nodes[1].produce("near", b"one")
        await cluster.caught_up("near")

        async def asked(node: int, rack: str) -> tuple[int, bool]:
            answered = await cluster.nodes[node].ask(ApiKey.FETCH, consumers_fetch(topic_id, rack))
            partition = answered.responses[0].partitions[0]
            assert (partition.error_code, partition.high_watermark) == (ErrorCode.NONE, 1)
            return partition.preferred_read_replica, b"one" in bytes(partition.records)

        assert await asked(1, "there") == (2, False)
        assert await asked(1, "here") == (-1, True)
        assert await asked(1, "nowhere") == (-1, True)
        assert await asked(2, "there") == (-1, True)


async def test_a_consumer_reads_from_a_follower_no_more_than_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2, 3) as cluster:
        topic_id = await cluster.create("bounded", (1, 2, 3))
        await cluster.nodes[1].produce("bounded", b"one")
        await cluster.caught_up("bounded")
        await cluster.stop(3)
        await produced_to_one(cluster, 1, "bounded", b"two")
        await until(lambda: cluster.replica(2, "bounded").log.log_end_offset == 2)
        answered = await cluster.nodes[2].ask(ApiKey.FETCH, consumers_fetch(topic_id, ""))
        partition = answered.responses[0].partitions[0]
        assert partition.high_watermark == 1
        assert b"two" not in bytes(partition.records)


@pytest.mark.parametrize(("version", "leader"), [(13, -1), (15, -1), (16, 1), (18, 1)])
async def test_a_consumer_that_asks_the_wrong_broker_hears_who_leads(tmp_path: Path, version: int, leader: int) -> None:
    """KIP-951: from version 16 on, as in Kafka; older clients could read the field, but do not."""
    async with running(tmp_path, 1, 2) as cluster:
        topic_id = await cluster.create("led", (1,))
        answered = await cluster.nodes[2].ask(ApiKey.FETCH, consumers_fetch(topic_id, ""), high=version)
        partition = answered.responses[0].partitions[0]
        assert (partition.error_code, partition.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, leader)
        assert [endpoint.node_id for endpoint in answered.node_endpoints] == ([1] if leader == 1 else [])


@pytest.mark.parametrize(
    ("version", "epoch", "error"),
    [
        (9, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (9, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (10, 7, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (11, 7, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (11, 0, ErrorCode.NONE),
    ],
)
async def test_a_follower_judges_the_epoch_before_its_role(
    tmp_path: Path, version: int, epoch: int, error: ErrorCode
) -> None:
    """Before version 11, no consumer reads from a follower."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("followed", (1, 2))
        await until(lambda: cluster.replica(2, "followed").following is not None)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="followed", partitions=[partition])]
        )
        answered = await cluster.nodes[2].ask(ApiKey.FETCH, request, high=version)
        assert answered.responses[0].partitions[0].error_code == error


# --- records and replicas that go ---


async def delete_records(cluster: Cluster, node: int, topic: str, offset: int, timeout_ms: int = 10_000) -> Any:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=timeout_ms
    )
    return (await cluster.nodes[node].ask(ApiKey.DELETE_RECORDS, request)).topics[0].partitions[0]


async def test_records_are_deleted_in_every_replica(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("shorter", (1, 2))
        for value in (b"one", b"two", b"three"):
            await cluster.nodes[1].produce("shorter", value)
        assert (await delete_records(cluster, 2, "shorter", 1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        deleted = await delete_records(cluster, 1, "shorter", 2)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 2)
        assert cluster.replica(2, "shorter").log.log_start_offset == 2
        await cluster.stop(2)
        late = await delete_records(cluster, 1, "shorter", 3, timeout_ms=50)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        await cluster.fence(2)
        deleted = await delete_records(cluster, 1, "shorter", 3)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 3)


async def test_a_follower_that_was_away_for_too_long_begins_anew(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("away", (1, 2))
        await cluster.nodes[1].produce("away", b"one")
        await cluster.stop(2)
        await cluster.fence(2)
        for value in (b"two", b"three"):
            await cluster.nodes[1].produce("away", value)
        await delete_records(cluster, 1, "away", 2)
        await cluster.start(2)
        await cluster.caught_up("away")
        found = cluster.replica(2, "away").log
        assert (found.log_start_offset, found.log_end_offset) == (2, 3)


async def test_a_partition_moves_to_other_brokers(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2, 3) as cluster:
        topic_id = await cluster.create("moving", (1, 2))
        await cluster.nodes[1].produce("moving", b"one")
        await cluster.change("moving", replicas=(1, 2, 3), adding_replicas=(3,), new_epoch=False)
        await until(lambda: cluster.isr("moving") == (1, 2, 3))
        held = cluster.replica(2, "moving")
        await cluster.change("moving", replicas=(1, 3), isr=(1, 3), adding_replicas=())
        assert cluster.nodes[2].replicas.held_by_id(topic_id, 0) is None
        assert not held.log_directory.exists("moving-0")
        assert (await cluster.nodes[1].produce("moving", b"two")).error_code == ErrorCode.NONE
        refused = await cluster.nodes[2].produce("moving", b"three")
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.change("moving", replicas=(1, 3, 2), new_epoch=False)
        await until(lambda: cluster.isr("moving") == (1, 3, 2))
        assert cluster.nodes[2].log_bytes("moving") == cluster.nodes[1].log_bytes("moving")


async def test_what_was_committed_is_known_after_a_restart(tmp_path: Path) -> None:
    """Rule 10: from the checkpoint, before any leader is heard."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("marked", (1, 2))
        for value in (b"one", b"two"):
            await cluster.nodes[1].produce("marked", value)
        await cluster.caught_up("marked")
        await cluster.stop(1)
        await cluster.stop(2)
        await cluster.start(2)
        found = cluster.replica(2, "marked")
        assert found.following is not None
        assert found.high_watermark == 2


async def test_a_sync_that_the_topic_asks_for_comes_before_the_acknowledgement_of_a_follower(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("durable", (1, 2), flush_messages="1")
        assert (await cluster.nodes[1].produce("durable", b"one")).error_code == ErrorCode.NONE
        assert cluster.replica(1, "durable").log.recovery_point == 1
        assert cluster.replica(2, "durable").log.recovery_point == 1


async def test_an_idempotent_producer_goes_on_with_the_next_leader(tmp_path: Path) -> None:
    """Rule 25: followers know its sequence numbers, so that what is sent again is not written again."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("once", (1, 2))
        sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        assert (await cluster.nodes[1].produce("once", b"one", **sent)).base_offset == 0
        await cluster.stop(1, clean=False)
        await cluster.change("once", leader=2, isr=(2,))
        again = await cluster.nodes[2].produce("once", b"one", **sent)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        assert cluster.replica(2, "once").log.log_end_offset == 1


# --- coordinators ---


async def commit(cluster: Cluster, node: int, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="group",
        member_id="",
        topics=[OffsetCommitRequestTopic(name="read", partitions=[partition])],
    )
    answered = await cluster.nodes[node].ask(ApiKey.OFFSET_COMMIT, request, high=8)
    return int(answered.topics[0].partitions[0].error_code)


async def committed(cluster: Cluster, node: int) -> tuple[int, int]:
    group = OffsetFetchRequestGroup(group_id="group", topics=None)
    answered = await cluster.nodes[node].ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[group]), high=8)
    found = answered.groups[0]
    return found.error_code, found.topics[0].partitions[0].committed_offset if found.topics else -1


async def until_answered(asking: Callable[[], Awaitable[tuple[int, int]]], expected: tuple[int, int]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while (found := await asking()) != expected:
            assert found[0] in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), found


async def test_offsets_that_were_committed_outlive_their_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("read", (1, 2))
        await cluster.create("__consumer_offsets", (1, 2), cleanup_policy="compact")
        assert await commit(cluster, 1, 41) == ErrorCode.NONE
        assert await commit(cluster, 1, 42) == ErrorCode.NONE
        assert await commit(cluster, 2, 43) == ErrorCode.NOT_COORDINATOR
        await cluster.stop(1, clean=False)
        await cluster.change("__consumer_offsets", leader=2, isr=(2,))
        await until_answered(lambda: committed(cluster, 2), (ErrorCode.NONE, 42))
        assert await commit(cluster, 2, 43) == ErrorCode.NONE
        await cluster.start(1)
        await until(lambda: cluster.isr("__consumer_offsets") == (1, 2))
        await cluster.change("__consumer_offsets", leader=1)
        await until_answered(lambda: committed(cluster, 1), (ErrorCode.NONE, 43))
        assert (await committed(cluster, 2))[0] == ErrorCode.NOT_COORDINATOR


async def test_a_new_coordinator_says_nothing_before_what_it_read_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2, **{"offsets.commit.timeout.ms": "100"}) as cluster:
        await cluster.create("read", (1, 2))
        await cluster.create("__consumer_offsets", (1, 2), cleanup_policy="compact")
        assert await commit(cluster, 1, 1) == ErrorCode.NONE
        await cluster.stop(2)
        assert await commit(cluster, 1, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody has copied it"
        assert (await committed(cluster, 1))[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it may yet be committed"
        await cluster.start(2)
        await until_answered(lambda: committed(cluster, 1), (ErrorCode.NONE, 2))


async def test_a_commit_with_too_few_in_sync(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("read", (1, 2))
        await cluster.create("__consumer_offsets", (1, 2), cleanup_policy="compact", min_insync_replicas="2")
        await cluster.stop(2)
        await cluster.change("__consumer_offsets", isr=(1,), new_epoch=False)
        assert await commit(cluster, 1, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- all at once ---


async def test_nothing_acknowledged_is_lost_while_leaders_move_and_brokers_die(tmp_path: Path) -> None:
    chance = random.Random(7)
    partitions = 6
    async with running(tmp_path, 1, 2, 3, **{"replica.fetch.wait.max.ms": "100"}) as cluster:
        await cluster.create("moved", *[((n % 3) + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(partitions)])
        acknowledged: list[set[bytes]] = [set() for _ in range(partitions)]
        is_over = False

        async def send(partition: int) -> None:
            number = 0
            while not is_over:
                found = cluster.image.partition("moved", partition)
                assert found is not None
                node = cluster.nodes.get(found.leader)
                value = b"<%d>" % number
                number += 1
                if node is None:
                    await asyncio.sleep(0.01)
                    continue
                try:
                    answer = await node.produce("moved", value, partition=partition, timeout_ms=300)
                except KafkaError:
                    continue
                if answer.error_code == ErrorCode.NONE:
                    acknowledged[partition].add(value)

        async def disturb() -> None:
            for _ in range(12):
                await asyncio.sleep(0.1)
                if chance.random() < 0.5:
                    number = chance.choice(sorted(cluster.nodes))
                    await cluster.stop(number, clean=False)
                    await cluster.fence(number)
                    await asyncio.sleep(0.1)
                    await cluster.start(number)
                else:
                    for partition in range(partitions):
                        isr = cluster.isr("moved", partition)
                        await cluster.change("moved", partition, leader=chance.choice(isr))
                if chance.random() < 0.7:
                    await until(lambda: all(len(cluster.isr("moved", n)) == 3 for n in range(partitions)))

        async with asyncio.TaskGroup() as senders:
            for partition in range(partitions):
                senders.create_task(send(partition))
            await disturb()
            await until(lambda: all(len(cluster.isr("moved", n)) == 3 for n in range(partitions)))
            is_over = True
        for partition in range(partitions):
            await cluster.caught_up("moved", partition)
            logs = [cluster.nodes[number].log_bytes("moved", partition) for number in (1, 2, 3)]
            assert logs[0] == logs[1] == logs[2]
            assert acknowledged[partition], "some were"
            lost = [value for value in acknowledged[partition] if value not in logs[0]]
            assert not lost


@pytest.mark.parametrize(("setting", "shares"), [("1", [4]), ("3", [1, 1, 2]), ("50", [1, 1, 1, 1])])
async def test_a_leader_is_fetched_from_on_several_connections(tmp_path: Path, setting: str, shares: list[int]) -> None:
    """`num.replica.fetchers`: they share a topic's partitions evenly, and there are no more than partitions."""
    async with running(tmp_path, 1, 2, **{"num.replica.fetchers": setting}) as cluster:
        await cluster.create("wide", *[(1, 2)] * 4)
        for partition in range(4):
            answer = await cluster.nodes[1].produce("wide", b"value", partition=partition)
            assert answer.error_code == ErrorCode.NONE, "with acks=all: the follower has it"
        fetchers = cluster.nodes[2].fetchers
        assert sorted(len(each.replicas) for each in fetchers._fetchers.values()) == shares
        await cluster.stop(1)
        await cluster.change("wide", leader=2, isr=(2,))
        await until(lambda: sum(len(each.replicas) for each in fetchers._fetchers.values()) == 3)
