"""Several nodes' metadata logs in one process, over real links and journals: they agree while nodes come and go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest

from kraftpy.broker.containment import Complaints, Fatal, Incidents, Tasks
from kraftpy.broker.metadata import pending_submissions
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.config import Address, BrokerConfig, Listener
from kraftpy.metadata.codec import pack
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigResourceType, SetConfigs
from kraftpy.metadata.records import Record
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.protocol.errors import ErrorCode, KafkaError

BOUND_SECONDS = 20.0
SETTING = "log.retention.ms"


class Node:
    """One node: its links, its log, and the records its log has delivered."""

    def __init__(
        self, node_id: int, directory: Path, voters: str, more_settings: Mapping[str, str], *, votes: bool
    ) -> None:
        settings = {
            "node.id": str(node_id),
            "process.roles": "broker,controller" if votes else "broker",
            "controller.quorum.voters": voters,
            "controller.quorum.election.timeout.ms": "300",
            "controller.quorum.fetch.timeout.ms": "600",
            "request.timeout.ms": "10000",
            **more_settings,
        }
        if votes:
            settings["listeners"] = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        self.config = BrokerConfig.of(settings)
        self.directory = OsDirectory(directory / str(node_id))
        self.told: list[Sequence[Record] | None] = []
        self.offices: list[tuple[bool, int]] = []
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_clean = True
        self.links: Links
        self.metadata: MetadataLog

    async def start(self, port: int, addresses: dict[int, Address]) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._run(port, addresses, started))
        await asyncio.wait((started, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task

    async def _run(self, port: int, addresses: dict[int, Address], started: asyncio.Future[None]) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, Incidents(Complaints()))
            self.links = Links(self.config.node_id, is_voter=self.config.is_controller, tasks=tasks, silence_ms=600)
            self.metadata = MetadataLog(self.config, SystemClock(), self._changed, tasks, self.links)
            self.metadata.on_leadership(lambda is_leader, term: self.offices.append((is_leader, term)))
            if self.config.is_controller:
                await self.links.listen(Listener("CONTROLLER", "127.0.0.1", port))
            await self.metadata.start(self.directory)
            self.metadata.follow_changes()
            await self.links.start(addresses)
            started.set_result(None)
            await self._ended.wait()
            if self._is_clean:
                await self.metadata.stop()
                await self.links.stop()
            else:
                await self.links.stop()
                raise asyncio.CancelledError

    async def _changed(self, records: Sequence[Record] | None) -> None:
        self.told.append(records)

    async def stop(self, *, is_clean: bool = True) -> None:
        """Stop the node; if not cleanly, drop everything it was about to do."""
        self._is_clean = is_clean
        self._ended.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def set(self, value: int) -> None:
        operation = ConfigOperation(name=SETTING, value=str(value))
        change = ConfigChange(
            resource_type=ConfigResourceType.BROKER, resource_name="", operations=(operation,), replace=False
        )
        decision = await self.metadata.submit(SetConfigs(changes=(change,), time_ms=SystemClock().now()))
        assert decision.error == ErrorCode.NONE

    def value(self) -> int:
        return int(self.metadata.image.configs(ConfigResourceType.BROKER, "").get(SETTING, "-1"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals this condition
            await asyncio.sleep(0.005)


class Nodes:
    """Voters 1 to 3, and observers from 7 on."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.addresses = {number + 1: Address("127.0.0.1", port) for number, port in enumerate(ports)}
        self.voters = ",".join(f"{node_id}@{address}" for node_id, address in self.addresses.items())
        self._directory = directory
        self.settings: dict[str, str] = {}
        """The settings of nodes that start from now on."""
        self.all: dict[int, Node] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            votes = node_id in self.addresses
            self.all[node_id] = Node(node_id, self._directory, self.voters, self.settings, votes=votes)
        await asyncio.gather(*(self._start(node_id) for node_id in node_ids))

    async def _start(self, node_id: int) -> None:
        port = self.addresses[node_id].port if node_id in self.addresses else 0
        await self.all[node_id].start(port, self.addresses)

    def __getitem__(self, node_id: int) -> Node:
        return self.all[node_id]

    async def leader(self, *, among: Sequence[int] = (1, 2, 3)) -> Node:
        await until(lambda: sum(self.all[node].metadata.is_leader for node in among) == 1)
        return next(self.all[node] for node in among if self.all[node].metadata.is_leader)


@pytest.fixture
async def nodes(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path, [unused_tcp_port_factory() for _ in range(3)])
    yield made
    for node in made.all.values():
        await node.stop()


async def test_whoever_is_asked_all_agree(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3, 7)
    leader = await nodes.leader()
    for value, node_id in enumerate((1, 2, 3, 7), 1000):
        await nodes[node_id].set(value)
        assert nodes[node_id].value() == value, "the one who asked sees it at once"
        await until(lambda value=value: all(node.value() == value for node in nodes.all.values()))  # type: ignore[misc]
    await until(lambda: len({node.metadata.acted_index for node in nodes.all.values()}) == 1)
    for node in nodes.all.values():
        told = [record for records in node.told for record in records or ()]
        assert [getattr(record, "value", None) for record in told] == ["1000", "1001", "1002", "1003"]
        assert node.metadata.leader_id == leader.config.node_id
        described = await node.metadata.quorum.describe()
        assert described.leader_id == leader.config.node_id
        assert [replica.node_id for replica in described.voters] == sorted(
            (1, 2, 3), key=lambda node_id: (node_id != leader.config.node_id, node_id)
        )
        assert [replica.node_id for replica in described.observers] == [7]


async def test_a_change_goes_on_while_leaders_come_and_go(nodes: Nodes) -> None:
    """Submissions during elections are decided, each once, in the order of the one who submits them."""
    await nodes.start(1, 2, 3, 7)
    asker = nodes[7]
    answered = 0

    async def ask() -> None:
        nonlocal answered
        while True:
            await asker.set(2000 + answered)
            answered += 1

    asking = asyncio.create_task(ask())
    await until(lambda: answered > 20)
    for is_clean in (False, True):
        before = answered
        leader = await nodes.leader(among=[node for node in (1, 2, 3) if nodes[node].links.peers])
        await leader.stop(is_clean=is_clean)
        others = [node for node in (1, 2, 3) if nodes[node] is not leader]
        await nodes.leader(among=others)
        await until(lambda before=before: answered > before + 20)  # type: ignore[misc]
        await nodes.start(leader.config.node_id)
        await until(lambda leader=leader: nodes[leader.config.node_id].value() > 0)  # type: ignore[misc]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    told = [record for records in asker.told for record in records or ()]
    values = [int(getattr(record, "value", "")) for record in told]
    assert values == sorted(set(values)), "none twice, none out of order"
    assert values[:answered] == list(range(2000, 2000 + answered))


async def test_who_was_away_for_long_gets_a_snapshot(nodes: Nodes) -> None:
    nodes.settings["metadata.log.max.record.bytes.between.snapshots"] = "1000000"
    await nodes.start(1, 2, 3, 7)
    leader = await nodes.leader()
    away = next(node for node in (1, 2, 3) if nodes[node] is not leader)
    await leader.set(1)
    await until(lambda: nodes[7].value() == 1)
    await nodes[away].stop()
    await nodes[7].stop(is_clean=False)
    long_value = 20_000  # many bytes: what a voter keeps in memory beside its snapshot is not enough
    for number in range(150):
        operation = ConfigOperation(name="broker.rack", value=f"{number}" + "x" * long_value)
        change = ConfigChange(
            resource_type=ConfigResourceType.BROKER, resource_name="", operations=(operation,), replace=False
        )
        await leader.metadata.submit(SetConfigs(changes=(change,), time_ms=SystemClock().now()))
    await leader.set(2)
    for node in (leader, nodes[next(n for n in (1, 2, 3) if nodes[n] is not leader and n != away)]):
        await until(lambda node=node: len(node.directory.read("journal")) < 100 * long_value)  # type: ignore[misc]
    await nodes.start(away, 7)
    await until(lambda: nodes[away].value() == 2 and nodes[7].value() == 2)
    assert nodes[7].metadata.image.to_bytes() == leader.metadata.image.to_bytes()
    await nodes[away].set(3)
    await until(lambda: all(node.value() == 3 for node in nodes.all.values()))
    await nodes[7].stop()
    await nodes.start(7)
    assert nodes[7].value() == 3, "an observer has its own copy"


async def test_without_a_majority_nothing_is_decided_and_it_is_said(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    leader = await nodes.leader()
    others = [node for node in nodes.all.values() if node is not leader]
    source, epoch = leader.metadata._source, leader.metadata.leader_epoch
    assert source is not None
    for node in others:
        await node.stop(is_clean=False)
    await until(lambda: not leader.metadata.is_leader)
    await until(lambda: source.leader_id is None)
    with mock.patch.object(type(source), "term", epoch + 5):
        leader.metadata._on_change()
        assert (leader.metadata.leader_id, leader.metadata.leader_epoch) == (None, epoch), "no controller's term yet"
    assert leader.offices[0][0]
    assert not leader.offices[-1][0]
    object.__setattr__(leader.config, "request_timeout_ms", 300)
    with pytest.raises(KafkaError) as refused:
        await leader.set(1)
    assert refused.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
    await nodes.start(others[0].config.node_id)
    await until(lambda: others[0].metadata is not None and leader.metadata.leader_id is not None)
    await leader.set(2)


async def test_a_voter_is_removed_and_added(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    leader = await nodes.leader()
    removed = next(node for node in nodes.all.values() if node is not leader)
    node_id = removed.config.node_id

    async def remove() -> bool:
        try:
            await removed.metadata.quorum.change_voter(remove=node_id)
        except KafkaError as error:
            if error.message.endswith("are silent"):  # the other voter has not answered this leader yet
                return False
            raise
        return True

    await until_true(remove)
    await until_voters(leader, 2)
    with pytest.raises(KafkaError, match="is not a voter"):
        await leader.metadata.quorum.change_voter(remove=node_id)
    await leader.set(1)
    await until(lambda: removed.value() == 1)

    async def add() -> bool:
        try:
            await leader.metadata.quorum.change_voter(add=(node_id, str(nodes.addresses[node_id])))
        except KafkaError:
            return False
        return True

    await until_true(add)
    await until_voters(leader, 3)


async def until_true(action: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not await action():  # noqa: ASYNC110 - nothing signals this condition
            await asyncio.sleep(0.02)


async def until_voters(node: Node, count: int) -> None:
    async def has() -> bool:
        return len((await node.metadata.quorum.describe()).voters) == count

    await until_true(has)


async def test_who_waits_behind_many_others_waits_no_longer_than_they_do(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`request.timeout.ms` counts from the call, not from when there was room for one more submission."""
    monkeypatch.setattr(pending_submissions, "_MOST_PENDING", 0)
    await nodes.start(1, 2, 3)
    impatient = dataclasses.replace(nodes[1].config, request_timeout_ms=50)
    monkeypatch.setattr(nodes[1].metadata, "_config", impatient)
    async with asyncio.timeout(BOUND_SECONDS):
        with pytest.raises(KafkaError) as refused:
            await nodes[1].set(1)
    assert refused.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)


# -- what is in the log, and should not be


async def lone_log(directory: Path, group: asyncio.TaskGroup) -> tuple[MetadataLog, Incidents]:
    incidents = Incidents(Complaints())
    tasks = Tasks(group, incidents)

    async def changed(records: Sequence[Record] | None) -> None:
        pass

    log = MetadataLog(BrokerConfig.of({"node.id": "1"}), SystemClock(), changed, tasks)
    await log.start(OsDirectory(directory))
    await until(lambda: log.is_leader)
    return log, incidents


def planted(log: MetadataLog, command: bytes, sequence: int) -> None:
    """Put bytes into the log that are no valid command."""
    assert log._source is not None
    submission = SubmissionId(node_id=7, nonce=b"n" * 16, sequence=sequence)
    assert log._source.propose(encode_submission(submission, command))


async def test_what_is_no_command_changes_nothing_and_is_an_incident(tmp_path: Path) -> None:
    for times in (1, 2):  # also when the journal is read again
        async with asyncio.TaskGroup() as group:
            log, incidents = await lone_log(tmp_path, group)
            if times == 1:
                for sequence, command in enumerate((b"\xc1", pack([3, 99, {}]), pack([3, 5, {"topics": 1}]))):
                    planted(log, command, sequence)
            await until(lambda incidents=incidents: incidents.count == 3)  # type: ignore[misc]
            assert "of the metadata log" in incidents.last[0].what
            await log.catch_up()
            assert not [*log.image.topics()]
            await log.stop()


async def test_a_command_of_a_newer_version_ends_the_node_with_a_message(tmp_path: Path) -> None:
    """The node would disagree with the others forever, so it ends, and says that it has to be upgraded."""

    async def starts(is_first: bool) -> None:
        async with asyncio.TaskGroup() as group:
            log, _ = await lone_log(tmp_path, group)
            if is_first:
                planted(log, pack([99, 5, {}]), 0)
            await asyncio.sleep(BOUND_SECONDS)

    for is_first in (True, False):
        with pytest.raises(ExceptionGroup) as failure:
            await starts(is_first)
        found = failure.value.exceptions[0]
        assert isinstance(found, Fatal)
        assert "upgrade this node" in str(found)
        assert "\n" not in str(found)


@pytest.mark.parametrize("address", ["", "host", "host:0", "a b:1", "host:99999", "[::1", "host:1\n"])
async def test_a_voter_without_an_address_is_refused(tmp_path: Path, address: str) -> None:
    """Every node that follows the quorum would have to connect to it."""
    async with asyncio.TaskGroup() as group:
        log, _ = await lone_log(tmp_path, group)
        with pytest.raises(KafkaError, match="expected host:port") as refused:
            await log.quorum.change_voter(add=(7, address))
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        await log.stop()
