"""A rolling restart of a group of static members causes no rebalance (KIP-345), in either protocol, on three nodes.

It has its own cluster, because every node is restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from kraftpy.client import Admin, Consumer, NewTopic
from kraftpy.testing import Cluster
from kraftpy.types import TopicPartition

pytestmark = [pytest.mark.timeout(300)]

BOUND_SECONDS = 90.0
MEMBERS = 20
SETTINGS = {"offsets.topic.num.partitions": "3", "group.consumer.heartbeat.interval.ms": "500"}
CLASSIC = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 500}
Owned = dict[str, frozenset[TopicPartition]]


class Fleet:
    """Twenty consumers of one group, each with an instance id, and tasks that poll them."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        self.members: dict[str, Consumer] = {}
        self.polling: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str) -> None:
        member = Consumer(
            bootstrap_servers=self.bootstrap,
            client_id=name,
            group_id="g",
            group_instance_id=name,
            group_protocol=self.protocol,
            enable_auto_commit=False,
            **(CLASSIC if self.protocol == "classic" else {}),
        )
        await member.start()
        member.subscribe(["t"])
        self.members[name] = member
        self.polling[name] = asyncio.create_task(self._poll(member))

    async def _poll(self, member: Consumer) -> None:
        while True:
            await member.getmany(timeout_ms=200)

    async def stop(self, name: str) -> None:
        task = self.polling.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.members.pop(name).close()

    def owned(self) -> Owned:
        return {name: member.assignment() for name, member in self.members.items()}

    def generations(self) -> set[int]:
        return {member.group_metadata().generation_id for member in self.members.values()}

    async def until(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while not so():
            assert time.monotonic() < deadline, (self.owned(), self.generations())
            for task in self.polling.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    def is_shared_out(self) -> bool:
        owned = self.owned().values()
        return len(owned) == MEMBERS and all(len(each) == 1 for each in owned) and len(self.generations()) == 1

    async def close(self) -> None:
        for name in list(self.members):
            await self.stop(name)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rolling_restart_of_twenty_static_members_causes_no_rebalance(protocol: str) -> None:
    async def run(bootstrap: str) -> None:
        fleet = Fleet(bootstrap, protocol)
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics([NewTopic(name="t", num_partitions=MEMBERS, replication_factor=3)])
            try:
                for number in range(MEMBERS):
                    await fleet.start(f"i{number:02}")
                await fleet.until(fleet.is_shared_out)
                before, generation = fleet.owned(), fleet.generations()
                epochs = await _epochs(admin)
                for name in sorted(before):
                    await fleet.stop(name)
                    await fleet.start(name)
                    await fleet.until(lambda name=name: fleet.members[name].assignment() == before[name])  # type: ignore[misc]
                    assert fleet.owned() == before, name
                assert fleet.generations() == generation
                assert await _epochs(admin) == epochs
            finally:
                await fleet.close()

    with Cluster(brokers=3, settings=SETTINGS, keep_on_failure=True) as cluster:
        asyncio.run(run(cluster.bootstrap_servers))


async def _epochs(admin: Admin) -> tuple[str, int | None, int | None, int]:
    described = (await admin.describe_groups(["g"]))["g"]
    return described.state, described.group_epoch, described.assignment_epoch, len(described.members)
