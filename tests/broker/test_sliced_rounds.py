"""Work that a node does for all its partitions runs in slices, and requests that name them all are split."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lone_replicas import lead, lone_replica
from one_broker import context, create, running
from test_many_share_partitions import Calls

from kraftpy.broker.broker import Broker
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.handlers import configs, leaders
from kraftpy.broker.metadata.config_changes import MAX_SETTINGS_PER_RESOURCE
from kraftpy.broker.metadata.controller import Controller
from kraftpy.broker.metadata.topic_changes import UNITS_AT_ONCE
from kraftpy.broker.replication import checkpoints, replica_manager, replica_opener, topic_configs
from kraftpy.broker.replication.isr import IsrProposals
from kraftpy.broker.replication.log_operations import LogOperations
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.storage.offline import Offline
from kraftpy.broker.upkeep import producer_limit, retention, usable_logs
from kraftpy.broker.upkeep.producer_limit import forget_producers_beyond
from kraftpy.broker.upkeep.retention import Retention
from kraftpy.config import load
from kraftpy.log import deletion
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.producer_states import ProducerStates
from kraftpy.metadata.commands import PARTITIONS_AT_ONCE, ChangeBroker, ChangePartitions, Command, ElectLeaders
from kraftpy.metadata.decision import BrokerResult, Decision, PartitionResult
from kraftpy.metadata.records import NO_LEADER, PartitionChanged
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.elect_leaders import UNCLEAN, ElectLeadersRequest
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.replication.events import ProposeIsr
from kraftpy.replication.leader import Leader
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId, TopicPartition

PARTITIONS = 40
AT_ONCE = 5
APPEND = 2
TOPIC = 2


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[Callable[[], int]]:
    """Count the turns of the event loop."""
    passed = 0

    async def count() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield lambda: passed
    finally:
        counting.cancel()


Round = Callable[[Broker], Awaitable[object]]

SIZES = (
    (replica_manager, "_APPLIED_AT_ONCE"),
    (topic_configs, "_CONFIGURED_AT_ONCE"),
    (topic_configs, "_LOOKED_AT_AT_ONCE"),
    (checkpoints, "_LOOKED_AT_AT_ONCE"),
    (retention, "_LOOKED_AT_AT_ONCE"),
    (producer_limit, "_LOOKED_AT_AT_ONCE"),
    (usable_logs, "_PARTITIONS_BEFORE_A_PAUSE"),
)
"""The sizes of slices in each module."""


def retain(broker: Broker) -> Awaitable[None]:
    return Retention(broker.replica_manager, broker.clock, broker.incidents).delete_old_segments()


def new_producers(broker: Broker) -> Awaitable[int]:
    broker.replicas.due.grown.update(dict.fromkeys(broker.replicas))
    return forget_producers_beyond(broker.replicas, 1)


def too_many_producers(broker: Broker) -> Awaitable[int]:
    broker.replicas.due.producers = 2
    return forget_producers_beyond(broker.replicas, 1)


@pytest.mark.parametrize(
    ("owner", "name", "work"),
    [
        pytest.param(Leader, "is_settled", lambda b: b.replica_manager.check_lagging_followers(), id="followers"),
        pytest.param(ProducerStates, "__len__", new_producers, id="new producers"),
        pytest.param(ProducerStates, "__len__", too_many_producers, id="too many producers"),
        pytest.param(deletion, "is_start_unwritten", retain, id="retention"),
    ],
)
async def test_a_round_over_all_partitions_lets_others_run(
    owner: object, name: str, work: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_round(work, tmp_path, monkeypatch, owner, name)


async def test_a_checkpoint_of_all_partitions_lets_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_round(
        lambda b: b.replica_manager.checkpoints.write(), tmp_path, monkeypatch, PartitionLog, "recovery_point"
    )


async def check_round(work: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Count the calls of a function, or the looks at a property, in each turn of the event loop."""
    for module, constant in SIZES:
        monkeypatch.setattr(module, constant, AT_ONCE)
    async with running(tmp_path) as broker, turns() as turn:
        assert (await create(broker, ["large"], partitions=PARTITIONS)).topics[0].error_code == ErrorCode.NONE
        done: Counter[int] = Counter()
        known: Any = getattr(owner, name)

        def noted(self: object, *arguments: object) -> object:
            if asyncio.current_task() is not None:
                done[turn()] += 1
            return known.fget(self) if isinstance(known, property) else known(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, property(noted) if isinstance(known, property) else noted)
            await work(broker)
        check_counts(done)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda b: b.replica_manager._brokers_changed(), id="brokers"),
        pytest.param(lambda b: b.replica_manager._take_roles(list(b.replicas)), id="roles"),
        pytest.param(lambda b: b.replica_manager.topic_configs.apply({"large"}), id="settings"),
    ],
)
async def test_a_round_over_all_leaders_lets_others_run(
    work: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them begins its work with a look at the clock."""
    for module, constant in SIZES:
        monkeypatch.setattr(module, constant, AT_ONCE)
    system, done, working = SystemClock(), Counter[int](), False

    def monotonic_ms() -> Millis:
        if working and asyncio.current_task() is task:
            done[turn()] += 1
        return system.monotonic_ms()

    clock: Any = SimpleNamespace(now=system.now, monotonic_ms=monotonic_ms)
    task = asyncio.current_task()
    async with running(tmp_path, clock=clock) as broker, turns() as turn:
        assert (await create(broker, ["large"], partitions=PARTITIONS)).topics[0].error_code == ErrorCode.NONE
        working = True
        await work(broker)
        working = False
        check_counts(done)


def check_counts(done: Counter[int]) -> None:
    assert sum(done.values()) >= PARTITIONS
    assert max(done.values()) <= 2 * AT_ONCE, "the end of a slice and the begin of the next may share a turn"


async def test_an_election_for_all_partitions_becomes_commands_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 2 * UNITS_AT_ONCE + 10
    async with running(tmp_path) as broker:
        await create(broker, ["large"], partitions=partitions)
        topic = broker.image.topic("large")
        assert topic is not None
        for number, partition in enumerate(topic.partitions[:-1]):
            broker.image.replay(
                PartitionChanged(
                    topic="large",
                    topic_id=topic.topic_id,
                    partition=number,
                    replicas=partition.replicas,
                    isr=partition.isr,
                    leader=NO_LEADER,
                    leader_epoch=LeaderEpoch(partition.leader_epoch + 1),
                    partition_epoch=partition.partition_epoch + 1,
                )
            )
        commands: list[ElectLeaders] = []
        submit = broker.metadata.submit

        async def noted(command: Command) -> Decision[Any]:
            if isinstance(command, ElectLeaders):
                commands.append(command)
            return await submit(command)

        monkeypatch.setattr(broker.metadata, "submit", noted)
        request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None, timeout_ms=60_000)
        answered = await leaders.elect_leaders(broker, request, context(ApiKey.ELECT_LEADERS, 2))
        sizes = [None if each.partitions is None else len(each.partitions) for each in commands]
        assert None not in sizes
        assert max(size or 0 for size in sizes) <= UNITS_AT_ONCE
        results = answered.replica_election_results[0].partition_result
        assert [each.partition_id for each in results] == list(range(partitions - 1)), "one was not in need of it"
        assert {each.error_code for each in results} == {ErrorCode.NONE}
        assert all(each.has_leader for each in topic.partitions)


async def alter(broker: Broker, *resources: tuple[str, list[str]]) -> list[ErrorCode]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=TOPIC,
                resource_name=topic,
                configs=[AlterableConfig(name=name, config_operation=APPEND, value="compact") for name in names],
            )
            for topic, names in resources
        ]
    )
    answered = await configs.incremental_alter_configs(broker, request, context(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1))
    return [ErrorCode.of(each.error_code) for each in answered.responses]


async def test_what_a_list_inherits_is_looked_up_once_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[Any] = []
    describe_topic = configs.describe_topic

    def noted(*arguments: Any, **more: Any) -> Any:
        looked_up.append(arguments)
        return describe_topic(*arguments, **more)

    monkeypatch.setattr(configs, "describe_topic", noted)
    async with running(tmp_path) as broker:
        names = [f"t-{number}" for number in range(10)]
        await create(broker, names)
        looked_up.clear()
        assert await alter(broker, ("t-0", ["cleanup.policy"] * 5_000)) == [ErrorCode.INVALID_REQUEST]
        assert looked_up == [], "refused before anything is worked out"
        assert set(await alter(broker, *((name, ["cleanup.policy"]) for name in names))) == {ErrorCode.NONE}
        assert len(looked_up) == 1
        unknown = [f"unknown.{number}" for number in range(MAX_SETTINGS_PER_RESOURCE + 1)]
        assert await alter(broker, ("t-0", unknown), ("t-1", unknown[:3])) == [ErrorCode.INVALID_CONFIG] * 2
        assert len(looked_up) == 1
        assert broker.image.topic_configs("t-0")["cleanup.policy"] == "delete,compact"


async def test_proposals_for_many_partitions_are_commands_of_bounded_size() -> None:
    """Every node decides a whole command in one step."""
    sizes: list[int] = []
    agreed: list[int] = []
    leading = lead(lone_replica(), 1).leading

    class Led:
        def __init__(self, number: int) -> None:
            self.topic_partition, self.topic_id = TopicPartition("large", number), TopicId(b"t" * 16)
            self.leading = leading

        def proposal_agreed(self, leader: Leader, proposal: ProposeIsr) -> None:
            agreed.append(self.topic_partition.partition)

        def proposal_refused(self, leader: Leader, proposal: ProposeIsr, error: ErrorCode) -> None:
            raise NotImplementedError

    async def submit(command: ChangePartitions) -> Decision[Any]:
        sizes.append(len(command.changes))
        return Decision(
            result=tuple(PartitionResult(topic_id=each.topic_id, partition=each.partition) for each in command.changes)
        )

    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
        log = SimpleNamespace(submit=submit)
        proposals = IsrProposals(BrokerId(1), lambda: 1, log, SystemClock(), tasks)
        for number in range(1_000):
            proposals.propose(Led(number), ProposeIsr(isr=(), leader_epoch=0, partition_epoch=0))
    assert agreed == list(range(1_000))
    assert max(sizes) <= 250


@pytest.mark.parametrize("is_partial", [True, False])
async def test_the_parts_of_a_fencing_do_not_wait_for_each_other(is_partial: bool) -> None:
    """They are in the log together; if even the last one was not enough, the sessions are asked again at once."""
    waiting: list[asyncio.Future[Decision[Any]]] = []
    image = SimpleNamespace(replica_count=lambda broker_id: 2 * PARTITIONS_AT_ONCE + 1)

    async def submit(command: Command) -> Decision[Any]:
        waiting.append(asyncio.get_running_loop().create_future())
        return await waiting[-1]

    metadata: Any = SimpleNamespace(image=image, on_leadership=lambda callback: None, submit=submit)
    fence = ChangeBroker(
        broker_id=BrokerId(2), broker_epoch=5, fenced=True, max_partitions=PARTITIONS_AT_ONCE, time_ms=Millis(0)
    )
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
        nothing: Any = None
        controller = Controller(load("", {}, []).config, SystemClock(), metadata, nothing, tasks, nothing)
        asked_again: list[BrokerId] = []
        controller._sessions.decided_in_part = lambda broker_id, now: asked_again.append(broker_id)  # type: ignore[method-assign]
        controller._propose(fence)
        async with asyncio.timeout(30):
            while len(waiting) < 3:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0)
        for number, decided in enumerate(waiting):
            result = BrokerResult(broker_epoch=5, is_partial=is_partial or number < 2)
            decided.set_result(Decision(result=result))
    assert asked_again == ([BrokerId(2)] if is_partial else [])
    assert len(waiting) == 3


async def test_thousands_of_logs_are_opened_and_closed_with_others_served_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop looks at some partitions at a time, and starts a few jobs at a time."""
    partitions = 20 * AT_ONCE
    async with running(tmp_path) as broker:
        assert (await create(broker, ["large"], partitions=partitions)).topics[0].error_code == ErrorCode.NONE
    for module, constant in ((replica_opener, "_LOOKED_AT_AT_ONCE"), (replica_opener, "_TASKS"), *SIZES):
        monkeypatch.setattr(module, constant, AT_ONCE)
    counted = {}
    for owner, name in (
        (Offline, "follow_metadata"),
        (replica_opener.ReplicaOpener, "_may_open"),
        (replica_opener.ReplicaOpener, "_disk_for"),
        (replica_opener.ReplicaOpener, "_open_in"),
        (LogOperations, "end"),
        (LogOperations, "close"),
    ):
        counted[name] = Calls()
        monkeypatch.setattr(owner, name, counted[name].wrapping(getattr(owner, name)))
    async with running(tmp_path) as broker:
        assert len(list(broker.replicas)) == partitions
    for name, calls in counted.items():
        assert calls.all >= partitions, name
        assert calls.most <= 2 * AT_ONCE, (name, calls.most)
