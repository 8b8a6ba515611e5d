"""`kraftpy.flush.before.ack`: records a power loss could take are neither acknowledged nor read (rules 43, 45).

Whole data paths over real sockets, on disks in memory that lose what was not synced, and whose syncs can be held.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from replicating import BOUND_SECONDS, Cluster, running, until

from kraftpy.log import layout
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.record_batch import iter_records, split_batches
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis

SYNCED = {"kraftpy_flush_before_ack": "true"}
SEEDS = (1, 2, 3)


class Held:
    """Syncs of logs that wait until they are let go."""

    def __init__(self, disk: MemoryDisk, name: str) -> None:
        self.begun = 0
        self._disk = disk
        self._name = name
        self._may_go_on = threading.Event()
        disk.on_operation = self._operation

    def _operation(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log") and self._name in path:
            self.begun += 1
            assert self._may_go_on.wait(BOUND_SECONDS), "nobody let it go on"

    def let_go(self) -> None:
        self._disk.on_operation = None
        self._may_go_on.set()


@contextlib.contextmanager
def held(disk: MemoryDisk, name: str = "") -> Iterator[Held]:
    holding = Held(disk, name)
    try:
        yield holding
    finally:
        holding.let_go()


@contextlib.asynccontextmanager
async def clusters(directory: Path, *numbers: int, **settings: str) -> AsyncIterator[Cluster]:
    disks = {number: MemoryDisk() for number in numbers}
    async with running(directory, *numbers, disks=disks, **settings) as cluster:
        yield cluster


def producing(cluster: Cluster, node: int, topic: str, *values: bytes, **how: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(cluster.nodes[node].produce(topic, *values, **how))


async def fetched(cluster: Cluster, node: int, topic: str) -> list[bytes | None]:
    """The records that a consumer gets."""
    found = cluster.image.topic(topic)
    assert found is not None
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic_id=found.topic_id, partitions=[partition])],
    )
    answer = (await cluster.nodes[node].ask(ApiKey.FETCH, request)).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return values_of(bytes(answer.records or b""))


def values_of(batches: bytes) -> list[bytes | None]:
    return [record.value for _, batch in split_batches(batches) for record in iter_records(batch)]


# --- one node ---


@pytest.mark.parametrize("acks", [1, -1])
async def test_an_answer_waits_for_the_sync_and_so_do_readers(tmp_path: Path, acks: int) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), **SYNCED)
        with held(cluster.disks[1]) as syncs:
            answer = producing(cluster, 1, "safe", b"one", acks=acks)
            await until(lambda: syncs.begun == 1)
            replica = cluster.replica(1, "safe")
            assert (replica.log.log_end_offset, replica.log.recovery_point, replica.high_watermark) == (1, 0, 0)
            assert await fetched(cluster, 1, "safe") == []
            assert not answer.done()
            syncs.let_go()
            assert (await answer).error_code == ErrorCode.NONE
        assert (replica.log.recovery_point, replica.high_watermark) == (1, 1)
        assert await fetched(cluster, 1, "safe") == [b"one"]


async def test_acks_0_is_synced_though_nobody_waits(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), **SYNCED)
        unanswered = producing(cluster, 1, "safe", b"one", acks=0)
        await until(lambda: cluster.replica(1, "safe").high_watermark == 1)
        assert cluster.replica(1, "safe").log.recovery_point == 1
        unanswered.cancel()


async def test_who_comes_during_a_sync_shares_the_next_one(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), (1,), (1,), **SYNCED)
        rounds = cluster.nodes[1].replica_manager.syncs.of("/log")
        with held(cluster.disks[1]) as syncs:
            first = producing(cluster, 1, "safe", b"first")
            await until(lambda: syncs.begun == 1)
            before = rounds.rounds
            others = [producing(cluster, 1, "safe", b"%d" % number, partition=number % 2 * 2) for number in range(20)]
            logs = [cluster.replica(1, "safe", number).log for number in (0, 2)]
            await until(lambda: [log.log_end_offset for log in logs] == [11, 10])
            syncs.let_go()
            for answer in await asyncio.gather(first, *others):
                assert answer.error_code == ErrorCode.NONE
        assert rounds.rounds == before + 1, "20 requests for two partitions, one round"


async def test_a_duplicate_is_not_acknowledged_before_the_first_copy_is_synced(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), **SYNCED)
        sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        with held(cluster.disks[1]) as syncs:
            first = producing(cluster, 1, "safe", b"once", **sent)
            await until(lambda: syncs.begun == 1)
            again = producing(cluster, 1, "safe", b"once", **sent)
            rounds = cluster.nodes[1].replica_manager.syncs.of("/log")
            await until(lambda: rounds.waiting == 2)
            assert not again.done()
            syncs.let_go()
            assert [(each.error_code, each.base_offset) for each in await asyncio.gather(first, again)] == [(0, 0)] * 2


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_power_loss_takes_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Rules 43 and 45: partition and topic id are durable before data, data before the answer, readers never ahead."""
    random = Random(seed)
    async with clusters(tmp_path, 1, kraftpy_flush_before_ack="true") as cluster:
        await cluster.create("safe", (1,), (1,), segment_bytes="1048576", index_interval_bytes="64")
        acknowledged: list[set[bytes]] = [set(), set()]

        async def write(name: int, partition: int) -> None:
            for number in range(100_000):
                value = b"%d-%d" % (name, number)
                answer = await cluster.nodes[1].produce("safe", value, partition=partition, acks=random.choice([1, -1]))
                if answer.error_code != ErrorCode.NONE:
                    return
                acknowledged[partition].add(value)

        for _ in range(3):
            enough = len(acknowledged[0]) + random.randrange(20, 60)
            writers = [task_of(write(name, name % 2)) for name in range(6)]
            await until(lambda enough=enough: len(acknowledged[0]) >= enough and len(acknowledged[1]) >= enough)  # type: ignore[misc]
            seen = [cluster.replica(1, "safe", number).high_watermark for number in (0, 1)]
            await cluster.lose_power(1, random=random, loss=random.choice([Loss.EVERYTHING, Loss.PREFIX, Loss.SECTORS]))
            await asyncio.gather(*writers, return_exceptions=True)
            await cluster.start(1)
            for partition in (0, 1):
                left = set(values_of(cluster.nodes[1].log_bytes("safe", partition)))
                assert acknowledged[partition] <= left
                assert cluster.replica(1, "safe", partition).log.log_end_offset >= seen[partition]


def task_of(work: Any) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def test_without_it_a_power_loss_takes_what_was_acknowledged(tmp_path: Path) -> None:
    """Rule 43: Kafka's default. The page cache goes with the power."""
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("cached", (1,))
        assert (await cluster.nodes[1].produce("cached", b"one")).error_code == ErrorCode.NONE
        await cluster.lose_power(1, random=Random(1))
        await cluster.start(1)
        assert cluster.replica(1, "cached").log.log_end_offset == 0


async def test_flush_messages_keeps_what_was_acknowledged_too(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("synced", (1,), flush_messages="1")
        assert (await cluster.nodes[1].produce("synced", b"one", acks=1)).error_code == ErrorCode.NONE
        await cluster.lose_power(1, random=Random(1))
        await cluster.start(1)
        assert values_of(cluster.nodes[1].log_bytes("synced")) == [b"one"]


async def test_a_failed_sync_is_never_tried_again_and_costs_its_log_directory_alone(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), (1,), (1,), **SYNCED)
        where = [cluster.replica(1, "safe", number).log_directory.path for number in range(3)]
        assert where == ["/log", "/other", "/log"]
        disk = cluster.disks[1]
        disk.fail("sync", name="safe-0/00000000000000000000.log")
        answer = await cluster.nodes[1].produce("safe", b"lost")
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        syncs: list[str] = []
        disk.on_operation = lambda operation, path: syncs.append(path) if operation == "sync" else None
        for acks in (1, -1):
            refused = await cluster.nodes[1].produce("safe", b"refused", acks=acks)
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await cluster.nodes[1].produce("safe", b"well", partition=1)).error_code == ErrorCode.NONE
        neighbour = await cluster.nodes[1].produce("safe", b"refused", partition=2)
        assert neighbour.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk.on_operation = None
        assert {path.split("/")[1] for path in syncs} == {"other"}
        await cluster.lose_power(1, random=Random(1))
        await cluster.start(1)
        assert cluster.replica(1, "safe").log.log_end_offset == 0
        assert values_of(cluster.nodes[1].log_bytes("safe", 1)) == [b"well"]


async def test_what_a_killed_process_left_in_the_page_cache_is_synced_before_it_is_read(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,))
        assert (await cluster.nodes[1].produce("safe", b"one")).error_code == ErrorCode.NONE
        await cluster.stop(1, clean=False)
        await cluster.configure("safe", kraftpy_flush_before_ack="true")
        with held(cluster.disks[1], "safe") as syncs:
            syncs.let_go()  # recovery syncs what it may have cut
            await cluster.start(1)
        await until(lambda: cluster.replica(1, "safe").high_watermark == 1)
        assert cluster.replica(1, "safe").log.recovery_point == 1


async def test_the_setting_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("changed", (1, 2))
        assert (await cluster.nodes[1].produce("changed", b"one")).error_code == ErrorCode.NONE
        assert cluster.replica(1, "changed").log.recovery_point == 0
        await cluster.configure("changed", kraftpy_flush_before_ack="true")
        await until(lambda: all(cluster.replica(node, "changed").log.recovery_point == 1 for node in (1, 2)))
        assert (await cluster.nodes[1].produce("changed", b"two")).error_code == ErrorCode.NONE
        assert [cluster.replica(node, "changed").log.recovery_point for node in (1, 2)] == [2, 2]
        await cluster.configure("changed", kraftpy_flush_before_ack="false")
        assert (await cluster.nodes[1].produce("changed", b"three")).error_code == ErrorCode.NONE
        assert [cluster.replica(node, "changed").log.recovery_point for node in (1, 2)] == [2, 2]


async def test_committed_offsets_wait_for_the_sync_where_their_topic_asks_for_it(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("__consumer_offsets", (1,), cleanup_policy="compact", **SYNCED)
        await cluster.create("read", (1,))
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        topic = OffsetCommitRequestTopic(name="read", partitions=[partition])
        request = OffsetCommitRequest(group_id="group", member_id="", topics=[topic])
        with held(cluster.disks[1]) as syncs:
            asked = cluster.nodes[1].ask(ApiKey.OFFSET_COMMIT, request, high=8)
            answer = asyncio.get_running_loop().create_task(asked)
            await until(lambda: syncs.begun == 1)
            assert not answer.done()
            syncs.let_go()
            assert (await answer).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert cluster.replica(1, "__consumer_offsets").log.recovery_point == 1
        cluster.disks[1].fail("sync", name=".log")
        refused = await cluster.nodes[1].ask(ApiKey.OFFSET_COMMIT, request, high=8)
        assert refused.topics[0].partitions[0].error_code != ErrorCode.NONE


async def test_the_last_thing_a_clean_stop_writes_is_its_marker(tmp_path: Path) -> None:
    """Rule 44: logs, then checkpoints, then the marker, in each log directory."""
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("kept", (1,), (1,), (1,))
        for partition in range(3):
            assert (await cluster.nodes[1].produce("kept", b"one", partition=partition)).error_code == ErrorCode.NONE
        written: list[str] = []
        reads = ("read", "size", "open", "child", "names", "exists")
        cluster.disks[1].on_operation = lambda operation, path: (
            written.append(f"{operation} {path}") if operation not in reads else None
        )
        await cluster.stop(1)
        for directory in ("/log", "/other"):
            own = [operation for operation in written if operation.split(" ")[1].startswith(directory)]
            logs = max(number for number, operation in enumerate(own) if "/kept-" in operation)
            assert any(operation.startswith("sync") and operation.endswith(".log") for operation in own[:logs])
            assert own[logs + 1 :] == [
                f"{operation} {directory}/{name}"
                for name in (
                    "recovery-point-offset-checkpoint",
                    "log-start-offset-checkpoint",
                    "replication-offset-checkpoint",
                    ".kafka_cleanshutdown",
                )
                for operation in ("replace", "replaced")
            ]


# --- several ---


@pytest.mark.parametrize("seed", SEEDS)
async def test_three_nodes_that_lose_power_at_once_keep_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with clusters(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("safe", (1, 2, 3), min_insync_replicas="2", **SYNCED)
        await cluster.create("cached", (1, 2, 3), min_insync_replicas="2")
        acknowledged: set[bytes] = set()

        async def write(name: int) -> None:
            for number in range(100_000):
                value = b"%d-%d" % (name, number)
                if (await cluster.nodes[1].produce("safe", value)).error_code != ErrorCode.NONE:
                    return
                acknowledged.add(value)

        assert (await cluster.nodes[1].produce("cached", b"one")).error_code == ErrorCode.NONE
        writers = [task_of(write(name)) for name in range(4)]
        await until(lambda: len(acknowledged) >= 40)
        isr = cluster.isr("safe")
        await cluster.lose_power(1, 2, 3, random=random)
        await asyncio.gather(*writers, return_exceptions=True)
        await cluster.start(1, 2, 3)
        for node in isr:
            assert acknowledged <= set(values_of(cluster.nodes[node].log_bytes("safe")))
            assert cluster.replica(node, "cached").log.log_start_offset == 0
        await cluster.caught_up("safe")  # under the leader that the metadata allowed
        assert acknowledged <= set(values_of(cluster.nodes[isr[0]].log_bytes("safe")))
        assert b"one" not in values_of(cluster.nodes[1].log_bytes("cached")), "by default the page caches were all"


async def test_a_follower_acknowledges_what_it_has_synced_and_holds_up_nobody_else(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2), **SYNCED)
        await cluster.create("cached", (1, 2))
        with held(cluster.disks[2], "safe") as syncs:
            answer = producing(cluster, 1, "safe", b"one")
            await until(lambda: syncs.begun == 1)
            leader, follower = (cluster.replica(node, "safe") for node in (1, 2))
            assert follower.log.log_end_offset == 1
            await until(lambda: leader.log.recovery_point == 1)
            for number in range(5):
                other = await cluster.nodes[1].produce("cached", b"%d" % number)
                assert other.error_code == ErrorCode.NONE
            assert not answer.done()
            assert leader.high_watermark == 0
            assert leader.leading is not None
            assert [each.log_end_offset for each in leader.leading.progress()] == [0]
            assert await fetched(cluster, 1, "safe") == []
            syncs.let_go()
            assert (await answer).error_code == ErrorCode.NONE
        assert leader.high_watermark == follower.log.recovery_point == 1


async def test_the_leaders_own_sync_counts_as_well(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2), **SYNCED)
        with held(cluster.disks[1], "safe") as syncs:
            answer = producing(cluster, 1, "safe", b"one")
            leader = cluster.replica(1, "safe")
            await until(lambda: leader.leading is not None and leader.leading.progress()[0].log_end_offset == 1)
            assert cluster.replica(2, "safe").log.recovery_point == 1
            assert leader.high_watermark == 0
            assert not answer.done()
            syncs.let_go()
            assert (await answer).error_code == ErrorCode.NONE
        assert leader.high_watermark == 1


async def test_a_follower_whose_sync_fails_acknowledges_nothing_more(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2), **SYNCED)
        cluster.disks[2].fail("sync", name="safe-0/00000000000000000000.log")
        leader, follower = (cluster.replica(node, "safe") for node in (1, 2))
        answer = producing(cluster, 1, "safe", b"one")
        await until(lambda: follower.is_offline)
        assert leader.leading is not None
        assert leader.leading.progress()[0].log_end_offset == 0
        assert not answer.done()
        await cluster.fence(2)
        assert (await answer).error_code == ErrorCode.NONE, "one in sync is enough, by min.insync.replicas"


async def test_a_new_leader_syncs_what_it_was_sent_before_anybody_reads_it(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2))
        assert (await cluster.nodes[1].produce("safe", b"one")).error_code == ErrorCode.NONE
        replica = cluster.replica(2, "safe")
        assert replica.log.recovery_point == 0
        await cluster.stop(1, clean=False)
        await cluster.configure("safe", kraftpy_flush_before_ack="true")
        await cluster.change("safe", leader=2, isr=(2,))
        await until(lambda: replica.log.recovery_point == replica.high_watermark == 1)


async def test_what_a_follower_still_has_to_sync_is_waited_for(tmp_path: Path) -> None:
    """It led in between: when the sync that its fetcher waited for has ended, the log has grown; the next is slow."""
    rounds = 0

    def broker_epoch() -> int:
        """Each round of the fetcher asks for the epoch once, when the positions are set."""
        nonlocal rounds
        rounds += 1
        return cluster.nodes[2].broker_epoch

    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2), **SYNCED)
        await cluster.create("beside", (1, 2), (1, 2), **SYNCED)  # it keeps the fetcher busy meanwhile
        follower = cluster.replica(2, "safe")
        with held(cluster.disks[2], "safe") as first:
            answer = producing(cluster, 1, "safe", b"one")
            await until(lambda: first.begun == 1)
            await cluster.change("safe", leader=2, isr=(1, 2))
            led = producing(cluster, 2, "safe", b"two", acks=0)
            await until(lambda: follower.log.log_end_offset == 2)
            await cluster.change("safe", leader=1, isr=(1, 2))
            await until(lambda: follower.following is not None)
            for partition in range(2):
                await cluster.change("beside", partition, leader=1, isr=(1, 2))
                beside = cluster.replica(2, "beside", partition).following
                assert beside is not None
                beside.retry_at = Millis(1 << 60)  # there is nothing to ask for it
            first.let_go()
            with held(cluster.disks[2], "safe") as second:
                await until(lambda: second.begun == 1)
                assert follower.syncs.is_due(follower.log.log_end_offset)
                cluster.nodes[2].fetchers.broker_epoch = broker_epoch
                for _ in range(300):
                    await asyncio.sleep(0)
                assert rounds <= 3
        await until(lambda: follower.log.recovery_point == cluster.replica(1, "safe").log.log_end_offset)
        for task in (answer, led):
            task.cancel()


# --- what a log promises to who is started after a crash ---


def promises(cluster: Cluster, node: int, topic: str) -> bool:
    """Return the content that its directory would have if power were lost now."""
    metadata = layout.read_partition_metadata(cluster.replica(node, topic).log.directory)
    assert metadata is not None
    return metadata.synced_before_ack


async def test_a_log_promises_what_it_acknowledges_is_synced_before(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1, 2) as cluster:
        await cluster.create("safe", (1, 2), **SYNCED)
        await cluster.create("cached", (1, 2))
        for node in (1, 2):
            assert promises(cluster, node, "safe")
            assert not promises(cluster, node, "cached")


async def test_nothing_is_promised_before_what_was_acknowledged_is_synced(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("changed", (1,))
        assert (await cluster.nodes[1].produce("changed", b"one")).error_code == ErrorCode.NONE
        manager = cluster.nodes[1].replica_manager
        with held(cluster.disks[1]) as syncs:
            await cluster.configure("changed", kraftpy_flush_before_ack="true")
            promising = task_of(manager.topic_configs.promise_synced())
            await until(lambda: syncs.begun == 1)
            assert not promises(cluster, 1, "changed")
            syncs.let_go()
            await promising
        assert promises(cluster, 1, "changed")
        await cluster.configure("changed", kraftpy_flush_before_ack="false")
        assert not promises(cluster, 1, "changed")
        await manager.topic_configs.promise_synced()
        assert not promises(cluster, 1, "changed")


async def test_nothing_is_promised_of_what_was_acknowledged_while_the_setting_was_off(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("changed", (1,))
        assert (await cluster.nodes[1].produce("changed", b"one")).error_code == ErrorCode.NONE
        with held(cluster.disks[1]) as syncs:
            await cluster.configure("changed", kraftpy_flush_before_ack="true")
            promising = task_of(cluster.nodes[1].replica_manager.topic_configs.promise_synced())
            await until(lambda: syncs.begun == 1)
            await cluster.configure("changed", kraftpy_flush_before_ack="false")
            assert (await cluster.nodes[1].produce("changed", b"two")).error_code == ErrorCode.NONE
            await cluster.configure("changed", kraftpy_flush_before_ack="true")
            syncs.let_go()
            await promising
        assert not promises(cluster, 1, "changed")


async def test_what_cannot_be_taken_back_is_kept_until_it_can(tmp_path: Path) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("safe", (1,), **SYNCED)
        disk = cluster.disks[1]
        disk.capacity_bytes = disk.used_bytes
        await cluster.configure("safe", kraftpy_flush_before_ack="false")
        replica = cluster.replica(1, "safe")
        assert promises(cluster, 1, "safe")
        assert replica.syncs.comes_before_ack
        disk.capacity_bytes = None
        await cluster.nodes[1].replica_manager.topic_configs.promise_synced()
        assert not promises(cluster, 1, "safe")
        assert not replica.syncs.comes_before_ack


@pytest.mark.parametrize("is_synced", [True, False])
async def test_a_start_with_another_setting_promises_something_else(tmp_path: Path, is_synced: bool) -> None:
    async with clusters(tmp_path, 1) as cluster:
        await cluster.create("changed", (1,), kraftpy_flush_before_ack=str(not is_synced).lower())
        assert (await cluster.nodes[1].produce("changed", b"one")).error_code == ErrorCode.NONE
        await cluster.stop(1, clean=False)
        await cluster.configure("changed", kraftpy_flush_before_ack=str(is_synced).lower())
        await cluster.start(1)
        assert promises(cluster, 1, "changed") is is_synced
        assert cluster.replica(1, "changed").log.recovery_point == 1
