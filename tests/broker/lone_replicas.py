"""Replicas, and fetchers of them, without a broker: their logs are in memory.

Compiled modules accept no stand-ins for objects of compiled classes, so tests of what handles replicas have real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.replication.due_work import DueWork
from kraftpy.broker.replication.fetchers import Fetchers
from kraftpy.broker.replication.host import ReplicaHost
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.storage.group_commit import Syncs
from kraftpy.config import load
from kraftpy.config.topic import TopicConfig
from kraftpy.log.partition_log import PartitionLog
from kraftpy.ports import Clock
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import PartitionState
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId, TopicPartition

TOPIC_ID = TopicId(b"t" * 16)


async def _write_log_start(log: PartitionLog, offset: int) -> None:
    raise NotImplementedError


def lone_replica(
    topic: str = "t",
    partition: int = 0,
    *,
    topic_id: TopicId = TOPIC_ID,
    propose: Callable[[Replica, ProposeIsr], None] = lambda replica, proposal: None,
) -> Replica:
    """Return a replica, of broker 1, that neither leads nor follows."""

    def storage_failed(*failure: Any) -> None:
        raise NotImplementedError

    def now() -> Millis:
        return Millis(1_000)

    host = ReplicaHost(
        broker_id=BrokerId(1),
        lag_time_max_ms=30_000,
        back_off_max_ms=1_000,
        now=now,
        monotonic_ms=now,
        syncs=Syncs(),
        complaints=Complaints(),
        due=DueWork(),
        propose=propose,
        storage_failed=storage_failed,
        write_log_start=_write_log_start,
    )
    directory = MemoryDisk().root
    log = PartitionLog.open(directory.child(f"{topic}-{partition}"), TopicConfig(), now=now())
    return Replica(TopicPartition(topic, partition), topic_id, directory, log, host)


def lead(
    replica: Replica,
    *isr: int,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader_epoch: int = 1,
    min_insync_replicas: int = 1,
) -> Replica:
    """Let broker 1 lead; return the replica."""
    state = PartitionState(
        leader_epoch=leader_epoch,
        partition_epoch=1,
        replicas=tuple(map(BrokerId, replicas)),
        isr=tuple(map(BrokerId, isr)),
    )
    replica.lead(state, dict.fromkeys(state.replicas, 1), min_insync_replicas)
    return replica


def follow(replica: Replica, leader_id: int = 2) -> Replica:
    """Let broker 1 follow; return the replica."""
    replica.follow(BrokerId(leader_id), LeaderEpoch(1), 1)
    return replica


def lone_fetchers(tasks: Tasks | None = None, clock: Clock | None = None) -> Fetchers:
    """Return the fetchers of broker 1; every other broker is at an address where nothing listens.

    They can be started only if they are given tasks.
    """
    endpoint = SimpleNamespace(host="127.0.0.1", port=1)
    image: Any = SimpleNamespace(broker=lambda broker_id: SimpleNamespace(endpoint=lambda listener: endpoint))
    proof: Any = SimpleNamespace(software_for=lambda broker_id: ("", ""))
    outgoing: Any = SimpleNamespace(security=lambda: None)

    async def checkpoint() -> None:
        raise NotImplementedError

    return Fetchers(
        load("", {}, []).config,
        clock or SystemClock(),
        tasks or Tasks(asyncio.TaskGroup(), Incidents(Complaints())),
        image=lambda: image,
        broker_epoch=lambda: 1,
        checkpoint=checkpoint,
        proof=proof,
        outgoing=outgoing,
    )
