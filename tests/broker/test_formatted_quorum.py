"""Controllers whose quorum begins with the voters of their format (KIP-853): one process, real links, real disks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.quorum import add_raft_voter, remove_raft_voter
from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.startup import StartupError
from kraftpy.broker.storage.directories import id_text
from kraftpy.broker.storage.first_voters import FIRST_VOTERS, _checksum, read_first_voters, write_first_voters
from kraftpy.broker.storage.format import format_directories
from kraftpy.config import BrokerConfig
from kraftpy.config.quorum import UNFORMATTED
from kraftpy.metadata.codec import CodecError, pack
from kraftpy.metadata.quorum import Quorum
from kraftpy.metadata.voters import VoterSet
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from kraftpy.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from kraftpy.testing.ports import ReservedPorts

pytestmark = pytest.mark.timeout(60)

BOUND_SECONDS = 20.0
CLUSTER_ID = "7mHQeQOJRqGJbGzBfx3-tw"
AUTO_JOIN = {"controller.quorum.auto.join.enable": "true"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals this condition
            await asyncio.sleep(0.01)


class Controllers:
    """Controllers that may be formatted, started and stopped, and whose disks may be replaced."""

    def __init__(self, directory: Path, ports: Mapping[int, int]) -> None:
        self.directory = directory
        self.ports = ports
        self.addresses = {node_id: f"127.0.0.1:{port}" for node_id, port in ports.items()}
        self.first = VoterSet(self.addresses, {node_id: bytes([node_id]) * 16 for node_id in ports})
        self.running: dict[int, tuple[Broker, asyncio.Event, asyncio.Task[None]]] = {}

    def config(self, node_id: int, settings: Mapping[str, str]) -> BrokerConfig:
        return BrokerConfig.of(
            {
                "node.id": str(node_id),
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{self.ports[node_id]}",
                "controller.quorum.bootstrap.servers": ",".join(self.addresses.values()),
                "controller.quorum.election.timeout.ms": "300",
                "controller.quorum.fetch.timeout.ms": "600",
                "log.dirs": str(self.directory / str(node_id)),
                **settings,
            }
        )

    def only(self, *node_ids: int) -> VoterSet:
        """The first voters if they are these nodes."""
        return VoterSet(
            {node_id: self.first.addresses[node_id] for node_id in node_ids},
            {node_id: self.first.directories[node_id] for node_id in node_ids},
        )

    def format(self, first: VoterSet, *node_ids: int) -> None:
        for node_id in node_ids:
            format_directories(self.config(node_id, {}), CLUSTER_ID, first_voters=first, must_be_new=True)

    def replace_disk(self, node_id: int, first: VoterSet) -> None:
        shutil.rmtree(self.directory / str(node_id))
        self.format(first, node_id)

    async def start(self, *node_ids: int, wait: bool = True, **settings: str) -> None:
        given = {name.replace("_", "."): text for name, text in settings.items()}
        started = []
        for node_id in node_ids:
            is_ready, ending = asyncio.Event(), asyncio.Event()
            config = self.config(node_id, given)
            run = asyncio.create_task(self._run(node_id, config, is_ready, ending))
            started.append((is_ready, run))
        for is_ready, run in started if wait else ():
            ready = asyncio.create_task(is_ready.wait())
            await asyncio.wait((ready, run), timeout=BOUND_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if run.done():
                run.result()
            assert is_ready.is_set()
        if not wait:
            await until(lambda: all(node_id in self.running for node_id in node_ids))

    async def _run(self, node_id: int, config: BrokerConfig, is_ready: asyncio.Event, ending: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            broker = Broker(config, SystemClock(), group)
            own = asyncio.current_task()
            assert own is not None
            self.running[node_id] = (broker, ending, own)
            starting = asyncio.create_task(broker.start())
            waiting = asyncio.create_task(ending.wait())
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                try:
                    starting.result()
                except BaseException:
                    await broker.stop(is_ready=False)
                    raise
                is_ready.set()
                await waiting
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await broker.stop(is_ready=is_ready.is_set())

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids:
            _, ending, task = self.running.pop(node_id)
            ending.set()
            await asyncio.gather(task, return_exceptions=True)

    def __getitem__(self, node_id: int) -> Broker:
        return self.running[node_id][0]

    def quorum(self, node_id: int) -> Quorum:
        """A node's part in Raft."""
        source = self[node_id].metadata.source
        quorum = getattr(source, "quorum", None)
        assert isinstance(quorum, Quorum)
        return quorum

    def voters(self, node_id: int) -> Mapping[int, bytes]:
        """The voters and their directories in a node's log."""
        return self.quorum(node_id).voter_set.directories

    @property
    def leader(self) -> int | None:
        return next((each for each, (broker, _, _) in self.running.items() if broker.metadata.is_leader), None)

    def agree(self, *node_ids: int) -> bool:
        """True if exactly these are voters, with their present directories, for each of them."""
        expected = {each: self[each].directories.metadata_directory_id for each in node_ids}
        return all(self.voters(each) == expected and self.quorum(each).is_voter for each in node_ids)


@pytest.fixture
async def controllers(tmp_path: Path, ports: ReservedPorts) -> AsyncIterator[Controllers]:
    made = Controllers(tmp_path, {node_id: ports.reserve() for node_id in (1, 2, 3)})
    yield made
    await made.stop(*made.running)


# -- the three ways to begin


async def test_initial_controllers_are_the_voters_until_the_log_has_some(controllers: Controllers) -> None:
    controllers.format(controllers.first, 1, 2, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))
    assert [controllers[each].image.cluster_id for each in (1, 2, 3)] == [CLUSTER_ID] * 3
    await until(lambda: all(controllers.quorum(each)._state.log.voting.since for each in (1, 2, 3)))
    await controllers.stop(1, 2, 3)

    # From now on, the log counts, whatever the directories were formatted with.
    for node_id in (1, 2, 3):
        write_first_voters(OsDirectory(controllers.directory / str(node_id)), controllers.only(node_id))
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))


async def test_others_follow_a_standalone_controller_and_are_added(controllers: Controllers) -> None:
    controllers.format(controllers.only(2), 2)
    controllers.format(VoterSet({}), 1, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: all(controllers.voters(each).keys() == {2} for each in (1, 2, 3)))
    assert [controllers.quorum(each).is_voter for each in (1, 2, 3)] == [False, True, False]
    assert controllers.leader == 2

    # On any node, with the directory that the new voter has.
    for node_id in (1, 3):
        own = controllers[node_id].directories.metadata_directory_id
        admin = controllers[3].metadata.quorum
        with pytest.raises(KafkaError, match=f"node {node_id} has not caught up"):
            await admin.change_voter(add=(node_id, controllers.addresses[node_id]), directory_id=bytes(15) + b"x")
        with pytest.raises(KafkaError, match=f"the id of node {node_id}'s metadata directory is not known"):
            await admin.change_voter(add=(node_id, controllers.addresses[node_id]))
        await admin.change_voter(add=(node_id, controllers.addresses[node_id]), directory_id=own)
    await until(lambda: controllers.agree(1, 2, 3))

    # The first one goes: the others are a quorum, and it comes back.
    await controllers.stop(2)
    await until(lambda: controllers.leader in (1, 3))
    await controllers.start(2)
    await until(lambda: controllers.agree(1, 2, 3))


async def test_controllers_add_themselves(controllers: Controllers, caplog: pytest.LogCaptureFixture) -> None:
    controllers.format(controllers.only(1), 1)
    controllers.format(VoterSet({}), 2, 3)
    await controllers.start(1, 2, 3, **AUTO_JOIN)
    await until(lambda: controllers.agree(1, 2, 3))
    said = [record.message for record in caplog.records if record.name.endswith("auto_join")]
    assert said.count("this controller adds itself to the voters of the metadata quorum") == 2, "once each"


async def test_a_node_by_its_settings_goes_over_to_directories(controllers: Controllers) -> None:
    """It was not formatted, and learns from the log how this quorum tells its voters apart."""
    controllers.format(controllers.only(1), 1)
    voters = {"controller.quorum.voters": f"1@{controllers.addresses[1]}"}
    await controllers.start(1)
    await controllers.start(3, **voters)
    await until(lambda: controllers.voters(3).keys() == {1})
    own = controllers[3].directories.metadata_directory_id
    reasons: set[str] = set()
    while 3 not in controllers.voters(1):
        try:
            await controllers[3].metadata.quorum.change_voter(add=(3, controllers.addresses[3]), directory_id=own)
        except KafkaError as error:
            reasons.add(error.message)
            await asyncio.sleep(0.02)
    assert reasons <= {"node 3 has not caught up with the log", "the metadata quorum has no leader"}, "for a moment"
    await until(lambda: controllers.agree(1, 3))
    await controllers.stop(3)
    await controllers.start(3, **voters)
    await until(lambda: controllers.agree(1, 3))


async def test_a_controller_that_is_removed_while_it_is_away_learns_of_that(controllers: Controllers) -> None:
    """It has the lowest id: other voters would call it, but these do not know it any more."""
    controllers.format(controllers.first, 1, 2, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))
    await controllers.stop(1)
    await until(lambda: controllers.leader in (2, 3))
    await controllers[2].metadata.quorum.change_voter(remove=1, directory_id=controllers.first.directories[1])
    await controllers.start(1)
    await until(lambda: not controllers.quorum(1).is_voter and controllers.agree(2, 3))


# -- a disk that is replaced


async def test_a_voter_with_a_new_disk_has_no_vote(controllers: Controllers) -> None:
    """With its vote, it and the one that lacks entries could elect each other, and lose what the third has."""
    controllers.format(controllers.first, 1, 2, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))
    await controllers.stop(1, 3)
    controllers.replace_disk(3, controllers.first)
    new = controllers.directory / "3" / "meta.properties"
    new.write_text("\n".join(each for each in new.read_text().splitlines() if not each.startswith(("#", "directory"))))
    with new.open("a") as properties:
        properties.write("\ndirectory.id=AAAAAAAAAAAAAAAAAAAAew\n")
    await controllers.start(3, wait=False)
    await until(lambda: controllers[2].links is not None and controllers[2].links.peers == [3])
    election = controllers.quorum(2)._raft.election
    await until(lambda: election._polls > 5)
    assert not controllers.quorum(3).is_voter
    assert controllers[2].metadata.leader_id is None
    assert controllers.quorum(2).term == controllers.quorum(3).term or controllers.quorum(3).term == 0

    await controllers.start(1)
    await until(lambda: controllers.leader in (1, 2))
    await until(lambda: controllers.quorum(3).applied_index == controllers.quorum(1).applied_index > 0)
    assert not controllers.quorum(3).is_voter
    described = await controllers[3].metadata.quorum.describe()
    by_role = [{each.node_id: each.directory_id for each in kind} for kind in (described.voters, described.observers)]
    assert by_role == [dict(controllers.first.directories), {3: bytes(15) + b"{"}]


async def test_an_administrator_puts_a_new_disk_in_the_place_of_the_old_one(controllers: Controllers) -> None:
    """As `kafka-metadata-quorum` does it: each voter has the directory that the log names."""
    controllers.format(controllers.first, 1, 2, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))
    await controllers.stop(3)
    controllers.replace_disk(3, VoterSet({}))
    await controllers.start(3)
    old, new = controllers.first.directories[3], controllers[3].directories.metadata_directory_id
    context: Any = None

    async def add(directory_id: bytes) -> tuple[ErrorCode, str]:
        listeners = [Listener(name="CONTROLLER", host="127.0.0.1", port=controllers.ports[3])]
        request = AddRaftVoterRequest(
            voter_id=3, voter_directory_id=directory_id, listeners=listeners, timeout_ms=10_000
        )
        answer = await add_raft_voter(controllers[2], request, context)
        return ErrorCode.of(answer.error_code), answer.error_message or ""

    async def remove(directory_id: bytes) -> tuple[ErrorCode, str]:
        request = RemoveRaftVoterRequest(voter_id=3, voter_directory_id=directory_id)
        answer = await remove_raft_voter(controllers[2], request, context)
        return ErrorCode.of(answer.error_code), answer.error_message or ""

    error, message = await add(new)
    assert error == ErrorCode.DUPLICATE_VOTER
    assert f"ReplicaKey(id=3, directoryId={id_text(old)})]" in message, "the voters, as in the log"
    assert (await remove(new))[0] == ErrorCode.VOTER_NOT_FOUND
    assert (await remove(old))[0] == ErrorCode.NONE
    await until(lambda: controllers.agree(1, 2))
    assert (await add(old))[0] == ErrorCode.REQUEST_TIMED_OUT, "there is no such node any more"

    async def is_added() -> bool:
        error, message = await add(new)
        assert error == ErrorCode.NONE or "has not caught up" in message
        return error == ErrorCode.NONE

    while not await is_added():  # noqa: ASYNC110 - nothing signals this
        await asyncio.sleep(0.02)
    await until(lambda: controllers.agree(1, 2, 3))


@pytest.mark.parametrize("is_named", [True, False], ids=["initial controllers", "no initial controllers"])
async def test_a_controller_with_a_new_disk_takes_the_place_of_the_voter(
    controllers: Controllers, caplog: pytest.LogCaptureFixture, is_named: bool
) -> None:
    controllers.format(controllers.first, 1, 2, 3)
    await controllers.start(1, 2, 3)
    await until(lambda: controllers.agree(1, 2, 3))
    await controllers.stop(2)
    moved = VoterSet(controllers.addresses, {**controllers.first.directories, 2: b"another directory"[:16]})
    controllers.replace_disk(2, moved if is_named else VoterSet({}))
    await controllers.start(2, **AUTO_JOIN)
    await until(lambda: controllers.agree(1, 2, 3))
    assert controllers.voters(1)[2] != controllers.first.directories[2]
    said = [record.message for record in caplog.records if record.name.endswith("auto_join")]
    assert said.count("this controller has a new disk, and removes the voter with the old one") == 1


async def test_joining_has_no_effect_without_directories(
    controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    voters = ",".join(f"{node_id}@{controllers.addresses[node_id]}" for node_id in (1, 2))
    settings = {"controller.quorum.voters": voters, **AUTO_JOIN}
    await controllers.start(1, 2, 3, **settings)
    await until(lambda: any("has no effect" in record.message for record in caplog.records))
    assert controllers.quorum(1).voters.keys() == {1, 2}
    assert not controllers.quorum(1).voter_set.directories


# -- formats that cannot be used


async def test_a_controller_without_any_voters_does_not_start(controllers: Controllers) -> None:
    with pytest.raises(ExceptionGroup) as told:
        await controllers.start(1)
    (error,) = told.value.exceptions
    assert isinstance(error, StartupError)
    assert UNFORMATTED in str(error)
    controllers.running.clear()


async def test_one_address_alone_is_a_node_of_its_own(controllers: Controllers) -> None:
    """As in Kafka's examples for a single node, which need no format here."""
    await controllers.start(1, **{"controller.quorum.bootstrap.servers": controllers.addresses[2]})
    assert controllers.leader == 1
    assert controllers.quorum(1).voters == {1: ""}
    assert not controllers.quorum(1).voter_set.directories


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    write_first_voters(OsDirectory(tmp_path), VoterSet({1: "a:1"}, {1: b"d" * 16}))
    metadata = OsDirectory(tmp_path).child("metadata")
    assert read_first_voters(metadata) == VoterSet({1: "a:1"}, {1: b"d" * 16})
    path = tmp_path / "metadata" / "first-voters"
    path.write_bytes(path.read_bytes().replace(b"a:1", b"b:1"))
    with pytest.raises(CodecError, match="its checksum does not match"):
        read_first_voters(metadata)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([2, []], "not a list of voters of this version"),
        ([1], "not a list of voters of this version"),
        ([1, 7], "first-voters: no voters"),
        ([1, [[1, "a:1", b"short"]]], "first-voters: a directory id has 16 bytes"),
        ([1, [[1, "a:1", b"d" * 16], [2, "b:1"]]], "first-voters: only some of the voters have a directory id"),
    ],
)
def test_a_file_of_something_else_is_not_believed(tmp_path: Path, body: object, message: str) -> None:
    metadata = OsDirectory(tmp_path).child("metadata")
    packed = pack(body)
    metadata.replace(FIRST_VOTERS, packed + _checksum(packed))
    with pytest.raises(CodecError, match=message):
        read_first_voters(metadata)
