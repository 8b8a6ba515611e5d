"""Read the whole topic with a consumer group of several members, each with its share of the partitions.

The members wait, their partitions paused, until every one of them has partitions; otherwise the first to join would
have read everything before the second arrives. Reading ends once as many records were read as the log holds, and a
little later, so that duplicates and surplus records show up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kraftpy.client import Consumer, ConsumerRecord, RebalanceListener, TopicPartition

_SURPLUS_MS = 300
_POLL_RECORDS = 5_000
_QUIET_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member's result: the partitions it read, and how many records."""

    name: str
    partitions: tuple[int, ...]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """The group's result; records are distinct by partition and offset."""

    members: tuple[Member, ...]
    records: int
    distinct_records: int


@dataclass(slots=True)
class _Group:
    """State shared by the members: their partitions, the records read, and when to begin and end."""

    size: int
    expected: int
    advance: Callable[[int], None]
    assigned: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    seen: set[tuple[int, int]] = field(default_factory=set)
    records: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        """Note a changed assignment; reading begins once each member has partitions and none is assigned twice."""
        self.assigned[name] = partitions
        held = [each for share in self.assigned.values() for each in share]
        if len(self.assigned) == self.size and all(self.assigned.values()) and len(held) == len(set(held)):
            self.begun.set()

    def read(self, records: list[ConsumerRecord]) -> None:
        """Count records of one partition."""
        self.seen.update([(record.partition, record.offset) for record in records])
        self.records += len(records)
        self.advance(len(records))
        if self.records >= self.expected:
            self.done.set()


class _HoldBack(RebalanceListener):
    """Pauses a member's partitions until the whole group has some."""

    def __init__(self, name: str, group: _Group) -> None:
        self._name = name
        self._group = group
        self.consumer: Consumer | None = None

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called after the change."""
        self._changed()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called before the change, so what is revoked is still assigned."""
        self._changed(without=frozenset(partitions))

    def _changed(self, without: frozenset[TopicPartition] = frozenset()) -> None:
        assert self.consumer is not None
        partitions = self.consumer.assignment() - without
        self._group.changed(self._name, partitions)
        if not self._group.begun.is_set():
            self.consumer.pause(partitions)


async def consume(
    bootstrap: str, topic: str, group_id: str, *, members: int, expected: int, advance: Callable[[int], None]
) -> Consumption:
    """Read `expected` records with a group of `members`. Raises KafkaError, and TimeoutError after 30 s of silence."""
    group = _Group(size=members, expected=expected, advance=advance)
    if expected == 0:
        group.done.set()
    names = [f"member {number}" for number in range(1, members + 1)]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(_read(bootstrap, topic, group_id, name, group), name=f"demo {name}") for name in names
            ]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return Consumption(
        members=tuple(task.result() for task in running),
        records=group.records,
        distinct_records=len(group.seen),
    )


async def _read(bootstrap: str, topic: str, group_id: str, name: str, group: _Group) -> Member:
    """Run one member, from joining to leaving."""
    listener = _HoldBack(name, group)
    consumer = Consumer(
        topic,
        listener=listener,
        bootstrap_servers=bootstrap,
        group_id=group_id,
        client_id=name.replace(" ", "-"),
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        partition_assignment_strategy=("range",),
    )
    listener.consumer = consumer
    loop = asyncio.get_running_loop()
    read: Counter[int] = Counter()  # records by partition

    async def poll(timeout_ms: float) -> None:
        for partition, records in (await consumer.getmany(timeout_ms=timeout_ms, max_records=_POLL_RECORDS)).items():
            read[partition.partition] += len(records)
            group.read(records)

    async with consumer:
        progress, quiet_since = group.records, loop.time()
        while not group.done.is_set():
            if group.begun.is_set() and consumer.paused():
                consumer.resume(consumer.paused())
            await poll(100)
            if group.records != progress:
                progress, quiet_since = group.records, loop.time()
            elif loop.time() - quiet_since > _QUIET_SECONDS:
                raise TimeoutError(f"{name} of group {group_id}: no record for {_QUIET_SECONDS} s")
        await poll(_SURPLUS_MS)
    return Member(name=name, partitions=tuple(sorted(read)), records=read.total())
