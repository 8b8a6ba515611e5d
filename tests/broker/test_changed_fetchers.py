"""Another `num.replica.fetchers` is in force at once: partitions move between fetchers; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from replicating import running, until

from kraftpy.protocol.errors import ErrorCode


async def test_partitions_are_shared_by_another_number_of_fetchers(tmp_path: Path) -> None:
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("wide", *[(1, 2)] * 4)
        fetchers = cluster.nodes[2].fetchers
        acknowledged: dict[int, int] = dict.fromkeys(range(4), 0)
        is_over = False

        async def send(partition: int) -> None:
            while not is_over:
                answer = await cluster.nodes[1].produce("wide", b"value", partition=partition)
                assert answer.error_code == ErrorCode.NONE, "with acks=all: the follower has it"
                acknowledged[partition] += 1

        async with asyncio.TaskGroup() as senders:
            for partition in range(4):
                senders.create_task(send(partition))
            for number, shares in ((3, [1, 1, 2]), (50, [1, 1, 1, 1]), (2, [2, 2]), (1, [4])):
                fetchers.configure(replace(fetchers.config, num_replica_fetchers=number))
                await until(lambda s=shares: sorted(len(e.replicas) for e in fetchers._fetchers.values()) == s)
                seen = dict(acknowledged)
                await until(lambda seen=seen: all(acknowledged[each] > seen[each] for each in seen))
            is_over = True
        for partition in range(4):
            await cluster.caught_up("wide", partition)
            logs = [cluster.nodes[number].log_bytes("wide", partition) for number in (1, 2)]
            assert logs[0] == logs[1]
            assert logs[0].count(b"value") == acknowledged[partition]
            assert all(cluster.isr("wide", partition) == (1, 2) for partition in range(4))
